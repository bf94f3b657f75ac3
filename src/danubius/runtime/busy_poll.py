"""Stay awake for a moment while someone asks, waits for the answer, and asks again.

Putting a core to sleep and waking it costs more than a small request: the sender pays for the wake-up, the sleeper for
cold caches. So while small reads follow each other closely, the loop polls instead of sleeping; as soon as they do not,
it sleeps as always. Large reads never make it poll: a loop with that much to do is awake anyway, and the core is better
left to others.

Invariants: no polling before `START_READS` close reads in a row; none for longer than `WAIT_NS_MAX` without a read; a
wait in vain costs most of the confidence, so an idle loop sleeps.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL_READ_BYTES: Final = 4 * 1024
CLOSE_NS_MAX: Final = 600_000
"""Reads this near to each other, the handling of the first included, are a conversation."""
WAIT_NS_MAX: Final = 250_000
START_READS: Final = 8
CONFIDENCE_MAX: Final = 32


class Eagerness:
    """Decides whether to wait awake. Time is an argument."""

    __slots__ = ("_confidence", "_read_ns")

    def __init__(self) -> None:
        self._confidence = 0
        self._read_ns = 0

    def on_read(self, count: int, now_ns: int) -> bool:
        """A read was handled: whether to poll for the next one."""
        is_close = now_ns - self._read_ns <= CLOSE_NS_MAX
        self._read_ns = now_ns
        if count > SMALL_READ_BYTES or not is_close:
            self._confidence = 0
            return False
        if self._confidence < CONFIDENCE_MAX:
            self._confidence += 1
        return self._confidence >= START_READS

    def on_nothing(self, now_ns: int) -> bool:
        """A poll found nothing: whether to poll again."""
        if self._confidence < START_READS:
            return False
        if now_ns - self._read_ns <= WAIT_NS_MAX:
            return True
        self._confidence //= 4
        return False


class Turning(Protocol):
    """An event loop, as far as it is needed here."""

    def call_soon(self, callback: Callable[[], None], /) -> object: ...


class BusyPoll:
    """Keeps a loop from sleeping while its reads are eager for answers."""

    __slots__ = ("_eagerness", "_loop", "is_polling")

    def __init__(self, loop: Turning) -> None:
        self._loop = loop
        self._eagerness = Eagerness()
        self.is_polling = False

    def on_read(self, count: int) -> None:
        if self._eagerness.on_read(count, time.monotonic_ns()) and not self.is_polling:
            self.is_polling = True
            self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        if self._eagerness.on_nothing(time.monotonic_ns()):
            self._loop.call_soon(self._poll)  # a loop with something to call does not sleep
        else:
            self.is_polling = False
