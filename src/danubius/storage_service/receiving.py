"""Requests on their way to a worker: one that does not come to its end must not hold its worker for ever.

gRPC waits for a message without a limit of its own. So one thread looks after all calls that wait for theirs, and
cancels those that have waited for too long: sooner when every worker waits.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from danubius.storage_service.bounds import CROWD_SECONDS_MAX, RECEIVE_SECONDS_MAX, WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

LOOK_SECONDS: Final = 0.1


def overdue(began_s: dict[int, float], now_s: float, workers: int) -> list[int]:
    """Those of the waiting that have waited for too long, the oldest first."""
    limit_s = CROWD_SECONDS_MAX if len(began_s) >= workers else RECEIVE_SECONDS_MAX
    return [number for number, began in began_s.items() if now_s - began >= limit_s]


class Receiving:
    """All calls that wait for a message."""

    def __init__(
        self, workers: int = WORKERS, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._workers = workers
        self._clock_s = clock_s
        self._changed = threading.Condition()
        self._began_s: dict[int, float] = {}  # the oldest first
        self._contexts: dict[int, Any] = {}
        self._next = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._look, name="danubius-receiving", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def each(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        """The messages of a call; the call is cancelled if one takes too long."""
        while True:
            with self._watched(context):
                try:
                    request = next(requests)
                except StopIteration:
                    return
            yield request

    @contextmanager
    def _watched(self, context: Any) -> Generator[None]:
        with self._changed:
            self._next += 1
            number = self._next
            self._began_s[number] = self._clock_s()
            self._contexts[number] = context
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._began_s.pop(number, None)
                self._contexts.pop(number, None)

    def cancel_overdue(self) -> None:
        """Cancel whoever has waited for too long."""
        with self._changed:
            late = [
                self._contexts.pop(number)
                for number in overdue(self._began_s, self._clock_s(), self._workers)
                if number in self._contexts
            ]
        for context in late:
            context.cancel()

    def _look(self) -> None:
        while True:
            with self._changed:
                while not self._began_s and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                self._changed.wait(LOOK_SECONDS)
            self.cancel_overdue()
