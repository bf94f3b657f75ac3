"""Checkpoints: ledgers synced, journal synced, state saved, journal trimmed, in that order.

A checkpoint at journal position P is complete when every batch below P is in synced ledger files and the state as of
P is in a synced snapshot, that of a topic as of P or later. Only then may the journal below P go. A crash at any step
leaves the previous one valid. The journal is synced up to every position that the snapshot names before that is saved:
one that ends before them has lost something.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Final

from danubius.errors import DanubiusError, ShuttingDown, StorageFailed
from danubius.runtime.slices import in_slices
from danubius.runtime.threads import Worker
from danubius.shard.state.capture import Capture
from danubius.shard.state.facts import BARRIER
from danubius.shard.state.snapshot import encode_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.runtime.threads import Spawn, WorkerPort
    from danubius.shard.shard import Shard
    from danubius.shard.state.snapshot import CapturedSnapshot
    from danubius.shard.state.tokens import OnDone
    from danubius.wal.ports import SnapshotPort

TICK_MS: Final = 250
TOPICS_A_SLICE: Final = 50
"""Whose states are captured in one turn of the loop: about half a millisecond."""
RETRY_TICKS: Final = 20
"""After a failure the next attempt waits this many ticks."""
FAILURES_MAX: Final = 3
"""So many failures in a row are no accident: about ten seconds, after which the broker says that it is not well."""
STUCK_S: Final = 300
"""A checkpoint that has taken this long hangs, as far as anyone can tell."""

log = logging.getLogger(__name__)


class _Save:
    """One snapshot on its way to disk; answered with the position to which the journal may be trimmed."""

    __slots__ = ("is_sole", "on_saved", "position", "snapshot")

    def __init__(
        self,
        position: int,
        snapshot: CapturedSnapshot,
        on_saved: Callable[[int | DanubiusError], None],
        *,
        is_sole: bool,
    ) -> None:
        self.position = position
        self.snapshot = snapshot
        self.on_saved = on_saved
        self.is_sole = is_sole


class Checkpointer:
    """Keeps the journal short and the restart quick; its timer drives the broker's ticks."""

    def __init__(self, shard: Shard, snapshots: SnapshotPort, spawn: Spawn = Worker) -> None:
        self._shard = shard
        self._snapshots = snapshots
        self._worker: WorkerPort[_Save] = spawn(
            "danubius-snapshot", self._save, on_crash=self._crashed
        )
        self._is_running = False
        self._is_stopped = False
        self._ticks = 0
        self._retry_tick = 0
        self._last_position = 0
        self._last_ns = 0
        self._trimmed_position = 0
        self._started_ns = 0
        self._failure: DanubiusError | None = None
        self._failures_in_row = 0
        # Since the start of the broker.
        self.checkpoints = 0
        self.failures = 0

    @property
    def problem(self) -> str | None:
        """Why the broker is not well, if none can be made: its journal grows until publishing stops."""
        if self._failure is not None and self._failures_in_row >= FAILURES_MAX:
            return (
                f"the last {self._failures_in_row} checkpoints failed, so the journal only grows: "
                f"{self._failure.message}"
            )
        running_s = (self._shard.clock.monotonic_ns() - self._started_ns) // 1_000_000_000
        if self._is_running and running_s >= STUCK_S:
            return f"a checkpoint has been under way for {running_s} s, and the journal only grows"
        return None

    @property
    def age_s(self) -> float:
        """Since the last one, or the start."""
        return max(0, self._shard.clock.monotonic_ns() - self._last_ns) / 1e9

    @property
    def trimmed_position(self) -> int:
        """That of the oldest snapshot which is kept, as far as this process has made any."""
        return self._trimmed_position

    def hasten(self) -> None:
        """Make one soon, at a position behind all that was journaled until here, unless one is under way."""
        if self._is_running or self._is_stopped or self._ticks < self._retry_tick:
            return
        # The fact moves the position: two snapshots of the same one would be one.
        self._shard.commit(BARRIER, self._run_if_idle)

    def _run_if_idle(self, error: DanubiusError | None) -> None:
        if error is None:
            # Not in the middle of a commit, whose position is not known yet.
            self._shard.loop.call_soon(self._run_now)

    def _run_now(self) -> None:
        if not self._is_running and not self._is_stopped:
            self.run(_ignore)

    def start(self, recovered_position: int) -> None:
        """Begin ticking; `recovered_position` is that of the snapshot the broker started from."""
        self._last_position = recovered_position
        self._last_ns = self._shard.clock.monotonic_ns()
        self._worker.start()
        self._shard.loop.call_later(TICK_MS / 1000, self._tick)

    def stop(self) -> None:
        """No further ticks; waits for a save under way."""
        self._is_stopped = True
        self._worker.stop()

    def _tick(self) -> None:
        if self._is_stopped:
            return
        self._ticks += 1
        shard = self._shard
        shard.ticks.advance(TICK_MS)
        # Those who wait for room must hear of it when there will be none.
        shard.pressure.relieve()
        if self._is_due():
            self.run(_ignore)
        shard.loop.call_later(TICK_MS / 1000, self._tick)

    def _is_due(self) -> bool:
        shard = self._shard
        if self._is_running or self._ticks < self._retry_tick:
            return False
        config, topics = shard.config, len(shard.topics)
        more_bytes = min(topics * config.checkpoint_topic_bytes, shard.journal.bytes_max // 2)
        due_bytes = config.checkpoint_bytes + more_bytes
        if shard.committed_position - self._last_position >= due_bytes:
            return True
        if shard.journal.is_nearly_full and self._trimmed_position < shard.committed_position:
            # Even if nothing was committed since the last one: its journal is kept for the snapshot before it.
            return True
        age_ms = (shard.clock.monotonic_ns() - self._last_ns) // 1_000_000
        return (
            age_ms >= shard.config.checkpoint_interval_ms
            and shard.committed_position != self._last_position
        )

    def run(self, on_done: OnDone) -> None:
        """Make one checkpoint as of now."""
        self._is_running = True
        shard = self._shard
        self._started_ns = shard.clock.monotonic_ns()
        capture = Capture(shard)

        def captured() -> None:
            if self._is_stopped:
                flushed(ShuttingDown("the broker is stopping and saves no more"))
            else:
                shard.ledgers.flush(flushed)

        def flushed(error: DanubiusError | None) -> None:
            if error is not None:
                saved(error)
            else:
                shard.journal.sync(synced)

        def synced(error: DanubiusError | None) -> None:
            if error is None and self._is_stopped:
                error = ShuttingDown("the broker is stopping and saves no more")
            if error is not None:
                saved(error)
            else:
                is_sole = shard.journal.is_nearly_full
                save = _Save(capture.position, capture.snapshot(), saved, is_sole=is_sole)
                self._worker.put(save)

        def saved(outcome: int | DanubiusError) -> None:
            self._finished(capture.position, outcome)
            on_done(outcome if isinstance(outcome, DanubiusError) else None)

        in_slices(shard.loop, capture.topics, TOPICS_A_SLICE, capture.look_at, captured)

    def _finished(self, position: int, outcome: int | DanubiusError) -> None:
        self._is_running = False
        if self._is_stopped:
            # The journal is closed; what could be trimmed will be after the next start.
            return
        if isinstance(outcome, DanubiusError):
            self.failures += 1
            self._failure = outcome
            self._failures_in_row += 1
            self._retry_tick = self._ticks + RETRY_TICKS
            log.warning("checkpoint failed, will be tried again", extra={"error": str(outcome)})
            return
        self._failure, self._failures_in_row = None, 0
        self._last_position = position
        self._last_ns = self._shard.clock.monotonic_ns()
        self.checkpoints += 1
        self._trimmed_position = outcome
        self._shard.journal.trim(outcome)
        log.debug("checkpoint", extra={"position": position})

    def _save(self, saves: list[_Save], _now_ns: int) -> None:
        for save in saves:
            outcome: int | DanubiusError
            try:
                data = encode_snapshot(save.snapshot)
                outcome = self._snapshots.save(save.position, data, is_sole=save.is_sole)
            except DanubiusError as failure:
                outcome = failure
            self._shard.loop.call_soon_threadsafe(save.on_saved, outcome)

    def _crashed(self, saves: list[_Save], crash: BaseException) -> None:
        for save in saves:
            error = StorageFailed(f"the snapshot thread ended: {crash}")
            self._shard.loop.call_soon_threadsafe(functools.partial(save.on_saved, error))


def _ignore(_error: DanubiusError | None) -> None:
    """Failures were logged; the next tick tries again."""
