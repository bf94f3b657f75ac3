"""A subscription's rate: kept over time, in few steps, and never for ever shut."""

from __future__ import annotations

import pytest

from danubius.dispatch.gate import DispatchGate
from danubius.publish.core.rate import SECOND_NS, TokenBucket

START_NS = 1_000 * SECOND_NS


def deliver(gate: DispatchGate, seconds: int, message_bytes: int, most: int) -> tuple[int, int]:
    """Deliver as fast as the gate allows; how many messages went, in how many steps."""
    now_ns, sent, steps = START_NS, 0, 0
    while now_ns < START_NS + seconds * SECOND_NS:
        budget = gate.budget(now_ns)
        if budget == 0:
            wait_ns = gate.wait_ns(now_ns)
            assert wait_ns > 0
            now_ns += wait_ns
            continue
        count = most if budget is None else min(budget, most)
        gate.spent(count, count * message_bytes, now_ns)
        sent += count
        steps += 1
    return sent, steps


@pytest.mark.parametrize("rate", [1, 10, 1_000, 1_000_000])
def test_messages_go_at_their_rate_in_few_steps(rate: int) -> None:
    seconds = 20
    gate = DispatchGate(TokenBucket(rate, rate // 20), None)

    sent, steps = deliver(gate, seconds, 100, most=10**9)

    assert sent == pytest.approx(rate * seconds, rel=0.06, abs=1)
    assert steps <= 101 * seconds


def test_bytes_go_at_their_rate_whatever_the_sizes() -> None:
    gate = DispatchGate(None, TokenBucket(1_000_000, 50_000))

    sent, _ = deliver(gate, 10, 64_000, most=3)

    assert sent * 64_000 == pytest.approx(10_000_000, rel=0.1)


def test_the_slower_of_both_rates_decides() -> None:
    gate = DispatchGate(TokenBucket(1_000), TokenBucket(10_000))

    sent, _ = deliver(gate, 10, 100, most=50)

    assert sent == pytest.approx(1_000, rel=0.1)


def test_one_message_may_always_go_when_all_is_paid_for() -> None:
    gate = DispatchGate(TokenBucket(1), TokenBucket(1))

    assert gate.budget(START_NS) == 1
    gate.spent(1, 10, START_NS)
    assert gate.budget(START_NS) == 0
    assert gate.wait_ns(START_NS) == 10 * SECOND_NS
    assert gate.budget(START_NS + 10 * SECOND_NS) == 1
