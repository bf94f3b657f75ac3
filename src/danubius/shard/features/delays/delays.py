"""Delayed messages: they wait in a hidden log beside their topic, and are published when they are due.

So a topic, its cursors and its readers never hear of delays. A batch is released in one atomic record with the fact
that says how far the releases have come (`DelayAdvanced`), so it is published once, whatever happens. Releases go in
rising order of (due time, offset in the delay log), hence that one pair, the *watermark*, is all that is remembered.
Two rules keep it true:
- what is scheduled below a pair whose release is planned gets that pair's due time, which is past: it stands behind;
- nothing is released from the lowest pair on that is still on its way through the journal.

Memory is bounded by `delay_entries_max` for all delay logs; see `delay_index`. What waits is bounded by the disk.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import logging
from typing import TYPE_CHECKING, Final

from danubius.errors import DanubiusError, InvalidArgument, TopicDeleted
from danubius.ledger.managed import ManagedLedger
from danubius.model.ids import Offset, TopicId
from danubius.model.limits import DELAY_MAX_MS, MIB
from danubius.model.topic import TopicSpec
from danubius.record.batch import check_batch
from danubius.shard.features.delays.core.index import ENDLESS, due_of, key_of, offset_of
from danubius.shard.features.delays.log import NEVER, DelayLog, Release, Scan
from danubius.shard.features.delays.reparking import KEPT_BYTES, Repark, wants_repark
from danubius.shard.features.delays.wrapper import check_wrappable, weigh, wrap
from danubius.shard.state.facts import DelayAdvanced, LogTrimmed, TopicCreated, TopicRemoved

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from danubius.publish.core.sequencer import Producer
    from danubius.publish.pipeline import Answer
    from danubius.record.header import Header
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard
    from danubius.shard.state.atomic import Atomic

    OnLog = Callable[[DelayLog | DanubiusError], None]

RELEASE_COUNT_MAX: Final = 256
TIMER_MAX_MS: Final = 1000
"""The clock is looked at this often, so that one that was set is noticed."""
RETRY_MS: Final = 1000
SCAN_MARGIN_MS: Final = 5000
"""What is behind the horizon is looked for this long before it is needed."""
TEND_MS: Final = 5000
SEAL_BYTES: Final = 1 * MIB
"""An emptied delay log frees its open ledger from this size on."""

log = logging.getLogger(__name__)


class Delays:
    """All delay logs of one broker, and the one timer that wakes them."""

    def __init__(self, shard: Shard, atomic: Atomic) -> None:
        self._shard = shard
        self._atomic = atomic
        self._logs: dict[TopicId, DelayLog] = {}
        """By the topic that they belong to."""
        self._opening: dict[TopicId, list[OnLog]] = {}
        self._wakes: list[tuple[int, int, DelayLog]] = []
        """A heap of when to look at which; only the one that says what `wake_ms` says counts."""
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER
        self._held = 0
        """At most this many keys are held; counted again when it reaches the bound."""
        self.kept_bytes = KEPT_BYTES
        """A delay log that is no larger is not tidied up."""

    def start(self) -> None:
        self._shard.ticks.add(TEND_MS, self.tend)

    def topic_opened(self, topic: Topic) -> None:
        """If it is a delay log: find what waits in it."""
        if topic.parent <= 0:
            return  # a topic of its own, or the log of a job's stages
        parent = self._shard.topics_by_id.get(TopicId(topic.parent))
        if parent is None:
            self._shard.loop.call_soon(self._remove, topic)
            return
        source = self._logs[parent.id] = DelayLog(parent, topic)
        if topic.log.end_offset:
            self._scan(source, key_of(*topic.watermark) + 1, is_first=True)

    def topic_closed(self, topic: Topic) -> None:
        """With a topic its delay log goes, if that did not go in the same commit."""
        for parent_id in (topic.id, TopicId(topic.parent)):
            source = self._logs.pop(parent_id, None)
            if source is not None and source.topic is not topic:
                self._shard.loop.call_soon(self._remove, source.topic)

    def log_of(self, topic: Topic) -> Topic | None:
        """Where the messages of a topic wait for their time; None before the first did."""
        source = self._logs.get(topic.id)
        return None if source is None else source.topic

    def pending(self, topic: Topic) -> int:
        """How many messages of a topic wait for their time."""
        source = self._logs.get(topic.id)
        return 0 if source is None else source.messages

    def pending_bytes(self, topic: Topic) -> int:
        """How large their batches are."""
        source = self._logs.get(topic.id)
        return 0 if source is None else source.bytes

    @property
    def messages(self) -> int:
        """How many messages of all topics wait for their time."""
        return sum(source.messages for source in self._logs.values())

    @property
    def held(self) -> int:
        """How many keys are in memory, of all delay logs."""
        return sum(len(source.index) for source in self._logs.values())

    # ------------------------------------------------------------ scheduling

    def open_log(self, parent: Topic, on_done: OnLog) -> None:
        """The delay log of a topic, made if this is the first time that one is needed."""
        if not parent.is_reliable:
            raise InvalidArgument(
                f"topic {parent.name} is not reliable: it stores nothing, so nothing can wait in it; "
                "delay messages of reliable topics"
            )
        known = self._logs.get(parent.id)
        if known is not None:
            on_done(known)
            return
        if parent.id in self._opening:
            self._opening[parent.id].append(on_done)
            return
        self._opening[parent.id] = [on_done]
        shard = self._shard
        fact = TopicCreated(
            shard.numbers.draw(),
            parent.name,
            TopicSpec(durability=parent.spec.durability),
            shard.clock.wall_us() // 1000,
            None,
            parent.id,
        )

        def done(error: DanubiusError | None) -> None:
            result = error or self._logs.get(parent.id)
            if result is None:
                result = TopicDeleted(f"topic {parent.name} was deleted")
            for waiting in self._opening.pop(parent.id):
                waiting(result)

        shard.commit(fact, done)

    def schedule(
        self, source: DelayLog, batch: memoryview, due_ms: int, producer: Producer, answer: Answer
    ) -> Header:
        """Keep a batch until it is due; `answer` is called once that is durable, unless this raises."""
        self._check_hosted(source)
        now_ms = self._now_ms()
        if due_ms > now_ms + DELAY_MAX_MS:
            raise InvalidArgument(
                f"due_ms is {due_ms}, {(due_ms - now_ms) // 86_400_000} days ahead; "
                f"at most {DELAY_MAX_MS // 86_400_000} days are allowed"
            )
        inner = check_batch(batch)
        check_wrappable(inner)
        due_ms = max(due_ms, due_of(source.planned))
        key = ENDLESS

        def stored(result: Offset | DanubiusError) -> None:
            if key == ENDLESS:  # a repeat: what it repeats is on its way, or long here
                answer(result)
                return
            del source.in_flight[key]
            answer(result)
            if not isinstance(result, DanubiusError):
                self._add(source, key)
                source.count(inner.count, inner.length)
            self._wake(source, due_ms)

        offset = source.topic.pipeline.publish_wrapped(
            inner, functools.partial(wrap, batch, inner, due_ms), producer, stored
        )
        if offset is not None:
            key = key_of(due_ms, offset)
            source.in_flight[key] = None
        return inner

    def _check_hosted(self, source: DelayLog) -> None:
        source.parent.check_open()
        if not self._is_hosted(source):
            raise TopicDeleted(f"topic {source.parent.name} was deleted")

    def _is_hosted(self, source: DelayLog) -> bool:
        topics = self._shard.topics_by_id
        return source.parent.id in topics and source.topic.id in topics

    def _add(self, source: DelayLog, key: int) -> None:
        source.index.add(key)
        self._held += 1
        if self._held > self._shard.config.delay_entries_max:
            self._shed()

    def _shed(self) -> None:
        """Keep the memory's bound: every delay log forgets what is farthest, if it holds more than its share."""
        entries_max = self._shard.config.delay_entries_max
        self._held = self.held
        if self._held <= entries_max:
            return
        share = max(1, entries_max * 3 // 4 // len(self._logs))
        for source in self._logs.values():
            source.index.shed(max(share, 1))
        self._held = self.held

    # ------------------------------------------------------------ waking

    def _now_ms(self) -> int:
        """Not the clock on the wall if that has just jumped ahead: what is released early cannot be taken back."""
        return self._shard.ages.release_ms()

    def _wake(self, source: DelayLog, when_ms: int) -> None:
        """Look at it then, unless that happens earlier anyway."""
        if when_ms >= source.wake_ms:
            return
        source.wake_ms = when_ms
        heapq.heappush(self._wakes, (when_ms, next(self._numbers), source))
        if when_ms < self._timer_ms:
            self._arm(when_ms)

    def _arm(self, when_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = when_ms
        delay_ms = min(max(0, when_ms - self._now_ms()), TIMER_MAX_MS)
        self._timer = self._shard.loop.call_later(delay_ms / 1000, self.look)

    def look(self) -> None:
        """The time of something has come, or may have."""
        self._timer, self._timer_ms = None, NEVER
        now_ms = self._now_ms()
        wakes = self._wakes
        while wakes and wakes[0][0] <= now_ms:
            when_ms, _, source = heapq.heappop(wakes)
            if when_ms == source.wake_ms:
                source.wake_ms = NEVER
                self._advance(source)
        if wakes and self._timer_ms == NEVER:
            self._arm(wakes[0][0])

    # ------------------------------------------------------------ releasing

    def _advance(self, source: DelayLog) -> None:
        """Release what is due, a slice at a time; without any, wait for the next."""
        if source.is_busy or not self._is_hosted(source):
            return
        index, now_ms = source.index, self._now_ms()
        if source.scan_from == ENDLESS and index.wants_scan(now_ms, SCAN_MARGIN_MS):
            self._scan(source, index.begin_scan())
        keys = index.take_due(now_ms, source.below, RELEASE_COUNT_MAX)
        if keys:
            source.is_busy = True
            source.planned = max(source.planned, keys[-1])
            release = Release(source, keys, lambda error: self._commit(source, release, error))
            release.run()
            return
        next_ms = index.next_due_ms(SCAN_MARGIN_MS)
        if next_ms is not None:
            # What is held back, by something on its way or by a scan, is looked at when that ends, and now and then.
            self._wake(source, next_ms if next_ms > now_ms else now_ms + TIMER_MAX_MS)

    def _commit(self, source: DelayLog, release: Release, error: DanubiusError | None) -> None:
        keys, rest = release.keys[: release.done], release.keys[release.done :]
        if error is not None:
            keys, rest = [], release.keys
        source.index.put_back(rest)

        def done(result: list[Offset] | DanubiusError) -> None:
            source.is_busy = False
            if isinstance(result, DanubiusError):
                source.index.put_back(keys)
                log.warning(
                    "delayed messages wait on",
                    extra={"topic": source.parent.name, "error": result.message},
                )
                self._wake(source, self._now_ms() + RETRY_MS)
            else:
                for append in release.appends:
                    source.count(-append.header.count, -append.header.length)
                # Others have their turn between two slices.
                self._shard.loop.call_soon(self._advance, source)

        if error is not None:
            done(error)
            return
        fact = DelayAdvanced(source.topic.id, due_of(keys[-1]), offset_of(keys[-1]))
        try:
            self._atomic.commit(release.appends, [fact], done)
        except DanubiusError as refusal:
            done(refusal)

    # ------------------------------------------------------------ finding what waits

    def _scan(self, source: DelayLog, first_key: int, *, is_first: bool = False) -> None:
        """Look for all that is stored from a key on; what comes meanwhile is known anyway.

        The first time it is also counted.
        """
        source.scan_from = first_key
        if is_first:
            source.count_anew()

        def found(key: int, wrapper: Header) -> None:
            self._add(source, key)
            if is_first:
                source.count(*weigh(wrapper))

        def done(error: DanubiusError | None) -> None:
            if error is not None:
                # From the start again: what was found already must not be found twice.
                log.warning(
                    "delayed messages cannot be read yet",
                    extra={"topic": source.parent.name, "error": error.message},
                )
                source.index.shed_from(first_key)
                self._shard.loop.call_later(RETRY_MS / 1000, again)
                return
            source.scan_from = ENDLESS
            self._advance(source)

        def again() -> None:
            if self._is_hosted(source):
                source.index.begin_scan()
                self._scan(source, first_key, is_first=is_first)

        Scan(
            source,
            found,
            self._shard.loop.call_soon,
            done,
        ).run()

    # ------------------------------------------------------------ letting go

    def tend(self) -> None:
        """Free what was released."""
        for source in list(self._logs.values()):
            if not source.parent.is_deleting:
                self._trim(source)
                self._repark(source)

    def _repark(self, source: DelayLog) -> None:
        """Move what waits at the beginning of a log that is mostly released to its end, a step at a time."""
        if not self._is_hosted(source) or not wants_repark(source, self.kept_bytes):
            return
        source.is_busy = True

        def done(error: DanubiusError | None) -> None:
            source.is_busy = False
            if error is not None:
                _trimmed(error)
                self._wake(source, self._now_ms() + RETRY_MS)
                return
            # What is due goes first; then the next step, if one is needed.
            self._shard.loop.call_soon(self._advance, source)
            self._shard.loop.call_soon(self._repark, source)

        Repark(source, self._atomic, done).run()

    def _trim(self, source: DelayLog) -> None:
        ledger = source.topic.log
        assert isinstance(ledger, ManagedLedger)
        start = source.free_below()
        if start == ledger.end_offset:
            ledger.seal_open(SEAL_BYTES)
        if not ledger.would_free(start):
            return
        self._shard.commit(LogTrimmed(source.topic.id, start), _trimmed)

    def _remove(self, topic: Topic) -> None:
        """Its topic is gone, so nothing of it can come any more."""
        if self._shard.topics_by_id.get(topic.id) is not topic or topic.is_deleting:
            return
        topic.is_deleting = True
        # If that fails, the next start finds it.
        self._shard.commit(TopicRemoved(topic.id), _trimmed)


def _trimmed(error: DanubiusError | None) -> None:
    if error is not None:
        log.warning("a delay log is kept for now", extra={"error": error.message})
