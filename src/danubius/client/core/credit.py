"""Credit: how much a consumer lets the broker send ahead, and when it gives credit back.

Credit goes back in steps of half a window: the broker never runs dry while the application is working, and a
million messages cost a few dozen frames, not a million.
"""

from __future__ import annotations

from typing import NamedTuple


class Grant(NamedTuple):
    """Credit for this many further messages and bytes."""

    messages: int
    bytes: int


class CreditWindow:
    """What was handed to the application and not yet given back as credit."""

    __slots__ = ("_bytes_max", "_messages_max", "_used_bytes", "_used_messages")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        assert messages_max > 0
        assert bytes_max > 0
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._used_messages = 0
        self._used_bytes = 0

    def open(self) -> Grant:
        """The first grant of a connection: the whole window."""
        self._used_messages = 0
        self._used_bytes = 0
        return Grant(self._messages_max, self._bytes_max)

    def used(self, messages: int, size: int) -> Grant | None:
        """Note what the application took; return a grant once half of the window is used up."""
        self._used_messages += messages
        self._used_bytes += size
        is_due = (
            self._used_messages * 2 >= self._messages_max or self._used_bytes * 2 >= self._bytes_max
        )
        if not is_due:
            return None
        grant = Grant(self._used_messages, self._used_bytes)
        self._used_messages = 0
        self._used_bytes = 0
        return grant
