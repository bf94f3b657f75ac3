"""A sealed ledger made into an object, piece by piece, and an object proven, piece by piece.

Invariants:
- Memory is bounded by a few pieces (`PIECE_BYTES`, or one block if that is larger), and the rows of the index.
- Every block is proven by its checksum as it is read: a damaged ledger becomes no object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danubius.errors import LedgerDamaged, ObjectNotFound
from danubius.ledger.core.format import (
    FILE_HEADER_BYTES,
    INDEX_ROW_BYTES,
    decode_header,
    decode_rows,
    encode_row,
)
from danubius.model.limits import MIB
from danubius.record.checksum import crc32c
from danubius.tier.core.object_format import FOOTER_BYTES, Footer, decode_footer, encode_footer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from danubius.ledger.core.format import BlockRow
    from danubius.ledger.entry import LedgerMeta, LedgerRef
    from danubius.ledger.store import LedgerStore
    from danubius.tier.objects import ObjectStore

PIECE_BYTES: Final = 4 * MIB


class LedgerPacker:
    """The parts of one ledger's object. Every `parts()` makes it anew; `footer` is there after a whole one."""

    def __init__(
        self,
        store: LedgerStore,
        ref: LedgerRef,
        meta: LedgerMeta,
        rows: Sequence[BlockRow],
        *,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        """Rows are those of `ledger.reader.load_index`: all of them, whatever the store has."""
        self._store = store
        self._ref = ref
        self._meta = meta
        self._rows = rows
        self._piece_bytes = piece_bytes
        self.footer: Footer | None = None

    def parts(self) -> Iterator[bytes]:
        """Data, rows, footer. Raises LedgerDamaged where the ledger is not what its index says."""
        self.footer = None
        _check_rows(self._rows, self._meta)
        header = self._read(0, FILE_HEADER_BYTES)
        found = decode_header(header)
        if (found.topic_id, found.ledger_id) != self._ref or found.epoch != self._meta.epoch:
            raise LedgerDamaged(f"the ledger {self._ref} has the header of another one")
        data_crc = crc32c(header)
        yield header
        for group in _groups(self._rows, self._piece_bytes):
            start = group[0].position
            data = self._read(start, group[-1].position + group[-1].size - start)
            _check_blocks(group, data, start)
            data_crc = crc32c(data, data_crc)
            yield data
        rows = b"".join(map(encode_row, self._rows))
        yield rows
        footer = _footer(self._ref, self._meta, len(self._rows), data_crc, crc32c(rows))
        yield encode_footer(footer)
        self.footer = footer

    def _read(self, at: int, count: int) -> bytes:
        data = self._store.read(self._ref, at, count)
        if len(data) != count:
            raise LedgerDamaged(f"the ledger {self._ref} ends before position {at + count}")
        return data


def read_footer(objects: ObjectStore, name: str) -> Footer:
    """What an object says of itself, its length proven. Raises ObjectNotFound, LedgerDamaged, UnsupportedVersion."""
    info = objects.stat(name)
    if info is None:
        raise ObjectNotFound(f"{objects.url} has no object {name}")
    if info.size < FOOTER_BYTES:
        raise LedgerDamaged(f"the object {name} has {info.size} bytes, its footer alone takes more")
    return decode_footer(objects.get(name, info.size - FOOTER_BYTES, FOOTER_BYTES), info.size)


def read_rows(objects: ObjectStore, name: str, footer: Footer) -> list[BlockRow]:
    """The rows of an object's index, proven. Raises LedgerDamaged."""
    data = objects.get(name, footer.data_bytes, footer.rows_bytes)
    if len(data) != footer.rows_bytes or crc32c(data) != footer.rows_crc:
        raise LedgerDamaged(f"the index in the object {name} fails its checksum")
    return decode_rows(data)


def check_object(objects: ObjectStore, name: str, *, piece_bytes: int = PIECE_BYTES) -> Footer:
    """Read a whole object and prove it: footer, rows, header, and every block. Raises as `read_footer`."""
    footer = read_footer(objects, name)
    rows = read_rows(objects, name, footer)
    header = objects.get(name, 0, FILE_HEADER_BYTES)
    found = decode_header(header)
    if (found.topic_id, found.ledger_id, found.epoch) != footer[:3]:
        raise LedgerDamaged(f"the object {name} holds another ledger than its footer says")
    crc, at = crc32c(header), FILE_HEADER_BYTES
    for group in _groups(rows, piece_bytes):
        if group[0].position != at:
            raise LedgerDamaged(f"the index in the object {name} has a gap at position {at}")
        count = group[-1].position + group[-1].size - at
        data = objects.get(name, at, count)
        _check_blocks(group, data, at)
        crc = crc32c(data, crc)
        at += count
    if at != footer.data_bytes or crc != footer.data_crc:
        raise LedgerDamaged(f"the ledger in the object {name} fails its checksum")
    return footer


def _check_rows(rows: Sequence[BlockRow], meta: LedgerMeta) -> None:
    offset, position = meta.base_offset, FILE_HEADER_BYTES
    for row in rows:
        if row.base_offset != offset or row.position != position:
            raise LedgerDamaged(
                f"ledger {meta.ledger_id} lacks offsets from {offset} on", offset, row.base_offset
            )
        offset, position = row.end_offset, position + row.size
    if offset != meta.end_offset or position != meta.data_bytes:
        raise LedgerDamaged(
            f"ledger {meta.ledger_id} lacks offsets from {offset} on", offset, meta.end_offset
        )


def _check_blocks(rows: Sequence[BlockRow], data: bytes, start: int) -> None:
    for row in rows:
        at = row.position - start
        block = data if len(rows) == 1 else data[at : at + row.size]
        if len(block) != row.size or crc32c(block) != row.crc:
            raise LedgerDamaged(
                f"the block of offset {row.base_offset} fails its checksum",
                row.base_offset,
                row.end_offset,
            )


def _groups(rows: Sequence[BlockRow], piece_bytes: int) -> Iterator[list[BlockRow]]:
    """Adjacent blocks that are read at once."""
    group: list[BlockRow] = []
    size = 0
    for row in rows:
        is_adjacent = not group or row.position == group[-1].position + group[-1].size
        if group and (size + row.size > piece_bytes or not is_adjacent):
            yield group
            group, size = [], 0
        group.append(row)
        size += row.size
    if group:
        yield group


def _footer(
    ref: LedgerRef, meta: LedgerMeta, index_rows: int, data_crc: int, rows_crc: int
) -> Footer:
    assert index_rows * INDEX_ROW_BYTES < 1 << 32
    return Footer(
        ref.topic_id,
        ref.ledger_id,
        meta.epoch,
        meta.base_offset,
        meta.end_offset,
        meta.first_time_us,
        meta.last_time_us,
        meta.created_ms,
        meta.data_bytes,
        index_rows,
        data_crc,
        rows_crc,
    )
