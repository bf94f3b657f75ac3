"""How fast uploads go beside publishers."""

from __future__ import annotations

import pytest

from danubius.model.limits import GIB, MIB
from danubius.tier.core.courtesy import (
    BUSY_BYTES_PER_S,
    IMPATIENT_BYTES,
    PATIENT_BYTES,
    RATE_MIN,
    Traffic,
    upload_rate,
)

FAST = 400 * MIB


@pytest.mark.parametrize("bound", [0, 5, 1 * GIB])
@pytest.mark.parametrize(
    "traffic",
    [
        Traffic(BUSY_BYTES_PER_S - 1, 0, is_urgent=False),
        Traffic(FAST, IMPATIENT_BYTES, is_urgent=False),
        Traffic(FAST, 0, is_urgent=True),
    ],
    ids=["quiet", "far behind", "urgent"],
)
def test_then_only_the_bound_of_the_settings_counts(traffic: Traffic, bound: int) -> None:
    assert upload_rate(traffic, 25, bound) == bound


def test_who_is_told_not_to_gives_way_to_nobody() -> None:
    assert upload_rate(Traffic(FAST, 0, is_urgent=False), 0, 0) == 0


@pytest.mark.parametrize("lag", [0, 1, PATIENT_BYTES])
def test_while_little_waits_it_is_a_share_of_what_is_published(lag: int) -> None:
    assert upload_rate(Traffic(FAST, lag, is_urgent=False), 25, 0) == 100 * MIB


def test_it_is_never_more_than_the_bound_and_goes_on_at_a_least_pace() -> None:
    busy = Traffic(FAST, 0, is_urgent=False)
    assert upload_rate(busy, 25, 10) == 10
    assert upload_rate(busy, 25, 1 * GIB) == 100 * MIB
    assert upload_rate(Traffic(BUSY_BYTES_PER_S, 0, is_urgent=False), 1, 0) == RATE_MIN


@pytest.mark.parametrize("share", [1, 25, 100, 1000])
def test_the_more_waits_the_faster_it_goes_until_it_is_faster_than_what_comes(share: int) -> None:
    lags = range(PATIENT_BYTES, IMPATIENT_BYTES, 64 * MIB)
    rates = [upload_rate(Traffic(FAST, lag, is_urgent=False), share, 0) for lag in lags]
    assert rates == sorted(rates)
    assert rates[-1] > FAST
