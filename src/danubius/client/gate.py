"""Where coroutines wait for a change of state, and what wakes them.

Whoever is woken looks again for itself. Whoever stops waiting, by a timeout or a cancellation, leaves nothing behind.
"""

from __future__ import annotations

import asyncio


class Gate:
    """Everybody who waits for one kind of change."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: dict[asyncio.Future[None], None] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._futures)

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures[future] = None
        try:
            await future
        finally:
            self._futures.pop(future, None)

    def open(self) -> None:
        """Wake all who wait now."""
        if self._futures:
            futures, self._futures = self._futures, {}
            for future in futures:
                if not future.done():
                    future.set_result(None)
