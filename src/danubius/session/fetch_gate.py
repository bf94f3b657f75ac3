"""The gate of one connection's fetches, which says how many may read at once.

A fetch of a few bytes asks for megabytes. Reading for a peer that does not take its answers would fill the memory, so
reads start only while the connection can be written to, a few at a time, the rest in order of arrival.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from danubius.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable

READING_MAX: Final = 2
"""One that reads while the other is being sent keeps the disk and the socket busy."""
WAITING_MAX: Final = 1000
"""Fetches of one connection that wait for their turn; more are refused."""


class FetchGate:
    """Lets reads through, a few at a time."""

    __slots__ = ("_is_open", "_reading", "_waiting")

    def __init__(self) -> None:
        self._is_open = True
        self._reading = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def enter(self, read: Callable[[], None]) -> None:
        """Call `read` now or later; it must lead to one `leave`."""
        if len(self._waiting) >= WAITING_MAX:
            raise Overloaded(
                f"{WAITING_MAX} fetches of this connection wait already; take their answers first"
            )
        self._waiting.append(read)
        self._let_in()

    def leave(self) -> None:
        """A read was answered."""
        self._reading -= 1
        self._let_in()

    def set_open(self, *, is_open: bool) -> None:
        """The connection can be written to, or not for the moment."""
        self._is_open = is_open
        self._let_in()

    def close(self) -> None:
        self._is_open = False
        self._waiting.clear()

    def _let_in(self) -> None:
        while self._waiting and self._is_open and self._reading < READING_MAX:
            self._reading += 1
            self._waiting.popleft()()
