"""Who may have its request read: a message may grow to its limit while it is read, so only so many are read at once.

Nothing is known of a message before it is read, neither its size nor whether it comes. Invariants:
- At most `at_once_max` are read at a time, of one connection at most `per_connection_max`; at most `waiting_max` wait.
- Those who wait have their turns connection by connection, whoever asked first within each.
- Whoever is read for longer than `whole_s` is cut off, and while others wait, whoever is read for longer than
  `patience_s`, the oldest first, one for each who waits.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class TurnBounds(NamedTuple):
    """Of all connections together, unless it says otherwise."""

    at_once_max: int
    per_connection_max: int
    waiting_max: int
    patience_s: float
    whole_s: float


class Turn:
    """One request's."""

    __slots__ = ("began_s", "connection", "cut_off", "is_over", "is_reading", "on_begin")

    def __init__(self, connection: str, cut_off: Callable[[], None]) -> None:
        """`cut_off` is called at most once, while it is read."""
        self.connection = connection
        self.cut_off = cut_off
        self.began_s = 0.0
        self.is_reading = False
        self.is_over = False
        self.on_begin: Callable[[], None] | None = None
        """Called when it may be read; not if that is so at once."""


class ReadingTurns:
    """All requests that have begun and were not read to their end."""

    def __init__(self, bounds: TurnBounds) -> None:
        self._bounds = bounds
        self._reading: dict[Turn, None] = {}  # the oldest first
        self._of_connection: Counter[str] = Counter()
        self._waiting: dict[str, deque[Turn]] = {}  # the connection whose turn it is first
        self._waiting_count = 0
        self.cut_off_total = 0

    @property
    def reading(self) -> int:
        return len(self._reading)

    @property
    def waiting(self) -> int:
        return self._waiting_count

    def ask(self, connection: str, now_s: float, cut_off: Callable[[], None]) -> Turn | None:
        """A turn, now or later as its `is_reading` says; None if too many wait."""
        turn = Turn(connection, cut_off)
        if self._has_room(connection) and not self._waiting_count:
            self._begin(turn, now_s)
        elif self._waiting_count >= self._bounds.waiting_max:
            return None
        else:
            self._waiting.setdefault(connection, deque()).append(turn)
            self._waiting_count += 1
            self._admit(now_s)
        return turn

    def end(self, turn: Turn, now_s: float) -> None:
        """It was read, or its client went; again: nothing."""
        if turn.is_over:
            return
        turn.is_over = True
        if turn.is_reading:
            del self._reading[turn]
            self._of_connection[turn.connection] -= 1
            if not self._of_connection[turn.connection]:
                del self._of_connection[turn.connection]
        else:
            queue = self._waiting[turn.connection]
            queue.remove(turn)
            self._waiting_count -= 1
            if not queue:
                del self._waiting[turn.connection]
        if self._waiting_count:
            self._admit(now_s)

    def tick(self, now_s: float) -> None:
        """Cut off those whose time is over."""
        left = self._waiting_count
        for turn in list(self._reading):
            age_s = now_s - turn.began_s
            if age_s < self._bounds.patience_s:
                break
            if left > 0 or age_s >= self._bounds.whole_s:
                left -= 1
                self.cut_off_total += 1
                turn.cut_off()

    def _has_room(self, connection: str) -> bool:
        return (
            len(self._reading) < self._bounds.at_once_max
            and self._of_connection[connection] < self._bounds.per_connection_max
        )

    def _admit(self, now_s: float) -> None:
        """Those who wait, as far as there is room."""
        passed_over = 0
        while passed_over < len(self._waiting) and len(self._reading) < self._bounds.at_once_max:
            connection = next(iter(self._waiting))
            queue = self._waiting.pop(connection)
            if self._has_room(connection):
                passed_over = 0
                turn = queue.popleft()
                self._waiting_count -= 1
                self._begin(turn, now_s)
                if turn.on_begin is not None:
                    turn.on_begin()
            else:
                passed_over += 1
            if queue:
                self._waiting[connection] = queue

    def _begin(self, turn: Turn, now_s: float) -> None:
        turn.began_s = now_s
        turn.is_reading = True
        self._reading[turn] = None
        self._of_connection[turn.connection] += 1
