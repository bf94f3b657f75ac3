"""The journal's bytes: file header and record header, packed, parsed and checked.

Invariants:
- A journal position is the number of journal bytes before it since the broker's first day. Record
  headers, bodies and padding count; file headers and what lies unused at a file's end do not.
- A record is valid in one place only: its header names the file (sequence) and the position, and
  both are under its checksum. So what a file held in an earlier life is never taken for content.
- `durable` in a record header is a promise: every record below that position was synced before
  this one was written. A bad record below a promise is damage, one above all of them a torn tail.

The layout is specified in docs/internals/journal.md.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import DataDirectoryTooNew
from danubius.record.checksum import crc32c, crc32c_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.model.buffers import Buffer

FORMAT_VERSION: Final = 1
FILE_HEADER_BYTES: Final = 4096
"""Records start on a page of their own, so that writing them never touches the header's sector."""
_COPY_AT: Final = FILE_HEADER_BYTES // 2
"""The header stands there a second time: one bad sector must not hide a whole file."""
RECORD_HEADER_BYTES: Final = 48
ALIGNMENT: Final = 8
BODY_BYTES_MAX: Final = 2**31
SEQUENCE_MAX: Final = 2**32 - 1

_FILE_MAGIC: Final = b"DNJF"
_MARK_MAGIC: Final = b"DNJE"
RECORD_MAGIC: Final = b"DNJR"
_PADDING: Final = tuple(bytes(count) for count in range(ALIGNMENT))

_FILE_START: Final = struct.Struct("<4sI")
_FILE_REST: Final = struct.Struct("<IIQ")
_MARK_REST: Final = struct.Struct("<IIQ")
_RECORD_START: Final = struct.Struct("<4sI")
_RECORD_REST: Final = struct.Struct("<QQQIIIB3x")

assert _RECORD_START.size + _RECORD_REST.size == RECORD_HEADER_BYTES


class FileHeader(NamedTuple):
    """Who a journal file is: its number, and the position of its first record."""

    sequence: int
    base: int


class RecordHeader(NamedTuple):
    """What stands before a body."""

    position: int
    durable: int
    topic_id: int
    sequence: int
    body_bytes: int
    body_crc: int
    kind: int

    @property
    def end(self) -> int:
        return self.position + record_bytes(self.body_bytes)


def record_bytes(body_bytes: int) -> int:
    """What a record takes in the journal: header, body, padding."""
    return RECORD_HEADER_BYTES + (body_bytes + ALIGNMENT - 1 & -ALIGNMENT)


def pack_file_header(header: FileHeader) -> bytes:
    rest = _FILE_REST.pack(FORMAT_VERSION, header.sequence, header.base)
    packed = _FILE_START.pack(_FILE_MAGIC, crc32c(rest)) + rest
    return packed.ljust(_COPY_AT, b"\0") * 2


def parse_file_header(data: Buffer) -> FileHeader | None:
    """The header at the start of a file, or its copy; None if neither is whole."""
    return _parse_header_copy(data) or _parse_header_copy(data[_COPY_AT:])


def _parse_header_copy(data: Buffer) -> FileHeader | None:
    size = _FILE_START.size + _FILE_REST.size
    if len(data) < size:
        return None
    magic, crc = _FILE_START.unpack_from(data)
    if magic != _FILE_MAGIC:
        return None
    version, sequence, base = _FILE_REST.unpack_from(data, _FILE_START.size)
    if crc != crc32c(bytes(data[_FILE_START.size : size])):
        return None
    if version > FORMAT_VERSION:
        raise DataDirectoryTooNew(
            f"the journal has format version {version}, this version of Danubius knows "
            f"{FORMAT_VERSION}: start the version that wrote it, or a newer one"
        )
    return FileHeader(sequence, base)


def pack_mark(position: int) -> bytes:
    """What the file `end` says: everything below this position was synced."""
    rest = _MARK_REST.pack(FORMAT_VERSION, 0, position)
    return _FILE_START.pack(_MARK_MAGIC, crc32c(rest)) + rest


def parse_mark(data: bytes) -> int:
    """The position that it says; 0 for one that is not whole: then nobody knows."""
    size = _FILE_START.size + _MARK_REST.size
    if len(data) < size:
        return 0
    magic, crc = _FILE_START.unpack_from(data)
    rest = data[_FILE_START.size : size]
    if magic != _MARK_MAGIC or crc != crc32c(rest):
        return 0
    return _MARK_REST.unpack(rest)[2]


def pack_record(  # noqa: PLR0913  # a RecordHeader's fields, without making one for each record
    position: int,
    durable: int,
    topic_id: int,
    sequence: int,
    body_bytes: int,
    kind: int,
    body: Sequence[Buffer],
    into: list[Buffer],
) -> None:
    """Append a record's buffers to a gathering write; bodies are passed on, not copied."""
    body_crc = 0
    for buffer in body:
        body_crc = crc32c(buffer, body_crc)
    rest = _RECORD_REST.pack(position, durable, topic_id, sequence, body_bytes, body_crc, kind)
    into.append(_RECORD_START.pack(RECORD_MAGIC, crc32c_bytes(rest)) + rest)
    into.extend(body)
    padding = -body_bytes % ALIGNMENT
    if padding:
        into.append(_PADDING[padding])


def parse_record_header(data: Buffer, at: int) -> RecordHeader | None:
    """The record header at `at`, or None if there is none or its checksum is wrong."""
    if at + RECORD_HEADER_BYTES > len(data):
        return None
    magic, crc = _RECORD_START.unpack_from(data, at)
    if magic != RECORD_MAGIC:
        return None
    rest = bytes(data[at + _RECORD_START.size : at + RECORD_HEADER_BYTES])
    if crc != crc32c(rest):
        return None
    return RecordHeader._make(_RECORD_REST.unpack(rest))
