"""The broker's side of a connection: whom it takes for dead."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from danubius.edge import binary
from danubius.edge.binary import BinaryConnection, BinaryEdge
from danubius.wire.commands import Hello, Ping, Pong, Welcome
from danubius.wire.connection import Connection
from danubius.wire.states import Role

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class MutePeer:
    """A client that has said hello, and from then on only what a test tells it to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._wire = Connection(Role.CLIENT)

    def say(self, command: Any, correlation_id: int = 0) -> None:
        self._writer.writelines(self._wire.send(command, correlation_id))

    async def hear(self, kind: type) -> int:
        """Wait for a command of a kind and return its number."""
        while True:
            frame = self._wire.next_event()
            if frame is None:
                self._wire.receive_data(await self._reader.read(65536))
            elif type(frame.command) is kind:
                return frame.correlation_id


@contextlib.asynccontextmanager
async def connected(bench: Any) -> AsyncGenerator[tuple[MutePeer, BinaryConnection]]:
    edge = BinaryEdge(bench.node, asyncio.get_running_loop(), "broker")
    port = await edge.open("127.0.0.1", 0, "127.0.0.1")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    peer = MutePeer(reader, writer)
    peer.say(Hello(1, 1, "test"), 1)
    await peer.hear(Welcome)
    (connection,) = edge.connections
    try:
        yield peer, connection
    finally:
        connection.protocol.abort()
        edge.close()
        await edge.wait_closed()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def probe(connection: BinaryConnection) -> asyncio.Future[bool]:
    result: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    connection.probe(result.set_result)
    return result


async def test_a_peer_that_does_not_answer_a_probe_is_dead(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary, "PROBE_S", 0.01)
    async with connected(bench) as (_, connection):
        assert await probe(connection) is False


async def test_a_peer_that_answers_a_probe_is_alive(bench: Any) -> None:
    async with connected(bench) as (peer, connection):
        result = probe(connection)
        peer.say(Pong(), await peer.hear(Ping))
        assert await result is True


@pytest.mark.parametrize("when", ["before", "during"])
async def test_a_peer_that_the_broker_does_not_read_from_is_alive(
    bench: Any, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(binary, "PROBE_S", 0.01)
    async with connected(bench) as (_, connection):
        if when == "before":
            connection.pause_reading("publish")
        result = probe(connection)
        if when == "during":
            connection._writing_paused()
            connection._writing_resumed()
        assert await result is True
