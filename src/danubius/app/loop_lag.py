"""The lag of the event loop: a timer that looks at the clock, and a histogram of what it saw.

Ten looks a second cost nothing to speak of and find every stall that is longer than a tenth of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danubius.runtime import ambient
from danubius.runtime.histogram import Histogram

if TYPE_CHECKING:
    import asyncio

INTERVAL_S: Final = 0.1
BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LoopLag:
    """Looks, from `start` to `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self.histogram = Histogram(BOUNDS_S)

    def start(self) -> None:
        # Not the loop's own time: some loops look at the clock once a turn, and would not see a turn that is long.
        self._due_s = ambient.monotonic_ns() / 1e9 + INTERVAL_S
        self._timer = self._loop.call_later(INTERVAL_S, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self.histogram.add(ambient.monotonic_ns() / 1e9 - self._due_s)
        self.start()
