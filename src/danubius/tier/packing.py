"""A sealed ledger made into an object, piece by piece. `unpacking` is the way back.

Invariants:
- Memory is bounded by a few pieces (`PIECE_BYTES`, or one block if that is larger), and the rows of the index.
- Every block is proven by its checksum as it is read: a damaged ledger becomes no object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.errors import LedgerDamaged
from danubius.record.checksum import crc32c
from danubius.record.ledger_file import (
    FILE_HEADER_BYTES,
    INDEX_ROW_BYTES,
    decode_header,
    encode_row,
)
from danubius.tier.core.object_format import Footer, encode_footer
from danubius.tier.unpacking import PIECE_BYTES, Described, check_blocks, check_rows, group_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from danubius.ledger.entry import LedgerMeta, LedgerRef
    from danubius.ledger.store import LedgerStore
    from danubius.record.ledger_file import BlockRow


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
        meta = self._meta
        check_rows(
            self._rows,
            Described(meta.ledger_id, meta.base_offset, meta.end_offset, meta.data_bytes),
        )
        header = self._read(0, FILE_HEADER_BYTES)
        found = decode_header(header)
        if (found.topic_id, found.ledger_id) != self._ref or found.epoch != meta.epoch:
            raise LedgerDamaged(f"the ledger {self._ref} has the header of another one")
        data_crc = crc32c(header)
        yield header
        for group in group_rows(self._rows, self._piece_bytes):
            start = group[0].position
            data = self._read(start, group[-1].position + group[-1].size - start)
            check_blocks(group, data, start)
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
