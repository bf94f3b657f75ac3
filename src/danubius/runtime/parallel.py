"""A few threads for calls that wait: the same function on several things at once, all of them done when it returns."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Item = TypeVar("Item")


class Parallel:
    """Threads are started when they are first needed; `run` is called by one thread at a time."""

    def __init__(self, name: str, threads_max: int) -> None:
        self._name = name
        self._threads_max = threads_max
        self._pool: ThreadPoolExecutor | None = None

    def run(self, function: Callable[[Item], None], items: Sequence[Item]) -> None:
        """Raises the error of the first item that has one, once nothing is under way any more."""
        if len(items) <= 1 or self._threads_max == 1:
            for item in items:
                function(item)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads_max, thread_name_prefix=self._name)
        futures = [self._pool.submit(function, item) for item in items]
        wait(futures)
        for future in futures:
            future.result()

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
