"""One event loop, on a thread of its own, for all that a test process does with `grpc.aio`.

grpc binds itself to every loop that it meets, and may have something to tell it after a test's end: but a test's loop
is closed by then, and the next test would pay for it. This one is never closed.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


@functools.cache
def grpc_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="grpc-loop", daemon=True).start()
    return loop


async def on_grpc_loop(work: Coroutine[Any, Any, T]) -> T:
    """The result of what is done there; whoever stops waiting ends it."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, grpc_loop()))


class GrpcStream:
    """A call that is answered by many messages."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        async def start() -> Any:
            return begin()

        self._call = asyncio.run_coroutine_threadsafe(start(), grpc_loop())

    async def read(self) -> Any:
        async def read() -> Any:
            call = await asyncio.wrap_future(self._call)
            return await call.read()

        return await on_grpc_loop(read())

    def cancel(self) -> None:
        self._call.add_done_callback(
            lambda call: grpc_loop().call_soon_threadsafe(call.result().cancel)
        )
