"""Ticks: what the broker does every now and then, on one timer for all of it.

Nothing here is exact: a call comes at the first tick at or behind its time. Whoever needs a moment has a timer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class _Job:
    __slots__ = ("call", "elapsed_ms", "interval_ms")

    def __init__(self, interval_ms: int, call: Callable[[], None]) -> None:
        self.interval_ms = interval_ms
        self.call = call
        self.elapsed_ms = 0


class Ticks:
    """A few calls, each with its own interval; made once per part of the broker, never per topic."""

    def __init__(self) -> None:
        self._jobs: list[_Job] = []

    def add(self, interval_ms: int, call: Callable[[], None]) -> None:
        """Call it every `interval_ms`; at every tick if that is less."""
        self._jobs.append(_Job(interval_ms, call))

    def advance(self, elapsed_ms: int) -> None:
        """One tick. What is late is called once, however late it is."""
        for job in list(self._jobs):
            job.elapsed_ms += elapsed_ms
            if job.elapsed_ms >= job.interval_ms:
                job.elapsed_ms = 0
                job.call()
