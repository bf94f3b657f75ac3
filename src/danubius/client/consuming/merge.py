"""Several lanes as one: who has something to hand out, and whose turn it is.

Invariant: a lane that has something, or has ended, is in `ready`; it leaves only when it was asked and had nothing.
A lane that raised keeps its turn: it raises again if it has ended, and goes on behind a batch that cannot be decoded.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

from danubius.client.connection.gate import Gate
from danubius.client.consuming.timeouts import ReceiveTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

LaneT = TypeVar("LaneT")
ItemT = TypeVar("ItemT")


class Merge(Generic[LaneT]):
    """The lanes that have something, in the order of their turns."""

    __slots__ = ("_arrivals", "_ready")

    def __init__(self) -> None:
        self._ready: OrderedDict[LaneT, None] = OrderedDict()
        self._arrivals = Gate()

    def __len__(self) -> int:
        """How many wait for something to come."""
        return len(self._arrivals)

    def mark(self, lane: LaneT) -> None:
        """There may be something to take from this lane."""
        self._ready[lane] = None
        self._arrivals.open()

    def take(self, take: Callable[[LaneT], ItemT | None]) -> ItemT | None:
        """Take from the lane whose turn it is; None if none of them has anything."""
        ready = self._ready
        while ready:
            lane = next(iter(ready))
            item = take(lane)
            if item is not None:
                ready.move_to_end(lane)
                return item
            del ready[lane]
        return None

    async def wait(self, deadline_s: float | None, timeout_s: float | None, topic: str) -> None:
        """Wait until a lane is marked."""
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._arrivals.wait()
        except TimeoutError:
            raise ReceiveTimeout(f"no message came from {topic} within {timeout_s:g} s") from None


class LaneGate(Gate, Generic[LaneT]):
    """A lane's gate that opens the merge's; it says nothing before the lane is adopted."""

    __slots__ = ("_lane", "_merge")

    def __init__(self, merge: Merge[LaneT]) -> None:
        super().__init__()
        self._merge = merge
        self._lane: LaneT | None = None

    def adopt(self, lane: LaneT) -> None:
        """The lane is one of the merge from here on; what came before is found by asking it."""
        self._lane = lane
        self._merge.mark(lane)

    def __len__(self) -> int:
        return len(self._merge)

    def open(self) -> None:
        if self._lane is not None:
            self._merge.mark(self._lane)
