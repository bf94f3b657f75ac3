"""How fast one subscription may be delivered to: so many messages, so many bytes a second.

The gate says how many messages may go now, and is told what went. Nothing is dropped for it: what may not go yet stays
where it is. Redeliveries go and are counted like all others. Amounts are given out for a hundredth of a second at a
time, so that a rate costs a hundred timers a second at the most, and none while nothing is to be delivered.
"""

from __future__ import annotations

from typing import Final, Protocol

SLICES_PER_S: Final = 100


class Bucket(Protocol):
    """Tokens that may be overdrawn; see `publish.core.rate.TokenBucket`."""

    rate_per_s: int

    def debt_ns(self, now_ns: int) -> int: ...

    def reserve(self, amount: int, now_ns: int) -> int: ...

    def room(self, now_ns: int) -> int: ...


class DispatchGate:
    """The rates of one subscription; None for one that it does not have."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, messages: Bucket | None, size: Bucket | None) -> None:
        assert messages is not None or size is not None, "without a rate there is no gate"
        self._messages = messages
        self._bytes = size

    def budget(self, now_ns: int) -> int | None:
        """How many messages may be delivered now; 0: none before `wait_ns`. None: as many as there are.

        A rate of bytes alone lets one delivery go whenever the last is paid for, whatever its size.
        """
        if self.wait_ns(now_ns):
            return 0
        if self._messages is None:
            return None
        return self._messages.room(now_ns) + max(1, self._messages.rate_per_s // SLICES_PER_S)

    def wait_ns(self, now_ns: int) -> int:
        """How long until something may be delivered; 0: now."""
        messages, size = self._messages, self._bytes
        return max(
            messages.debt_ns(now_ns) if messages is not None else 0,
            size.debt_ns(now_ns) if size is not None else 0,
        )

    def spent(self, messages: int, size: int, now_ns: int) -> None:
        """So much was delivered."""
        if self._messages is not None:
            self._messages.reserve(messages, now_ns)
        if self._bytes is not None:
            self._bytes.reserve(size, now_ns)
