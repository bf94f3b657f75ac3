"""Ledgers in TiKV: the LedgerStore port over TiKV's raw key-value API.

NOT RUN AGAINST A REAL TIKV. The suite of LedgerStore passes over a dictionary in TiKV's place
(tests/unit/storage_service/test_tikv_example.py); nobody has started it with a cluster yet.

    STORE n TOPIC LEDGER            a ledger that exists
    STORE d TOPIC LEDGER PAGE       its bytes, in pages of 256 KiB
    STORE i TOPIC LEDGER PAGE       its index, in the same way

Numbers in keys are big-endian, so keys sort as ledgers and pages do. TiKV answers a write when a majority of its
replicas has it: there is nothing left to sync. A name is put before its pages and deleted after them, so that whatever
a crash leaves is listed, and can be deleted.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Protocol

from danubius.errors import StorageFailed
from danubius.ledger.entry import LedgerRef
from danubius.record.ledger_file import INDEX_ROW_BYTES, encode_header

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from danubius.ledger.entry import LedgerMeta
    from danubius.ledger.store import Append
    from danubius.model.buffers import Buffer
    from danubius.record.ledger_file import LedgerHeader

PAGE_BYTES: Final = 256 * 1024
"""TiKV wants values of well below a megabyte."""
_NAME: Final = b"n"
_DATA: Final = b"d"
_INDEX: Final = b"i"
_REF: Final = struct.Struct(">QI")
_PAGE: Final = struct.Struct(">Q")


class RawKv(Protocol):
    """What is needed of `tikv.RawClient` (PyPI: tikv-python): keys in ranges, ends excluded. Thread-safe."""

    def get(self, key: bytes) -> bytes | None: ...
    def put(self, key: bytes, value: bytes) -> None: ...
    def delete(self, key: bytes) -> None: ...
    def delete_range(self, start: bytes, end: bytes) -> None: ...
    def scan_keys(
        self, start: bytes, end: bytes, *, limit: int | None = None, reverse: bool = False
    ) -> Iterable[bytes]: ...


class TikvLedgerStore:
    """One store. Remembers the ends of ledgers that it writes, and nothing that is not in TiKV."""

    def __init__(self, kv: RawKv, store: str) -> None:
        self._kv = kv
        self._prefix = store.encode() + b"\0"
        self._ends: dict[tuple[bytes, LedgerRef], int] = {}

    # ------------------------------------------------------------ writing

    def create(self, ref: LedgerRef, header: LedgerHeader, buffers: Sequence[Buffer] = ()) -> None:
        self.delete(ref)
        self._kv.put(self._key(_NAME, ref), b"")
        self._write(_DATA, ref, 0, b"".join([encode_header(header), *buffers]))

    def append(self, ref: LedgerRef, at: int, buffers: Sequence[Buffer]) -> None:
        self._must_exist(ref)
        self._write(_DATA, ref, at, b"".join(buffers))

    def append_many(self, appends: Sequence[Append]) -> None:
        for ref, header, at, buffers, _ in appends:
            if header is None:
                self.append(ref, at, buffers)
            else:
                self.create(ref, header, buffers)

    def append_index(self, ref: LedgerRef, header: LedgerHeader, at_row: int, rows: Buffer) -> None:
        del header  # rows are proven by themselves
        self._must_exist(ref)
        self._write(_INDEX, ref, at_row * INDEX_ROW_BYTES, bytes(rows))

    def _write(self, kind: bytes, ref: LedgerRef, at: int, data: bytes) -> None:
        end = self._end(kind, ref)
        if at > end:
            raise StorageFailed(f"there is nothing before position {at} of the ledger {ref}")
        done = 0
        while done < len(data):
            page, offset = divmod(at + done, PAGE_BYTES)
            part = data[done : done + PAGE_BYTES - offset]
            key = self._key(kind, ref, page)
            if page * PAGE_BYTES < end and len(part) < PAGE_BYTES:
                old = self._kv.get(key) or b""
                part = old[:offset] + part + old[offset + len(part) :]
            self._kv.put(key, part)
            done += PAGE_BYTES - offset
        self._ends[kind, ref] = max(end, at + len(data))

    # ------------------------------------------------------------ reading

    def read(self, ref: LedgerRef, at: int, count: int) -> bytes:
        return self._read(_DATA, ref, at, count)

    def read_index(self, ref: LedgerRef, at_row: int, count: int) -> bytes:
        return self._read(_INDEX, ref, at_row * INDEX_ROW_BYTES, count * INDEX_ROW_BYTES)

    def _read(self, kind: bytes, ref: LedgerRef, at: int, count: int) -> bytes:
        parts: list[bytes] = []
        while count > 0:
            page, offset = divmod(at, PAGE_BYTES)
            size = min(count, PAGE_BYTES - offset)
            part = (self._kv.get(self._key(kind, ref, page)) or b"")[offset : offset + size]
            parts.append(part)
            if len(part) < size:
                break
            at, count = at + size, count - size
        return b"".join(parts)

    # ------------------------------------------------------------ keeping

    def sync(self, refs: Collection[LedgerRef]) -> None:
        for ref in refs:
            self._must_exist(ref)

    def settle(self) -> None:
        pass

    def tidy(self) -> None:
        pass

    def seal(self, ref: LedgerRef) -> None:
        for kind in (_DATA, _INDEX):
            self._ends.pop((kind, ref), None)

    def truncate(self, ref: LedgerRef, data_bytes: int, index_rows: int) -> None:
        for kind, end in ((_DATA, data_bytes), (_INDEX, index_rows * INDEX_ROW_BYTES)):
            if self._end(kind, ref) > end:
                page, offset = divmod(end, PAGE_BYTES)
                self._kv.delete_range(
                    self._key(kind, ref, page + 1), self._key(kind, ref) + b"\xff" * 9
                )
                key = self._key(kind, ref, page)
                kept = (self._kv.get(key) or b"")[:offset]
                if kept:
                    self._kv.put(key, kept)
                else:
                    self._kv.delete(key)
                self._ends[kind, ref] = end

    def recover(self, known: Mapping[LedgerRef, LedgerMeta]) -> None:
        del known
        self._ends.clear()

    def delete(self, ref: LedgerRef) -> None:
        self.seal(ref)
        for kind in (_INDEX, _DATA):
            self._kv.delete_range(self._key(kind, ref), self._key(kind, ref) + b"\xff" * 9)
        self._kv.delete(self._key(_NAME, ref))

    def delete_topic(self, topic_id: int) -> None:
        for ref in self._list(_PAGE.pack(topic_id)):
            self.delete(ref)

    def list(self) -> list[LedgerRef]:
        return self._list(b"")

    def close(self) -> None:
        self._ends.clear()

    # ------------------------------------------------------------ keys

    def _key(self, kind: bytes, ref: LedgerRef, page: int | None = None) -> bytes:
        key = self._prefix + kind + _REF.pack(*ref)
        return key if page is None else key + _PAGE.pack(page)

    def _list(self, topic: bytes) -> list[LedgerRef]:
        start = self._prefix + _NAME + topic
        keys = self._kv.scan_keys(start, start + b"\xff" * (_REF.size + 1 - len(topic)))
        return [LedgerRef(*_REF.unpack(key[-_REF.size :])) for key in keys]

    def _end(self, kind: bytes, ref: LedgerRef) -> int:
        """How far the ledger or its index goes: known, or to be seen by its last page."""
        end = self._ends.get((kind, ref))
        if end is None:
            start = self._key(kind, ref)
            last = list(self._kv.scan_keys(start, start + b"\xff" * 9, limit=1, reverse=True))
            end = 0
            if last:
                page = _PAGE.unpack(last[0][-_PAGE.size :])[0]
                end = page * PAGE_BYTES + len(self._kv.get(last[0]) or b"")
            self._ends[kind, ref] = end
        return end

    def _must_exist(self, ref: LedgerRef) -> None:
        if self._kv.get(self._key(_NAME, ref)) is None:
            raise StorageFailed(f"there is no ledger {ref}")
