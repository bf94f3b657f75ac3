"""The bytes of an object: a ledger as it is on disk, all rows of its index, and a footer that proves both.

    [0, data_bytes)                    the ledger, its header included: the same bytes at the same positions
    [data_bytes, + 40 * index_rows)    the index, without its header; the rows leave no gap
    the last 128 bytes                 the footer

Everything is little-endian; all checksums are crc32c. See docs/internals/cold-storage.md.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import LedgerDamaged, UnsupportedVersion
from danubius.record.checksum import crc32c
from danubius.record.ledger_file import FILE_HEADER_BYTES, INDEX_ROW_BYTES

if TYPE_CHECKING:
    from danubius.model.buffers import Buffer

FOOTER_BYTES: Final = 128
MAGIC: Final = b"DNBCOLD1"
VERSION: Final = 1
SUFFIX: Final = ".ledger"

_FIELDS: Final = struct.Struct("<8sHxxIQQQQqqqQIII32x")
_CRC: Final = struct.Struct("<I")

assert _FIELDS.size + _CRC.size == FOOTER_BYTES


class Footer(NamedTuple):
    """What an object says of itself."""

    topic_id: int
    ledger_id: int
    epoch: int
    base_offset: int
    end_offset: int
    first_time_us: int
    last_time_us: int
    created_ms: int
    data_bytes: int
    index_rows: int
    data_crc: int
    """Of the ledger, its header included."""
    rows_crc: int

    @property
    def rows_bytes(self) -> int:
        return self.index_rows * INDEX_ROW_BYTES

    @property
    def object_bytes(self) -> int:
        return self.data_bytes + self.rows_bytes + FOOTER_BYTES


def object_name(store_id: str, topic_id: int, ledger_id: int, epoch: int) -> str:
    """The name under which a ledger's object is kept. Another epoch's is another object."""
    return f"{store_id}/{topic_id:016x}/{ledger_id:08x}-{epoch:08x}{SUFFIX}"


def parse_name(name: str) -> tuple[str, int, int, int] | None:
    """Store id, topic id, ledger id and epoch of an object; None for other names."""
    parts = name.split("/")
    if len(parts) != 3 or not parts[2].endswith(SUFFIX):
        return None
    ledger, dash, epoch = parts[2].removesuffix(SUFFIX).partition("-")
    try:
        found = (parts[0], int(parts[1], 16), int(ledger, 16), int(epoch, 16))
    except ValueError:
        return None
    return found if dash and object_name(*found) == name else None


def encode_footer(footer: Footer) -> bytes:
    fields = _FIELDS.pack(
        MAGIC,
        VERSION,
        footer.epoch,
        footer.topic_id,
        footer.ledger_id,
        footer.base_offset,
        footer.end_offset,
        footer.first_time_us,
        footer.last_time_us,
        footer.created_ms,
        footer.data_bytes,
        footer.index_rows,
        footer.data_crc,
        footer.rows_crc,
    )
    return fields + _CRC.pack(crc32c(fields))


def decode_footer(data: Buffer, object_bytes: int | None = None) -> Footer:
    """Read the last bytes of an object, whose length is checked if it is given.

    Raises LedgerDamaged, or UnsupportedVersion for an object of a later version.
    """
    if len(data) != FOOTER_BYTES:
        raise LedgerDamaged(f"the object's footer has {len(data)} bytes, not {FOOTER_BYTES}")
    fields = bytes(data[: _FIELDS.size])
    if crc32c(fields) != _CRC.unpack_from(data, _FIELDS.size)[0]:
        raise LedgerDamaged("the object's footer fails its checksum")
    magic, version, epoch, topic_id, ledger_id, *values = _FIELDS.unpack(fields)
    if magic != MAGIC:
        raise LedgerDamaged(f"the object's footer starts with {magic!r}, not with {MAGIC!r}")
    if version != VERSION:
        raise UnsupportedVersion(
            f"the object has format version {version}, this software reads {VERSION}"
        )
    footer = Footer(topic_id, ledger_id, epoch, *values)
    if footer.data_bytes < FILE_HEADER_BYTES or footer.end_offset < footer.base_offset:
        raise LedgerDamaged("the object's footer contradicts itself")
    if object_bytes is not None and footer.object_bytes != object_bytes:
        raise LedgerDamaged(
            f"the object has {object_bytes} bytes, by its footer it should have {footer.object_bytes}"
        )
    return footer
