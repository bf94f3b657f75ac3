"""Stay awake for a moment while someone asks, waits for the answer, and asks again.

Putting a core to sleep and waking it costs more than a small request: the sender pays for the wake-up, the sleeper for
cold caches. So while small turns of a conversation follow each other closely (at the broker a request is read, at a
client the next one is sent), the loop polls instead of sleeping; as soon as they do not, it sleeps as always. Large
ones never make it poll: a loop with that much to do is awake anyway, and the core is better left to others.

Invariants: no polling before `START_TURNS` close turns in a row; none for longer than `wait_ns` after a turn; none
while nobody waits; a wait in vain costs most of the confidence, so an idle loop sleeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from danubius.runtime import ambient

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL_BYTES: Final = 4 * 1024
CLOSE_NS_MAX: Final = 600_000
"""Turns this near to each other, the handling of the first included, are a conversation."""
WAIT_NS_MAX: Final = 250_000
START_TURNS: Final = 8
CONFIDENCE_MAX: Final = 32


class Eagerness:
    """Decides whether to wait awake. Time is an argument."""

    __slots__ = ("_confidence", "_turn_ns", "_wait_ns")

    def __init__(self, wait_ns: int = WAIT_NS_MAX) -> None:
        self._confidence = 0
        self._turn_ns = 0
        self._wait_ns = wait_ns

    def on_turn(self, count: int, now_ns: int) -> bool:
        """Something of `count` bytes came or went: whether to poll for the next."""
        is_close = now_ns - self._turn_ns <= CLOSE_NS_MAX
        self._turn_ns = now_ns
        if count > SMALL_BYTES or not is_close:
            self._confidence = 0
            return False
        if self._confidence < CONFIDENCE_MAX:
            self._confidence += 1
        return self._confidence >= START_TURNS

    def on_nothing(self, now_ns: int) -> bool:
        """A poll found nothing: whether to poll again."""
        if self._confidence < START_TURNS:
            return False
        if now_ns - self._turn_ns <= self._wait_ns:
            return True
        self._confidence //= 4
        return False


class Turning(Protocol):
    """An event loop, as far as it is needed here."""

    def call_soon(self, callback: Callable[[], None], /) -> object: ...


def _always() -> bool:
    return True


class BusyPoll:
    """Keeps a loop from sleeping while those who talk are eager for answers."""

    __slots__ = ("_eagerness", "_is_awaited", "_loop", "is_polling")

    def __init__(
        self,
        loop: Turning,
        wait_ns: int = WAIT_NS_MAX,
        is_awaited: Callable[[], bool] = _always,
    ) -> None:
        """`is_awaited`: whether there is still something to stay awake for."""
        self._loop = loop
        self._eagerness = Eagerness(wait_ns)
        self._is_awaited = is_awaited
        self.is_polling = False

    def on_turn(self, count: int) -> None:
        if self._eagerness.on_turn(count, ambient.monotonic_ns()) and not self.is_polling:
            self.is_polling = True
            self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        if self._is_awaited() and self._eagerness.on_nothing(ambient.monotonic_ns()):
            self._loop.call_soon(self._poll)  # a loop with something to call does not sleep
        else:
            self.is_polling = False
