"""Indexes of sealed ledgers in memory, the last used ones up to a bound."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from danubius.ledger.core.index import BlockIndex
    from danubius.ledger.entry import LedgerRef


class IndexCache:
    """Bounded in bytes; holds at least the last index, however large."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._indexes: OrderedDict[LedgerRef, BlockIndex] = OrderedDict()

    def get(self, ref: LedgerRef) -> BlockIndex | None:
        index = self._indexes.get(ref)
        if index is not None:
            self._indexes.move_to_end(ref)
        return index

    def put(self, ref: LedgerRef, index: BlockIndex) -> None:
        self.drop(ref)
        self._indexes[ref] = index
        self._bytes += index.memory_bytes
        while self._bytes > self._bytes_max and len(self._indexes) > 1:
            _, oldest = self._indexes.popitem(last=False)
            self._bytes -= oldest.memory_bytes

    def drop(self, ref: LedgerRef) -> None:
        index = self._indexes.pop(ref, None)
        if index is not None:
            self._bytes -= index.memory_bytes
