"""The words of this package: an entry goes in, chunks come out, metas describe what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from danubius.record.ledger_file import FILE_HEADER_BYTES

if TYPE_CHECKING:
    from danubius.model.buffers import Buffer
    from danubius.model.file_part import FilePart


class Entry:
    """One committed record batch, as stamped. The buffer belongs to the log from `append` on."""

    __slots__ = ("buffer", "end", "first", "last_time_us")

    def __init__(self, first: int, end: int, buffer: memoryview, last_time_us: int) -> None:
        self.first = first
        self.end = end
        self.buffer = buffer
        self.last_time_us = last_time_us


class Chunk(NamedTuple):
    """Whole batches in offset order. A buffer holds one or more of them back to back.

    `first` is the first batch's base offset, which may lie below the offset asked for;
    `end` is the offset behind the last record.
    """

    first: int
    end: int
    buffers: list[Buffer]
    size: int
    part: FilePart | None = None
    """Instead of buffers: where the batches lie, of which the first may begin below `first`."""


class LedgerMeta(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a snapshot remembers of one ledger."""

    ledger_id: int
    epoch: int
    base_offset: int
    end_offset: int
    data_bytes: int
    """Length of the ledger file, its header included."""
    index_entries: int
    first_time_us: int
    last_time_us: int
    """The largest publish time in the ledger."""
    created_ms: int
    is_sealed: bool
    object_name: str = ""
    """Where its copy in the object store is; empty: there is none."""
    object_bytes: int = 0
    object_crc: int = 0
    """The crc32c of the ledger's bytes, as they are in the object."""
    is_local: bool = True
    """Whether it is on the broker's own disk; if it is not, it is read from the object."""

    @property
    def is_cold(self) -> bool:
        return not self.is_local

    @property
    def is_lost(self) -> bool:
        """It stands for messages that were given up by a repair: it has no bytes, and no file."""
        return self.data_bytes == FILE_HEADER_BYTES and self.end_offset > self.base_offset


class StoredObject(NamedTuple):
    """A ledger's copy in the object store, verified when this was made."""

    name: str
    size: int
    crc: int
    """Of the ledger's bytes in it."""
    index_rows: int


class TierSizes(NamedTuple):
    """How much of a topic lies where."""

    local_bytes: int
    cold_bytes: int
    """In the object store alone."""
    local_ledgers: int
    cold_ledgers: int
    stored_ledgers: int
    """Those that have an object, on disk too or not."""


class LedgerRef(NamedTuple):
    """The name of a ledger in a store."""

    topic_id: int
    ledger_id: int
