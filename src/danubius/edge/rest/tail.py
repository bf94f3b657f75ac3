"""Server-sent events: a topic's messages as they come, one event each.

An event's id is its offset; a reader that comes back with Last-Event-ID goes on behind it. At most one read of the
topic is held for a reader, so a slow one costs nothing else; one that does not take what it was sent is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from danubius.edge.rest.bounds import (
    FETCH_BYTES,
    HEARTBEAT_S,
    MESSAGES_MAX,
    SEND_S,
    TAIL_MS_MAX,
)
from danubius.edge.rest.messages import Filling, slices
from danubius.edge.rest.pieces import cut_off
from danubius.edge.rest.problems import problem_of
from danubius.edge.rest.reading import Start, parse_start, take
from danubius.errors import DanubiusError, InvalidArgument
from danubius.model.admin import OFFSET_MAX
from danubius.model.subscription import AtOffset
from danubius.wire.commands import Fetch, Fetched, ResolveOffset

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.types import Receive, Scope, Send

    from danubius.edge.in_process import Line
    from danubius.model.subscription import Position

log = logging.getLogger(__name__)

EVENT_STREAM: Final = "text/event-stream"
RETRY_MS: Final = 1_000
"""Readers are told to come back after this long."""


class TailTopic(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Follow a topic: server-sent events, one a message, with its offset as their id."""

    topic: str
    start: Start = "latest"
    limit: Annotated[int, msgspec.Meta(ge=1, le=OFFSET_MAX)] | None = None
    """End after this many messages; null: go on."""
    duration_ms: Annotated[int, msgspec.Meta(ge=1, le=TAIL_MS_MAX)] = TAIL_MS_MAX
    """End after this long."""
    last_event_id: str | None = None
    """Go on behind this offset, whatever `start` says; browsers send it by themselves."""


def begin_of(request: TailTopic) -> Position:
    """Where to begin: behind the last event, or where the request says."""
    if request.last_event_id is None:
        return parse_start(request.start)
    text = request.last_event_id
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < OFFSET_MAX):
        raise InvalidArgument(
            f"Last-Event-ID is {text[:80]!r}; it must be the offset of a message, from 0 to 2**63 - 2"
        )
    return AtOffset(int(text) + 1)


class Tail:
    """One reader's stream."""

    def __init__(self, line: Line, request: TailTopic) -> None:
        self._line = line
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._left = request.limit
        self._offset = 0

    @property
    def topic(self) -> str:
        return self._request.topic

    async def open(self) -> None:
        """Find out where to begin; what is wrong with the request is said here."""
        answer = await self._line.ask(ResolveOffset(self._request.topic, begin_of(self._request)))
        self._offset = answer.command.offset

    async def chunks(self) -> AsyncIterator[bytes]:
        """The text of the stream, piece by piece."""
        until_s = self._loop.time() + self._request.duration_ms / 1000
        yield b"retry: %d\n\n" % RETRY_MS
        while (left_s := until_s - self._loop.time()) > 0 and self._left != 0:
            try:
                chunk = await self._next(min(left_s, HEARTBEAT_S))
            except DanubiusError as error:
                # The status has been sent: the stream itself says what went wrong.
                yield b"event: error\ndata: " + msgspec.json.encode(problem_of(error)) + b"\n\n"
                return
            yield chunk or b": alive\n\n"

    async def _next(self, wait_s: float) -> bytes:
        """The next messages; nothing if none came in time."""
        wait_ms = max(1, int(wait_s * 1000))
        answer = await self._line.ask(
            Fetch(self._request.topic, AtOffset(self._offset), FETCH_BYTES, wait_ms)
        )
        fetched: Fetched = answer.command
        limit = MESSAGES_MAX if self._left is None else min(self._left, MESSAGES_MAX)
        filling = Filling(limit)
        following = fetched.next
        for part in slices(answer.payload, max(fetched.first, self._offset), fetched.next):
            if filling.is_full:
                following = part.batch.offsets()[part.start]
                break
            taken = await take(filling, self._request.topic, part)
            if taken < part.stop:
                following = part.batch.offsets()[taken]
                break
        self._offset = max(self._offset, following)
        if self._left is not None:
            self._left -= len(filling.messages)
        return b"".join(
            b"id: %d\nevent: message\ndata: %b\n\n" % (message.offset, msgspec.json.encode(message))
            for message in filling.messages
        )


class TailResponse:
    """The answer that carries a stream, over ASGI; it ends with the reader, the stream or the broker."""

    status_code = 200

    def __init__(self, tail: Tail, stopping: asyncio.Event, on_end: Callable[[], None]) -> None:
        self._tail = tail
        self._stopping = stopping
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._stream(scope, send))
                tasks.create_task(self._watch(receive, sending))
                tasks.create_task(self._wait_for_stop(sending))
                tasks.create_task(_end_after(sending))
        except* _Over:
            pass
        finally:
            self._on_end()

    async def _stream(self, scope: Scope, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for chunk in self._tail.chunks():
                async with asyncio.timeout(SEND_S):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            async with asyncio.timeout(SEND_S):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            log.info("slow reader cut off", extra={"topic": self._tail.topic})
            await cut_off(scope)
        except asyncio.CancelledError:
            # The broker stops, or the reader is gone: end it as far as it was sent.
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            raise

    async def _watch(self, receive: Receive, sending: asyncio.Task[None]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        sending.cancel()

    async def _wait_for_stop(self, sending: asyncio.Task[None]) -> None:
        await self._stopping.wait()
        sending.cancel()


class _Over(Exception):
    """The stream has ended: the watchers end with it."""


async def _end_after(sending: asyncio.Task[None]) -> None:
    await asyncio.wait([sending])
    raise _Over
