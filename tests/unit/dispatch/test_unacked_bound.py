"""How many messages a subscription may have open, as its policy says: it holds at once, up and down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from danubius.ack.core.cursor import Cursor
from danubius.ack.core.failure import compile_rule
from danubius.dispatch.core.effects import Deliver, Read
from danubius.dispatch.core.events import (
    Acked,
    ConsumerJoined,
    ConsumerLeft,
    CreditGranted,
    Event,
    Nacked,
    PolicyChanged,
    ReadCompleted,
)
from danubius.dispatch.core.subscription import SubscriptionCore
from danubius.model.policy import FailurePolicy
from danubius.model.subscription import SubscriptionType

if TYPE_CHECKING:
    from collections.abc import Sequence

MANY = 1 << 40


class Driver:
    """Reads at once, ten messages of one key, and writes down what was delivered."""

    def __init__(self, kind: SubscriptionType, unacked_max: int) -> None:
        rule = compile_rule(FailurePolicy(unacked_messages_max=unacked_max))
        self.core = SubscriptionCore(kind, Cursor(), end=100, rule=rule)
        self.delivered = 0
        self.tell(ConsumerJoined(1, "a"), CreditGranted(1, MANY, MANY))

    def tell(self, *events: Event) -> int:
        """How many messages these lead to."""
        before = self.delivered
        pending = list(events)
        while pending:
            for event in pending:
                self._note(self.core.handle(event, 1))
                self.core.check()
            pending = [self._read(one) for one in self.core.poll(1) if isinstance(one, Read)]
        return self.delivered - before

    def change(self, unacked_max: int) -> int:
        rule = compile_rule(FailurePolicy(unacked_messages_max=unacked_max))
        return self.tell(PolicyChanged(rule))

    def _note(self, effects: Sequence[object]) -> None:
        self.delivered += sum(one.messages for one in effects if isinstance(one, Deliver))

    def _read(self, read: Read) -> ReadCompleted:
        first = read.first - read.first % 10
        keys = [b"k"] * 10 if read.wants_keys else None
        return ReadCompleted(first, first + 10, 1000, keys)


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_no_more_is_open_than_the_policy_allows(kind: SubscriptionType) -> None:
    driver = Driver(kind, 4)
    assert driver.delivered == 4
    assert driver.tell(Acked([(0, 1)])) == 1


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_higher_bound_delivers_at_once(kind: SubscriptionType) -> None:
    driver = Driver(kind, 4)
    assert driver.change(20) == 16


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_lower_bound_waits_until_less_is_open(kind: SubscriptionType) -> None:
    driver = Driver(kind, 20)
    assert driver.change(5) == 0
    assert driver.tell(Acked([(0, 15)])) == 0
    assert driver.tell(Acked([(15, 17)])) == 2


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_what_comes_again_keeps_to_a_lower_bound_too(kind: SubscriptionType) -> None:
    driver = Driver(kind, 8)
    driver.change(3)
    gaps: list[tuple[int, int]] = [(0, 1), (2, 5), (6, 8)]
    assert driver.tell(Nacked(1, gaps, 0, "")) == 1, "two are still in flight"
    assert driver.tell(Acked([(1, 2), (5, 6)])) == 2
    assert driver.tell(Acked([(0, 4)])) == 3


def test_what_nobody_takes_any_more_does_not_count() -> None:
    """Its taker has left: it waits for another, and the bound is for those who are there."""
    rule = compile_rule(FailurePolicy(unacked_messages_max=1))
    core = SubscriptionCore(SubscriptionType.KEY_SHARED, Cursor(), end=2, rule=rule)
    delivered: list[tuple[int, int]] = []

    def tell(*events: Event) -> None:
        pending = list(events)
        while pending:
            for event in pending:
                effects = core.handle(event, 1)
                delivered.extend(
                    (one.consumer_id, one.first) for one in effects if isinstance(one, Deliver)
                )
                core.check()
            pending = [
                ReadCompleted(0, 2, 200, [b"of a", b"of b"] if one.wants_keys else None)
                for one in core.poll(1)
                if isinstance(one, Read)
            ]

    tell(ConsumerJoined(1, "a", 0, ("of a",)), CreditGranted(1, MANY, MANY))
    assert delivered == [(1, 0)]
    tell(ConsumerLeft(1), ConsumerJoined(2, "b", 0, ("of b",)), CreditGranted(2, MANY, MANY))
    assert delivered == [(1, 0), (2, 1)]
