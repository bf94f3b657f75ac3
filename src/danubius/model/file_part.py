"""Parts of files in which stored batches lie, for readers on the broker's own machine: they read the file themselves.

A part is proven by whoever reads it. The file is the right one if machine, device and inode are those of the file that
the reader opened: names alone mean nothing in another container or on another machine. The bytes are the right ones if
every block has its checksum. A reader that finds anything else asks for the bytes instead.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Number = Annotated[int, msgspec.Meta(ge=0)]


class FileIdentity(NamedTuple):
    """A file, whatever it is called."""

    machine: str
    """The running kernel's."""
    device: int
    inode: int


class FilePart(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Adjacent blocks of a ledger in one file."""

    path: str
    machine: str
    device: _Number
    inode: _Number
    position: _Count
    """Of the first block in the file."""
    blocks: list[tuple[_Count, _Count]]
    """Size and crc32c of each."""

    @property
    def size(self) -> int:
        return sum([size for size, _ in self.blocks])
