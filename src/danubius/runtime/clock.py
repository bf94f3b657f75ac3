"""Time, as an argument: everything that needs it takes a Clock."""

from __future__ import annotations

from typing import Protocol

from danubius.runtime import ambient


class Clock(Protocol):
    """Two clocks: one that never goes back, for deadlines; one on the wall, for stamps and retention."""

    def monotonic_ns(self) -> int: ...

    def wall_us(self) -> int: ...


class SystemClock:
    """The machine's clocks."""

    def monotonic_ns(self) -> int:
        return ambient.monotonic_ns()

    def wall_us(self) -> int:
        return ambient.wall_ns() // 1000
