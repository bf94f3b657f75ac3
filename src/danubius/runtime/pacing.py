"""A pace that several threads keep together: so many bytes a second, and an end that nobody sleeps through."""

from __future__ import annotations

import threading
import time

BURST_S = 0.25
"""Who was idle may be ahead by this much."""


class Pace:
    """`wait` before the bytes go. 0 bytes a second: no bound."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._free_at_s = 0.0
        """When everything that was let through has had its time."""

    @property
    def bytes_per_s(self) -> int:
        return self._bytes_per_s

    def change(self, bytes_per_s: int) -> None:
        """From now on another pace; who waits already waits as long as was said."""
        with self._lock:
            self._bytes_per_s = bytes_per_s

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def end(self) -> None:
        """Nobody waits any more."""
        self._ended.set()

    def wait(self, count: int) -> bool:
        """Wait until it is the turn of `count` bytes; False: it has ended."""
        with self._lock:
            wait_s = self._take_turn(count)
        if wait_s > 0:
            self._ended.wait(wait_s)
        return not self._ended.is_set()

    def _take_turn(self, count: int) -> float:
        """How long it is until then."""
        if not self._bytes_per_s:
            return 0.0
        now_s = time.monotonic()
        self._free_at_s = max(self._free_at_s, now_s - BURST_S) + count / self._bytes_per_s
        return self._free_at_s - now_s
