"""The journal thread's side: groups, syncs, reports. The loop's side is `journal.Journal`.

Items come in the order of the appends; so do the reports. `handle` runs on the thread or, for a small write without a
sync, on the loop while the thread is idle; never on both at once. A sync is always the thread's: no disk is so quick
that it could not hang once. The loop may wait for a small one, for `SYNC_WAIT_NS_MAX` at the most.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from danubius.errors import DanubiusError, StorageFailed
from danubius.model.limits import KIB
from danubius.wal.writer import Entry

if TYPE_CHECKING:
    from danubius.runtime.clock import Clock
    from danubius.wal.writer import Aside, JournalWriter

QUICK_BYTES_MAX: Final = 32 * KIB
"""Larger groups are never written on the loop's thread."""
QUICK_SYNCED_MAX: Final = 2
"""For larger groups the loop never waits."""
SYNC_WAIT_NS_MAX: Final = 1_000_000
"""Where syncs take longer than this on average, the loop waits for none; and never for longer than this."""
LONG_SYNC_NS: Final = 20_000_000
"""Beside a sync that has taken this long nothing is written on the loop: the write might hang in the same place."""
_SYNC_WEIGHT: Final = 8
"""The last sync's share in the moving average is one in this many."""
FAILURE_PAUSE_NS: Final = 50_000_000
"""After the second failure in a row, and each that follows, the disk is left alone for so long; appends wait.
Every try takes a new file, and a disk that is full or broken is not helped by more of them."""

log = logging.getLogger(__name__)


class JournalCounters(msgspec.Struct):
    """What the journal did since it started; written by its thread, read by anyone."""

    records: int = 0
    record_bytes: int = 0
    groups: int = 0
    syncs: int = 0
    sync_ns: int = 0
    """Time spent in syncs."""
    failures: int = 0


class Turn(msgspec.Struct, gc=False):
    """What was appended together."""

    entries: list[Entry]
    size: int
    syncs: int
    """How many of them ask for a sync."""
    is_quick: bool = False
    """Handled on the loop's thread, which takes the reports at once; what is slow waits for the thread."""


class Trim(msgspec.Struct, gc=False):
    """Nothing below the position is needed any more."""

    position: int


class Sync(msgspec.Struct, gc=False):
    """Make what is committed durable, and say so."""

    on_done: Callable[[DanubiusError | None], None]


class Close(msgspec.Struct, gc=False):
    """Sync what is written and give the files back."""


class Committed(msgspec.Struct, gc=False):
    """The next `count` records are committed, up to position `end`."""

    count: int
    size: int
    end: int


class Failed(msgspec.Struct, gc=False):
    """Everything that was appended up to this generation and not reported has failed."""

    generation: int
    error: DanubiusError


class Synced(msgspec.Struct, gc=False):
    """What became of a `Sync`."""

    on_done: Callable[[DanubiusError | None], None]
    error: DanubiusError | None


Item: TypeAlias = Turn | Trim | Sync | Close
Report: TypeAlias = Committed | Failed | Synced


class Committer:
    """See the module."""

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
        self.reports: deque[Report] = deque()
        """Filled here, emptied by the loop."""
        self.size_bytes = writer.size_bytes
        self._failed_generation = 0
        self._failure: DanubiusError | None = None
        """Why the last group failed; None once one was committed."""
        self._paused_until_ns = 0
        self._held: list[Entry] = []
        """What waits for the end of the pause; bounded by those who look at the journal's queued bytes."""
        self._is_quiet = False
        """The loop itself runs this, and will look for reports unasked."""
        self._sync_ns = 0
        """How long syncs take, a moving average."""
        self._sync_started_ns: int | None = None
        """Of a sync under way beside which the loop may write."""
        self._sync_due_ns: int | None = None
        self.is_awaited = False
        """The loop waits for the next report, and will look for it unasked."""
        self._marked = writer.durable
        self._mark_due_ns = 0
        self.aside: Aside = contextlib.nullcontext
        """How to let small writes in while the disk syncs."""

    def is_quick(self, turn: Item) -> bool:
        """Whether a group takes less time than handing it to the thread and back, and nothing in it is synced.

        Asked while nobody writes. It is so for a small write without a change of files.
        """
        assert isinstance(turn, Turn)
        return not turn.syncs and self._is_small(turn) and not self._hangs()

    def is_soon(self, turn: Item) -> bool:
        """Whether it is worth while to wait for a group that is synced: a lone record or two on a quick disk.

        Asked while nobody writes. Many at once are better off with a thread that syncs while the loop goes on.
        """
        assert isinstance(turn, Turn)
        is_lone = turn.syncs > 0 and len(turn.entries) <= QUICK_SYNCED_MAX
        if self._sync_started_ns is not None:
            return False  # the thread has stepped aside for as long as the disk takes
        return is_lone and self._is_small(turn) and self._sync_ns < SYNC_WAIT_NS_MAX

    def await_soon(self, turn: Item) -> bool:
        """The same; if so, what is reported from here on is not announced, until the loop takes `is_awaited` back.

        Not before this is asked: while the thread is busy the loop does not wait, nor look for what comes meanwhile.
        """
        self.is_awaited = self.is_soon(turn)
        return self.is_awaited

    def _is_small(self, turn: Turn) -> bool:
        return turn.size <= QUICK_BYTES_MAX and not self._held and self._writer.is_quick(turn.size)

    def _hangs(self) -> bool:
        started_ns = self._sync_started_ns
        return started_ns is not None and (self._clock.monotonic_ns() - started_ns > LONG_SYNC_NS)

    def handle(self, items: list[Item], now_ns: int) -> int | None:
        entries = self._held  # the same list: a crash finds in it who waits
        syncs: list[Sync] = []
        for item in items:
            if isinstance(item, Turn):
                if item.is_quick:
                    return self._handle_quick(item, now_ns)
                entries += item.entries
            elif isinstance(item, Trim):
                self._writer.trim(item.position)
                self._paused_until_ns = 0  # there may be room now
            elif isinstance(item, Sync):
                syncs.append(item)
            else:
                self._commit_all(entries)
                self._answer_syncs(syncs, self._sync_late())
                self._mark(self._mark_due_ns)
                self._writer.close()
                return None
        if not self._is_paused():
            self._commit_all(entries)
            self._held = []
            self._writer.prepare()
        if syncs:
            self._answer_syncs(syncs, self._sync_late())
        self._keep_interval(now_ns)
        self.size_bytes = self._writer.size_bytes
        due_ns = self._mark(now_ns)
        if self._held and (due_ns is None or self._paused_until_ns < due_ns):
            return self._paused_until_ns
        return due_ns

    def _handle_quick(self, turn: Turn, now_ns: int) -> int | None:
        entries, size = turn.entries, turn.size
        if entries[0].generation <= self._failed_generation:
            entries = [entry for entry in entries if entry.generation > self._failed_generation]
            size = sum([entry.size for entry in entries])
        self._is_quiet = True
        try:
            if entries:
                self._commit(entries, size)
        finally:
            self._is_quiet = False
        if self._writer.durable == self._writer.end:
            self._sync_due_ns = None
        elif self._sync_due_ns is None:
            self._sync_due_ns = now_ns + self._sync_interval_ns
        return self._mark(now_ns)

    def _mark(self, now_ns: int) -> int | None:
        """Tell how far the journal is synced, once in an interval; the time of the next thing that is due."""
        durable, due_ns = self._writer.durable, self._sync_due_ns
        if durable == self._marked:
            return due_ns
        if now_ns < self._mark_due_ns:
            return self._mark_due_ns if due_ns is None else min(due_ns, self._mark_due_ns)
        self._marked = durable
        self._mark_due_ns = now_ns + self._sync_interval_ns
        self._writer.mark()
        return due_ns

    def crashed(self, items: list[Item], crash: BaseException) -> None:
        """A bug ended the thread: nothing more is written, and everyone who waits hears of it."""
        error = StorageFailed(f"the journal has stopped after an internal error: {crash!r}")
        entries = list(self._held)
        for item in items:
            if isinstance(item, Turn):
                entries += item.entries
            elif isinstance(item, Sync):
                self._report(Synced(item.on_done, error))
        if entries:
            self._report(Failed(max(entry.generation for entry in entries), error))

    def _commit_all(self, entries: list[Entry]) -> None:
        first = 0
        while first < len(entries):
            if entries[first].generation <= self._failed_generation:
                # Appended before the loop heard of a failure: it was failed together with it.
                first += 1
                continue
            count = self._writer.fit(entries, first)
            group = entries[first : first + count]
            self._commit(group, sum([entry.size for entry in group]))
            first += count

    def _commit(self, group: list[Entry], size: int) -> None:
        """One write, at most one sync, one report (two if records before the first sync wait less)."""
        writer = self._writer
        reported = writer.end
        try:
            is_synced = group[0].is_sync and self._write_synced(group, size)
            if not is_synced:
                writer.write(group, size)
            early = 0 if writer.must_sync else _count_before_sync(group)
            if is_synced or early == len(group):
                self._report_committed(len(group), size, reported + size)
            else:
                if early:
                    early_size = sum([entry.size for entry in group[:early]])
                    reported += early_size
                    self._report_committed(early, early_size, reported)
                    size -= early_size
                self._sync()
                self._report_committed(len(group) - early, size, reported + size)
        except DanubiusError as error:
            writer.rewind(reported)
            self._fail(group[0].generation, error)
        else:
            self._counters.groups += 1
            if self._failure is not None:
                self._failure = None
                log.info("the journal commits again", extra={"position": writer.end})

    def _report_committed(self, count: int, size: int, end: int) -> None:
        self._counters.records += count
        self._counters.record_bytes += size
        self._report(Committed(count, size, end))

    def _fail(self, generation: int, error: DanubiusError) -> None:
        if self._failure is not None:
            self._paused_until_ns = self._clock.monotonic_ns() + FAILURE_PAUSE_NS
        else:
            # Once: a full disk fails many groups.
            log.warning("the journal could not commit", extra={"error": error.message})
        self._failure = error
        self._failed_generation = generation
        self._counters.failures += 1
        self._report(Failed(generation, error))

    def _is_paused(self) -> bool:
        return self._paused_until_ns > 0 and self._clock.monotonic_ns() < self._paused_until_ns

    def _report(self, report: Report) -> None:
        self.reports.append(report)
        # More than one: the loop has been told of the first and takes all it finds.
        if len(self.reports) == 1 and not self._is_quiet and not self.is_awaited:
            self.notify()

    def _keep_interval(self, now_ns: int) -> None:
        """Bound how long written records stay unsynced."""
        if self._writer.durable == self._writer.end:
            self._sync_due_ns = None
        elif self._sync_due_ns is None:
            self._sync_due_ns = now_ns + self._sync_interval_ns
        elif now_ns >= self._sync_due_ns:
            failure = self._sync_late()
            is_synced = failure is None and self._writer.durable == self._writer.end
            self._sync_due_ns = None if is_synced else now_ns + self._sync_interval_ns

    def _write_synced(self, group: list[Entry], size: int) -> bool:
        started_ns = self._clock.monotonic_ns()
        if not self._writer.write_synced(group, size):
            return False
        self._count_sync(started_ns)
        return True

    def _sync(self, aside: Aside = contextlib.nullcontext) -> None:
        started_ns = self._clock.monotonic_ns()
        self._writer.sync(aside)
        self._count_sync(started_ns)

    def _count_sync(self, started_ns: int) -> None:
        took_ns = self._clock.monotonic_ns() - started_ns
        self._counters.syncs += 1
        self._counters.sync_ns += took_ns
        self._sync_ns += (took_ns - self._sync_ns) // _SYNC_WEIGHT

    def _sync_late(self) -> DanubiusError | None:
        """No publisher waits for this one, so it must not keep any waiting: small writes go on meanwhile."""
        self._sync_started_ns = self._clock.monotonic_ns()
        try:
            self._sync(self.aside)
        except DanubiusError as error:
            self._counters.failures += 1
            log.warning("the journal could not sync", extra={"error": error.message})
            return error
        finally:
            self._sync_started_ns = None
        return None

    def _answer_syncs(self, syncs: list[Sync], error: DanubiusError | None) -> None:
        for sync in syncs:
            self._report(Synced(sync.on_done, error))


def _count_before_sync(group: list[Entry]) -> int:
    for index, entry in enumerate(group):
        if entry.is_sync:
            return index
    return len(group)
