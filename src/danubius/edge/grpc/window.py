"""The window of a stream between the broker and its gRPC front: bytes, given back as they go out.

Sans-IO. A message may be sent while anything of the window is left, so one that is larger than all of it passes too,
alone. Invariants: what is sent and not given back is never more than the window and one message; whatever the front
holds back of its credit, a writer that waits is let on once the front has passed on all it has.
"""

from __future__ import annotations

from typing import Final

STREAM_WINDOW: Final = 64 * 1024
"""Bytes of one stream: more than a client reads in the time that credit takes to come back."""
MESSAGE_COST: Final = 128
"""Counted for each message beside its bytes: small ones are not free."""


def cost_of(size: int) -> int:
    """What a message of this many bytes takes of a window."""
    return size + MESSAGE_COST


class SendWindow:
    """At the writer."""

    __slots__ = ("_left",)

    def __init__(self, size: int = STREAM_WINDOW) -> None:
        self._left = size

    @property
    def is_open(self) -> bool:
        return self._left > 0

    def take(self, cost: int) -> None:
        """Something is sent; the window must be open."""
        assert self._left > 0, "the window is closed"
        self._left -= cost

    def give(self, cost: int) -> bool:
        """Something has gone out; True: the window was closed and is open again."""
        was_open = self._left > 0
        self._left += cost
        return not was_open and self._left > 0


class Credit:
    """At the front: what has gone out and was not given back yet."""

    __slots__ = ("_half", "_owed")

    def __init__(self, size: int = STREAM_WINDOW) -> None:
        self._half = size // 2
        self._owed = 0

    def passed(self, cost: int, *, is_last: bool) -> int:
        """A message has gone out, `is_last`: and no other waits. What to give back now; 0: later."""
        self._owed += cost
        if not is_last and self._owed < self._half:
            return 0
        owed, self._owed = self._owed, 0
        return owed
