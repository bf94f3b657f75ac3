"""Rates that something may go at: buckets of tokens that may be overdrawn.

A bucket is one number, the moment up to which everything taken from it is paid for. Taking moves it on; time catches up
with it. Invariants: over any span of time no more is taken than the rate allows, beside one `burst`, and what was taken
while somebody let the debt grow; nothing is ever forgotten, so the mean is exact whatever the sizes are.
"""

from __future__ import annotations

from typing import Final

SECOND_NS: Final = 1_000_000_000
BURST_SHARE: Final = 20
"""What was not used is kept for a twentieth of a second: enough for late timers, too little to be seen as a burst."""
PORTIONS_PER_S: Final = 100
"""What is given out in portions is given out so often at the most."""


class TokenBucket:
    """So much a second, in whole units."""

    __slots__ = ("_burst_ns", "_paid_ns", "rate_per_s")

    def __init__(self, rate_per_s: int, burst: int = 0) -> None:
        assert rate_per_s > 0
        assert burst >= 0
        self.rate_per_s = rate_per_s
        self._burst_ns = burst * SECOND_NS // rate_per_s
        self._paid_ns = 0
        """Everything taken is paid for at this moment; in the past: so much is left to be taken at once."""

    def debt_ns(self, now_ns: int) -> int:
        """How long until everything taken so far is paid for; 0 if it is."""
        return max(0, self._paid_ns - now_ns)

    def reserve(self, amount: int, now_ns: int) -> int:
        """Take `amount`, whatever the debt; how long what was taken before still needs."""
        before_ns = max(self._paid_ns, now_ns - self._burst_ns)
        self._paid_ns = before_ns + amount * SECOND_NS // self.rate_per_s
        return max(0, before_ns - now_ns)

    def give_back(self, amount: int) -> None:
        """It was not used after all."""
        self._paid_ns -= amount * SECOND_NS // self.rate_per_s

    def room(self, now_ns: int) -> int:
        """How much can be taken now without a debt."""
        left_ns = min(now_ns - self._paid_ns, self._burst_ns)
        return max(0, left_ns * self.rate_per_s // SECOND_NS)

    def change(self, rate_per_s: int, burst: int, now_ns: int) -> None:
        """Go on at another rate. What is owed stays owed, in units: a higher rate pays it sooner."""
        debt_ns = self.debt_ns(now_ns)
        if debt_ns:
            self._paid_ns = now_ns + debt_ns * self.rate_per_s // rate_per_s
        self.rate_per_s = rate_per_s
        self._burst_ns = burst * SECOND_NS // rate_per_s


class Rates:
    """A rate of messages and one of bytes, both to be kept; 0 is no rate."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, messages_per_s: int, bytes_per_s: int) -> None:
        self._messages = _bucket(None, messages_per_s, 0)
        self._bytes = _bucket(None, bytes_per_s, 0)

    @property
    def is_free(self) -> bool:
        """Whether there is nothing to be kept."""
        return self._messages is None and self._bytes is None

    def change(self, messages_per_s: int, bytes_per_s: int, now_ns: int) -> None:
        self._messages = _bucket(self._messages, messages_per_s, now_ns)
        self._bytes = _bucket(self._bytes, bytes_per_s, now_ns)

    def debt_ns(self, now_ns: int) -> int:
        """How long until both are paid for."""
        messages, size = self._messages, self._bytes
        return max(
            messages.debt_ns(now_ns) if messages is not None else 0,
            size.debt_ns(now_ns) if size is not None else 0,
        )

    def portion(self, message_bytes: int, now_ns: int) -> int:
        """How many messages of this size may go at once.

        None while something is owed; else what was left unused and a hundredth of a second's worth, but at least one:
        a slow rate is kept by waiting, not by standing still.
        """
        if self.debt_ns(now_ns):
            return 0
        counts = [
            (bucket.room(now_ns) + bucket.rate_per_s // PORTIONS_PER_S) // unit
            for bucket, unit in ((self._messages, 1), (self._bytes, max(1, message_bytes)))
            if bucket is not None
        ]
        return max(1, min(counts, default=1))

    def take(self, count: int, size: int, now_ns: int) -> None:
        if self._messages is not None:
            self._messages.reserve(count, now_ns)
        if self._bytes is not None:
            self._bytes.reserve(size, now_ns)

    def give_back(self, count: int, size: int) -> None:
        if self._messages is not None:
            self._messages.give_back(count)
        if self._bytes is not None:
            self._bytes.give_back(size)


def _bucket(known: TokenBucket | None, rate_per_s: int, now_ns: int) -> TokenBucket | None:
    if not rate_per_s:
        return None
    burst = rate_per_s // BURST_SHARE
    if known is None:
        return TokenBucket(rate_per_s, burst)
    known.change(rate_per_s, burst, now_ns)
    return known
