"""Ledgers in memory: for tests, and for brokers that need not remember."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.errors import LedgerDamaged, StorageFailed
from danubius.record.ledger_file import (
    FILE_HEADER_BYTES,
    INDEX_MAGIC,
    INDEX_ROW_BYTES,
    LedgerHeader,
    decode_header,
    encode_header,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from danubius.ledger.entry import LedgerMeta, LedgerRef
    from danubius.ledger.store import Append
    from danubius.model.buffers import Buffer


class MemoryLedgerStore:
    """Two bytearrays a ledger. Slicing one is atomic, so readers need no lock."""

    def __init__(self) -> None:
        self._data: dict[LedgerRef, bytearray] = {}
        self._index: dict[LedgerRef, bytearray] = {}
        self._sealed: set[LedgerRef] = set()

    def create(self, ref: LedgerRef, header: LedgerHeader, buffers: Sequence[Buffer] = ()) -> None:
        self._sealed.discard(ref)
        self._index.pop(ref, None)
        self._data[ref] = bytearray(b"".join([encode_header(header), *buffers]))

    def append(self, ref: LedgerRef, at: int, buffers: Sequence[Buffer]) -> None:
        self._put(self._data, ref, at, b"".join(buffers))

    def append_many(self, appends: Sequence[Append]) -> None:
        for ref, header, at, buffers, _ in appends:
            if header is None:
                self.append(ref, at, buffers)
            else:
                self.create(ref, header, buffers)

    def append_index(self, ref: LedgerRef, header: LedgerHeader, at_row: int, rows: Buffer) -> None:
        if ref not in self._data:
            raise StorageFailed(f"there is no ledger {ref}")
        if at_row == 0:
            self._index[ref] = bytearray(encode_header(header, INDEX_MAGIC))
        self._put(self._index, ref, FILE_HEADER_BYTES + at_row * INDEX_ROW_BYTES, rows)

    def read(self, ref: LedgerRef, at: int, count: int) -> bytes:
        data = self._data.get(ref)
        return bytes(data[at : at + count]) if data is not None else b""

    def read_index(self, ref: LedgerRef, at_row: int, count: int) -> bytes:
        data = self._index.get(ref)
        if data is None:
            return b""
        try:
            decode_header(bytes(data[:FILE_HEADER_BYTES]), INDEX_MAGIC)
        except LedgerDamaged:
            return b""
        at = FILE_HEADER_BYTES + at_row * INDEX_ROW_BYTES
        return bytes(data[at : at + count * INDEX_ROW_BYTES])

    def size_of(self, ref: LedgerRef) -> int:
        return len(self._data.get(ref, b""))

    def set_aside(self, ref: LedgerRef) -> str:
        del ref
        return ""

    def sync(self, refs: Collection[LedgerRef]) -> None:
        missing = [ref for ref in refs if ref not in self._data]
        if missing:
            raise StorageFailed(f"there is no ledger {missing[0]}")

    def seal(self, ref: LedgerRef) -> None:
        self._sealed.add(ref)

    def truncate(self, ref: LedgerRef, data_bytes: int, index_rows: int) -> None:
        if ref in self._data:
            del self._data[ref][data_bytes:]
        if ref in self._index:
            del self._index[ref][FILE_HEADER_BYTES + index_rows * INDEX_ROW_BYTES :]

    def recover(self, known: Mapping[LedgerRef, LedgerMeta]) -> None:
        pass

    def settle(self) -> None:
        pass

    def tidy(self) -> None:
        pass

    def delete(self, ref: LedgerRef) -> None:
        self._data.pop(ref, None)
        self._index.pop(ref, None)
        self._sealed.discard(ref)

    def delete_topic(self, topic_id: int) -> None:
        for ref in [ref for ref in self._data if ref.topic_id == topic_id]:
            self.delete(ref)

    def list(self) -> list[LedgerRef]:
        return sorted(self._data)

    def close(self) -> None:
        pass

    def _put(
        self, where: dict[LedgerRef, bytearray], ref: LedgerRef, at: int, data: Buffer
    ) -> None:
        if ref in self._sealed:
            raise StorageFailed(f"the ledger {ref} is sealed")
        target = where.get(ref)
        if target is None or at > len(target):
            raise StorageFailed(f"there is nothing before position {at} of the ledger {ref}")
        target[at : at + len(data)] = data
