"""Dispatch rates: kept over time, in few steps, in order, without losing anything, by all subscription types."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danubius.ack.core.cursor import Cursor
from danubius.dispatch.core.subscription import SubscriptionCore
from danubius.dispatch.gate import WOKEN_MAX, DispatchGate, Pace
from danubius.dispatch.pump import Pump
from danubius.model.subscription import SubscriptionType
from danubius.record.batch import stamp
from danubius.record.encode import encode
from danubius.record.scan import iter_batches
from danubius.shard.hosting.core.rate import SECOND_NS, Rates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.errors import DanubiusError
    from danubius.model.buffers import Buffer

START_NS = 1_000 * SECOND_NS
MANY = 1 << 40
ALL_TYPES = list(SubscriptionType)


class Alarm:
    def __init__(self, when_ns: int, callback: Callable[[], None]) -> None:
        self.when_ns = when_ns
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Time:
    """A clock that goes from one alarm to the next."""

    def __init__(self) -> None:
        self.now = START_NS
        self.rings = 0
        self._alarms: list[Alarm] = []

    def now_ns(self) -> int:
        return self.now

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> Alarm:
        self._alarms.append(Alarm(when_ns, callback))
        return self._alarms[-1]

    @property
    def alarms(self) -> list[Alarm]:
        return [alarm for alarm in self._alarms if not alarm.is_cancelled]

    def run(self, seconds: float) -> None:
        """Let so much time pass, and everything happen that is due meanwhile."""
        end_ns = self.now + int(seconds * SECOND_NS)
        while True:
            self._alarms = self.alarms
            due = min(self._alarms, key=lambda alarm: alarm.when_ns, default=None)
            if due is None or due.when_ns > end_ns:
                self.now = end_ns
                return
            self._alarms.remove(due)
            self.now = max(self.now, due.when_ns)
            self.rings += 1
            due.callback()


class Chunk(NamedTuple):
    first: int
    end: int
    buffers: list[Buffer]
    size: int


class Log:
    """Batches in memory."""

    start_offset = 0

    def __init__(self, count: int, batch: int, size: int) -> None:
        self.end_offset = 0
        self.batches: list[tuple[int, int, bytearray]] = []
        self._size = size
        while self.end_offset < count:
            self.append(min(batch, count - self.end_offset))

    def append(self, count: int) -> bytearray:
        numbers = range(self.end_offset, self.end_offset + count)
        payloads = [(b"%d" % number).ljust(self._size, b".") for number in numbers]
        batch = encode(payloads, publish_time_us=1, keys=[b"%d" % (n % 7) for n in numbers])
        stamp(batch, self.end_offset, 1)
        self.batches.append((self.end_offset, self.end_offset + count, batch))
        self.end_offset += count
        return batch

    def read(
        self, first: int, bytes_max: int, on_done: Callable[[Chunk | DanubiusError], None]
    ) -> None:
        found = [one for one in self.batches if one[1] > first]
        count, size = 1, len(found[0][2])
        while count < len(found) and size + len(found[count][2]) <= bytes_max:
            size += len(found[count][2])
            count += 1
        buffers: list[Buffer] = [batch for _, _, batch in found[:count]]
        on_done(Chunk(found[0][0], found[count - 1][1], buffers, size))


class Inbox:
    """What one consumer got, and when."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self.offsets: list[int] = []
        self.times_ns: list[int] = []
        self.size = 0

    def deliver(
        self, first: int, end: int, messages: int, redelivery_count: int, buffers: Sequence[Buffer]
    ) -> None:
        del redelivery_count
        found = [
            offset
            for buffer in buffers
            for batch in iter_batches(buffer)
            for offset in batch.offsets()
            if first <= offset < end
        ]
        assert len(found) == messages
        self.offsets += found
        self.times_ns += [self._time.now] * messages
        self.size += sum(map(len, buffers))

    def active_changed(self, is_active: bool) -> None:
        del is_active

    def closed(self, error: DanubiusError) -> None:
        raise error


class Sub:
    """One subscription with its pump."""

    def __init__(
        self,
        time: Time,
        *,
        count: int,
        batch: int = 1_000,
        size: int = 20,
        kind: SubscriptionType = SubscriptionType.EXCLUSIVE,
    ) -> None:
        self.time = time
        self.log = Log(count, batch, size)
        self.core = SubscriptionCore(kind, Cursor(0), end=self.log.end_offset)
        self.pump = Pump(
            self.core,
            self.log,
            now_ns=time.now_ns,
            call_at=time.call_at,
            on_acked=lambda _ranges: None,
            on_dropped=lambda _count: None,
        )

    def join(self, consumer_id: int = 1, credit: int = MANY) -> Inbox:
        inbox = Inbox(self.time)
        self.pump.join(consumer_id, f"c{consumer_id}", inbox)
        self.pump.grant(consumer_id, credit, MANY)
        return inbox

    def append(self, count: int) -> None:
        first = self.log.end_offset
        batch = self.log.append(count)
        self.pump.appended(first, first + count, memoryview(batch))


def pace(time: Time, messages: int = 0, size: int = 0) -> Pace:
    return Pace(Rates(messages, size), time.now_ns, time.call_at)


# ---------------------------------------------------------------- the pump obeys


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_a_backlog_comes_at_its_rate_in_order_and_whole(kind: SubscriptionType) -> None:
    time = Time()
    sub = Sub(time, count=1_000, kind=kind)
    sub.pump.set_gate(DispatchGate(pace(time, 100)))
    inbox = sub.join()

    time.run(5)
    assert len(inbox.offsets) == pytest.approx(500, abs=10)
    time.run(5.1)

    assert inbox.offsets == list(range(1_000))
    sub.core.check()
    # Over any second no more came than the rate and what may be left unused.
    for at, began_ns in enumerate(inbox.times_ns):
        within = [one for one in inbox.times_ns[at:] if one < began_ns + SECOND_NS]
        assert len(within) <= 100 + 5 + 1


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_several_consumers_share_the_rate_of_their_subscription(kind: SubscriptionType) -> None:
    time = Time()
    sub = Sub(time, count=600, kind=kind)
    sub.pump.set_gate(DispatchGate(pace(time, 100)))
    inboxes = [sub.join(number, credit=0) for number in (1, 2, 3)]
    for number in (1, 2, 3):
        sub.pump.grant(number, MANY, MANY)

    time.run(3)
    assert sum(len(one.offsets) for one in inboxes) == pytest.approx(300, abs=10)
    time.run(4)

    assert sorted(offset for one in inboxes for offset in one.offsets) == list(range(600))
    assert all(one.offsets == sorted(one.offsets) for one in inboxes)


def test_what_is_published_to_one_who_is_caught_up_comes_at_the_rate_too() -> None:
    time = Time()
    sub = Sub(time, count=1)
    sub.pump.set_gate(DispatchGate(pace(time, 10)))
    inbox = sub.join()
    for _ in range(50):
        sub.append(1)

    time.run(2)
    assert len(inbox.offsets) == pytest.approx(20, abs=2)
    time.run(4)
    assert inbox.offsets == list(range(51))


def test_bytes_come_at_their_rate_also_before_any_size_is_known() -> None:
    time = Time()
    sub = Sub(time, count=2_000, size=1_000)
    sub.pump.set_gate(DispatchGate(pace(time, size=100_000)))
    inbox = sub.join()

    assert len(inbox.offsets) == pytest.approx(5, abs=5), "one burst, not a whole read"
    time.run(10)

    assert inbox.size == pytest.approx(1_000_000, rel=0.1)
    assert inbox.offsets == list(range(len(inbox.offsets)))


def test_redeliveries_are_counted_and_come_in_portions() -> None:
    time = Time()
    sub = Sub(time, count=300)
    first = sub.join(1)
    assert len(first.offsets) == 300
    sub.pump.set_gate(DispatchGate(pace(time, 100)))
    sub.pump.leave(1)
    second = sub.join(2)

    time.run(1)
    assert len(second.offsets) == pytest.approx(100, abs=8)
    time.run(3)
    assert second.offsets == list(range(300))


def test_a_rate_costs_few_timers_and_none_at_rest() -> None:
    time = Time()
    sub = Sub(time, count=100_000, batch=5_000)
    sub.pump.set_gate(DispatchGate(pace(time, 100_000)))
    inbox = sub.join()

    time.run(2)

    assert len(inbox.offsets) == 100_000
    assert time.rings <= 110
    assert not time.alarms


def test_credit_still_counts() -> None:
    time = Time()
    sub = Sub(time, count=100)
    sub.pump.set_gate(DispatchGate(pace(time, 1_000)))
    inbox = sub.join(credit=7)

    time.run(5)
    assert inbox.offsets == list(range(7))
    sub.pump.grant(1, 100, MANY)
    time.run(5)
    assert inbox.offsets == list(range(100))


# ---------------------------------------------------------------- changes


def test_a_rate_may_come_change_and_go_while_messages_wait() -> None:
    time = Time()
    sub = Sub(time, count=1_000)
    rates = Rates(1, 0)
    own = Pace(rates, time.now_ns, time.call_at)
    sub.pump.set_gate(DispatchGate(own))
    inbox = sub.join()
    time.run(2)
    assert 1 <= len(inbox.offsets) <= 4

    rates.change(100, 0, time.now)
    own.changed()
    time.run(1)
    assert len(inbox.offsets) == pytest.approx(100, abs=10)

    sub.pump.set_gate(None)
    assert inbox.offsets == list(range(1_000))
    assert not time.alarms
    assert own.waiting == 0


def test_a_closed_pump_waits_for_nothing() -> None:
    time = Time()
    sub = Sub(time, count=100)
    shared = pace(time, 1)
    sub.pump.set_gate(DispatchGate(shared))
    sub.join()
    assert shared.waiting == 1

    sub.pump.close()

    assert shared.waiting == 0
    assert not time.alarms


# ---------------------------------------------------------------- a pace of several


def test_those_who_share_a_pace_take_turns() -> None:
    time = Time()
    shared = pace(time, 100)
    subs = [Sub(time, count=1_000) for _ in range(10)]
    inboxes: list[Inbox] = []
    for sub in subs:
        sub.pump.set_gate(DispatchGate(shared))
        inboxes.append(sub.join())

    time.run(10)

    counts = [len(one.offsets) for one in inboxes]
    assert sum(counts) == pytest.approx(1_000, abs=30)
    assert max(counts) - min(counts) <= 20
    assert all(one.offsets == list(range(len(one.offsets))) for one in inboxes)


def test_the_slower_of_two_paces_decides_and_both_are_charged() -> None:
    time = Time()
    shared = pace(time, 50)
    quick, slow = Sub(time, count=10_000), Sub(time, count=10_000)
    quick.pump.set_gate(DispatchGate(pace(time, 1_000), shared))
    slow.pump.set_gate(DispatchGate(pace(time, 5), shared))
    fast_inbox, slow_inbox = quick.join(), slow.join()

    time.run(20)

    assert len(slow_inbox.offsets) == pytest.approx(100, abs=10)
    assert len(fast_inbox.offsets) == pytest.approx(900, abs=40)


def test_many_who_wait_in_vain_are_called_a_few_at_a_time() -> None:
    time = Time()
    shared = pace(time, 10)
    calls: list[int] = []

    class Idle:
        def go_on(self) -> None:
            calls.append(time.rings)

    shared.rates.take(10, 0, time.now)
    for _ in range(3 * WOKEN_MAX):
        shared.wait(Idle())
    time.run(2)

    assert len(calls) == 3 * WOKEN_MAX
    assert max(calls.count(ring) for ring in set(calls)) == WOKEN_MAX
    assert not time.alarms


# ---------------------------------------------------------------- histories

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 30)),
        st.tuples(st.just("pass"), st.integers(1, 1_000)),
        st.tuples(st.just("ack"), st.integers(0, 5)),
        st.tuples(st.just("nack"), st.integers(0, 5)),
        st.tuples(st.just("leave"), st.integers(1, 2)),
        st.tuples(st.just("rate"), st.sampled_from([0, 1, 3, 50, 1_000])),
    ),
    max_size=30,
)


@given(st.sampled_from(ALL_TYPES), STEPS)
def test_whatever_happens_all_is_delivered_in_the_end(
    kind: SubscriptionType, steps: list[tuple[str, int]]
) -> None:
    """Rates come, change and go while consumers leave, acknowledge and give back."""
    time = Time()
    sub = Sub(time, count=20, batch=7, kind=kind)
    shared = pace(time, 20)
    sub.pump.set_gate(DispatchGate(shared))
    inboxes = {number: sub.join(number) for number in (1, 2) if sub.pump.can_join(f"c{number}")}
    seen: set[int] = set()
    fresh_id = 10
    for action, number in steps:
        match action:
            case "append":
                sub.append(number)
            case "pass":
                time.run(number / 1_000)
            case "ack" | "nack":
                for consumer_id, inbox in inboxes.items():
                    seen.update(inbox.offsets)
                    ranges = [(one, one + 1) for one in sorted(inbox.offsets[:number])]
                    if action == "ack":
                        sub.pump.acked(ranges)
                    else:
                        sub.pump.nacked(consumer_id, ranges)
            case "leave":
                gone = list(inboxes)[min(number, len(inboxes)) - 1]
                seen.update(inboxes.pop(gone).offsets)
                sub.pump.leave(gone)
                fresh_id += 1
                inboxes[fresh_id] = sub.join(fresh_id)
            case _:
                sub.pump.set_gate(DispatchGate(pace(time, number)) if number else None)
        sub.core.check()

    # Slow is not never: whatever the rate is by now, all comes when nobody leaves any more. A key waits for its acks.
    for _ in range(20):
        time.run(1_000)
        seen.update(offset for inbox in inboxes.values() for offset in inbox.offsets)
        sub.pump.acked([(offset, offset + 1) for offset in sorted(seen)])
    sub.core.check()
    assert seen == set(range(sub.log.end_offset))
    assert not time.alarms
