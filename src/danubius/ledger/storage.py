"""The ledgers of one broker: the memory they share, the storage thread and the read threads.

Everything is called on the loop. `post` is the loop's `call_soon_threadsafe`.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from danubius.errors import DanubiusError, StorageFailed
from danubius.ledger.backing import Backing
from danubius.ledger.index_cache import IndexCache
from danubius.ledger.leftovers import find_leftovers, known_ledgers, repeated
from danubius.ledger.managed import ManagedLedger
from danubius.ledger.read_pool import ReadPool
from danubius.ledger.reader import check_ledger
from danubius.ledger.tail_cache import TailCache
from danubius.ledger.writer import ClearJob, DeleteJob, Job, LedgerWriter, Report, SyncJob, WakeJob
from danubius.runtime.clock import SystemClock
from danubius.runtime.threads import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.ledger.backing import ColdPlaces
    from danubius.ledger.config import LedgerConfig
    from danubius.ledger.core.segment import Ledger
    from danubius.ledger.entry import LedgerMeta, LedgerRef
    from danubius.ledger.leftovers import Leftover, State
    from danubius.ledger.store import LedgerStore
    from danubius.runtime.clock import Clock
    from danubius.runtime.threads import Spawn

    Post = Callable[[Callable[[], None]], object]

log = logging.getLogger(__name__)


class LedgerStorage:
    """One per broker. Made, then `recover_files`, `start`, `settle_in`, then used, then `close`."""

    def __init__(
        self,
        config: LedgerConfig,
        store: LedgerStore,
        post: Post,
        clock: Clock | None = None,
        spawn: Spawn = Worker,
        cold: ColdPlaces | None = None,
    ) -> None:
        config.check()
        self._store = store
        self._post = post
        self._clock = clock or SystemClock()
        self._cache = TailCache(config, self._put)
        self._cache.now_ms = self._clock.wall_us() // 1000
        self._reads = ReadPool(config.read_threads, config.reads_queued_max, post, spawn)
        self._cold_reads = ReadPool(
            config.cold_read_threads, config.reads_queued_max, post, spawn, "cold"
        )
        self._has_cold = cold is not None
        self._local = store if cold is None else cold.local
        self._writer = LedgerWriter(config, store, post, self._on_report, self.tick)
        self._thread = spawn("danubius-storage", self._writer.handle, on_crash=self._on_crash)
        self._backing = Backing(
            config,
            store,
            self._cache,
            IndexCache(config.index_cache_bytes),
            self._reads,
            self._cold_reads,
            cold,
            lambda: self.position(),
            [],
            self._put,
        )
        self.position: Callable[[], int] = _nowhere
        """How far the journal is committed; whoever writes it says so."""
        self._is_closed = False
        self._leftovers: list[Leftover] = []
        self._ids_from: dict[int, int] = {}
        """By topic: lower numbers of ledgers are taken by what a start has found."""
        self._held: list[Job] | None = None
        """Deletions that wait for the start to come through; None: it has."""
        self.unexplained: list[str] = []
        """Where the ledgers are that this start found and that no state explains."""
        self.failure: DanubiusError | None = None
        """Why ledgers cannot be written at the moment."""
        self.on_relieved: Callable[[], None] | None = None
        """Called when `is_congested` or `failure` has ended."""

    @property
    def dirty_bytes(self) -> int:
        """Memory of entries that are not written to their ledgers yet."""
        return self._cache.dirty_bytes

    @property
    def cached_bytes(self) -> int:
        """Memory of all entries in the tails."""
        return self._cache.cached_bytes

    @property
    def is_congested(self) -> bool:
        """The disk does not keep up: nothing more should be published for now."""
        return self._cache.is_congested

    def recover_files(self, state: State) -> None:
        """Look at what is there, and change nothing: `settle_in` does that when the start has come through.

        Until then nothing is deleted. What was written behind the snapshot lies where it was, and what the journal
        gives back goes into ledgers with other numbers. Blocks; called before the loop serves anybody.
        """
        self._store.recover(known_ledgers(state.ledgers))
        self._leftovers = find_leftovers(self._store, state)
        stale = repeated(self._leftovers)
        if stale:
            # Or starts that die again and again would fill the disk. The life before them left the same, and more.
            log.warning("removing what starts left that died", extra={"ledgers": len(stale)})
            for ref in stale:
                self._store.delete(ref)
            self._leftovers = [one for one in self._leftovers if one.ref not in stale]
        for one in self._leftovers:
            taken = self._ids_from.get(one.ref.topic_id, 0)
            self._ids_from[one.ref.topic_id] = max(taken, one.ref.ledger_id + 1)
        self._held = []
        self._writer.may_tidy = False

    def settle_in(self) -> None:
        """The start has come through: from here on what is not needed goes, as the state says."""
        held, self._held = self._held, None
        leftovers, self._leftovers = self._leftovers, []
        self._ids_from.clear()
        self._writer.may_tidy = True
        for job in held or ():
            self._put(job)
        if leftovers:
            self._put(ClearJob(leftovers, self._cleared))

    def _cleared(self, places: list[str]) -> None:
        self.unexplained = places

    def start(self) -> None:
        self._thread.start()
        self._put(WakeJob())
        self._reads.start()
        if self._has_cold:
            self._cold_reads.start()

    def close(self) -> None:
        """Finish what was handed over and end the threads. What was not flushed is in the journal."""
        self._is_closed = True
        self._thread.stop()
        self._reads.close()
        if self._has_cold:
            self._cold_reads.close()
        self._store.close()

    def open(
        self,
        topic_id: int,
        epoch: int,
        metas: list[LedgerMeta],
        next_offset: int,
        start_offset: int = 0,
    ) -> ManagedLedger:
        """Take up a topic. Its ledgers are sealed there and then; the next append begins a new one."""
        ledger = ManagedLedger(self._backing, topic_id, epoch, metas, next_offset)
        ledger.next_ledger_id = max(ledger.next_ledger_id, self._ids_from.get(topic_id, 0))
        self._cache.count_tail(1)
        if start_offset > ledger.start_offset:
            ledger.trim_to(start_offset)
        return ledger

    def flush(self, on_done: Callable[[DanubiusError | None], None]) -> None:
        """Write and sync everything appended before this call, then run `on_done` on the loop.

        After an error everything is kept and the next flush takes it up again.
        """
        self._cache.hand_over_for_sync()
        sealed = self._backing.sealed.copy()
        self._backing.sealed.clear()

        def synced(error: DanubiusError | None) -> None:
            if error is None:
                self._release_indexes(sealed)
            else:
                self._backing.sealed.extend(sealed)
            on_done(error)

        self._put(SyncJob(synced))

    def check_ledger(
        self, ref: LedgerRef, meta: LedgerMeta, on_done: Callable[[DanubiusError | None], None]
    ) -> None:
        """Prove what is on disk of a ledger, as it was when `meta` was taken; LedgerDamaged where it is not sound.

        What is not written yet is written first.
        """

        def flushed(error: DanubiusError | None) -> None:
            if error is not None:
                on_done(error)
                return
            work = functools.partial(
                check_ledger, self._local, ref, meta, self._backing.config.block_bytes
            )
            self._reads.submit(work, on_done)

        if meta.is_sealed:
            flushed(None)
        else:
            self.flush(flushed)

    def tick(self) -> None:
        """Write what is due. The storage thread calls this on the loop every flush interval."""
        self._cache.now_ms = self._clock.wall_us() // 1000
        self._cache.hand_over_due()

    def check(self) -> None:
        self._cache.check()

    def _release_indexes(self, sealed: list[Ledger]) -> None:
        """Their files have them now: they may leave the memory when others are wanted."""
        for ledger in sealed:
            if ledger.index is not None:
                self._backing.indexes.put(ledger.ref, ledger.index)
                ledger.index = None

    def _put(self, job: Job) -> None:
        # A tick that was on its way to the loop may come after the end: the journal has what it would hand over.
        if self._held is not None and isinstance(job, DeleteJob):
            self._held.append(job)
        elif not self._is_closed:
            self._thread.put(job)

    def _on_report(self, report: Report) -> None:
        was_held_up = self.is_congested or self.failure is not None
        self._cache.settle(report.written)
        self.failure = report.failure
        if was_held_up and not self.is_congested and self.failure is None and self.on_relieved:
            self.on_relieved()

    def _on_crash(self, jobs: list[Job], crash: BaseException) -> None:
        error = StorageFailed(f"the storage thread crashed: {crash!r}; restart the broker")
        self._post(functools.partial(self._give_up, error))
        for job in jobs:
            if isinstance(job, SyncJob):
                self._post(functools.partial(job.on_done, error))

    def _give_up(self, error: DanubiusError) -> None:
        self.failure = error


def _nowhere() -> int:
    """Stand in for a journal that nobody has."""
    return 0
