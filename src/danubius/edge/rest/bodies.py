"""Bodies of requests as they arrive: in time, at a rate, and in room that is theirs for what is really there.

A body that was announced and does not come costs nothing but a number; one that comes slowly is sent away as soon as
others need its room.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.edge.core.arrivals import Arrivals
from danubius.edge.rest.bounds import (
    BODIES_BYTES_MAX,
    BODY_BYTES_PER_S,
    BODY_FIRST_S,
    BODY_PATIENCE_S,
    BODY_S,
    SMALL_BODY_BYTES,
    UNFINISHED_BODIES_MAX,
)
from danubius.edge.rest.problems import BodyTimeout, LengthExceeded
from danubius.errors import Overloaded

if TYPE_CHECKING:
    from starlette.requests import Request

DISCARDED_BYTES_MAX: Final = 16 << 20
"""Of a body that is too large, read and dropped so that the sender gets to read why."""


class BodyBounds(NamedTuple):
    """What bodies that are not complete may take."""

    count_max: int = UNFINISHED_BODIES_MAX
    bytes_max: int = BODIES_BYTES_MAX
    first_s: float = BODY_FIRST_S
    whole_s: float = BODY_S
    bytes_per_s: int = BODY_BYTES_PER_S
    patience_s: float = BODY_PATIENCE_S

    def deadline_s(self, received: int) -> float:
        """From the body's beginning until more than `received` bytes must be here."""
        return min(self.whole_s, self.first_s + received / self.bytes_per_s)


class Bodies:
    """All bodies that are being read."""

    def __init__(self, bounds: BodyBounds | None = None) -> None:
        self._bounds = bounds or BodyBounds()
        self._loop = asyncio.get_running_loop()
        self.arriving = Arrivals(
            self._bounds.count_max,
            self._bounds.bytes_max,
            patience_s=self._bounds.patience_s,
            small_bytes=SMALL_BODY_BYTES,
        )

    async def read(self, request: Request, most: int) -> bytes:
        """The whole body; LengthExceeded if it has more than `most` bytes, BodyTimeout if it is too slow."""
        began_s = self._loop.time()
        is_displaced = False
        try:
            async with asyncio.timeout_at(began_s + self._bounds.deadline_s(0)) as deadline:

                def cut_off() -> None:
                    nonlocal is_displaced
                    is_displaced = True
                    if not deadline.expired():
                        deadline.reschedule(began_s)

                arrival = self.arriving.begin(began_s, cut_off)
                chunks: list[bytes] = []
                received = 0
                try:
                    async for chunk in request.stream():
                        received += len(chunk)
                        if not is_displaced:
                            deadline.reschedule(began_s + self._bounds.deadline_s(received))
                        if received > most + DISCARDED_BYTES_MAX:
                            break
                        if received > most:
                            chunks.clear()
                            self.arriving.end(arrival)
                        elif self.arriving.grow(arrival, len(chunk), self._loop.time()):
                            chunks.append(chunk)
                        else:
                            raise Overloaded(
                                f"the broker has room for {self._bounds.bytes_max:,} bytes of bodies that "
                                "arrive over HTTP; try again in a second"
                            )
                finally:
                    self.arriving.end(arrival)
        except TimeoutError:
            raise BodyTimeout(_why(is_displaced=is_displaced, bounds=self._bounds)) from None
        if received > most:
            raise LengthExceeded(
                f"the body has more than {most:,} bytes; send less at once, or use the native protocol"
            )
        return b"".join(chunks)


def _why(*, is_displaced: bool, bounds: BodyBounds) -> str:
    if is_displaced:
        return "the body came so slowly that others got its room; send it again, faster or in parts"
    return (
        f"the body did not arrive in time; begin it within {bounds.first_s:g} s, send {bounds.bytes_per_s:,} "
        f"bytes a second, and all of it within {bounds.whole_s:g} s"
    )
