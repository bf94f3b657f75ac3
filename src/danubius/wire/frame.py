"""The frame: 24 bytes of header, the command as MessagePack, zero padding to 8, then raw record batches.

    u32 length | u8 opcode | u8 flags | u16 reserved | u32 correlation id | u32 meta bytes | u32 crc32c | u32 magic

Invariants: little-endian; `length` counts what follows it; the checksum covers the first 16 header bytes and
the command, so a frame's extent is proven before memory is set aside for its payload; the payload starts at a
multiple of 8 and carries its own checksums. docs/internals/wire-protocol.md is the specification.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import google_crc32c

from danubius.wire.commands import AnyCommand, Opcode

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER: Final = struct.Struct("<IBBHIIII")
HEADER_BYTES: Final = 24
PROTECTED_BYTES: Final = 16
"""The part of the header that is under the checksum."""
LENGTH_BYTES: Final = 4
"""The length field does not count itself."""
MAGIC: Final = int.from_bytes(b"DNW\x01", "little")
"""`D N W` and the version of the frame layout. In every frame, so that a lost boundary is seen at once."""

HELLO_FRAME_BYTES_MAX: Final = 16 * 1024
"""What a peer may make us hold before the handshake is over."""

PAYLOAD_OPCODES: Final = frozenset(
    {
        Opcode.PRODUCE,
        Opcode.DELIVER,
        Opcode.FETCHED,
        Opcode.STAGE,
        Opcode.SCHEDULE,
        Opcode.UPLOAD,
    }
)
"""The commands that record batches may follow."""

EMPTY: Final = memoryview(bytearray())

_PROTECTED: Final = struct.Struct("<IBBHII")
_UNPROTECTED: Final = struct.Struct("<II")
_PADDING: Final = [bytes(-size % 8) for size in range(8)]
_library: Any = google_crc32c  # it has no types of its own
_extend: Callable[[int, bytes], int] = _library.extend

assert HEADER.size == HEADER_BYTES
assert _PROTECTED.size == PROTECTED_BYTES
assert _PROTECTED.size + _UNPROTECTED.size == HEADER_BYTES


class Frame(NamedTuple):
    """One received frame."""

    command: AnyCommand
    correlation_id: int
    payload: memoryview
    """Record batches, back to back, in writable memory that belongs to this frame alone; empty if none came."""


def aligned(size: int) -> int:
    """The next multiple of 8."""
    return (size + 7) & ~7


def encode_head(opcode: int, correlation_id: int, meta: bytes, payload_bytes: int) -> bytes:
    """All of a frame but its payload: header, command, padding."""
    meta_bytes = len(meta)
    length = ((HEADER_BYTES + meta_bytes + 7) & ~7) + payload_bytes - LENGTH_BYTES
    protected = _PROTECTED.pack(length, opcode, 0, 0, correlation_id, meta_bytes)
    crc = _extend(_extend(0, protected), meta)
    return b"".join(
        (protected, _UNPROTECTED.pack(crc, MAGIC), meta, _PADDING[(HEADER_BYTES + meta_bytes) & 7])
    )


def checksum(protected: bytes, meta: bytes) -> int:
    """The checksum of a frame's header (its first `PROTECTED_BYTES`) and command, as its header should say."""
    return _extend(_extend(0, protected), meta)
