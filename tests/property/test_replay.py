"""The journal says all: whoever replays it has the state of the broker that wrote it, after any history.

The worlds of the crash tests make the histories: transactions, stages, delays, dead letters; and one in which what
exists changes, partitions that grow among it. The others compare at their checkpoints too, offload among them
(`BrokerLives.check_replay`); here it is done after every few steps. That it can fail is shown by planted bugs: each
must be found.
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any, Final

import pytest

from danubius.broker.appliers import APPLIERS
from danubius.model.policy import Policies
from danubius.shard.state import facts as events
from danubius.shard.state import tokens
from property import (
    broker_lives,
    catalog_world,
    test_atomic_crashes,
    test_dead_letter_crashes,
    test_delay_crashes,
    test_stage_crashes,
)
from proving import sized

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from danubius.shard.shard import Shard

WORLDS: Final[dict[str, Any]] = {
    "transactions": test_atomic_crashes,
    "dead letters": test_dead_letter_crashes,
    "delays": test_delay_crashes,
    "stages": test_stage_crashes,
    "catalog": catalog_world,
}
HISTORIES: Final = sized(40, 500)
"""Of each world."""
STEPS: Final = 60
EVERY: Final = 10
FOUND_WITHIN: Final = 40
"""Seeds of a world, of which one must show a planted bug."""


def live(world: str, seed: int) -> None:
    """A history whose every tenth step is followed by a comparison. Raises AssertionError where they differ."""
    module = WORLDS[world]
    one = module.World(seed)
    dice = random.Random(seed)
    try:
        names, weights = list(module.STEPS), list(module.STEPS.values())
        for number, step in enumerate(dice.choices(names, weights=weights, k=STEPS)):
            getattr(one, step)()
            if number % EVERY == EVERY - 1:
                one.check_replay()
    finally:
        one.loop.close()


@pytest.mark.grows
@pytest.mark.parametrize("world", WORLDS)
def test_whoever_replays_the_journal_has_the_same_state(world: str) -> None:
    for seed in range(HISTORIES):
        live(world, seed)


@contextlib.contextmanager
def forgetting(kind: type, forget: Callable[[Any], Any]) -> Generator[None]:
    """An applier that gets a fact with something missing, in whoever replays only."""
    check_replay = broker_lives.BrokerLives.check_replay

    def apply(shard: Shard, fact: Any) -> None:
        APPLIERS[kind](shard, forget(fact))

    def check(self: broker_lives.BrokerLives) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker_lives, "APPLIERS", {**APPLIERS, kind: apply})
            check_replay(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker_lives.BrokerLives, "check_replay", check)
        yield


@contextlib.contextmanager
def skipping(kind: type, by_hand: Callable[[Any], None]) -> Generator[None]:
    """A live path that does something of its own instead of applying the fact."""
    committed = tokens.FactToken.committed

    def skip(self: tokens.FactToken) -> None:
        if isinstance(self._fact, kind):
            by_hand(self._fact)
            self._on_done(None)
        else:
            committed(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens.FactToken, "committed", skip)
        yield


def nothing(_fact: object) -> None:
    """Is done."""


PLANTED: Final[dict[str, tuple[str, Callable[[], contextlib.AbstractContextManager[None]]]]] = {
    "acknowledgements but the last": (
        "dead letters",
        lambda: forgetting(
            events.RangesAcked,
            lambda fact: events.RangesAcked(fact.topic_id, fact.subscription_id, fact.ranges[:-1]),
        ),
    ),
    "the epoch of a producer": (
        "transactions",
        lambda: forgetting(
            events.ProducerStarted,
            lambda fact: events.ProducerStarted(
                fact.topic_id, fact.producer_id, fact.name, 1, fact.resumed, fact.next_sequence
            ),
        ),
    ),
    "how often a message failed": (
        "dead letters",
        lambda: forgetting(
            events.AttemptsCounted,
            lambda fact: events.AttemptsCounted(fact.topic_id, fact.subscription_id, []),
        ),
    ),
    "how far delays have come": (
        "delays",
        lambda: forgetting(
            events.DelayAdvanced,
            lambda fact: events.DelayAdvanced(fact.topic_id, 0, 0),
        ),
    ),
    "how many partitions there are": (
        "catalog",
        lambda: forgetting(
            events.PartitionsSet,
            lambda fact: events.PartitionsSet(fact.name, 1, fact.spec, fact.created_ms),
        ),
    ),
    "what a namespace says": (
        "catalog",
        lambda: forgetting(
            events.NamespaceChanged,
            lambda fact: events.NamespaceChanged(fact.name, Policies()),
        ),
    ),
    "a live path that drops no stages": (
        "stages",
        lambda: skipping(events.StagesDropped, nothing),
    ),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    world, plant = PLANTED[bug]
    with plant():
        for seed in range(FOUND_WITHIN):
            try:
                live(world, seed)
            except (AssertionError, KeyError):
                return
    pytest.fail(f"{FOUND_WITHIN} histories did not show it")
