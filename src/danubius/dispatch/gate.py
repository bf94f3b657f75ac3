"""The gate of dispatch rates: so many messages, so many bytes a second. Nothing is lost by it.

A gate says how many messages may go now, and is told what went. What may not go yet stays in the log, and the pump is
called again when what went before is paid for. Redeliveries go by the same measure. Amounts are given out for a
hundredth of a second at a time, so that a rate costs a hundred timers a second at the most, and none while nothing is
owed.

A pace may be shared, by all topics of a namespace: those who wait for it go on in the order in which they came, each
for one amount.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

WOKEN_MAX: Final = 64
"""Waiting ones that are called in one turn of the loop."""


class Rates(Protocol):
    """Rates that may be overdrawn; see `publish.core.rate.Rates`."""

    def debt_ns(self, now_ns: int) -> int: ...

    def portion(self, message_bytes: int, now_ns: int) -> int:
        """How many messages of this size may go at once; 0 while something is owed."""
        ...

    def take(self, count: int, size: int, now_ns: int) -> None: ...


class Waiter(Protocol):
    """A pump that has, or may have, something to deliver."""

    def go_on(self) -> None: ...


class Timer(Protocol):
    """A call to come."""

    def cancel(self) -> None: ...


class Pace:
    """Rates, and who waits for them."""

    __slots__ = ("_call_at", "_now_ns", "_timer", "_waiting", "rates")

    def __init__(
        self,
        rates: Rates,
        now_ns: Callable[[], int],
        call_at: Callable[[int, Callable[[], None]], Timer],
    ) -> None:
        self.rates = rates
        self._now_ns = now_ns
        self._call_at = call_at
        self._waiting: OrderedDict[Waiter, None] = OrderedDict()
        self._timer: Timer | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def wait(self, waiter: Waiter) -> None:
        """Call it when everything is paid for and those before it had their turn. Who waits already keeps its place."""
        self._waiting.setdefault(waiter, None)
        self._arm()

    def forget(self, waiter: Waiter) -> None:
        """It waits no longer."""
        self._waiting.pop(waiter, None)
        if not self._waiting:
            self._disarm()

    def changed(self) -> None:
        """The rates are others now: what is owed may be paid sooner or later."""
        self._disarm()
        self._arm()

    def _arm(self) -> None:
        if self._timer is None and self._waiting:
            now_ns = self._now_ns()
            self._timer = self._call_at(now_ns + self.rates.debt_ns(now_ns), self._on_paid)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_paid(self) -> None:
        self._timer = None
        for _ in range(min(WOKEN_MAX, len(self._waiting))):
            if not self._waiting or self.rates.debt_ns(self._now_ns()):
                break
            waiter, _nothing = self._waiting.popitem(last=False)
            waiter.go_on()
        self._arm()


class DispatchGate:
    """What one subscription has to keep to: its own pace, one that it shares with others, or both."""

    __slots__ = ("_paces",)

    def __init__(self, *paces: Pace) -> None:
        assert paces, "without a pace there is no gate"
        self._paces = paces

    @property
    def paces(self) -> tuple[Pace, ...]:
        return self._paces

    def budget(self, waiter: Waiter, message_bytes: int, now_ns: int) -> int:
        """How many messages of about this size may go now. 0: none, and the waiter is called when some may."""
        most = self.portion(message_bytes, now_ns)
        if not most:
            max(self._paces, key=lambda pace: pace.rates.debt_ns(now_ns)).wait(waiter)
        return most

    def portion(self, message_bytes: int, now_ns: int) -> int:
        return min([pace.rates.portion(message_bytes, now_ns) for pace in self._paces])

    def spent(self, messages: int, size: int, now_ns: int) -> None:
        """So much was delivered."""
        for pace in self._paces:
            pace.rates.take(messages, size, now_ns)

    def forget(self, waiter: Waiter) -> None:
        for pace in self._paces:
            pace.forget(waiter)
