"""The journal of a broker without a disk: groups of records as objects, each put by one of a few threads.

The twin of `wal.journal`, and it keeps the same promises to the loop. Appends are gathered for `group_ms`, or up to
`group_bytes`, over all topics into one object; what is committed survives the loss of the machine, whatever durability
was asked for. What fills which slot, and what a start or a failure does to it, is in `core/`.

Invariants:
- Reports come in the order of the appends. A record is reported once: committed or failed.
- A put that fails past the deadline fails everything that was appended and not yet reported. Before anything else is
  put, fences make void what of it may still arrive (`core/fencing.give_up`): then it never happened. The next append
  asks for that; if it fails too, so does what was appended meanwhile.
- Once another start has the journal, everything fails, and `on_replaced` is called: the process has to end.
- What a snapshot makes needless is deleted only after an object that says so was committed.
"""

from __future__ import annotations

import logging
import queue
from collections import deque
from typing import TYPE_CHECKING, Final

from danubius.errors import (
    BrokerReplaced,
    DanubiusError,
    DataDirectoryDamaged,
    InvariantViolation,
    ShuttingDown,
)
from danubius.model.limits import MIB
from danubius.runtime.clock import SystemClock
from danubius.runtime.threads import Worker
from danubius.tier.core.journal_object import PUTS_AT_ONCE
from danubius.tier.core.slots import Claim, Group, Window
from danubius.tier.journal_keeper import GiveUp, Keeper, Look, Sweep
from danubius.tier.journal_putter import Healed, Lost, NotHealed, Putter, Stored
from danubius.wal.committer import JournalCounters
from danubius.wal.core.format import BODY_BYTES_MAX, record_bytes
from danubius.wal.journal import parts_of
from danubius.wal.writer import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from danubius.model.buffers import Buffer
    from danubius.runtime.clock import Clock
    from danubius.runtime.threads import Spawn, WorkerPort
    from danubius.tier.core.journal_object import Author, Walk
    from danubius.tier.diskless_config import DisklessConfig
    from danubius.tier.journal_keeper import Job
    from danubius.tier.journal_objects import JournalObjects
    from danubius.tier.journal_putter import Report
    from danubius.tier.object_snapshots import ObjectSnapshots
    from danubius.wal.journal import JournalRecord, OnCommitted, OnFailed, OnSynced, Post

    CallLater = Callable[[float, Callable[[], None]], object]

HEAL_PAUSE_S: Final = 0.5
"""After a failure to go on, the store is left alone for so long."""
LIVE_BYTES_MAX: Final = 1024 * MIB
"""Where checkpoints hurry."""

log = logging.getLogger(__name__)


class ObjectJournal:
    """See the module. Life: recover() to its end, start(), append()…, close()."""

    def __init__(  # noqa: PLR0913  # what it stands on
        self,
        config: DisklessConfig,
        objects: JournalObjects,
        snapshots: ObjectSnapshots,
        author: Author,
        found: Walk,
        call_later: CallLater,
        *,
        queue_bytes_max: int = 64 * MIB,
        spawn: Spawn = Worker,
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._objects = objects
        self._snapshots = snapshots
        self._author = author
        self._found = found
        self._call_later = call_later
        self._queue_bytes_max = queue_bytes_max
        self._clock = clock or SystemClock()
        self.counters = JournalCounters()
        self.fenced_again = 0
        """How often it went on after a failure."""
        self.replaced: DanubiusError | None = None
        self.on_replaced: Callable[[DanubiusError], None] = _ignore_end
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        """Filled by the threads, emptied by the loop."""
        self._putters = [self._make_putter(spawn, number) for number in range(PUTS_AT_ONCE)]
        self._keeper_work = Keeper(objects, snapshots, self._clock, config.deadline_ms / 1000, self)
        self._keeper: WorkerPort[Job] = spawn(
            "journal-keeper", self._keeper_work.handle, on_crash=self._keeper_work.crashed
        )
        # The loop's.
        self._window = Window(found.next_slot, found.end)
        self._live: deque[tuple[int, int, int]] = deque(
            (header.slot, header.base, header.end) for header in found.valid
        )
        """Objects that may be needed: slot, base and end."""
        self._end_position = found.end
        self._pending: deque[object] = deque()
        self._queued_bytes = 0
        self._waiting: deque[Entry] = deque()
        self._waiting_bytes = 0
        self._is_due = False
        self._is_timed = False
        self._claim = Claim(found.floor, found.kept)
        self._announced = self._claim
        self._must_announce = False
        self._failure: DanubiusError | None = None
        """Why nothing is put until what was under way is void."""
        self._is_healing = False
        self._has_recovered = self._is_started = self._is_closed = False
        self._post: Post = _nowhere
        self._on_committed: OnCommitted = _ignore
        self._on_failed: OnFailed = _ignore

    def _make_putter(self, spawn: Spawn, number: int) -> WorkerPort[tuple[Group, Author]]:
        deadline_ns = self._config.deadline_ms * 1_000_000
        putter = Putter(self._objects, deadline_ns, self._clock, self)
        return spawn(f"journal-put-{number}", putter.handle, on_crash=putter.crashed)

    # ------------------------------------------------------------ life

    def recover(self, from_position: int) -> Iterator[JournalRecord]:
        """`inspect`, and then `secure`."""
        yield from self.inspect(from_position)
        self.secure()

    def inspect(
        self, from_position: int, *, keep_from: int | None = None, reach: int | None = None
    ) -> Iterator[JournalRecord]:
        """Every record from a position on, in order. Go through all of it. Raises DataDirectoryDamaged."""
        del keep_from  # the journal itself knows what snapshots need
        valid = self._found.valid
        if valid and valid[0].base > from_position:
            raise DataDirectoryDamaged(
                f"the journal starts at position {valid[0].base}, but is needed from {from_position} on: "
                "objects are missing; restore them from a copy"
            )
        needed_to = from_position if reach is None else max(reach, from_position)
        if self._found.end < needed_to:
            raise DataDirectoryDamaged(
                f"the journal ends at position {self._found.end}, but a snapshot expects it at {needed_to}: "
                "objects are missing; restore them from a copy"
            )
        needed = [header for header in valid if header.end > from_position]
        for record in self._objects.read_all(needed):
            if record.position >= from_position:
                yield record

    def secure(self) -> None:
        """What objects hold is durable."""
        self._has_recovered = True

    def start(
        self,
        post: Post,
        on_committed: OnCommitted,
        on_failed: OnFailed,
        *,
        defer: Post | None = None,
    ) -> None:
        """Start the threads. `post` brings a call to the loop."""
        del defer  # groups are longer than a turn of the loop
        assert self._has_recovered, "recover() must have been gone through before start()"
        self._post, self._on_committed, self._on_failed = post, on_committed, on_failed
        self._is_started = True
        for putter in self._putters:
            putter.start()
        self._keeper.start()
        # What a crash has left of the last trim.
        self._keeper.put(Sweep(self._claim))

    def close(self) -> None:
        """Commit and report what was appended, if the store takes it in time; end the threads."""
        if not self._is_started or self._is_closed:
            return
        ends_ns = self._clock.monotonic_ns() + self._config.deadline_ms * 1_000_000
        self._is_due = True
        self._pump()
        while (self._waiting or self._window.under_way) and self._failure is None:
            left_s = (ends_ns - self._clock.monotonic_ns()) / 1e9
            try:
                self._take(self._reports.get(timeout=max(0.0, left_s)))
            except queue.Empty:
                break
            self._is_due = True
            self._pump()
        if self._pending:
            self._window.abandon()
            self._fail(
                ShuttingDown("the broker stops, and its object store did not take this in time")
            )
        self._is_closed = True
        for worker in (*self._putters, self._keeper):
            if not worker.stop():
                log.error("a journal thread hangs in the object store; leaving it behind")

    # ------------------------------------------------------------ the loop's side

    @property
    def generation(self) -> int:
        """Asked by the threads too: what was given up need not be tried again."""
        return self._window.generation

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    @property
    def is_congested(self) -> bool:
        return self._queued_bytes > self._queue_bytes_max

    @property
    def end_position(self) -> int:
        return self._end_position

    @property
    def size_bytes(self) -> int:
        return self._live[-1][2] - self._live[0][1] if self._live else 0

    @property
    def bytes_max(self) -> int:
        return LIVE_BYTES_MAX

    @property
    def is_nearly_full(self) -> bool:
        return self.size_bytes * 4 > self.bytes_max * 3

    @property
    def objects_live(self) -> int:
        """Objects that a start would look at."""
        return len(self._live)

    @property
    def puts_under_way(self) -> int:
        return self._window.under_way + self._window.given_up

    @property
    def author(self) -> Author:
        """As whom it writes: of a later epoch after each failure that it went on from."""
        return self._author

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
        if self._is_closed:
            return
        parts = parts_of(body)
        body_bytes = sum([memoryview(part).nbytes for part in parts])
        assert body_bytes < BODY_BYTES_MAX, f"a journal record of {body_bytes} bytes"
        size = record_bytes(body_bytes)
        self._queued_bytes += size
        self._pending.append(token)
        self._waiting.append(Entry(kind, topic_id, parts, body_bytes, size, sync, 0))
        self._waiting_bytes += size
        if self._waiting_bytes >= self._config.group_bytes or self._failure is not None:
            self._pump()
        if self._waiting and not self._is_timed:
            self._is_timed = True
            self._call_later(self._config.group_ms / 1000, self._time_is_up)

    def hold(self) -> None:
        """Groups are not made by turns of the loop."""

    def release(self) -> None:
        """See `hold`."""

    def sync(self, on_done: OnSynced) -> None:
        """What is committed is durable here."""
        on_done(None)

    def trim(self, position: int) -> None:
        """Nothing below `position` is needed any more; announced, and then deleted."""
        while len(self._live) > 1 and self._live[0][2] <= position:
            self._live.popleft()
        floor = self._live[0][0] if self._live else self._claim.floor
        self._claim = Claim(max(floor, self._claim.floor), self._snapshots.kept)
        self._must_announce = True
        self._pump()

    def watch(self) -> None:
        """Ask whether another start has the journal, unless puts are under way, which would tell."""
        if self._is_started and not self._is_closed and not self._window.under_way:
            self._keeper.put(Look(self._window.next_slot, self._author, self._window.generation))

    # ------------------------------------------------------------ from the threads

    def report(self, report: Report) -> None:
        self._reports.put(report)
        self._post(self._deliver)

    def healed(self, author: Author, next_slot: int) -> None:
        self.report(Healed(author, next_slot))

    def not_healed(self, error: DanubiusError) -> None:
        self.report(NotHealed(error))

    def overtaken(self, error: BrokerReplaced) -> None:
        self.report(NotHealed(error))

    # ------------------------------------------------------------ groups

    def _time_is_up(self) -> None:
        self._is_timed = False
        self._is_due = True
        self._pump()

    def _pump(self) -> None:
        """Put what is due, as far as there are slots for it."""
        if self._is_closed:
            return
        if self._failure is not None:
            self._heal()
            return
        config = self._config
        while self._window.has_room and (
            self._must_announce
            or (self._waiting and self._is_due)
            or self._waiting_bytes >= config.group_bytes
        ):
            entries, size = self._cut(config.group_bytes)
            group = self._window.begin(entries, size, self._claim)
            self._must_announce = False
            self._putters[group.slot % PUTS_AT_ONCE].put((group, self._author))
        if not self._waiting:
            self._is_due = False

    def _cut(self, bytes_max: int) -> tuple[list[Entry], int]:
        """Up to so many bytes of what waits, or one record that is larger."""
        entries: list[Entry] = []
        size = 0
        while self._waiting and (not entries or size + self._waiting[0].size <= bytes_max):
            entry = self._waiting.popleft()
            entries.append(entry)
            size += entry.size
        self._waiting_bytes -= size
        return entries, size

    # ------------------------------------------------------------ reports

    def _deliver(self) -> None:
        """Hand the threads' reports to the callbacks."""
        if self._is_closed:
            return
        try:
            while True:
                self._take(self._reports.get_nowait())
        except queue.Empty:
            pass
        self._pump()

    def _take(self, report: Report) -> None:
        match report:
            case Stored(group, took_ns):
                self.counters.syncs += 1
                self.counters.sync_ns += took_ns
                committed = self._window.filled(group)
                for each in committed:
                    self._commit(each)
            case Lost(group, error):
                if isinstance(error, BrokerReplaced):
                    self._end(error)
                if self._window.failed(group):
                    self._fail(error)
            case Healed(author, next_slot):
                self._is_healing = False
                self._author = author
                self._failure = None
                self.fenced_again += 1
                self._window.resume(next_slot)
                log.info("the journal goes on", extra={"slot": next_slot, "epoch": author.epoch})
            case NotHealed(error):
                self._not_healed(error)

    def _commit(self, group: Group) -> None:
        size, count = group.end - group.base, len(group.entries)
        self._live.append((group.slot, group.base, group.end))
        counters = self.counters
        counters.records += count
        counters.record_bytes += size
        counters.groups += 1
        take = self._pending.popleft
        tokens = [token for _ in range(count) if (token := take()) is not None]
        self._queued_bytes -= size
        self._end_position = group.end
        if group.claim != self._announced:
            self._announced = group.claim
            self._keeper.put(Sweep(group.claim))
        if count:
            self._on_committed(tokens, group.end)

    def _fail(self, error: DanubiusError) -> None:
        """Everything that was appended and not reported."""
        if self._failure is None:
            log.warning("the journal could not store a group", extra={"error": error.message})
        self._failure = self.replaced or error
        self.counters.failures += 1
        tokens = [token for token in self._pending if token is not None]
        self._pending.clear()
        self._waiting.clear()
        self._waiting_bytes = self._queued_bytes = 0
        self._on_failed(tokens, self._failure)

    # ------------------------------------------------------------ going on after a failure

    def _heal(self) -> None:
        """Make void what may still arrive, as soon as nothing of it is under way in this process."""
        if self._is_healing or not (self._waiting or self._must_announce):
            return
        if self.replaced is not None:
            self._is_healing = True
            self._call_later(0.0, self._refuse)
        elif not self._window.given_up:
            self._is_healing = True
            self._keeper.put(GiveUp(self._author, self._window.filled_to))

    def _not_healed(self, error: DanubiusError) -> None:
        if isinstance(error, BrokerReplaced):
            self._end(error)
            self._is_healing = False
            self._window.abandon()
            self._fail(error)
            return
        self._fail(error)
        self._call_later(HEAL_PAUSE_S, self._may_heal)

    def _may_heal(self) -> None:
        self._is_healing = False
        self._pump()

    def _refuse(self) -> None:
        assert self.replaced is not None
        self._is_healing = False
        self._must_announce = False
        self._fail(self.replaced)

    def _end(self, error: DanubiusError) -> None:
        if self.replaced is None:
            self.replaced = error
            log.critical("this broker was replaced", extra={"error": error.message})
            self.on_replaced(error)


def _ignore(tokens: list[object], fact: object) -> None:
    raise InvariantViolation(f"the journal reports {len(tokens)} tokens before start(): {fact}")


def _ignore_end(error: DanubiusError) -> None:
    """Nobody asked to hear of it; it was logged."""
    del error


def _nowhere(callback: Callable[[], None]) -> None:
    raise InvariantViolation(f"the journal posts {callback} before start()")
