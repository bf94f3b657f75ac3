"""The answer to a callback, as something to wait for: once, with its error raised."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from danubius.errors import DanubiusError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def answer_of(start: Callable[[Callable[[T | DanubiusError], None]], object]) -> T:
    """Begin something that answers through the callback it is given, maybe at once, and wait for that.

    An answer that comes when nobody waits any more is passed over.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def answered(answer: T | DanubiusError) -> None:
        if future.done():
            return
        if isinstance(answer, DanubiusError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    start(answered)
    return await future
