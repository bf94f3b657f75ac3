"""Deadlines of ranges: a heap that may remember ranges that are gone, never the reverse.

Whoever owns the ranges checks what pops out against its own state; `compact` keeps the heap in
proportion to it.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_SLACK: Final = 64
"""Stale entries that are cheaper to keep than to look for."""


class Deadlines:
    """Which ranges fall due when."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_ns(self) -> int | None:
        """No range falls due before this."""
        return self._heap[0][0] if self._heap else None

    def push(self, due_ns: int, first: int, end: int) -> None:
        heappush(self._heap, (due_ns, first, end))

    def pop_due(self, now_ns: int) -> list[tuple[int, int]]:
        due: list[tuple[int, int]] = []
        while self._heap and self._heap[0][0] <= now_ns:
            _, first, end = heappop(self._heap)
            due.append((first, end))
        return due

    def is_bloated(self, live: int) -> bool:
        """Whether most entries are stale, given how many ranges are live."""
        return len(self._heap) > 2 * live + _SLACK

    def compact(self, live: Iterable[tuple[int, int, int]]) -> None:
        """Forget everything but these (due_ns, first, end)."""
        self._heap = list(live)
        heapify(self._heap)
