"""Things that have begun to arrive and are not complete: how much of them is held, and who gives way.

What counts is what is really there, not what was announced. Invariants:
- No more than `count_max` are under way, and those above `small_bytes` hold no more than `bytes_max` together; the
  others are bounded by their number.
- Who gives way is whoever began longest ago; while it is about memory, nobody does before `patience_s`, so that those
  who just send much do not chase each other away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Arrival:
    """One of them."""

    __slots__ = ("began_s", "cut_off", "held_bytes")

    def __init__(self, began_s: float, cut_off: Callable[[], None]) -> None:
        """`cut_off` is called at most once, when its place is given to another."""
        self.began_s = began_s
        self.cut_off = cut_off
        self.held_bytes = 0


class Arrivals:
    """All of one face."""

    def __init__(
        self, count_max: int, bytes_max: int, *, patience_s: float, small_bytes: int
    ) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._patience_s = patience_s
        self._small_bytes = small_bytes
        self._under_way: dict[Arrival, None] = {}  # the oldest first
        self.held_bytes = 0
        """Of those that are not small."""
        self.cut_off_total = 0

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, now_s: float, cut_off: Callable[[], None]) -> Arrival:
        """One more; if they are too many, the oldest goes, and first the oldest of which nothing came."""
        if len(self._under_way) >= self._count_max:
            oldest = next(iter(self._under_way))
            self._give_way(next((one for one in self._under_way if not one.held_bytes), oldest))
        arrival = Arrival(now_s, cut_off)
        self._under_way[arrival] = None
        return arrival

    def grow(self, arrival: Arrival, size: int, now_s: float) -> bool:
        """`size` more bytes of it are here; False if there is no room for them, or no longer any for it."""
        if arrival not in self._under_way:
            return False
        held = arrival.held_bytes + size
        needed = self._counted(held) - self._counted(arrival.held_bytes)
        while needed and self.held_bytes + needed > self._bytes_max:
            victim = self._oldest_large(now_s, arrival)
            if victim is None:
                return False
            self._give_way(victim)
        arrival.held_bytes = held
        self.held_bytes += needed
        return True

    def end(self, arrival: Arrival) -> None:
        """It is complete, or gone; again: nothing."""
        if arrival in self._under_way:
            del self._under_way[arrival]
            self.held_bytes -= self._counted(arrival.held_bytes)

    def _counted(self, held: int) -> int:
        return held if held > self._small_bytes else 0

    def _oldest_large(self, now_s: float, besides: Arrival) -> Arrival | None:
        for one in self._under_way:
            if now_s - one.began_s < self._patience_s:
                return None
            if one is not besides and self._counted(one.held_bytes):
                return one
        return None

    def _give_way(self, victim: Arrival) -> None:
        self.end(victim)
        self.cut_off_total += 1
        victim.cut_off()
