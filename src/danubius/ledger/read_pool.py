"""A few threads that read, each with an inbox; the least busy one gets the next read.

Counting and callbacks happen on the loop alone; threads run the work and post the result.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from danubius.errors import DanubiusError, Overloaded, ShuttingDown, StorageFailed
from danubius.runtime.threads import Worker, finishing

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.runtime.threads import Spawn

    Post = Callable[[Callable[[], None]], object]

Result = TypeVar("Result")


class _Read(NamedTuple):
    work: Callable[[], Any]
    on_done: Callable[[Any], None]  # Any: results of all types share the inbox.
    thread: int


class ReadPool:
    """Runs blocking reads off the loop."""

    def __init__(
        self, threads: int, queued_max: int, post: Post, spawn: Spawn = Worker, name: str = "read"
    ) -> None:
        self._post = post
        self._queued_max = queued_max
        self._busy = [0] * threads
        self._is_open = False
        self._workers = [
            spawn(f"danubius-{name}-{number}", self._handle, on_crash=self._on_crash)
            for number in range(threads)
        ]

    def start(self) -> None:
        for worker in self._workers:
            worker.start()
        self._is_open = True

    def close(self) -> None:
        """Finish what was submitted and end the threads."""
        self._is_open = False
        for worker in self._workers:
            worker.stop()

    def submit(
        self, work: Callable[[], Result], on_done: Callable[[Result | DanubiusError], None]
    ) -> None:
        """Run `work` on a thread, then `on_done` on the loop with its result or its DanubiusError."""
        if not self._is_open:
            on_done(ShuttingDown("the broker is stopping and reads no more"))
            return
        if sum(self._busy) >= self._queued_max:
            on_done(
                Overloaded(
                    f"{self._queued_max} reads of stored messages are waiting already; try again later"
                )
            )
            return
        thread = self._busy.index(min(self._busy))
        self._busy[thread] += 1
        self._workers[thread].put(_Read(work, on_done, thread))

    def _handle(self, reads: list[_Read], now_ns: int) -> None:
        del now_ns
        for read in finishing(reads):
            try:
                result = read.work()
            except DanubiusError as error:
                result = error
            self._post(functools.partial(self._finish, read, result))

    def _finish(self, read: _Read, result: Any) -> None:
        self._busy[read.thread] -= 1
        read.on_done(result)

    def _on_crash(self, reads: list[_Read], crash: BaseException) -> None:
        for read in reads:
            error = StorageFailed(f"a read thread crashed: {crash!r}; restart the broker")
            self._post(functools.partial(self._finish, read, error))
