"""What a subscription core promises, one fact at a time; the shell is a few lines below."""

from __future__ import annotations

import pytest

from danubius.ack.core.cursor import Cursor
from danubius.dispatch.core import window
from danubius.dispatch.core.effects import (
    AckAdvanced,
    ActiveChanged,
    Deliver,
    Dropped,
    Effect,
    Read,
    Replaced,
    WakeAt,
)
from danubius.dispatch.core.events import (
    Acked,
    BytesSent,
    ConsumerJoined,
    ConsumerLeft,
    CreditGranted,
    Event,
    LogExtended,
    Nacked,
    ReadCompleted,
    ReadFailed,
    Ticked,
    WritableChanged,
)
from danubius.dispatch.core.limits import WindowLimits
from danubius.dispatch.core.subscription import SubscriptionCore
from danubius.model.subscription import SubscriptionType

EXCLUSIVE = SubscriptionType.EXCLUSIVE
SHARED = SubscriptionType.SHARED
FAILOVER = SubscriptionType.FAILOVER
KEY_SHARED = SubscriptionType.KEY_SHARED
MANY = 1 << 40


class Driver:
    """Reads at once, in chunks of ten messages, and writes down what was delivered."""

    def __init__(
        self,
        kind: SubscriptionType,
        *,
        end: int = 0,
        floor: int = 0,
        auto_ack: bool = False,
        limits: WindowLimits | None = None,
        keys: int = 7,
    ) -> None:
        limits = limits or WindowLimits()
        cursor = Cursor(floor)
        self.core = SubscriptionCore(kind, cursor, end=end, auto_ack=auto_ack, limits=limits)
        self.keys = keys
        self.now_ns = 0
        self.log_start = 0
        self.reads = 0
        self.delivered: list[Deliver] = []
        self.effects: list[Effect] = []

    def tell(self, *events: Event) -> Driver:
        pending = list(events)
        while pending:
            for event in pending:
                self._note(self.core.handle(event, self.now_ns))
                self.core.check()
            pending = [self._read(e) for e in self._note(self.core.poll(self.now_ns)) if e]
        return self

    def join(self, consumer_id: int, name: str = "", *, credit: int = MANY) -> Driver:
        self.tell(ConsumerJoined(consumer_id, name or f"c{consumer_id}"))
        return self.tell(CreditGranted(consumer_id, credit, MANY)) if credit else self

    def at(self, now_ns: int) -> Driver:
        self.now_ns = now_ns
        return self.tell(Ticked())

    def offsets(self, consumer_id: int) -> list[int]:
        return [
            offset
            for one in self.delivered
            if one.consumer_id == consumer_id
            for offset in (one.offsets or range(one.first, one.end))
        ]

    def _note(self, effects: list[Effect]) -> list[Read]:
        self.effects += effects
        self.delivered += [one for one in effects if isinstance(one, Deliver)]
        return [one for one in effects if isinstance(one, Read)]

    def _read(self, read: Read) -> ReadCompleted:
        self.reads += 1
        first = max(read.first - read.first % 10, self.log_start)
        end = min(first + 10, self.core.end)
        keys = [b"%d" % (offset % self.keys) for offset in range(first, end)]
        return ReadCompleted(first, end, 100 * (end - first), keys if read.wants_keys else None)


# ---------------------------------------------------------------- all types


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_nothing_is_read_or_delivered_without_credit(kind: SubscriptionType) -> None:
    driver = Driver(kind, end=50).join(1, credit=0)
    assert driver.reads == 0
    assert driver.tell(CreditGranted(1, 3, MANY)).offsets(1) == [0, 1, 2]


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_message_credit_is_exact(kind: SubscriptionType) -> None:
    driver = Driver(kind, end=100).join(1, credit=17)
    assert driver.offsets(1) == list(range(17))


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_connection_that_filled_up_gets_nothing_until_it_drains(kind: SubscriptionType) -> None:
    driver = Driver(kind).join(1)
    driver.tell(WritableChanged(1, is_writable=False), LogExtended(5))
    assert driver.reads == 0
    assert driver.tell(WritableChanged(1, is_writable=True)).offsets(1) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_overdrawn_bytes_are_paid_back_before_the_next_delivery(kind: SubscriptionType) -> None:
    driver = Driver(kind).tell(ConsumerJoined(1, "a"), CreditGranted(1, MANY, 1))
    driver.tell(LogExtended(10), BytesSent(1, 1000))
    assert driver.offsets(1) == []
    assert driver.tell(CreditGranted(1, 0, 999)).offsets(1) == []
    assert driver.tell(CreditGranted(1, 0, 1)).offsets(1) == list(range(10))


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_what_a_lost_consumer_had_comes_again_with_a_count(kind: SubscriptionType) -> None:
    driver = Driver(kind, end=10).join(1)
    driver.tell(Acked([(0, 4)]), ConsumerLeft(1)).join(2)
    assert driver.offsets(2) == list(range(4, 10))
    assert {one.redelivery_count for one in driver.delivered if one.consumer_id == 2} == {1}


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_what_is_not_acknowledged_in_time_comes_again(kind: SubscriptionType) -> None:
    driver = Driver(kind, end=6).tell(ConsumerJoined(1, "a", 100), CreditGranted(1, 100, MANY))
    assert WakeAt(100) in driver.effects
    driver.tell(Acked([(1, 6)]))
    assert driver.at(99).offsets(1) == [0, 1, 2, 3, 4, 5]
    assert driver.at(100).offsets(1) == [0, 1, 2, 3, 4, 5, 0]
    assert driver.delivered[-1].redelivery_count == 1


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_nacked_message_comes_again_after_its_delay(kind: SubscriptionType) -> None:
    driver = Driver(kind, end=6).join(1).tell(Nacked(1, [(2, 3)], 50))
    assert driver.at(49).offsets(1)[6:] == []
    assert driver.at(50).offsets(1)[6:] == [2]


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_consumer_cannot_nack_what_another_one_has(kind: SubscriptionType) -> None:
    driver = Driver(kind, end=6).join(1).tell(Nacked(99, [(0, 6)]))
    assert driver.offsets(1) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_an_ack_of_what_waits_keeps_it_from_coming_again(kind: SubscriptionType) -> None:
    driver = Driver(kind, end=6).join(1).tell(Nacked(1, [(0, 6)], 50), Acked([(0, 6)]))
    assert driver.at(50).offsets(1) == [0, 1, 2, 3, 4, 5]
    assert driver.core.backlog == 0


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_an_ack_beyond_the_log_does_not_move_the_cursor_beyond_it(kind: SubscriptionType) -> None:
    driver = Driver(kind, end=6).join(1).tell(Acked([(0, 1000)]), LogExtended(8))
    assert driver.core.cursor.floor == 6
    assert driver.offsets(1) == list(range(8))


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_what_was_acknowledged_before_it_was_read_is_passed_over(kind: SubscriptionType) -> None:
    driver = Driver(kind, end=10).tell(Acked([(2, 5)])).join(1)
    assert driver.offsets(1) == [0, 1, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_acks_are_reported_once(kind: SubscriptionType) -> None:
    driver = Driver(kind, end=10).join(1).tell(Acked([(0, 3)]), Acked([(0, 5)]), Acked([(1, 2)]))
    said = [one for one in driver.effects if isinstance(one, AckAdvanced)]
    assert said == [AckAdvanced([(0, 3)]), AckAdvanced([(3, 5)])]


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_full_window_stops_new_messages_until_something_is_acknowledged(
    kind: SubscriptionType,
) -> None:
    limits = WindowLimits(unacked_messages_max=12)
    driver = Driver(kind, end=100, limits=limits).join(1)
    assert driver.offsets(1) == list(range(12))
    assert driver.tell(Acked([(3, 6)])).offsets(1)[12:] == [12, 13, 14]


@pytest.mark.parametrize(
    "kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER, SubscriptionType.SHARED]
)
def test_a_window_in_too_many_pieces_stops_new_messages_until_some_are_acknowledged(
    kind: SubscriptionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "PIECES_MAX", 4)
    driver = Driver(kind, end=100).join(1, credit=10)
    assert driver.offsets(1) == list(range(10))
    driver.tell(Acked([(1, 2), (3, 4), (5, 6)]))
    assert driver.tell(CreditGranted(1, 10, MANY)).offsets(1) == list(range(10))
    # Nothing acknowledged is forgotten, and what closes the gaps lets it go on.
    assert driver.tell(Acked([(0, 5)])).offsets(1)[10:] == list(range(10, 20))
    # What comes again is not new: it comes whatever else is open.
    driver.tell(Acked([(7, 8), (9, 10), (11, 12), (13, 14)]))
    driver.tell(ConsumerLeft(1)).join(2, credit=5)
    assert driver.offsets(2) == [6, 8, 10, 12, 14]


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_the_window_is_also_bounded_in_bytes(kind: SubscriptionType) -> None:
    driver = Driver(kind, end=100, limits=WindowLimits(unacked_bytes_max=2500)).join(1)
    assert len(driver.offsets(1)) == 30, "three chunks of 1000 bytes pass the bound of 2500"
    assert len(driver.tell(Acked([(0, 20)])).offsets(1)) > 30


def test_a_failed_read_is_tried_again_later_and_later() -> None:
    core = SubscriptionCore(EXCLUSIVE, Cursor(0), end=10)
    core.handle(ConsumerJoined(1, "a"), 0)
    core.handle(CreditGranted(1, 10, 1000), 0)
    now_ns, waits = 0, list[int]()
    for _ in range(8):
        assert any(isinstance(one, Read) for one in core.poll(now_ns))
        core.handle(ReadFailed(), now_ns)
        (wake,) = core.poll(now_ns)
        assert isinstance(wake, WakeAt)
        waits.append(wake.now_ns - now_ns)
        now_ns = wake.now_ns
        core.handle(Ticked(), now_ns)
    assert waits == sorted(waits)
    assert waits[0] == 100_000_000
    assert waits[-1] == 5_000_000_000


def test_a_read_that_finds_nothing_counts_as_failed() -> None:
    core = SubscriptionCore(EXCLUSIVE, Cursor(0), end=10)
    core.handle(ConsumerJoined(1, "a"), 0)
    core.handle(CreditGranted(1, 10, 1000), 0)
    core.poll(0)
    core.handle(ReadCompleted(0, 0, 0), 0)
    assert [type(one) for one in core.poll(0)] == [WakeAt]


def test_a_damaged_range_that_is_skipped_counts_as_acknowledged() -> None:
    driver = Driver(EXCLUSIVE, end=30)
    driver.log_start = 12
    driver.join(1)
    assert AckAdvanced([(0, 12)]) in driver.effects
    assert driver.offsets(1)[0] == 12


def test_one_event_after_another_needs_one_read() -> None:
    driver = Driver(EXCLUSIVE).join(1)
    driver.tell(LogExtended(2), LogExtended(4), LogExtended(6))
    assert driver.reads == 1
    assert driver.delivered == [Deliver(1, 0, 6)]


def test_the_story_keeps_the_last_events_without_keys() -> None:
    driver = Driver(KEY_SHARED, end=1000).join(1)
    assert len(driver.core.story) == WindowLimits().story_events_max
    reads = [event for _, event, _ in driver.core.story if isinstance(event, ReadCompleted)]
    assert reads
    assert all(event.keys is None for event in reads)


# ---------------------------------------------------------------- exclusive and failover


def test_exclusive_refuses_a_second_name_and_lets_the_same_name_take_over() -> None:
    driver = Driver(EXCLUSIVE, end=5).join(1, "a")
    assert not driver.core.can_join("b")
    assert driver.core.can_join("a")
    driver.join(2, "a")
    assert Replaced(1) in driver.effects
    assert driver.offsets(2) == [0, 1, 2, 3, 4]


def test_what_comes_again_comes_before_what_is_new() -> None:
    driver = Driver(EXCLUSIVE, end=10).join(1, credit=5)
    driver.tell(ConsumerLeft(1), LogExtended(20)).join(2)
    assert driver.offsets(2) == list(range(20))


def test_a_read_that_was_overtaken_by_a_redelivery_does_not_break_the_order() -> None:
    core = SubscriptionCore(EXCLUSIVE, Cursor(0), end=20)
    core.handle(ConsumerJoined(1, "a"), 0)
    core.handle(CreditGranted(1, 100, 10_000), 0)
    core.poll(0)
    core.handle(ReadCompleted(0, 10, 1000), 0)
    assert [one.first for one in core.poll(0) if isinstance(one, Read)] == [10]
    core.handle(Nacked(1, [(3, 5)]), 0)
    assert core.handle(ReadCompleted(10, 20, 1000), 0) == []
    assert [one.first for one in core.poll(0) if isinstance(one, Read)] == [3]
    delivered = core.handle(ReadCompleted(0, 20, 2000), 0)
    assert delivered == [Deliver(1, 3, 5, None, 1), Deliver(1, 10, 20, None, 0)]


def test_failover_serves_the_first_and_promotes_the_next_at_once() -> None:
    driver = Driver(FAILOVER, end=10).join(1).join(2).join(3)
    assert driver.offsets(1) == list(range(10))
    assert ActiveChanged(2, is_active=False) in driver.effects
    driver.tell(Acked([(0, 6)]), ConsumerLeft(1))
    assert driver.effects[-1] != ActiveChanged(3, is_active=True)
    assert ActiveChanged(2, is_active=True) in driver.effects
    assert driver.offsets(2) == [6, 7, 8, 9]
    assert driver.offsets(3) == []


def test_a_standby_that_leaves_changes_nothing() -> None:
    driver = Driver(FAILOVER, end=10).join(1).join(2)
    before = len(driver.effects)
    driver.tell(ConsumerLeft(2))
    assert driver.effects[before:] == []


# ---------------------------------------------------------------- shared


def test_one_small_batch_reaches_both_consumers() -> None:
    driver = Driver(SHARED).join(1).join(2).tell(LogExtended(10))
    assert len(driver.offsets(1)) == len(driver.offsets(2)) == 5


def test_single_messages_go_round() -> None:
    driver = Driver(SHARED).join(1).join(2).join(3)
    for end in range(1, 10):
        driver.tell(LogExtended(end))
    assert [len(driver.offsets(one)) for one in (1, 2, 3)] == [3, 3, 3]


def test_a_consumer_with_little_credit_leaves_the_rest_to_the_others() -> None:
    driver = Driver(SHARED).join(1, credit=1).join(2, credit=2).join(3).tell(LogExtended(10))
    assert [len(driver.offsets(one)) for one in (1, 2, 3)] == [1, 2, 7]


def test_a_large_run_is_one_delivery_per_consumer() -> None:
    core = SubscriptionCore(SHARED, Cursor(0), end=100_000)
    for consumer_id in range(4):
        core.handle(ConsumerJoined(consumer_id, "worker"), 0)
        core.handle(CreditGranted(consumer_id, MANY, MANY), 0)
    core.poll(0)
    delivered = core.handle(ReadCompleted(0, 100_000, 4_000_000), 0)
    assert [one.messages for one in delivered if isinstance(one, Deliver)] == [25_000] * 4


# ---------------------------------------------------------------- key-shared


def owners(driver: Driver) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for one in driver.delivered:
        for offset in one.offsets or range(one.first, one.end):
            found.setdefault(offset % driver.keys, set()).add(one.consumer_id)
    return found


def test_a_key_has_one_consumer_and_both_get_keys() -> None:
    driver = Driver(KEY_SHARED, keys=50).join(1).join(2).tell(LogExtended(500))
    assert all(len(ids) == 1 for ids in owners(driver).values())
    assert driver.offsets(1)
    assert driver.offsets(2)
    assert sorted(driver.offsets(1) + driver.offsets(2)) == list(range(500))


def test_a_consumer_without_credit_does_not_stop_the_keys_of_others() -> None:
    driver = Driver(KEY_SHARED, keys=50).join(1, credit=0).join(2).tell(LogExtended(500))
    mine = driver.offsets(2)
    assert mine[-1] > 450
    driver.tell(CreditGranted(1, MANY, MANY))
    assert driver.offsets(1) == sorted(set(range(500)) - set(mine))


def test_messages_held_back_are_bounded_and_stop_nobody() -> None:
    limits = WindowLimits(held_messages_max=20)
    driver = Driver(KEY_SHARED, keys=50, limits=limits).join(1, credit=0).join(2)
    driver.tell(LogExtended(500))
    mine = driver.offsets(2)
    assert mine[-1] > 450, "they are read past"
    assert driver.core.waiting <= 20, "and not all remembered"
    driver.tell(CreditGranted(1, MANY, MANY))
    assert sorted(driver.offsets(1)) == sorted(set(range(500)) - set(mine))
    keys = [[o for o in driver.offsets(1) if o % 50 == key] for key in range(50)]
    assert keys == [sorted(one) for one in keys], "in order all the same"


def test_a_moved_key_waits_until_its_old_consumer_has_none_open() -> None:
    driver = Driver(KEY_SHARED, keys=50).join(1).tell(LogExtended(50)).join(2)
    driver.tell(LogExtended(100))
    assert driver.offsets(2) == [], "all keys are open at the first consumer"
    driver.tell(Acked([(0, 50)]))
    assert driver.offsets(2), "its own keys are free"
    assert all(offset >= 50 for offset in driver.offsets(2))
    assert sorted(driver.offsets(1) + driver.offsets(2)) == list(range(100))


def test_a_consumer_that_returns_under_its_name_gets_its_keys_back() -> None:
    first = Driver(KEY_SHARED, keys=50).join(1, "a").join(2, "b").tell(LogExtended(50))
    mine = first.offsets(1)
    first.tell(Acked([(0, 50)]), ConsumerLeft(1)).join(3, "a").tell(LogExtended(100))
    assert first.offsets(3) == [offset + 50 for offset in mine]


def test_a_delayed_nack_holds_its_key_and_no_other() -> None:
    driver = Driver(KEY_SHARED, keys=5, end=5).join(1).tell(Nacked(1, [(2, 3)], 100))
    driver.tell(LogExtended(10))
    assert driver.offsets(1)[5:] == [5, 6, 8, 9]
    assert driver.at(100).offsets(1)[9:] == [2, 7]


# ---------------------------------------------------------------- non-reliable


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_auto_ack_leaves_nothing_open(kind: SubscriptionType) -> None:
    driver = Driver(kind, end=10, auto_ack=True).join(1)
    assert driver.offsets(1) == list(range(10))
    assert driver.core.unacked == driver.core.backlog == 0
    assert not [one for one in driver.effects if isinstance(one, AckAdvanced)]


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_with_nobody_there_messages_are_dropped_and_counted(kind: SubscriptionType) -> None:
    driver = Driver(kind, auto_ack=True).tell(LogExtended(10))
    assert driver.effects == [Dropped(10)]
    assert driver.join(1).tell(LogExtended(12)).offsets(1) == [10, 11]


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_what_the_ring_dropped_is_counted(kind: SubscriptionType) -> None:
    driver = Driver(kind, auto_ack=True).join(1, credit=5).tell(LogExtended(30))
    assert driver.offsets(1) == [0, 1, 2, 3, 4]
    driver.log_start = 20
    driver.tell(CreditGranted(1, MANY, MANY))
    assert driver.offsets(1)[5:] == list(range(20, 30))
    assert driver.core.dropped == 15
