"""How late the event loop is: a timer that looks at the clock, and a histogram of what it saw.

Ten looks a second cost nothing to speak of and find every stall that is longer than a tenth of one.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

INTERVAL_S: Final = 0.1
BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LagHistogram:
    """How often the lag was up to each bound, and beyond all of them."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, lag_s: float) -> None:
        lag_s = max(0.0, lag_s)
        self.counts[bisect_left(BOUNDS_S, lag_s)] += 1
        self.sum_s += lag_s


class LoopLag:
    """Looks, from `start` to `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self.histogram = LagHistogram()

    def start(self) -> None:
        # Not the loop's own time: some loops look at the clock once a turn, and would not see a turn that is long.
        self._due_s = time.monotonic() + INTERVAL_S
        self._timer = self._loop.call_later(INTERVAL_S, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self.histogram.add(time.monotonic() - self._due_s)
        self.start()
