"""A connection without a socket: the peer of a session of the broker's own, for who speaks HTTP or gRPC.

Everything that a client of the native protocol can do goes the same way from here, through the same `Session`: the same
checks, limits, fences and answers. One end of it is commands and batches, the other hears their answers. Invariant:
each request is answered once, or fails with ClientClosed when the line is closed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from danubius.errors import ClientClosed, DanubiusError
from danubius.runtime.answers import answer_of
from danubius.wire.commands import Error
from danubius.wire.version import PROTOCOL_VERSION_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.model.buffers import Buffer
    from danubius.session.door import Door
    from danubius.wire.commands import AnyCommand

_NOTHING = memoryview(b"")


class Answer(NamedTuple):
    """What came back: a command and the batches behind it."""

    command: Any
    payload: Sequence[Buffer]


class Line:
    """One client inside the broker's process."""

    def __init__(
        self,
        door: Door,
        address: str,
        on_event: Callable[[AnyCommand, Sequence[Buffer]], None] | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        """`on_event` hears what the broker sends unasked, and answers that nobody waits for any more.

        `on_ready` hears that the broker has room again for what would be published.
        """
        self._loop = asyncio.get_running_loop()
        self._gathering = door.gathering
        self._on_event = on_event
        self._on_ready = on_ready
        self._address = address
        self._waiting: dict[int, Callable[[Answer | DanubiusError], None]] = {}
        self._next_number = 1
        self._ready = asyncio.Event()
        self._ready.set()
        self.session = door.open_session(self, door.about.url, door.about.broker_id)
        self.session.version = PROTOCOL_VERSION_MAX

    # ------------------------------------------------------------ the client's side

    async def ask(self, command: AnyCommand, batch: bytearray | None = None) -> Answer:
        """Send a command and wait for its answer; its error is raised."""
        number = 0

        def begin(on_answer: Callable[[Answer | DanubiusError], None]) -> None:
            nonlocal number
            number = self.start(command, batch, on_answer)

        try:
            return await answer_of(begin)
        finally:
            self._waiting.pop(number, None)

    def start(
        self,
        command: AnyCommand,
        batch: bytearray | None,
        on_answer: Callable[[Answer | DanubiusError], None],
    ) -> int:
        """Send a command; `on_answer` hears its answer or error, maybe before this returns."""
        if self.session.is_closed:
            raise ClientClosed("the broker has ended this connection")
        number = self._next_number
        self._next_number += 1
        self._waiting[number] = on_answer
        self._handle(command, number, memoryview(batch) if batch is not None else _NOTHING)
        return number

    def tell(self, command: AnyCommand) -> None:
        """Send a command that has no answer."""
        if not self.session.is_closed:
            self._handle(command, 0, _NOTHING)

    def _handle(self, command: AnyCommand, number: int, payload: memoryview) -> None:
        # As an edge does with all commands of one read: what they publish is committed together.
        self._gathering.hold()
        try:
            self.session.handle(command, number, payload)
        finally:
            self._gathering.release()

    @property
    def is_ready(self) -> bool:
        """Whether the broker has room for what would be published."""
        return self._ready.is_set()

    async def wait_ready(self) -> None:
        """Until the broker has room for what would be published."""
        await self._ready.wait()

    def close(self) -> None:
        if self.session.is_closed:
            return
        self.session.close()
        waiting, self._waiting = self._waiting, {}
        for on_answer in waiting.values():
            on_answer(ClientClosed("the broker has ended this connection"))

    # ------------------------------------------------------------ the session's side

    @property
    def address(self) -> str:
        return self._address

    def send(
        self, command: AnyCommand, correlation_id: int = 0, payload: Sequence[Buffer] = ()
    ) -> None:
        on_answer = self._waiting.pop(correlation_id, None)
        if on_answer is None:
            if self._on_event is not None:
                self._on_event(command, payload)
        elif isinstance(command, Error):
            on_answer(command.as_exception())
        else:
            on_answer(Answer(command, payload))

    def flush(self) -> None:
        """Nothing waits here."""

    def pause_reading(self, reason: str) -> None:
        del reason
        self._ready.clear()

    def resume_reading(self, reason: str) -> None:
        del reason
        self._ready.set()
        if self._on_ready is not None:
            self._on_ready()

    def probe(self, on_result: Callable[[bool], None]) -> None:
        """Who is here answers: what nobody asks for any more ends by itself."""
        is_alive = not self.session.is_closed
        self._loop.call_soon(on_result, is_alive)
