"""Many fragments in flight: what is done to all of them takes one pass.

A change of one range moves all the ranges above it, so many must not be changed one by one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from danubius.ack.core.cursor import Cursor
from danubius.ack.core.ranges import RangeMap, RangeSet
from danubius.dispatch.core.effects import Deliver, Read
from danubius.dispatch.core.events import (
    Acked,
    ConsumerJoined,
    ConsumerLeft,
    CreditGranted,
    Nacked,
    ReadCompleted,
    Ticked,
)
from danubius.dispatch.core.subscription import SubscriptionCore
from danubius.model.subscription import SubscriptionType

SHARED = SubscriptionType.SHARED
KEY_SHARED = SubscriptionType.KEY_SHARED
MANY = 1 << 40
FRAGMENTS = 20_000


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often ranges were changed one by one."""
    counts: Counter[str] = Counter()

    def count(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def counted(*args: Any) -> Any:
            counts[name] += 1
            return original(*args)

        monkeypatch.setattr(kind, name, counted)

    count(RangeMap, "cut")
    count(RangeMap, "put")
    count(RangeSet, "add")
    count(RangeSet, "remove")
    return counts


def fragmented(*, ack_timeout_ns: int = 0) -> SubscriptionCore:
    """A shared subscription with one consumer that has acknowledged every second message."""
    core = SubscriptionCore(SHARED, Cursor(0), end=2 * FRAGMENTS)
    core.handle(ConsumerJoined(1, "a", ack_timeout_ns), 0)
    core.handle(CreditGranted(1, MANY, MANY), 0)
    core.poll(0)
    core.handle(ReadCompleted(0, 2 * FRAGMENTS, 2 * FRAGMENTS), 0)
    acked = [(n, n + 1) for n in range(0, 2 * FRAGMENTS, 2)]
    for at in range(0, FRAGMENTS, 5_000):
        core.handle(Acked(acked[at : at + 5_000]), 0)
    assert core.unacked == FRAGMENTS
    return core


def deliver_again(core: SubscriptionCore, consumer_id: int, now_ns: int) -> None:
    """Read it all in one chunk: one delivery a fragment, in order."""
    core.handle(CreditGranted(consumer_id, MANY, MANY), now_ns)
    assert any(isinstance(one, Read) for one in core.poll(now_ns))
    effects = core.handle(ReadCompleted(0, 2 * FRAGMENTS, 2 * FRAGMENTS), now_ns)
    assert effects == [Deliver(consumer_id, n, n + 1, None, 1) for n in range(1, 2 * FRAGMENTS, 2)]
    core.check()


def test_a_consumer_leaves_many_fragments_behind_and_the_next_gets_them(
    moves: Counter[str],
) -> None:
    core = fragmented()
    core.handle(ConsumerLeft(1), 0)
    core.check()
    assert core.unacked == 0
    core.handle(ConsumerJoined(2, "b"), 0)
    deliver_again(core, 2, 0)
    assert moves.total() < 100


@pytest.mark.parametrize("delay_ns", [0, 100])
def test_many_fragments_are_given_back_in_one_nack(delay_ns: int, moves: Counter[str]) -> None:
    core = fragmented()
    core.handle(Nacked(1, [(0, 2 * FRAGMENTS)], delay_ns), 0)
    core.handle(Ticked(), delay_ns)
    deliver_again(core, 1, delay_ns)
    assert moves.total() < 100


def test_many_fragments_time_out_at_once(moves: Counter[str]) -> None:
    core = fragmented(ack_timeout_ns=100)
    core.handle(Ticked(), 100)
    assert core.unacked == 0
    deliver_again(core, 1, 100)
    assert moves.total() < 100


def test_many_fragments_are_acknowledged_from_the_last_to_the_first(
    moves: Counter[str],
) -> None:
    core = fragmented()
    acked = [(n, n + 1) for n in range(2 * FRAGMENTS - 1, 0, -2)]
    for at in range(0, FRAGMENTS, 5_000):
        core.handle(Acked(acked[at : at + 5_000]), 0)
    core.check()
    assert core.cursor.floor == 2 * FRAGMENTS
    assert moves.total() < 100


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_a_nack_of_many_ranges_that_hold_nothing_is_cheap(kind: SubscriptionType) -> None:
    core = SubscriptionCore(kind, Cursor(0), end=100_000)
    core.handle(ConsumerJoined(1, "a"), 0)
    core.handle(CreditGranted(1, MANY, MANY), 0)
    core.poll(0)
    core.handle(ReadCompleted(0, 100_000, 100_000, [b"%d" % (n % 7) for n in range(100_000)]), 0)
    beyond = [(MANY * n, MANY * (n + 1) - 1) for n in range(1, 50_000)]
    core.handle(Nacked(1, beyond), 0)
    assert core.unacked == 100_000
