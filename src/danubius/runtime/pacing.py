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
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def end(self) -> None:
        """Nobody waits any more."""
        self._ended.set()

    def wait(self, count: int) -> bool:
        """Wait until it is the turn of `count` bytes; False: it has ended."""
        if self._bytes_per_s:
            with self._lock:
                now_s = time.monotonic()
                self._free_at_s = max(self._free_at_s, now_s - BURST_S) + count / self._bytes_per_s
                wait_s = self._free_at_s - now_s
            if wait_s > 0:
                self._ended.wait(wait_s)
        return not self._ended.is_set()
