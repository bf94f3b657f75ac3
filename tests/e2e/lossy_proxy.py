"""A TCP relay between a client and a broker that can swallow answers, fall silent or cut the line.

Freezing a link makes a half-open connection for both ends: no byte and no end-of-file passes any more.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

READ_BYTES: Final = 65_536


class Link:
    """One client connection and its twin to the broker."""

    def __init__(self, client: asyncio.StreamWriter, broker: asyncio.StreamWriter) -> None:
        self.client = client
        self.broker = broker
        self.is_frozen = False
        self.is_muted = False

    def cut(self) -> None:
        self.client.transport.abort()
        self.broker.transport.abort()


class LossyProxy:
    """Listens on a port of its own; `url` is what a client dials instead of the broker."""

    def __init__(self, broker_port: int) -> None:
        self._broker_port = broker_port
        self._server: asyncio.Server | None = None
        self.port = 0
        self._ending = asyncio.Event()
        self._running = 0
        self._is_refusing = False
        self._idle = asyncio.Event()
        self.links: list[Link] = []
        self.swallowed = asyncio.Event()
        """Set once an answer of the broker was swallowed."""
        self.asked_bytes = 0
        """What clients sent to the broker."""
        self.dialled = 0
        """How many connections clients made."""

    @property
    def url(self) -> str:
        return f"danube://127.0.0.1:{self.port}"

    async def __aenter__(self) -> LossyProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._ending.set()
        self.cut()
        await self._server.wait_closed()
        async with asyncio.timeout(HANG_S):
            while self._running:
                self._idle.clear()
                await self._idle.wait()

    def mute(self) -> None:
        """From now on the broker's answers on the open links are swallowed."""
        for link in self.links:
            link.is_muted = True

    def freeze(self) -> None:
        """From now on nothing passes on the open links, not even their end."""
        for link in self.links:
            link.is_frozen = True

    def cut(self) -> None:
        """Reset every open link."""
        for link in self.links:
            link.cut()
        self.links.clear()

    @contextmanager
    def refusing(self) -> Generator[None]:
        """Nobody gets through meanwhile."""
        self._is_refusing = True
        self.cut()
        try:
            yield
        finally:
            self._is_refusing = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_refusing:
            writer.transport.abort()
            return
        try:
            upstream, broker = await asyncio.open_connection("127.0.0.1", self._broker_port)
        except OSError:
            writer.transport.abort()
            return
        self.dialled += 1
        link = Link(writer, broker)
        self.links.append(link)
        self._running += 1
        with suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as both:
                both.create_task(self._relay(link, reader, broker, is_answer=False))
                both.create_task(self._relay(link, upstream, writer, is_answer=True))
        link.cut()
        self._running -= 1
        self._idle.set()

    async def _relay(
        self,
        link: Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_answer: bool,
    ) -> None:
        while data := await reader.read(READ_BYTES):
            if link.is_frozen:
                await self._ending.wait()
            if not is_answer:
                self.asked_bytes += len(data)
            if is_answer and link.is_muted:
                self.swallowed.set()
                continue
            writer.write(data)
            await writer.drain()
        if link.is_frozen:
            await self._ending.wait()
        raise ConnectionError("one end closed")
