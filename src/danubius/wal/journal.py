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

import functools
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import msgspec

from danubius.errors import DanubiusError, InvariantViolation, StorageFailed
from danubius.model.limits import KIB
from danubius.runtime.clock import SystemClock
from danubius.runtime.threads import Worker
from danubius.wal.core.format import BODY_BYTES_MAX, Buffer, record_bytes
from danubius.wal.segments import Segments
from danubius.wal.writer import Entry, JournalWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from danubius.runtime.clock import Clock
    from danubius.runtime.files import Files
    from danubius.runtime.threads import Spawn, WorkerPort
    from danubius.wal.config import JournalConfig

    Post = Callable[[Callable[[], None]], object]
    OnCommitted = Callable[[list[object], int], None]
    OnFailed = Callable[[list[object], DanubiusError], None]

_NS_PER_MS: Final = 1_000_000
QUICK_BYTES_MAX: Final = 32 * KIB
"""Larger groups are never written on the loop's thread."""
QUICK_SYNCED_MAX: Final = 2
"""Larger groups are never synced on the loop's thread."""
QUICK_SYNC_NS_MAX: Final = 500_000
"""Where syncs take longer than this on average, none is done on the loop's thread."""
_SYNC_WEIGHT: Final = 8
"""The last sync's share in the moving average is one in this many."""

log = logging.getLogger(__name__)


class JournalRecord(NamedTuple):
    """One recovered record; the body is memory of its own."""

    position: int
    end_position: int
    kind: int
    topic_id: int
    body: memoryview


class JournalCounters(msgspec.Struct):
    """What the journal did since it started; written by its thread, read by anyone."""

    records: int = 0
    record_bytes: int = 0
    groups: int = 0
    syncs: int = 0
    sync_ns: int = 0
    """Time spent in syncs."""
    failures: int = 0


class _Turn(msgspec.Struct, gc=False):
    entries: list[Entry]
    is_quick: bool = False
    """Handled on the loop's thread, which takes the reports at once; what is slow waits for the thread."""


class _Trim(msgspec.Struct, gc=False):
    position: int


class _Close(msgspec.Struct, gc=False):
    pass


class _Committed(msgspec.Struct, gc=False):
    count: int
    size: int
    end: int


class _Failed(msgspec.Struct, gc=False):
    generation: int
    error: DanubiusError


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
        self._committer: _Committer | None = None
        self._worker: WorkerPort[_Turn | _Trim | _Close] | None = None
        self._on_committed: OnCommitted = _ignore
        self._on_failed: OnFailed = _ignore

    # ------------------------------------------------------------ life

    def recover(self, from_position: int) -> Iterator[JournalRecord]:
        """Every record from a position on, in order; a torn tail is cut. Go through all of it.

        Raises DataDirectoryDamaged where something that had been synced is missing or bad, and
        DataDirectoryTooNew for a format of the future.
        """
        for content, found in self._segments.recover(from_position):
            for record, body_at in found.records:
                body = bytearray(content[body_at : body_at + record.body_bytes])
                yield JournalRecord(
                    record.position, record.end, record.kind, record.topic_id, memoryview(body)
                )
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
        self._committer = _Committer(
            writer,
            self.counters,
            self._config.sync_interval_ms * _NS_PER_MS,
            self._notify_by(post),
            self._clock,
        )
        self._worker = self._spawn("journal", self._committer.handle, on_crash=self._committer.bury)
        self._worker.start()
        # Trims nothing, but lets the thread get the first file ready before the first append.
        self._worker.put(_Trim(0))

    def close(self) -> None:
        """Write and sync what was appended, report it (before this returns), end the thread."""
        if self._worker is None or self._committer is None:
            return
        self.end_turn()
        self._worker.put(_Close())
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

    def append(
        self,
        kind: int,
        topic_id: int,
        body: Buffer | Sequence[Buffer],
        token: object = None,
        *,
        sync: bool,
    ) -> None:
        """Queue a record; never waits. Its buffers must not change until it is reported."""
        assert self._worker is not None, "the journal is not running"
        parts = _parts(body)
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
        """Commit what was appended since the last turn: here if that is quick, else on the thread."""
        self._is_deferred = False
        turn, worker, committer = self._turn, self._worker, self._committer
        if not turn or worker is None or committer is None:
            return
        is_quick = functools.partial(
            committer.is_quick, len(turn), self._turn_bytes, self._turn_syncs
        )
        self._turn = []
        self._turn_bytes = self._turn_syncs = 0
        if self._defer is not None and worker.try_run([_Turn(turn, is_quick=True)], is_quick):
            self._deliver()
        else:
            worker.put(_Turn(turn))

    def trim(self, position: int) -> None:
        """Nothing below `position` is needed any more (a durable snapshot covers it)."""
        assert self._worker is not None, "the journal is not running"
        self._worker.put(_Trim(position))

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
                match reports.popleft():
                    case _Committed() as report:
                        self._deliver_committed(report)
                    case _Failed() as report:
                        self._deliver_failed(report)
        finally:
            if reports:
                # A callback raised; the reports behind it are still owed.
                committer.notify()

    def _deliver_committed(self, report: _Committed) -> None:
        take = self._pending.popleft
        tokens = [token for _ in range(report.count) if (token := take()) is not None]
        self._queued_bytes -= report.size
        self._end_position = report.end
        self._on_committed(tokens, report.end)

    def _deliver_failed(self, report: _Failed) -> None:
        if report.generation != self._generation:
            return
        self._generation += 1
        tokens = [token for token in self._pending if token is not None]
        self._pending.clear()
        self._queued_bytes = 0
        self._on_failed(tokens, report.error)


class _Committer:
    """The thread's side: groups, syncs, reports."""

    def __init__(
        self,
        writer: JournalWriter,
        counters: JournalCounters,
        sync_interval_ns: int,
        notify: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._writer = writer
        self._counters = counters
        self._sync_interval_ns = sync_interval_ns
        self.notify = notify
        self.reports: deque[_Committed | _Failed] = deque()
        """Filled here, emptied by the loop."""
        self.size_bytes = writer.size_bytes
        self._failed_generation = 0
        self._is_failing = False
        self._is_quiet = False
        """The loop itself runs this, and will look for reports unasked."""
        self._sync_ns = 0
        """How long syncs take, a moving average."""
        self._sync_due_ns: int | None = None

    def is_quick(self, count: int, size: int, syncs: int) -> bool:
        """Whether a group takes less time than handing it to the thread and back.

        Asked while nobody writes. It is so for a small write without a change of files; with a sync only for a
        lone record on a quick disk: many at once are better off with a thread that syncs while the loop goes on.
        """
        if size > QUICK_BYTES_MAX or not self._writer.is_quick(size):
            return False
        return not syncs or (count <= QUICK_SYNCED_MAX and self._sync_ns < QUICK_SYNC_NS_MAX)

    def handle(self, items: list[_Turn | _Trim | _Close], now_ns: int) -> int | None:
        entries: list[Entry] = []
        for item in items:
            if isinstance(item, _Turn):
                if item.is_quick:
                    return self._handle_quick(item.entries, now_ns)
                entries += item.entries
            elif isinstance(item, _Trim):
                self._writer.trim(item.position)
            else:
                self._commit_all(entries)
                self._sync_late()
                self._writer.close()
                return None
        self._commit_all(entries)
        self._keep_interval(now_ns)
        self._writer.prepare()
        self.size_bytes = self._writer.size_bytes
        return self._sync_due_ns

    def _handle_quick(self, entries: list[Entry], now_ns: int) -> int | None:
        group = [entry for entry in entries if entry.generation > self._failed_generation]
        self._is_quiet = True
        try:
            if group:
                self._commit(group)
        finally:
            self._is_quiet = False
        if self._writer.durable == self._writer.end:
            self._sync_due_ns = None
        elif self._sync_due_ns is None:
            self._sync_due_ns = now_ns + self._sync_interval_ns
        return self._sync_due_ns

    def bury(self, items: list[_Turn | _Trim | _Close], crash: BaseException) -> None:
        """A bug ended the thread: nothing more is written, and everyone who waits hears of it."""
        error = StorageFailed(f"the journal has stopped after an internal error: {crash!r}")
        turns = [item for item in items if isinstance(item, _Turn)]
        generations = [entry.generation for turn in turns for entry in turn.entries]
        if generations:
            self._report(_Failed(max(generations), error))

    def _commit_all(self, entries: list[Entry]) -> None:
        first = 0
        while first < len(entries):
            if entries[first].generation <= self._failed_generation:
                # Appended before the loop heard of a failure: it was failed together with it.
                first += 1
                continue
            count = self._writer.fit(entries, first)
            self._commit(entries[first : first + count])
            first += count

    def _commit(self, group: list[Entry]) -> None:
        """One write, at most one sync, one report (two if records before the first sync wait less)."""
        writer = self._writer
        reported = writer.end
        try:
            writer.write(group)
            early = 0 if writer.must_sync else _count_before_sync(group)
            if early:
                reported = self._report_committed(group[:early], reported)
            if early < len(group):
                self._sync()
                self._report_committed(group[early:], reported)
        except DanubiusError as error:
            writer.rewind(reported)
            self._fail(group[0].generation, error)
        else:
            self._counters.groups += 1
            if self._is_failing:
                self._is_failing = False
                log.info("the journal commits again", extra={"position": writer.end})

    def _report_committed(self, entries: list[Entry], start: int) -> int:
        size = sum([entry.size for entry in entries])
        self._counters.records += len(entries)
        self._counters.record_bytes += size
        self._report(_Committed(len(entries), size, start + size))
        return start + size

    def _fail(self, generation: int, error: DanubiusError) -> None:
        self._failed_generation = generation
        self._counters.failures += 1
        if not self._is_failing:
            # Once: a full disk fails many groups.
            self._is_failing = True
            log.warning("the journal could not commit", extra={"error": error.message})
        self._report(_Failed(generation, error))

    def _report(self, report: _Committed | _Failed) -> None:
        self.reports.append(report)
        # More than one: the loop has been told of the first and takes all it finds.
        if len(self.reports) == 1 and not self._is_quiet:
            self.notify()

    def _keep_interval(self, now_ns: int) -> None:
        """Bound how long written records stay unsynced."""
        if self._writer.durable == self._writer.end:
            self._sync_due_ns = None
        elif self._sync_due_ns is None:
            self._sync_due_ns = now_ns + self._sync_interval_ns
        elif now_ns >= self._sync_due_ns:
            is_synced = self._sync_late()
            self._sync_due_ns = None if is_synced else now_ns + self._sync_interval_ns

    def _sync(self) -> None:
        started_ns = self._clock.monotonic_ns()
        self._counters.syncs += 1
        self._writer.sync()
        took_ns = self._clock.monotonic_ns() - started_ns
        self._counters.sync_ns += took_ns
        self._sync_ns += (took_ns - self._sync_ns) // _SYNC_WEIGHT

    def _sync_late(self) -> bool:
        try:
            self._sync()
        except DanubiusError as error:
            self._counters.failures += 1
            log.warning("the journal could not sync", extra={"error": error.message})
            return False
        return True


def _parts(body: Buffer | Sequence[Buffer]) -> tuple[Buffer, ...]:
    if isinstance(body, (bytes, bytearray, memoryview)):
        return (cast("Buffer", body),)  # a memoryview is a Sequence too, and narrows to both
    return tuple(body)


def _count_before_sync(group: list[Entry]) -> int:
    for index, entry in enumerate(group):
        if entry.is_sync:
            return index
    return len(group)


def _ignore(tokens: list[object], fact: object) -> None:
    raise InvariantViolation(f"the journal reports {len(tokens)} tokens before start(): {fact}")
