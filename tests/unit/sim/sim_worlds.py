"""A loop and a network for a test, run to the end in virtual time."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, TypeVar

from danubius.sim.loop import SimLoop
from danubius.sim.net import SimNet

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from danubius.sim.transport import SimTransport

T = TypeVar("T")


class Small:
    """One of each."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = SimLoop(seed, end_s=1000.0)
        self.net = self.loop.network = SimNet(self.loop, random.Random(seed))
        self.problems: list[object] = []
        self.loop.set_exception_handler(
            lambda _, context: self.problems.append(context.get("exception"))
        )

    def run(self, coro: Coroutine[object, object, T]) -> T:
        try:
            return self.loop.run_until_complete(coro)
        finally:
            self.loop.close()
            assert self.problems == []

    async def connect(self, client: str = "client", server: str = "server") -> tuple[Ear, Ear]:
        """Two ends that are connected."""
        far: list[Ear] = []

        def accept() -> Ear:
            far.append(Ear())
            return far[-1]

        async def listen() -> object:
            return await self.loop.create_server(accept, server, 1)

        async def dial() -> Ear:
            _, near = await self.loop.create_connection(Ear, server, 1)
            return near

        await self.loop.run_in(self.loop.begin(server), listen())
        near = await self.loop.run_in(self.loop.begin(client), dial())
        await far[0].made.wait()
        return near, far[0]


class Ear(asyncio.BufferedProtocol):
    """Takes what comes."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.calls: list[str] = []
        self.lost: Exception | None = None
        self.transport: SimTransport
        self.made, self.news, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.pauses: list[str] = []
        self._buffer = bytearray(1000)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # pyright: ignore[reportAttributeAccessIssue]  # it is one
        self.made.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.heard += self._buffer[:nbytes]
        self.calls.append("data")
        self.news.set()

    def eof_received(self) -> bool:
        self.calls.append("eof")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")
        self.lost = exc
        self.ended.set()

    def pause_writing(self) -> None:
        self.pauses.append("pause")

    def resume_writing(self) -> None:
        self.pauses.append("resume")
