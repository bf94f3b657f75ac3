"""Ledgers on the broker's disk and in an object store behind one port: who reads does not see where they lie.

Invariants:
- Everything is written to, and deleted from, the local store alone. Objects are read here, never changed.
- `place` and `release` are called on the loop, before the local files go; a read that finds too little locally looks
  again for an object, so a ledger that moves under a reader is read whole.
- Objects are read in aligned segments through one bounded cache. What fails its checksum is read again past it.
- An object that is missing, or a store that does not answer, is StorageFailed: it may come back. Wrong bytes are not.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import DanubiusError, ObjectNotFound, StorageFailed, TierMisconfigured
from danubius.ledger.entry import LedgerRef
from danubius.ledger.store import FiledStore
from danubius.record.ledger_file import FILE_HEADER_BYTES, INDEX_ROW_BYTES
from danubius.runtime.shared_cache import SharedCache
from danubius.runtime.threads import Lock, Worker, finishing
from danubius.tier.core.read_ahead import ReadAhead

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from danubius.ledger.entry import LedgerMeta
    from danubius.ledger.store import Append, LedgerStore
    from danubius.model.buffers import Buffer
    from danubius.model.file_part import FileIdentity
    from danubius.record.ledger_file import LedgerHeader
    from danubius.runtime.threads import Spawn
    from danubius.tier.config import TierConfig
    from danubius.tier.objects import ObjectStore

AHEAD_THREADS: Final = 2

log = logging.getLogger(__name__)


class ColdLedger(NamedTuple):
    """Where a ledger's object is, and how its bytes lie in it."""

    name: str
    data_bytes: int
    object_bytes: int
    is_local: bool
    """Whether the local store has it too."""


class _Fetch(NamedTuple):
    """A segment that somebody will want."""

    cold: ColdLedger
    number: int


class TieredCounts:
    """Since the start of the broker."""

    __slots__ = ("bytes_read", "failures", "rereads")

    def __init__(self) -> None:
        self.bytes_read = 0
        self.failures = 0
        self.rereads = 0


class TieredLedgerStore:
    """A LedgerStore over a local one and an ObjectStore."""

    def __init__(
        self, config: TierConfig, local: LedgerStore, objects: ObjectStore, spawn: Spawn = Worker
    ) -> None:
        self._local = local
        self._objects = objects
        self._segment_bytes = config.segment_bytes
        self._places: dict[LedgerRef, ColdLedger] = {}
        self._cache: SharedCache[tuple[str, int]] = SharedCache(config.cache_bytes)
        half = config.cache_bytes // 2 // config.segment_bytes
        self._ahead = ReadAhead(min(config.read_ahead, max(1, half)))
        self._fetches_max = max(1, half)
        self._fetches = 0
        """Segments that the threads are asked for."""
        self._lock = Lock()
        """Around what the reading threads share here: `_ahead`, `_fetches`, `_is_closed`."""
        self._workers = [
            spawn(f"danubius-ahead-{number}", self._fetch, on_crash=_crashed)
            for number in range(AHEAD_THREADS)
        ]
        self._is_closed = False
        self.counts = TieredCounts()
        self.on_released: Callable[[str], None] = _nobody_asks
        """Called on the loop with the name of an object that no ledger needs any more."""
        for worker in self._workers:
            worker.start()

    # ------------------------------------------------------------ where ledgers are

    def place(self, ref: LedgerRef, meta: LedgerMeta) -> None:
        self._places[ref] = ColdLedger(
            meta.object_name, meta.data_bytes, meta.object_bytes, meta.is_local
        )

    def forget(self, ref: LedgerRef) -> None:
        self._places.pop(ref, None)

    def release(self, ref: LedgerRef, meta: LedgerMeta) -> None:
        self._places.pop(ref, None)
        self.on_released(meta.object_name)

    @property
    def local(self) -> LedgerStore:
        return self._local

    @property
    def cache_hits(self) -> int:
        return self._cache.hits

    @property
    def cache_misses(self) -> int:
        return self._cache.misses

    @property
    def cached_bytes(self) -> int:
        return self._cache.bytes

    # ------------------------------------------------------------ reading

    def read(self, ref: LedgerRef, at: int, count: int) -> bytes:
        cold = self._places.get(ref)
        if cold is None or cold.is_local:
            data = self._local.read(ref, at, count)
            cold = self._places.get(ref)
            if len(data) == count or cold is None:
                return data
        if count == FILE_HEADER_BYTES and not at and cold.object_bytes > self._segment_bytes:
            # Whose it is, asked before its index is: that is no reason to fetch a whole segment.
            return self._get(cold.name, at, count)
        self._read_ahead(ref, cold, at, count)
        return self._read_object(cold, at, min(count, cold.data_bytes - at))

    def file_of(self, ref: LedgerRef, at: int, count: int) -> tuple[str, FileIdentity] | None:
        """The local file, as long as reads go there."""
        cold, local = self._places.get(ref), self._local
        if (cold is None or cold.is_local) and isinstance(local, FiledStore):
            return local.file_of(ref, at, count)
        return None

    def reread(self, ref: LedgerRef, at: int, count: int) -> bytes:
        cold = self._places.get(ref)
        if cold is None:
            return self._local.read(ref, at, count)
        self.counts.rereads += 1
        self._drop(cold, self._numbers(at, count))
        return self._read_object(cold, at, min(count, cold.data_bytes - at))

    def forget_cached(self, ref: LedgerRef) -> None:
        cold = self._places.get(ref)
        if cold is not None and not cold.is_local:
            self._drop(cold, self._numbers(0, cold.object_bytes))

    def _drop(self, cold: ColdLedger, numbers: range) -> None:
        for number in numbers:
            self._cache.drop((cold.name, number))

    def read_index(self, ref: LedgerRef, at_row: int, count: int) -> bytes:
        cold = self._places.get(ref)
        if cold is None or cold.is_local:
            data = self._local.read_index(ref, at_row, count)
            cold = self._places.get(ref)
            if cold is None or cold.is_local:
                return data
        at = cold.data_bytes + at_row * INDEX_ROW_BYTES
        count *= INDEX_ROW_BYTES
        if cold.object_bytes <= self._segment_bytes:
            return self._read_object(cold, at, count)
        # The rows of a large ledger are a small part of a segment, and stay in memory as an index.
        return self._get(cold.name, at, count)

    def _numbers(self, at: int, count: int) -> range:
        size = self._segment_bytes
        return range(at // size, (at + max(1, count) - 1) // size + 1)

    def _read_object(self, cold: ColdLedger, at: int, count: int) -> bytes:
        if count <= 0:
            return b""
        size = self._segment_bytes
        parts: list[bytes] = []
        for number in self._numbers(at, count):
            segment = self._segment(cold, number)
            start = max(0, at - number * size)
            stop = min(size, at + count - number * size)
            parts.append(segment[start:stop] if stop - start < len(segment) else segment)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _segment(self, cold: ColdLedger, number: int, *, counts: bool = True) -> bytes:
        size = self._segment_bytes
        at = number * size
        load = functools.partial(self._load, cold.name, at, min(size, cold.object_bytes - at))
        return self._cache.get((cold.name, number), load, counts=counts)

    def _load(self, name: str, at: int, count: int) -> bytes:
        data = self._get(name, at, count)
        if len(data) < count:
            # An answer that was cut short must not be kept for others; an object that is too short stays so.
            self.counts.rereads += 1
            data = self._get(name, at, count)
        return data

    def _get(self, name: str, at: int, count: int) -> bytes:
        try:
            data = self._objects.get(name, at, count)
        except (ObjectNotFound, TierMisconfigured) as error:
            self.counts.failures += 1
            raise StorageFailed(
                f"{name} cannot be read from cold storage: {error.message}"
            ) from error
        except DanubiusError:
            self.counts.failures += 1
            raise
        self.counts.bytes_read += len(data)
        return data

    # ------------------------------------------------------------ reading ahead

    def _read_ahead(self, ref: LedgerRef, cold: ColdLedger, at: int, count: int) -> None:
        numbers = self._numbers(at, count)
        segments = -(-cold.data_bytes // self._segment_bytes)
        following = self._places.get(LedgerRef(ref.topic_id, ref.ledger_id + 1))
        with self._lock:
            for number in self._ahead.note(ref, numbers[0], numbers[-1]):
                if number < segments:
                    self._fetch_later(cold, number)
                elif following is not None and not following.is_local:
                    # The same reader goes on there.
                    self._fetch_later(following, number - segments)

    def _fetch_later(self, cold: ColdLedger, number: int) -> None:
        is_within = number * self._segment_bytes < cold.data_bytes
        if is_within and self._fetches < self._fetches_max and not self._is_closed:
            self._fetches += 1
            self._workers[number % len(self._workers)].put(_Fetch(cold, number))

    def _fetch(self, fetches: list[_Fetch], now_ns: int) -> None:
        del now_ns
        for cold, number in finishing(fetches):
            with self._lock:
                self._fetches -= 1
            if (cold.name, number) not in self._cache and not self._is_closed:
                try:
                    self._segment(cold, number, counts=False)
                except DanubiusError as error:
                    # Whoever wants it will try, and be told.
                    log.debug("not read ahead", extra={"object": cold.name, "error": str(error)})

    # ------------------------------------------------------------ the local store's affair

    def create(self, ref: LedgerRef, header: LedgerHeader, buffers: Sequence[Buffer] = ()) -> None:
        self._local.create(ref, header, buffers)

    def append(self, ref: LedgerRef, at: int, buffers: Sequence[Buffer]) -> None:
        self._local.append(ref, at, buffers)

    def append_many(self, appends: Sequence[Append]) -> None:
        self._local.append_many(appends)

    def append_index(self, ref: LedgerRef, header: LedgerHeader, at_row: int, rows: Buffer) -> None:
        self._local.append_index(ref, header, at_row, rows)

    def size_of(self, ref: LedgerRef) -> int:
        return self._local.size_of(ref)

    def set_aside(self, ref: LedgerRef) -> str:
        return self._local.set_aside(ref)

    def sync(self, refs: Collection[LedgerRef]) -> None:
        self._local.sync(refs)

    def settle(self) -> None:
        self._local.settle()

    def seal(self, ref: LedgerRef) -> None:
        self._local.seal(ref)

    def truncate(self, ref: LedgerRef, data_bytes: int, index_rows: int) -> None:
        self._local.truncate(ref, data_bytes, index_rows)

    def recover(self, known: Mapping[LedgerRef, LedgerMeta]) -> None:
        self._local.recover(known)

    def tidy(self) -> None:
        self._local.tidy()

    def delete(self, ref: LedgerRef) -> None:
        self._local.delete(ref)

    def delete_topic(self, topic_id: int) -> None:
        self._local.delete_topic(topic_id)

    def list(self) -> list[LedgerRef]:
        return self._local.list()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        for worker in self._workers:
            worker.stop()
        self._local.close()


def _crashed(fetches: Sequence[object], crash: BaseException) -> None:
    """Reading ahead is a favour: readers fetch for themselves from now on. The thread's end is in the log."""
    del fetches, crash


def _nobody_asks(name: str) -> None:
    """Stand in for the part that removes objects."""
    del name
