"""Single facts about messages that fail, found by histories of the model or too rare for them."""

from __future__ import annotations

import pytest

from danubius.ack.core.cursor import Cursor
from danubius.ack.core.failure import compile_rule
from danubius.ack.core.ranges import Segment
from danubius.dispatch.core.effects import Condemned, Deliver, Read
from danubius.dispatch.core.events import (
    ConsumerJoined,
    ConsumerLeft,
    CreditGranted,
    PolicyChanged,
    ReadCompleted,
    Released,
)
from danubius.dispatch.core.subscription import SubscriptionCore
from danubius.model.policy import Exhausted, FailurePolicy
from danubius.model.subscription import SubscriptionType

RULE = compile_rule(FailurePolicy(redeliveries_max=1))


def test_a_read_that_ends_when_all_have_left_meets_counts_from_before_a_restart() -> None:
    core = SubscriptionCore(
        SubscriptionType.KEY_SHARED, Cursor(), end=2, rule=RULE, attempts=[Segment(0, 1, 1)]
    )
    core.handle(ConsumerJoined(1, "a"), 1)
    core.handle(CreditGranted(1, 10, 1000), 1)
    assert [type(one) for one in core.poll(1)] == [Read]
    core.handle(ConsumerLeft(1), 1)
    assert core.handle(ReadCompleted(0, 2, 100, [b"5", b"6"]), 1) == []
    core.check()


def test_what_failed_too_often_before_a_restart_is_not_delivered_again() -> None:
    core = SubscriptionCore(
        SubscriptionType.EXCLUSIVE, Cursor(), end=3, rule=RULE, attempts=[Segment(1, 2, 2)]
    )
    effects = core.handle(ConsumerJoined(1, "a"), 1)
    assert [one.count for one in effects if isinstance(one, Condemned)] == [1]
    core.handle(CreditGranted(1, 10, 1000), 1)
    core.poll(1)
    delivered = core.handle(ReadCompleted(0, 3, 150), 1)
    assert [(one.first, one.end) for one in delivered if isinstance(one, Deliver)] == [
        (0, 1),
        (2, 3),
    ]
    core.check()


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_kinder_policy_after_a_restart_drops_nothing_that_the_old_one_condemned(
    kind: SubscriptionType,
) -> None:
    core = SubscriptionCore(kind, Cursor(), end=2, rule=RULE, attempts=[Segment(0, 2, 2)])
    kinder = compile_rule(FailurePolicy(redeliveries_max=None, then=Exhausted.DROP))
    assert core.handle(PolicyChanged(kinder), 1) == []
    assert core.backlog == 2
    core.check()


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_what_blocked_is_delivered_again_from_the_first_attempt_once_it_is_released(
    kind: SubscriptionType,
) -> None:
    block = compile_rule(FailurePolicy(redeliveries_max=1, then=Exhausted.BLOCK))
    core = SubscriptionCore(kind, Cursor(), end=1, rule=block, attempts=[Segment(0, 1, 2)])
    core.handle(ConsumerJoined(1, "a"), 1)
    core.handle(CreditGranted(1, 10, 1000), 1)
    assert _delivered(core) == []
    core.handle(Released(), 1)
    assert _delivered(core) == [(0, 1, 0)]
    core.check()


def _delivered(core: SubscriptionCore) -> list[tuple[int, int, int]]:
    """What it delivers of a log of one message, which is read for it as it asks."""
    effects = core.poll(1)
    if any(isinstance(one, Read) for one in effects):
        keys = [b"k"] if core.kind is SubscriptionType.KEY_SHARED else None
        effects = core.handle(ReadCompleted(0, 1, 50, keys), 1)
    found = [one for one in effects if isinstance(one, Deliver)]
    return [(one.first, one.end, one.redelivery_count) for one in found]
