"""Failure policies, as they say of one message: when it comes again, and when it has failed too often.

Deterministic: the delay of a delivery depends on the policy, the message and how often it failed, and on nothing else,
so the same history leads to the same delays. The spread comes from a hash of offset and attempts.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import UNSET

from danubius.ack.core.ranges import Segment
from danubius.model.policy import Backoff, Exhausted, FailurePolicy

if TYPE_CHECKING:
    from collections.abc import Iterable

REASON_CHARS_MAX: Final = 1000
"""Of what a consumer says about a message that it gives back."""

_MS: Final = 1_000_000
_DOUBLINGS_MAX: Final = 62
"""More would only make large numbers of what the maximum cuts anyway."""
_MASK: Final = (1 << 64) - 1


class FailureRule:
    """A failure policy, compiled."""

    __slots__ = (
        "_delay_max_ns",
        "_delay_ns",
        "_is_exponential",
        "_jitter",
        "_redeliveries_max",
        "ack_timeout_ns",
        "backs_off",
        "is_bounded",
        "policy",
        "then",
        "unacked_messages_max",
    )

    def __init__(self, policy: FailurePolicy) -> None:
        self.policy = policy
        self.ack_timeout_ns = policy.ack_timeout_ms * _MS
        """For consumers without one of their own; 0: never."""
        self.then = policy.then
        self.is_bounded = policy.redeliveries_max is not None
        """Whether a message can fail too often; only then are failures counted durably."""
        self.backs_off = policy.delay_ms > 0
        unacked_max = policy.unacked_messages_max
        self.unacked_messages_max = None if unacked_max is UNSET else unacked_max
        """None: no bound but the broker's."""
        self._redeliveries_max = policy.redeliveries_max or 0
        self._is_exponential = policy.backoff is Backoff.EXPONENTIAL
        self._delay_ns = policy.delay_ms * _MS
        self._delay_max_ns = policy.delay_max_ms * _MS
        self._jitter = policy.jitter

    def flying_max(self, most: int) -> int:
        """How many messages may be delivered and not acknowledged, `most` in any case."""
        return most if self.unacked_messages_max is None else min(most, self.unacked_messages_max)

    @property
    def blocks(self) -> bool:
        return self.then is Exhausted.BLOCK

    def is_exhausted(self, attempts: int) -> bool:
        """Whether a message that failed so often is not to be delivered again."""
        return self.is_bounded and attempts > self._redeliveries_max

    def delay_ns(self, attempts: int, offset: int) -> int:
        """How long a message that failed so often (1 or more) waits before it comes again."""
        delay_ns = self._delay_ns
        if self._is_exponential:
            delay_ns <<= min(max(attempts - 1, 0), _DOUBLINGS_MAX)
        delay_ns = min(delay_ns, self._delay_max_ns)
        if self._jitter:
            delay_ns -= int(delay_ns * self._jitter * _spread(offset, attempts))
        return delay_ns


@functools.lru_cache(maxsize=1024)
def compile_rule(policy: FailurePolicy) -> FailureRule:
    """Policies of a broker are few, whatever it hosts: subscriptions with the same one share its rule."""
    return FailureRule(policy)


NO_RULE: Final = compile_rule(FailurePolicy())
"""No bound, no delay, no time-out."""


class Condemned(NamedTuple):
    """Of a message that failed too often and is neither moved, dropped nor released yet."""

    attempts: int
    reason: str


def _spread(offset: int, attempts: int) -> float:
    """A number from 0 to 1 that looks like chance (the finaliser of splitmix64)."""
    mixed = (offset * 0x9E3779B97F4A7C15 + attempts * 0xD1B54A32D192ED03) & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return (mixed ^ mixed >> 31) / _MASK


def join_segments(offsets: Iterable[tuple[int, int]]) -> list[Segment[int]]:
    """Pairs of offset and value, in any order, as rising segments of equal value."""
    joined: list[Segment[int]] = []
    for offset, value in sorted(offsets):
        if joined and joined[-1].end == offset and joined[-1].value == value:
            joined[-1] = Segment(joined[-1].first, offset + 1, value)
        else:
            joined.append(Segment(offset, offset + 1, value))
    return joined
