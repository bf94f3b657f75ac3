"""Time, as an argument: everything that needs it takes a Clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one that never goes back, for deadlines; one on the wall, for stamps and retention."""

    def monotonic_ns(self) -> int: ...

    def wall_us(self) -> int: ...


class SystemClock:
    """The machine's clocks."""

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_us(self) -> int:
        return time.time_ns() // 1000
