"""Buckets: the mean is exact, debts are paid by time alone, a change of the rate forgets nothing."""

from __future__ import annotations

import random

import pytest

from danubius.shard.hosting.core.rate import SECOND_NS, Rates, TokenBucket


def simulate(rate: int, batch: int, seconds: int, debt_max_ns: int) -> int:
    """How much gets in within so many seconds when somebody always has a batch ready."""
    bucket = TokenBucket(rate, rate // 20)
    now_ns, taken = 1_000 * SECOND_NS, 0
    end_ns = now_ns + seconds * SECOND_NS
    bucket.reserve(rate // 20, now_ns)  # what was saved before is gone
    while now_ns < end_ns:
        debt_ns = bucket.debt_ns(now_ns)
        if debt_ns >= debt_max_ns:
            now_ns += debt_ns - debt_max_ns // 2
            continue
        bucket.reserve(batch, now_ns)
        taken += batch
        now_ns += 1_000
    return taken


@pytest.mark.parametrize(
    ("rate", "batch", "seconds"), [(1, 1, 100), (1_000, 1, 10), (1_000, 100, 20), (10**6, 2_600, 5)]
)
def test_the_mean_is_the_rate(rate: int, batch: int, seconds: int) -> None:
    taken = simulate(rate, batch, seconds, 250_000_000)

    assert taken == pytest.approx(rate * seconds, rel=0.1)


def test_a_batch_waits_for_those_before_it_and_not_for_itself() -> None:
    bucket = TokenBucket(10)

    assert bucket.reserve(5, now_ns=0) == 0
    assert bucket.reserve(1, now_ns=0) == SECOND_NS // 2
    assert bucket.debt_ns(0) == 6 * SECOND_NS // 10
    assert bucket.debt_ns(SECOND_NS) == 0


def test_what_was_not_used_is_kept_up_to_the_burst() -> None:
    bucket = TokenBucket(1_000, burst=50)

    assert bucket.room(10 * SECOND_NS) == 50
    assert bucket.reserve(50, 10 * SECOND_NS) == 0
    assert bucket.debt_ns(10 * SECOND_NS) == 0
    assert bucket.room(10 * SECOND_NS) == 0
    bucket.reserve(1, 10 * SECOND_NS)
    assert bucket.debt_ns(10 * SECOND_NS) == SECOND_NS // 1_000


def test_what_is_given_back_was_never_taken() -> None:
    bucket = TokenBucket(10)
    bucket.reserve(3, now_ns=0)
    before = bucket.debt_ns(0)
    bucket.reserve(7, now_ns=0)

    bucket.give_back(7)

    assert bucket.debt_ns(0) == before


def test_a_higher_rate_pays_the_old_debt_sooner() -> None:
    bucket = TokenBucket(1)
    bucket.reserve(100, now_ns=0)

    bucket.change(1_000, 0, now_ns=0)

    assert bucket.debt_ns(0) == SECOND_NS // 10


def test_both_rates_are_kept() -> None:
    rates = Rates(10, 1_000)
    rates.take(1, 5_000, SECOND_NS)

    assert rates.debt_ns(SECOND_NS) == pytest.approx(5 * SECOND_NS, rel=0.02)
    rates.change(10, 0, SECOND_NS)
    assert rates.debt_ns(SECOND_NS) <= SECOND_NS // 10
    rates.change(0, 0, SECOND_NS)
    assert rates.is_free
    assert rates.debt_ns(SECOND_NS) == 0


@pytest.mark.parametrize("seed", range(50))
def test_never_more_than_the_rate_and_one_burst(seed: int) -> None:
    """Whatever comes when: who lets nothing in while there is a debt keeps to the rate over every span."""
    dice = random.Random(seed)
    rate, burst = dice.randint(1, 10_000), dice.randint(0, 500)
    bucket = TokenBucket(rate, burst)
    now_ns = SECOND_NS * 10**6
    taken: list[tuple[int, int]] = []
    for _ in range(300):
        now_ns += dice.randrange(SECOND_NS // 10)
        amount = dice.randint(1, 200)
        if not bucket.debt_ns(now_ns):
            bucket.reserve(amount, now_ns)
            taken.append((now_ns, amount))
    for first in range(0, len(taken), 10):
        total = 0
        for at_ns, amount in taken[first:]:
            allowed = burst + (at_ns - taken[first][0]) * rate / SECOND_NS
            assert total <= allowed + 200 + 1
            total += amount
