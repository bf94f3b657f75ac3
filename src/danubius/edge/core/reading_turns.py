"""Turns of reading: what is being read may grow to its limit and may not come to its end, so room for it is bounded.

Invariants:
- Those who are read weigh at most `at_once_max` together, or it is a single one; of one connection at most
  `per_connection_max` are read, and at most `waiting_max` wait.
- Those who wait have their turns connection by connection, whoever asked first within each; nobody overtakes because it
  is lighter.
- Whoever is read for longer than `whole_s` is cut off, and while other connections wait for its room, whoever is read
  for longer than `patience_s`, the oldest first, one for each who waits; but nobody whom we ourselves keep waiting.
  Nobody gives way to its own connection: a slow line would only send the same again.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class TurnBounds(NamedTuple):
    """Of all connections together, unless it says otherwise."""

    at_once_max: int
    """The weights of those who are read."""
    per_connection_max: int
    waiting_max: int
    patience_s: float
    whole_s: float


class Turn:
    """One request's."""

    __slots__ = (
        "began_s",
        "connection",
        "cut_off",
        "is_cut_off",
        "is_excused",
        "is_over",
        "is_reading",
        "on_begin",
        "weight",
    )

    def __init__(self, connection: str, weight: int, cut_off: Callable[[], None]) -> None:
        """`cut_off` is called at most once, while it is read."""
        self.connection = connection
        self.weight = weight
        self.cut_off = cut_off
        self.is_cut_off = False
        self.is_excused: Callable[[], bool] | None = None
        """Whether it is slow because of us."""
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
        self._weight = 0
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

    def ask(
        self, connection: str, now_s: float, cut_off: Callable[[], None], weight: int = 1
    ) -> Turn | None:
        """A turn, now or later as its `is_reading` says; None if too many wait."""
        turn = Turn(connection, weight, cut_off)
        if not self._waiting_count and self._has_room(turn) and self._may_have(connection):
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
            self._weight -= turn.weight
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
        wanting = {
            connection: len(queue)
            for connection, queue in self._waiting.items()
            if self._may_have(connection)
        }
        left = sum(wanting.values())
        for turn in list(self._reading):
            age_s = now_s - turn.began_s
            if age_s < self._bounds.patience_s:
                break
            if turn.is_cut_off or (turn.is_excused is not None and turn.is_excused()):
                continue
            if left > wanting.get(turn.connection, 0) or age_s >= self._bounds.whole_s:
                left -= 1
                self.cut_off_total += 1
                turn.is_cut_off = True
                turn.cut_off()

    def _has_room(self, turn: Turn) -> bool:
        return not self._reading or self._weight + turn.weight <= self._bounds.at_once_max

    def _may_have(self, connection: str) -> bool:
        return self._of_connection[connection] < self._bounds.per_connection_max

    def _admit(self, now_s: float) -> None:
        """Those who wait, as far as there is room."""
        passed_over = 0
        while passed_over < len(self._waiting):
            connection, queue = next(iter(self._waiting.items()))
            if not self._has_room(queue[0]):
                return
            del self._waiting[connection]
            if self._may_have(connection):
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
        self._weight += turn.weight
        self._of_connection[turn.connection] += 1
