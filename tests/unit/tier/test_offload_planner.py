"""What the planner decides, from nothing but what is there."""

from __future__ import annotations

import msgspec
import pytest

from danubius.ledger.core.segment import RECOVERED
from danubius.ledger.entry import LedgerMeta
from danubius.model.policy import Effective
from danubius.tier.core.planner import Horizon, TopicView, plan

MINUTE = 60_000
NOW = 100 * MINUTE
HORIZON = Horizon(NOW, trimmed_position=1000, recovered_position=500)
NEVER = Effective()
AT_ONCE = Effective(offload_age_ms=0)


def ledger(number: int, age_ms: int, **changes: object) -> LedgerMeta:
    """One of 100 bytes whose last message came so long ago."""
    at_ms = NOW - age_ms
    made = LedgerMeta(
        number, 1, 10 * number, 10 * number + 10, 100, 1, at_ms * 1000, at_ms * 1000, at_ms, True
    )
    return msgspec.structs.replace(made, **changes)


def stored(number: int, age_ms: int, **changes: object) -> LedgerMeta:
    return ledger(number, age_ms, object_name=f"o{number}", object_bytes=300, **changes)


def ids(metas: list[LedgerMeta]) -> list[int]:
    return [meta.ledger_id for meta in metas]


def look(
    *ledgers: LedgerMeta, policies: Effective = AT_ONCE, at: int = 0, **more: object
) -> TopicView:
    return TopicView(ledgers, [at] * len(ledgers), policies, **more)  # type: ignore[arg-type]  # passed on


def test_without_a_policy_nothing_goes() -> None:
    assert plan(look(ledger(0, NOW), policies=NEVER), HORIZON).uploads == []
    assert not plan(look(ledger(0, NOW, is_sealed=False), policies=NEVER), HORIZON).must_seal


def test_a_topic_without_ledgers_has_nothing_to_do() -> None:
    assert plan(look(), HORIZON).uploads == []


def test_ledgers_go_by_age_oldest_first() -> None:
    topic = look(
        ledger(0, 9 * MINUTE),
        ledger(1, 5 * MINUTE),
        ledger(2, MINUTE),
        policies=Effective(offload_age_ms=5 * MINUTE),
    )
    found = plan(topic, HORIZON)
    assert ids(found.uploads) == [0, 1]
    assert (found.lag_ms, found.lag_bytes) == (4 * MINUTE, 200)


def test_ledgers_go_by_size_until_the_rest_fits() -> None:
    topic = look(*(ledger(n, MINUTE) for n in range(5)), policies=Effective(offload_bytes=250))
    assert ids(plan(topic, HORIZON).uploads) == [0, 1, 2]
    every = look(*(ledger(n, MINUTE) for n in range(3)), policies=Effective(offload_bytes=0))
    assert ids(plan(every, HORIZON).uploads) == [0, 1, 2]


def test_what_is_stored_does_not_count_against_the_size() -> None:
    topic = look(
        stored(0, MINUTE), ledger(1, MINUTE), ledger(2, 0), policies=Effective(offload_bytes=200)
    )
    assert plan(topic, HORIZON).uploads == []


@pytest.mark.parametrize(("position", "goes"), [(999, True), (1000, False), (2000, False)])
def test_only_what_every_kept_snapshot_knows_as_sealed_goes(position: int, goes: bool) -> None:
    found = plan(look(ledger(0, MINUTE), at=position), HORIZON)
    assert bool(found.uploads) == goes
    assert found.waits != goes


@pytest.mark.parametrize(("trimmed", "goes"), [(500, False), (501, True)])
def test_ledgers_of_earlier_processes_count_as_sealed_where_the_journal_ended(
    trimmed: int, goes: bool
) -> None:
    horizon = HORIZON._replace(trimmed_position=trimmed)
    assert bool(plan(look(ledger(0, MINUTE), at=RECOVERED), horizon).uploads) == goes


def test_what_is_busy_is_left_alone() -> None:
    found = plan(look(ledger(0, MINUTE), ledger(1, MINUTE), busy={0}), HORIZON)
    assert ids(found.uploads) == [1]
    assert found.lag_bytes == 200


@pytest.mark.parametrize(
    ("age_ms", "policy_ms", "seals"),
    [(2 * MINUTE, 0, True), (MINUTE // 2, 0, False), (2 * MINUTE, 3 * MINUTE, False)],
)
def test_an_open_ledger_is_sealed_by_age_so_that_a_quiet_topic_comes_along(
    age_ms: int, policy_ms: int, seals: bool
) -> None:
    topic = look(ledger(0, age_ms, is_sealed=False), policies=Effective(offload_age_ms=policy_ms))
    assert plan(topic, HORIZON).must_seal == seals


def test_an_operator_gets_what_is_below_the_offset_whatever_the_policies_say() -> None:
    topic = look(ledger(0, 0), ledger(1, 0, is_sealed=False), policies=NEVER, forced_below=15)
    found = plan(topic, HORIZON)
    assert ids(found.uploads) == [0]
    assert found.must_seal
    assert not plan(topic._replace(forced_below=10), HORIZON).must_seal


@pytest.mark.parametrize(
    ("policies", "reclaimed"),
    [
        (Effective(), [0, 1, 2]),
        (Effective(local_age_ms=-1), []),
        (Effective(local_bytes=-1), []),
        (Effective(local_age_ms=5 * MINUTE), [0]),
        (Effective(local_bytes=200), [0]),
        (Effective(local_bytes=150), [0, 1]),
        (Effective(local_age_ms=5 * MINUTE, local_bytes=300), []),
    ],
)
def test_files_stay_while_age_or_size_says_so(policies: Effective, reclaimed: list[int]) -> None:
    topic = look(stored(0, 9 * MINUTE), stored(1, 4 * MINUTE), stored(2, MINUTE), policies=policies)
    assert ids(plan(topic, HORIZON).reclaims) == reclaimed


def test_only_what_has_an_object_is_reclaimed_and_only_once() -> None:
    topic = look(stored(0, MINUTE, is_local=False), stored(1, MINUTE), ledger(2, MINUTE))
    assert ids(plan(topic, HORIZON).reclaims) == [1]
    assert plan(topic._replace(busy={1}), HORIZON).reclaims == []


def test_under_pressure_what_may_go_goes_now_and_the_rest_stays() -> None:
    policies = Effective(offload_age_ms=50 * MINUTE, local_age_ms=-1)
    pressed = HORIZON._replace(is_pressed=True)
    topic = look(stored(0, MINUTE), ledger(1, MINUTE), policies=policies)
    assert (ids(plan(topic, HORIZON).uploads), ids(plan(topic, HORIZON).reclaims)) == ([], [])
    assert (ids(plan(topic, pressed).uploads), ids(plan(topic, pressed).reclaims)) == ([1], [0])
    assert plan(look(ledger(0, MINUTE), policies=NEVER), pressed).uploads == []


@pytest.mark.parametrize("jump_ms", [-(10**12), 10**12])
def test_a_clock_that_jumped_changes_when_and_nothing_else(jump_ms: int) -> None:
    topic = look(ledger(0, MINUTE), policies=Effective(offload_age_ms=5 * MINUTE))
    found = plan(topic, HORIZON._replace(now_ms=max(0, NOW + jump_ms)))
    assert ids(found.uploads) == ([0] if jump_ms > 0 else [])
    assert found.lag_ms >= 0
