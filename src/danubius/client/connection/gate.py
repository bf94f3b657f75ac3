"""A gate where coroutines wait for a change of state, and what wakes them.

Whoever is woken looks again for itself. Whoever stops waiting, by a timeout or a cancellation, leaves nothing behind.
"""

from __future__ import annotations

import asyncio


class Gate:
    """Everybody who waits for one kind of change."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[asyncio.Future[None], None] = {}
        """Who waits now. To be looked at: asking it for its truth costs no call."""

    def __len__(self) -> int:
        """How many wait."""
        return len(self.waiting)

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting[future] = None
        try:
            await future
        finally:
            self.waiting.pop(future, None)

    def open(self) -> None:
        """Wake all who wait now."""
        if self.waiting:
            futures, self.waiting = self.waiting, {}
            for future in futures:
                if not future.done():
                    future.set_result(None)


def finish(done: asyncio.Future[None], _reply: object, _payload: memoryview) -> None:
    """An answer has come, whatever it says."""
    if not done.done():
        done.set_result(None)
