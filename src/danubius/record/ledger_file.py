"""The bytes of ledger and index files, apart from the record batches themselves.

A ledger file is a 64-byte header and record batches back to back. An index file is a header of
the same shape with another magic and 40-byte rows. Everything is little-endian and carries its
own crc32c. See docs/internals/ledger.md.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import DataDirectoryTooNew, LedgerDamaged
from danubius.record.checksum import crc32c

if TYPE_CHECKING:
    from danubius.model.buffers import Buffer

FILE_HEADER_BYTES: Final = 64
INDEX_ROW_BYTES: Final = 40
LEDGER_MAGIC: Final = b"DNLG"
INDEX_MAGIC: Final = b"DNLX"
CONTINUED_MAGIC: Final = b"DNLC"
"""Starts the file of a ledger that began in the pool: in place of a base offset it has the position where it begins."""
VERSION: Final = 1

_HEADER: Final = struct.Struct("<4sHxxQQQIxxxxq12x")
_ROW: Final = struct.Struct("<QQIIqI")
_CRC: Final = struct.Struct("<I")

assert _HEADER.size + _CRC.size == FILE_HEADER_BYTES
assert _ROW.size + _CRC.size == INDEX_ROW_BYTES


class LedgerHeader(NamedTuple):
    """Who wrote a ledger, and where it starts."""

    topic_id: int
    ledger_id: int
    base_offset: int
    epoch: int
    created_ms: int


class BlockRow(NamedTuple):
    """One block: batches that share a checksum and an index entry."""

    base_offset: int
    position: int
    size: int
    crc: int
    last_time_us: int
    records: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.records


def encode_header(header: LedgerHeader, magic: bytes = LEDGER_MAGIC) -> bytes:
    fields = _HEADER.pack(magic, VERSION, *header)
    return fields + _CRC.pack(crc32c(fields))


def decode_header(data: Buffer, magic: bytes = LEDGER_MAGIC) -> LedgerHeader:
    """Read a header back. Raises LedgerDamaged, or DataDirectoryTooNew for a later version."""
    if len(data) < FILE_HEADER_BYTES:
        raise LedgerDamaged(
            f"the file has {len(data)} bytes, its header alone takes {FILE_HEADER_BYTES}"
        )
    fields = bytes(data[: _HEADER.size])
    if crc32c(fields) != _CRC.unpack_from(data, _HEADER.size)[0]:
        raise LedgerDamaged("the file header fails its checksum")
    found, version, *values = _HEADER.unpack(fields)
    if found != magic:
        raise LedgerDamaged(f"the file starts with {found!r}, not with {magic!r}")
    if version > VERSION:
        raise DataDirectoryTooNew(
            f"the ledger has format version {version}, this software reads {VERSION}"
        )
    return LedgerHeader(*values)


def encode_row(row: BlockRow) -> bytes:
    fields = _ROW.pack(*row)
    return fields + _CRC.pack(crc32c(fields))


def decode_rows(data: bytes) -> list[BlockRow]:
    """Read rows back to back. Raises LedgerDamaged at the first that fails its checksum."""
    if len(data) % INDEX_ROW_BYTES:
        raise LedgerDamaged(f"{len(data)} bytes are not a whole number of index entries")
    rows: list[BlockRow] = []
    for at in range(0, len(data), INDEX_ROW_BYTES):
        fields = data[at : at + _ROW.size]
        if crc32c(fields) != _CRC.unpack_from(data, at + _ROW.size)[0]:
            raise LedgerDamaged(f"index entry {at // INDEX_ROW_BYTES} fails its checksum")
        rows.append(BlockRow(*_ROW.unpack(fields)))
    return rows
