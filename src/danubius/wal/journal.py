"""The broker's journal: one log for all topics, written by one thread, with group commit.

The loop appends and never waits. The thread takes everything that is queued, writes it at once,
syncs once if any record asked for it, and reports back to the loop.

Invariants:
- Reports come in the order of the appends. A record is reported once: committed or failed.
- Committed with sync=True: it and everything before it survive power loss. Committed with
  sync=False: it survives the death of the process, and power loss after sync_interval_ms.
- A failure fails everything that was appended and not yet reported, in one call of `on_failed`.
  The next append tries again, at the position where the failed ones would have been.
- Failed is not "never happened" at once: if the process dies before anything else was committed,
  recovery may find the first of the failed records. It finds none once another was committed.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from danubius.errors import InvariantViolation, ShuttingDown
from danubius.runtime.clock import SystemClock
from danubius.runtime.threads import Worker
from danubius.wal.committer import (
    SYNC_WAIT_NS_MAX,
    Close,
    Committed,
    Committer,
    JournalCounters,
    Sync,
    Synced,
    Trim,
    Turn,
)
from danubius.wal.core.format import BODY_BYTES_MAX, record_bytes
from danubius.wal.segments import Segments
from danubius.wal.writer import Entry, JournalWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from danubius.errors import DanubiusError
    from danubius.model.buffers import Buffer
    from danubius.runtime.clock import Clock
    from danubius.runtime.files import Files
    from danubius.runtime.threads import Spawn, WorkerPort
    from danubius.wal.committer import Failed, Item
    from danubius.wal.config import JournalConfig

    Post = Callable[[Callable[[], None]], object]
    OnCommitted = Callable[[list[object], int], None]
    OnFailed = Callable[[list[object], DanubiusError], None]
    OnSynced = Callable[[DanubiusError | None], None]

_NS_PER_MS: Final = 1_000_000

log = logging.getLogger(__name__)


class JournalRecord(NamedTuple):
    """One recovered record; the body is memory of its own."""

    position: int
    end_position: int
    kind: int
    topic_id: int
    body: memoryview


class Journal:
    """See the module. Life: recover() to its end, start(), append()…, close()."""

    def __init__(
        self,
        config: JournalConfig,
        files: Files,
        directory: Path,
        *,
        spawn: Spawn = Worker,
        clock: Clock | None = None,
    ) -> None:
        config.check()
        self._config = config
        self._spawn = spawn
        self._clock = clock or SystemClock()
        self._segments = Segments(config, files, directory)
        self._is_recovered = False
        self.counters = JournalCounters()
        # The loop's.
        self._pending: deque[object] = deque()
        self._queued_bytes = 0
        self._turn: list[Entry] = []
        self._turn_bytes = 0
        self._turn_syncs = 0
        self._is_held = False
        self._is_deferred = False
        self._defer: Post | None = None
        self._generation = 1
        self._end_position = 0
        self._committer: Committer | None = None
        self._worker: WorkerPort[Item] | None = None
        self._on_committed: OnCommitted = _ignore
        self._on_failed: OnFailed = _ignore

    # ------------------------------------------------------------ life

    def recover(
        self, from_position: int, *, keep_from: int | None = None
    ) -> Iterator[JournalRecord]:
        """Every record from a position on, in order; a torn tail is cut. Go through all of it.

        What lies between `keep_from` and that position is not read, but stays until it is trimmed.
        Raises DataDirectoryDamaged where something that had been synced is missing or bad, and
        DataDirectoryTooNew for a format of the future.
        """
        yield from self.inspect(from_position, keep_from=keep_from)
        self.secure()

    def inspect(
        self, from_position: int, *, keep_from: int | None = None, reach: int | None = None
    ) -> Iterator[JournalRecord]:
        """The same, without a change to the disk. May be gone through again; `secure` follows the last time.

        `reach`: the journal had been synced up to here, by the word of a snapshot.
        """
        for content, found in self._segments.inspect(from_position, keep_from, reach):
            for record, body_at in found.records:
                body = bytearray(content[body_at : body_at + record.body_bytes])
                yield JournalRecord(
                    record.position, record.end, record.kind, record.topic_id, memoryview(body)
                )

    def secure(self) -> None:
        """Everything was found sound: make it durable, and build on it."""
        self._segments.secure()
        self._end_position = self._segments.recovered_end
        self._is_recovered = True

    def start(
        self,
        post: Post,
        on_committed: OnCommitted,
        on_failed: OnFailed,
        *,
        defer: Post | None = None,
    ) -> None:
        """Start the thread. `post` brings a call to the loop: loop.call_soon_threadsafe.

        With `defer` (loop.call_soon) the appends of one turn of the loop are gathered into one group.

        on_committed(tokens, end_position): tokens in the order of append, without None; all that
        lies below end_position is committed. on_failed(tokens, error): every token appended so
        far and not reported.
        """
        assert self._is_recovered, "recover() must have been gone through before start()"
        self._on_committed = on_committed
        self._on_failed = on_failed
        self._defer = defer
        writer = JournalWriter(self._config, self._segments, self._end_position)
        self._committer = Committer(
            writer,
            self.counters,
            self._config.sync_interval_ms * _NS_PER_MS,
            self._notify_by(post),
            self._clock,
        )
        self._worker = self._spawn(
            "journal", self._committer.handle, on_crash=self._committer.crashed
        )
        self._committer.aside = self._worker.aside
        self._worker.start()
        # Trims nothing, but lets the thread get the first file ready before the first append.
        self._worker.put(Trim(0))

    def close(self) -> None:
        """Write and sync what was appended, report it (before this returns), end the thread."""
        if self._worker is None or self._committer is None:
            return
        self.end_turn()
        self._worker.put(Close())
        if not self._worker.stop():
            log.error("the journal thread hangs in the disk; leaving it behind")
        self._deliver()
        self._worker = None

    # ------------------------------------------------------------ the loop's side

    @property
    def queued_bytes(self) -> int:
        """Appended and not yet reported."""
        return self._queued_bytes

    @property
    def is_congested(self) -> bool:
        """Whether the publish path should stop for a while."""
        return self._queued_bytes > self._config.queue_bytes_max

    @property
    def end_position(self) -> int:
        """Everything below is committed, and was reported."""
        return self._end_position

    @property
    def size_bytes(self) -> int:
        """What trim could free at the most: start a checkpoint on it."""
        return self._committer.size_bytes if self._committer else self._segments.live_bytes()

    @property
    def bytes_max(self) -> int:
        """The bound of `size_bytes`."""
        return self._config.files_max * self._config.file_bytes

    @property
    def is_nearly_full(self) -> bool:
        """Three quarters of the bound are used: trim soon, or appends will fail."""
        return self.size_bytes * 4 > self.bytes_max * 3

    def append(
        self,
        kind: int,
        topic_id: int,
        body: Buffer | Sequence[Buffer],
        token: object = None,
        *,
        sync: bool,
    ) -> None:
        """Queue a record; never waits. Its buffers must not change until it is reported.

        After `close` nothing is stored, and nothing reported.
        """
        if self._worker is None:
            self._check_closed()
            return
        if type(body) is memoryview:
            parts: tuple[Buffer, ...] = (body,)
            body_bytes = body.nbytes
        else:
            parts = parts_of(body)
            body_bytes = sum([memoryview(part).nbytes for part in parts])
        assert body_bytes < BODY_BYTES_MAX, f"a journal record of {body_bytes} bytes"
        size = record_bytes(body_bytes)
        self._queued_bytes += size
        self._pending.append(token)
        self._turn.append(Entry(kind, topic_id, parts, body_bytes, size, sync, self._generation))
        self._turn_bytes += size
        self._turn_syncs += sync
        if self._defer is None:
            self.end_turn()
        elif not self._is_held and not self._is_deferred:
            self._is_deferred = True
            self._defer(self.end_turn)

    def hold(self) -> None:
        """More may follow at once: wait for `release` before anything is committed."""
        self._is_held = True

    def release(self) -> None:
        """Commit what need not be synced; the rest waits for the end of the loop's turn and others like it."""
        self._is_held = False
        if not self._turn or self._is_deferred:
            return
        if self._turn_syncs and self._defer is not None:
            self._is_deferred = True
            self._defer(self.end_turn)
        else:
            self.end_turn()

    def end_turn(self) -> None:
        """Commit what was appended since the last turn: here if that is quick, else on the thread.

        For a sync that will be quick this waits a moment: the answer comes without a way back through the loop.
        """
        self._is_deferred = False
        worker, committer = self._worker, self._committer
        if not self._turn or worker is None or committer is None:
            return
        turn = Turn(self._turn, self._turn_bytes, self._turn_syncs, self._defer is not None)
        self._turn = []
        self._turn_bytes = self._turn_syncs = 0
        if turn.is_quick and worker.try_run(turn, committer.is_quick):
            self._deliver()
            return
        may_wait, turn.is_quick = turn.is_quick, False
        if may_wait and self._put_and_wait(worker, committer, turn):
            self._deliver()
        else:
            worker.put(turn)

    def _put_and_wait(self, worker: WorkerPort[Item], committer: Committer, turn: Turn) -> bool:
        try:
            return worker.put_and_wait(turn, committer.await_soon, SYNC_WAIT_NS_MAX / 1e9)
        finally:
            # Before we look: a report that comes behind the look is announced again.
            committer.is_awaited = False

    def sync(self, on_done: OnSynced) -> None:
        """Make everything that was committed so far durable, whatever it asked for; then `on_done` runs on the loop."""
        if self._worker is None:
            self._check_closed()
            on_done(ShuttingDown("the journal is closed"))
        else:
            self.end_turn()
            self._worker.put(Sync(on_done))

    def trim(self, position: int) -> None:
        """Nothing below `position` is needed any more (a durable snapshot covers it)."""
        if self._worker is None:
            self._check_closed()
        else:
            self._worker.put(Trim(position))

    def _check_closed(self) -> None:
        """Timers may outlive the journal by a turn of the loop: nobody is left to hear of what they append."""
        assert self._committer is not None, "the journal was never started"

    def _notify_by(self, post: Post) -> Callable[[], None]:
        def notify() -> None:
            post(self._deliver)

        return notify

    def _deliver(self) -> None:
        """Hand the thread's reports to the callbacks."""
        committer = self._committer
        assert committer is not None, "reports come after start()"
        reports = committer.reports
        try:
            while reports:
                report = reports.popleft()
                if isinstance(report, Committed):
                    self._deliver_committed(report)
                elif isinstance(report, Synced):
                    report.on_done(report.error)
                else:
                    self._deliver_failed(report)
        finally:
            if reports:
                # A callback raised; the reports behind it are still owed.
                committer.notify()

    def _deliver_committed(self, report: Committed) -> None:
        take = self._pending.popleft
        tokens = [token for _ in range(report.count) if (token := take()) is not None]
        self._queued_bytes -= report.size
        self._end_position = report.end
        self._on_committed(tokens, report.end)

    def _deliver_failed(self, report: Failed) -> None:
        if report.generation != self._generation:
            return
        self._generation += 1
        tokens = [token for token in self._pending if token is not None]
        self._pending.clear()
        self._queued_bytes = 0
        self._on_failed(tokens, report.error)


def parts_of(body: Buffer | Sequence[Buffer]) -> tuple[Buffer, ...]:
    """A body as the buffers that it is made of."""
    if isinstance(body, (bytes, bytearray, memoryview)):
        return (cast("Buffer", body),)  # a memoryview is a Sequence too, and narrows to both
    return tuple(body)


def _ignore(tokens: list[object], fact: object) -> None:
    raise InvariantViolation(f"the journal reports {len(tokens)} tokens before start(): {fact}")
