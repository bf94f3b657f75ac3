"""An object read and proven: footer, index, blocks. Needs nothing of the broker: Spark's executors read objects too.

Invariants:
- Nothing is handed out that was not proven by its checksum.
- Memory is bounded by a piece (`PIECE_BYTES`, or one block if that is larger), and the rows of the index.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import LedgerDamaged, ObjectNotFound
from danubius.model.limits import MIB
from danubius.record.checksum import crc32c
from danubius.record.ledger_file import (
    FILE_HEADER_BYTES,
    BlockRow,
    decode_header,
    decode_rows,
)
from danubius.tier.core.object_format import FOOTER_BYTES, Footer, decode_footer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from danubius.tier.objects import ObjectStore

PIECE_BYTES: Final = 4 * MIB


class Tail(NamedTuple):
    """What lies behind the data of an object: how to find and prove every block of it."""

    footer: Footer
    rows: list[BlockRow]

    def rows_of(self, begin: int, end: int) -> list[BlockRow]:
        """The blocks that hold the offsets [begin, end)."""
        first = bisect_right(self.rows, begin, key=_end_of)
        return self.rows[first : bisect_left(self.rows, end, key=_base_of)]


def _base_of(row: BlockRow) -> int:
    return row.base_offset


def _end_of(row: BlockRow) -> int:
    return row.end_offset


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
    return _rows_in(objects.get(name, footer.data_bytes, footer.rows_bytes), name, footer)


def _rows_in(data: bytes, name: str, footer: Footer) -> list[BlockRow]:
    if len(data) != footer.rows_bytes or crc32c(data) != footer.rows_crc:
        raise LedgerDamaged(f"the index in the object {name} fails its checksum")
    return decode_rows(data)


def read_tail(objects: ObjectStore, name: str, data_bytes: int, object_bytes: int) -> Tail:
    """Footer and index of an object whose sizes are known, in one request; once more if that fails its checksum.

    Raises as `read_footer`. The rows are checked against the footer: they leave no offset out.
    """
    try:
        return _read_tail(objects, name, data_bytes, object_bytes)
    except LedgerDamaged:
        return _read_tail(objects, name, data_bytes, object_bytes)


def _read_tail(objects: ObjectStore, name: str, data_bytes: int, object_bytes: int) -> Tail:
    data = objects.get(name, data_bytes, object_bytes - data_bytes)
    if len(data) != object_bytes - data_bytes:
        raise LedgerDamaged(f"the object {name} is cut short: it should have {object_bytes} bytes")
    footer = decode_footer(data[-FOOTER_BYTES:], object_bytes)
    if footer.data_bytes != data_bytes:
        raise LedgerDamaged(f"the object {name} has another index than it should have")
    rows = _rows_in(data[:-FOOTER_BYTES], name, footer)
    check_rows(rows, footer)
    return Tail(footer, rows)


def read_blocks(objects: ObjectStore, name: str, rows: Sequence[BlockRow]) -> bytes:
    """Adjacent blocks in one request, proven; once more if one of them fails its checksum. Raises as `read_footer`."""
    start = rows[0].position
    count = rows[-1].position + rows[-1].size - start
    data = objects.get(name, start, count)
    try:
        check_blocks(rows, data, start)
    except LedgerDamaged:
        data = objects.get(name, start, count)
        check_blocks(rows, data, start)
    return data


def check_object(objects: ObjectStore, name: str, *, piece_bytes: int = PIECE_BYTES) -> Footer:
    """Read a whole object and prove it: footer, rows, header, and every block. Raises as `read_footer`."""
    footer = read_footer(objects, name)
    rows = read_rows(objects, name, footer)
    header = objects.get(name, 0, FILE_HEADER_BYTES)
    found = decode_header(header)
    if (found.topic_id, found.ledger_id, found.epoch) != footer[:3]:
        raise LedgerDamaged(f"the object {name} holds another ledger than its footer says")
    crc, at = crc32c(header), FILE_HEADER_BYTES
    for group in group_rows(rows, piece_bytes):
        if group[0].position != at:
            raise LedgerDamaged(f"the index in the object {name} has a gap at position {at}")
        count = group[-1].position + group[-1].size - at
        data = objects.get(name, at, count)
        check_blocks(group, data, at)
        crc = crc32c(data, crc)
        at += count
    if at != footer.data_bytes or crc != footer.data_crc:
        raise LedgerDamaged(f"the ledger in the object {name} fails its checksum")
    return footer


class Described(NamedTuple):
    """What rows must add up to."""

    ledger_id: int
    base_offset: int
    end_offset: int
    data_bytes: int


def check_rows(rows: Sequence[BlockRow], said: Described | Footer) -> None:
    """Refuse rows that leave out offsets or bytes of their ledger."""
    offset, position = said.base_offset, FILE_HEADER_BYTES
    for row in rows:
        if row.base_offset != offset or row.position != position:
            raise LedgerDamaged(
                f"ledger {said.ledger_id} lacks offsets from {offset} on", offset, row.base_offset
            )
        offset, position = row.end_offset, position + row.size
    if offset != said.end_offset or position != said.data_bytes:
        raise LedgerDamaged(
            f"ledger {said.ledger_id} lacks offsets from {offset} on", offset, said.end_offset
        )


def check_blocks(rows: Sequence[BlockRow], data: bytes, start: int) -> None:
    """Prove adjacent blocks, whose bytes begin at position `start`."""
    for row in rows:
        at = row.position - start
        block = data if len(rows) == 1 else data[at : at + row.size]
        if len(block) != row.size or crc32c(block) != row.crc:
            raise LedgerDamaged(
                f"the block of offset {row.base_offset} fails its checksum",
                row.base_offset,
                row.end_offset,
            )


def group_rows(rows: Sequence[BlockRow], piece_bytes: int) -> Iterator[list[BlockRow]]:
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
