"""The pump with real record batches: what consumers get, and what callbacks may do meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danubius.ack.core.cursor import Cursor
from danubius.dispatch.chunk import ChunkCutter
from danubius.dispatch.core.subscription import SubscriptionCore
from danubius.dispatch.pump import TURN_NS, Pump
from danubius.errors import (
    ConsumerReplaced,
    DanubiusError,
    LedgerDamaged,
    OffsetOutOfRange,
    StorageFailed,
    TopicDeleted,
)
from danubius.model.limits import FETCH_BYTES_MAX, MIB
from danubius.model.subscription import SubscriptionType
from danubius.record.batch import Codec, stamp
from danubius.record.encode import encode
from danubius.record.scan import iter_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.model.buffers import Buffer

MANY = 1 << 40


class Chunk(NamedTuple):
    first: int
    end: int
    buffers: list[Buffer]
    size: int


class Log:
    """Batches in memory; answers reads at once, or when told to."""

    def __init__(self) -> None:
        self.start_offset = 0
        self.end_offset = 0
        self.batches: list[tuple[int, int, bytearray]] = []
        self.answers_at_once = True
        self.failures: list[DanubiusError] = []
        self.pending: list[Callable[[], None]] = []
        self.reads: list[tuple[int, int]] = []

    def publish(self, payloads: list[bytes], *, codec: Codec = Codec.NONE) -> int:
        keys = [b"key" + payload[-1:] for payload in payloads]
        batch = encode(payloads, publish_time_us=1, keys=keys, codec=codec)
        stamp(batch, self.end_offset, 1)
        end = self.end_offset + len(payloads)
        self.batches.append((self.end_offset, end, batch))
        self.end_offset = end
        return end

    def publish_numbers(self, count: int) -> int:
        return self.publish([b"%d" % n for n in range(self.end_offset, self.end_offset + count)])

    def read(
        self, first: int, bytes_max: int, on_done: Callable[[Chunk | DanubiusError], None]
    ) -> None:
        self.reads.append((first, bytes_max))
        answer = self.failures.pop(0) if self.failures else self._find(first, bytes_max)
        if self.answers_at_once:
            on_done(answer)
        else:
            self.pending.append(lambda: on_done(answer))

    def _find(self, first: int, bytes_max: int) -> Chunk:
        found = [one for one in self.batches if one[1] > first]
        count, size = 1, len(found[0][2])
        while count < len(found) and size + len(found[count][2]) <= bytes_max:
            size += len(found[count][2])
            count += 1
        found = found[:count]
        return Chunk(found[0][0], found[-1][1], [batch for _, _, batch in found], size)


class Inbox:
    """An outlet that decodes what it gets, as a client would."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, bytes, int]] = []
        self.frames: list[Sequence[Buffer]] = []
        self.activity: list[bool] = []
        self.error: DanubiusError | None = None
        self.on_deliver: Callable[[], None] = lambda: None

    @property
    def offsets(self) -> list[int]:
        return [offset for offset, _, _ in self.messages]

    def deliver(
        self, first: int, end: int, messages: int, redelivery_count: int, buffers: Sequence[Buffer]
    ) -> None:
        self.frames.append(buffers)
        found = [
            (offset, payload, redelivery_count)
            for buffer in buffers
            for batch in iter_batches(buffer)
            for offset, payload in zip(batch.offsets(), batch.payloads(), strict=True)
            if first <= offset < end
        ]
        assert len(found) == messages
        self.messages += found
        self.on_deliver()

    def active_changed(self, is_active: bool) -> None:
        self.activity.append(is_active)

    def closed(self, error: DanubiusError) -> None:
        self.error = error


class Alarm:
    def __init__(self, when_ns: int, callback: Callable[[], None]) -> None:
        self.when_ns = when_ns
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Bench:
    """A pump with everything around it."""

    def __init__(self, kind: SubscriptionType = SubscriptionType.EXCLUSIVE, *, numbers: int = 0):
        self.now_ns = 0
        self.log = Log()
        while self.log.end_offset < numbers:
            self.log.publish_numbers(10)
        self.acked: list[tuple[int, int]] = []
        self.dropped: list[int] = []
        self.alarms: list[Alarm] = []
        self.core = SubscriptionCore(kind, Cursor(0), end=self.log.end_offset)
        self.pump = Pump(
            self.core,
            self.log,
            now_ns=lambda: self.now_ns,
            call_at=self._call_at,
            on_acked=self.acked.extend,
            on_dropped=self.dropped.append,
        )

    def join(
        self, consumer_id: int, name: str = "", *, credit: int = MANY, skip_damaged: bool = False
    ) -> Inbox:
        inbox = Inbox()
        self.pump.join(consumer_id, name or f"c{consumer_id}", inbox, skip_damaged=skip_damaged)
        if credit:
            self.pump.grant(consumer_id, credit, MANY)
        return inbox

    def ring(self) -> None:
        alarm = self.alarms.pop()
        self.now_ns = max(self.now_ns, alarm.when_ns)
        alarm.callback()

    def _call_at(self, when_ns: int, callback: Callable[[], None]) -> Alarm:
        self.alarms.append(Alarm(when_ns, callback))
        return self.alarms[-1]


def test_whole_batches_are_passed_on_without_a_copy() -> None:
    bench = Bench(numbers=50)
    inbox = bench.join(1)
    sent = [buffer for frame in inbox.frames for buffer in frame]
    stored = [batch for _, _, batch in bench.log.batches]
    assert all(one is other for one, other in zip(sent, stored, strict=True))
    assert len(inbox.frames) == 1, "five batches, one read, one delivery"


def test_a_batch_is_cut_where_the_credit_ends() -> None:
    bench = Bench(numbers=30)
    inbox = bench.join(1, credit=13)
    bench.pump.grant(1, 4, 0)
    assert inbox.messages == [(n, b"%d" % n, 0) for n in range(17)]


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_two_consumers_get_every_message_once(kind: SubscriptionType) -> None:
    bench = Bench(kind)
    one, two = bench.join(1), bench.join(2)
    for count in (1, 10, 100, 7):
        bench.pump.extended(bench.log.publish_numbers(count))
    assert one.offsets
    assert two.offsets
    assert sorted(one.messages + two.messages) == [(n, b"%d" % n, 0) for n in range(118)]


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_who_is_caught_up_gets_what_is_appended_without_a_read(kind: SubscriptionType) -> None:
    bench = Bench(kind, numbers=20)
    inbox = bench.join(1)
    for _ in range(5):
        first, end = bench.log.end_offset, bench.log.publish_numbers(3)
        reads = len(bench.log.reads)
        bench.pump.appended(first, end, memoryview(bench.log.batches[-1][2]))
        assert len(bench.log.reads) == reads + (kind is SubscriptionType.KEY_SHARED)
    assert inbox.messages == [(n, b"%d" % n, 0) for n in range(35)]
    bench.core.check()


def test_who_is_behind_gets_the_older_first() -> None:
    bench = Bench(numbers=0)
    inbox = bench.join(1, credit=2)
    for _ in range(2):
        first, end = bench.log.end_offset, bench.log.publish_numbers(3)
        bench.pump.appended(first, end, memoryview(bench.log.batches[-1][2]))
    assert inbox.offsets == [0, 1]
    bench.pump.grant(1, 100, MANY)
    assert inbox.offsets == [0, 1, 2, 3, 4, 5]


def test_a_connection_that_fills_up_with_what_is_appended_gets_no_more() -> None:
    bench = Bench(numbers=0)
    inbox = bench.join(1)
    inbox.on_deliver = lambda: bench.pump.set_writable(1, False)
    for _ in range(2):
        first, end = bench.log.end_offset, bench.log.publish_numbers(3)
        bench.pump.appended(first, end, memoryview(bench.log.batches[-1][2]))
    assert inbox.offsets == [0, 1, 2]
    bench.pump.set_writable(1, True)
    assert inbox.offsets == [0, 1, 2, 3, 4, 5]


def test_a_log_that_answers_at_once_costs_no_stack() -> None:
    bench = Bench(numbers=0)
    for _ in range(5000):
        bench.log.publish_numbers(1)
    inbox = Inbox()
    bench.pump.join(1, "a", inbox)
    bench.pump.extended(5000)
    inbox.on_deliver = lambda: bench.pump.grant(1, 1, 1000)
    bench.pump.grant(1, 1, 1000)
    assert inbox.offsets == list(range(5000))


def test_a_consumer_may_leave_in_the_middle_of_its_delivery() -> None:
    bench = Bench(SubscriptionType.SHARED, numbers=0)
    one, two = bench.join(1), bench.join(2)
    one.on_deliver = lambda: bench.pump.leave(1)
    bench.pump.extended(bench.log.publish_numbers(10))
    assert set(two.offsets) == set(range(10)), "what the first one had was given to the second"
    bench.core.check()


def test_a_connection_that_fills_up_during_a_delivery_costs_no_read_in_vain() -> None:
    bench = Bench()
    inbox = bench.join(1, credit=0)
    for _ in range(3):
        bench.log.publish([bytes(MIB)] * 3)
    inbox.on_deliver = lambda: bench.pump.set_writable(1, False)
    bench.pump.extended(bench.log.end_offset)
    bench.pump.grant(1, MANY, MANY)
    assert inbox.offsets == [0, 1, 2]
    assert len(bench.log.reads) == 1


def test_a_long_backlog_is_delivered_in_turns() -> None:
    bench = Bench(numbers=30)
    inbox = bench.join(1, credit=0)
    for _ in range(2):
        bench.log.publish([bytes(3 * MIB)])

    def spend_time() -> None:
        bench.now_ns += TURN_NS + 1

    inbox.on_deliver = spend_time
    bench.pump.extended(32)
    bench.pump.grant(1, MANY, MANY)
    turns = 0
    while bench.alarms:
        assert len(inbox.frames) == turns + 1, "one chunk a turn, then the others run"
        turns += 1
        bench.ring()
    assert turns == 2
    assert inbox.offsets == list(range(32))


def test_a_late_answer_finds_its_way_and_events_in_between_count() -> None:
    bench = Bench(numbers=20)
    bench.log.answers_at_once = False
    inbox = bench.join(1)
    bench.pump.acked([(0, 5)])
    bench.log.pending.pop()()
    assert inbox.offsets == list(range(5, 20))
    assert bench.acked == [(0, 5)]


def test_an_answer_after_the_close_is_ignored() -> None:
    bench = Bench(numbers=20)
    bench.log.answers_at_once = False
    inbox = bench.join(1)
    bench.pump.close(TopicDeleted("gone"))
    bench.log.pending.pop()()
    bench.pump.extended(30)
    assert inbox.messages == []
    assert isinstance(inbox.error, TopicDeleted)


def test_a_frame_never_grows_beyond_the_limit() -> None:
    log = Log()
    for _ in range(20):
        log.publish([bytes(MIB)])
    chunk = Chunk(0, 20, [b"".join(bytes(b) for _, _, b in log.batches)], 20 * MIB)
    frames = list(ChunkCutter(chunk).cut(0, 20, None))
    assert len(frames) == 3
    assert all(frame.size <= FETCH_BYTES_MAX for frame in frames)
    assert [frame.first for frame in frames[1:]] == [frame.end for frame in frames[:-1]]
    assert sum(frame.messages for frame in frames) == 20


def test_a_damaged_range_ends_the_consumers_and_is_skipped_only_by_choice() -> None:
    bench = Bench(numbers=30)
    bench.log.failures = [LedgerDamaged("bad", 0, 12), LedgerDamaged("bad", 0, 12)]
    inbox = bench.join(1)
    assert isinstance(inbox.error, LedgerDamaged)
    assert not bench.core.has_consumers
    assert bench.core.cursor.floor == 0
    assert bench.join(2, skip_damaged=True).offsets == list(range(12, 30))
    assert bench.acked == [(0, 12)]


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.FAILOVER])
def test_one_consumers_choice_takes_nobody_else_over_a_damaged_range(
    kind: SubscriptionType,
) -> None:
    bench = Bench(kind)
    bold = bench.join(1, skip_damaged=True)
    careful = bench.join(2)
    bench.log.failures = [LedgerDamaged("bad", 0, 12)]
    bench.pump.extended(bench.log.publish_numbers(30))
    assert isinstance(careful.error, LedgerDamaged)
    assert careful.messages == []
    assert bold.error is None
    assert bold.offsets == list(range(12, 30))
    assert bench.acked == [(0, 12)]
    assert bench.core.consumer_names == ["c1"]


def test_a_choice_ends_with_its_consumer() -> None:
    bench = Bench(numbers=30)
    bench.join(1, credit=0, skip_damaged=True)
    bench.pump.leave(1)
    bench.log.failures = [LedgerDamaged("bad", 0, 12)]
    assert isinstance(bench.join(1).error, LedgerDamaged)
    assert bench.acked == []


def test_a_failed_read_is_tried_again() -> None:
    bench = Bench(numbers=10)
    bench.log.failures = [StorageFailed("disk")]
    inbox = bench.join(1)
    assert inbox.messages == []
    bench.ring()
    assert inbox.offsets == list(range(10))


def test_what_lies_below_the_start_of_the_log_is_passed_over() -> None:
    bench = Bench(numbers=30)
    bench.log.start_offset = 10
    bench.log.failures = [OffsetOutOfRange("gone")]
    assert bench.join(1).offsets == list(range(10, 30))
    assert bench.acked == [(0, 10)]


def test_the_same_name_takes_the_place_and_the_old_one_is_told() -> None:
    bench = Bench(numbers=10)
    old = bench.join(1, "a")
    new = bench.join(2, "a")
    assert isinstance(old.error, ConsumerReplaced)
    assert new.messages == [(n, b"%d" % n, 1) for n in range(10)]


def test_a_standby_is_told_and_promoted() -> None:
    bench = Bench(SubscriptionType.FAILOVER, numbers=10)
    bench.join(1)
    standby = bench.join(2)
    assert standby.activity == [False]
    bench.pump.leave(1)
    assert standby.activity == [False, True]
    assert standby.offsets == list(range(10))


def test_a_delayed_nack_sets_an_alarm() -> None:
    bench = Bench(numbers=10)
    inbox = bench.join(1)
    bench.pump.nacked(1, [(4, 6)], 1000)
    assert inbox.offsets == list(range(10))
    bench.ring()
    assert inbox.messages[10:] == [(4, b"4", 1), (5, b"5", 1)]


def test_a_batch_with_contradictory_columns_is_passed_on_whole_and_stops_nobody() -> None:
    bench = Bench(SubscriptionType.KEY_SHARED, numbers=10)
    _, _, batch = bench.log.batches[0]
    batch[88 + 4 : 88 + 40] = b"\xff" * 36  # payload offsets that fall below zero
    bench.log.publish_numbers(10)
    frames: list[tuple[int, int]] = []

    class Blind(Inbox):
        def deliver(
            self,
            first: int,
            end: int,
            messages: int,
            redelivery_count: int,
            buffers: Sequence[Buffer],
        ) -> None:
            del redelivery_count, buffers
            frames.append((first, messages))

    for consumer_id in (1, 2):
        bench.pump.join(consumer_id, f"c{consumer_id}", Blind())
    bench.pump.extended(20)
    for consumer_id in (1, 2):
        bench.pump.grant(consumer_id, MANY, MANY)
    assert sum(messages for _, messages in frames) == 20


@given(
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    codec=st.sampled_from(Codec),
    joins_buffers=st.booleans(),
    data=st.data(),
)
def test_any_cut_gives_exactly_its_records(
    sizes: list[int], codec: Codec, joins_buffers: bool, data: st.DataObject
) -> None:
    log = Log()
    for size in sizes:
        base = log.end_offset
        log.publish([b"x" * 50 + b"%d" % n for n in range(base, base + size)], codec=codec)
    buffers: list[Buffer] = [batch for _, _, batch in log.batches]
    if joins_buffers:
        buffers = [b"".join(bytes(one) for one in buffers)]
    chunk = Chunk(0, log.end_offset, buffers, sum(map(len, buffers)))
    cutter = ChunkCutter(chunk)
    first = data.draw(st.integers(0, log.end_offset - 1))
    end = data.draw(st.integers(first + 1, log.end_offset))
    picked = data.draw(st.none() | st.sets(st.integers(first, end - 1), min_size=1).map(sorted))
    wanted = picked or list(range(first, end))
    inbox = Inbox()
    for frame in cutter.cut(wanted[0], wanted[-1] + 1, picked):
        assert frame.size == sum(map(len, frame.buffers))
        inbox.deliver(frame.first, frame.end, frame.messages, 0, frame.buffers)
    assert inbox.messages == [(n, b"x" * 50 + b"%d" % n, 0) for n in wanted]
    assert len(cutter.keys()) == log.end_offset
