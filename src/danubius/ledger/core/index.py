"""The sparse index of one ledger: one row a block, found by offset or by time.

Rows are in offset order and do not overlap. An intact index has no gaps; one rebuilt from a
damaged file may have, and a gap is a damaged range. The last row of an open ledger may grow.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from danubius.errors import LedgerDamaged
from danubius.record.ledger_file import FILE_HEADER_BYTES, BlockRow, decode_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from danubius.ledger.entry import LedgerMeta

ROW_MEMORY_BYTES: Final = 44
INDEX_MEMORY_BYTES: Final = 700
"""Six empty arrays and their owner."""


class BlockIndex:
    """Columns of block rows."""

    __slots__ = ("_bases", "_counts", "_crcs", "_positions", "_sizes", "_times")

    def __init__(self, rows: Iterable[BlockRow] = ()) -> None:
        self._bases = array("Q")
        self._positions = array("Q")
        self._sizes = array("I")
        self._crcs = array("I")
        self._counts = array("I")
        # The largest time so far: the first row whose own time reaches t is the first whose
        # running time does, and a running maximum can be searched by bisection.
        self._times = array("q")
        for row in rows:
            self.append(row)

    def __len__(self) -> int:
        return len(self._bases)

    @property
    def memory_bytes(self) -> int:
        return INDEX_MEMORY_BYTES + ROW_MEMORY_BYTES * len(self._bases)

    @property
    def end_offset(self) -> int:
        """The offset behind the last row, 0 if there is none."""
        return self._bases[-1] + self._counts[-1] if self._bases else 0

    def append(self, row: BlockRow) -> None:
        assert row.records > 0
        assert not self._bases or row.base_offset >= self.end_offset
        assert not self._bases or row.position >= self._positions[-1] + self._sizes[-1]
        times = self._times
        times.append(max(row.last_time_us, times[-1]) if times else row.last_time_us)
        self._bases.append(row.base_offset)
        self._positions.append(row.position)
        self._sizes.append(row.size)
        self._crcs.append(row.crc)
        self._counts.append(row.records)

    def grow(self, size: int, count: int, crc: int, last_time_us: int) -> None:
        """The last block got more batches; `crc` is that of the whole block."""
        self._sizes[-1] += size
        self._counts[-1] += count
        self._crcs[-1] = crc
        self._times[-1] = max(self._times[-1], last_time_us)

    def row(self, number: int) -> BlockRow:
        """A row; its time is the largest up to and with it."""
        return BlockRow(
            self._bases[number],
            self._positions[number],
            self._sizes[number],
            self._crcs[number],
            self._times[number],
            self._counts[number],
        )

    def rows_from(self, number: int) -> list[BlockRow]:
        return [self.row(at) for at in range(number, len(self._bases))]

    def find(self, offset: int) -> int:
        """The number of the last row that starts at or below the offset, -1 if there is none."""
        return bisect_right(self._bases, offset) - 1

    def find_time(self, time_us: int) -> int:
        """The number of the first row with a record at or after the time; the length if none."""
        return bisect_left(self._times, time_us)

    def gap_at(self, offset: int) -> tuple[int, int | None] | None:
        """The damaged range around an offset that no row covers: from, to (None: the ledger's end)."""
        number = self.find(offset)
        below = self._bases[number] + self._counts[number] if number >= 0 else None
        if below is not None and offset < below:
            return None
        above = self._bases[number + 1] if number + 1 < len(self._bases) else None
        return (offset if below is None else below, above)

    def plan(self, offset: int, bytes_max: int) -> list[BlockRow]:
        """The blocks to read for an offset that is covered: adjacent ones, at least one.

        Together they stay within `bytes_max`, unless the first alone is larger.
        """
        number = self.find(offset)
        rows = [self.row(number)]
        size = rows[0].size
        for at in range(number + 1, len(self._bases)):
            size += self._sizes[at]
            if size > bytes_max or self._bases[at] != rows[-1].end_offset:
                break
            rows.append(self.row(at))
        return rows

    def check(self) -> None:
        assert len({len(self._bases), len(self._positions), len(self._sizes)}) == 1
        assert len({len(self._crcs), len(self._counts), len(self._times), len(self._bases)}) == 1
        for at in range(1, len(self._bases)):
            assert self._bases[at - 1] + self._counts[at - 1] <= self._bases[at]
            assert self._positions[at - 1] + self._sizes[at - 1] <= self._positions[at]
            assert self._times[at - 1] <= self._times[at]


def parse_index(data: bytes, meta: LedgerMeta) -> BlockIndex:
    """Build the index from its stored rows. Raises LedgerDamaged if they do not describe the ledger."""
    rows = decode_rows(data)
    if len(rows) != meta.index_entries:
        raise LedgerDamaged(f"the index has {len(rows)} entries, not {meta.index_entries}")
    offset, position = meta.base_offset, FILE_HEADER_BYTES
    for row in rows:
        if row.base_offset != offset or row.position != position or not row.records:
            raise LedgerDamaged(
                f"the index entry of offset {row.base_offset} does not follow its predecessor"
            )
        offset, position = row.end_offset, position + row.size
    if offset != meta.end_offset or position != meta.data_bytes:
        raise LedgerDamaged(f"the index ends at offset {offset}, the ledger at {meta.end_offset}")
    return BlockIndex(rows)
