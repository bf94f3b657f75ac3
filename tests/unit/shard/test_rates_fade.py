"""A rate that stopped becomes none, and none is told in more digits than mean something."""

from __future__ import annotations

from danubius.admin.rates import STILL, RateMeter


def test_a_rate_that_stopped_is_zero_within_a_minute() -> None:
    meter = RateMeter((0,), 0)
    meter.look((1000,), 10**9)
    seen = [meter.look((1000,), second * 10**9) or meter.rates[0] for second in range(2, 62)]
    assert seen[0] > 0
    assert seen[-1] == 0.0
    assert all(rate == 0.0 or rate >= STILL for rate in seen)


def test_a_rate_that_is_slow_but_goes_on_is_not_zero() -> None:
    meter = RateMeter((0,), 0)
    meter.look((1,), 200 * 10**9)
    assert 0 < meter.rates[0] < STILL
