"""What a failure policy says about one message."""

from __future__ import annotations

from danubius.ack.core.failure import NO_RULE, compile_rule, join_segments
from danubius.ack.core.ranges import Segment
from danubius.model.policy import Backoff, FailurePolicy

MS = 1_000_000


def test_without_a_policy_nothing_waits_and_nothing_ends() -> None:
    assert NO_RULE.delay_ns(5, 0) == 0
    assert not NO_RULE.is_exhausted(10**9)
    assert not NO_RULE.is_bounded
    assert compile_rule(FailurePolicy()) is NO_RULE


def test_the_first_delivery_is_no_redelivery() -> None:
    rule = compile_rule(FailurePolicy(redeliveries_max=2))
    assert [rule.is_exhausted(attempts) for attempts in (1, 2, 3)] == [False, False, True]
    assert compile_rule(FailurePolicy(redeliveries_max=0)).is_exhausted(1)


def test_the_delay_doubles_up_to_its_maximum_or_stays() -> None:
    growing = compile_rule(FailurePolicy(delay_ms=100, delay_max_ms=500))
    assert [growing.delay_ns(n, 7) // MS for n in (1, 2, 3, 4, 500)] == [100, 200, 400, 500, 500]
    fixed = compile_rule(FailurePolicy(backoff=Backoff.FIXED, delay_ms=100))
    assert [fixed.delay_ns(n, 7) // MS for n in (1, 2, 9)] == [100, 100, 100]


def test_jitter_spreads_a_part_of_the_delay_and_repeats_itself() -> None:
    rule = compile_rule(FailurePolicy(delay_ms=1000, jitter=0.25))
    delays = [rule.delay_ns(1, offset) / MS for offset in range(1000)]
    assert delays == [rule.delay_ns(1, offset) / MS for offset in range(1000)]
    assert 750 <= min(delays) < 760
    assert 990 < max(delays) <= 1000
    assert 850 < sum(delays) / 1000 < 900


def test_offsets_with_equal_counts_are_one_segment() -> None:
    assert join_segments([(5, 1), (3, 1), (4, 1), (6, 2), (9, 2)]) == [
        Segment(3, 6, 1),
        Segment(6, 7, 2),
        Segment(9, 10, 2),
    ]
