"""The broker's side of a connection: whom it takes for dead."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from danubius.edge.native import binary
from danubius.edge.native.binary import BinaryConnection, BinaryEdge
from danubius.session.door import Door
from danubius.wire.commands import Error, Hello, Ping, Pong, Produce, Welcome
from danubius.wire.connection import Connection
from danubius.wire.states import Role
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable


class MutePeer:
    """A client that has said hello, and from then on only what a test tells it to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._wire = Connection(Role.CLIENT)

    def say(self, command: Any, correlation_id: int = 0) -> None:
        self._writer.writelines(self._wire.send(command, correlation_id))

    def large_frame(self, number: int) -> bytes:
        """A batch that is none, for a producer that there is not."""
        return b"".join(map(bytes, self._wire.send(Produce(1), number, [bytes(LARGE)])))

    async def hear(self, kind: type) -> int:
        """Wait for a command of a kind and return its number."""
        while True:
            frame = self._wire.next_event()
            if frame is None:
                self._wire.receive_data(await self._reader.read(65536))
            elif type(frame.command) is kind:
                return frame.correlation_id


class LateLoop:
    """The loop as an edge has it, with a clock that a test sets forward."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.ahead_s = 0.0

    def time(self) -> float:
        return self._loop.time() + self.ahead_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


@contextlib.asynccontextmanager
async def connected(
    bench: Any, loop: Any = None
) -> AsyncGenerator[tuple[MutePeer, BinaryConnection]]:
    edge = BinaryEdge(Door(bench.node), loop or asyncio.get_running_loop(), "broker")
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


async def test_who_was_silent_while_the_broker_did_not_run_is_asked_and_not_cut_off(
    bench: Any,
) -> None:
    loop = LateLoop()
    interval_s = bench.shard.config.keepalive_ms / 1000 / binary.KEEPALIVE_CHECKS
    async with connected(bench, loop) as (peer, connection):
        loop.ahead_s += 100 * interval_s
        connection._edge._check_all()
        assert not connection.protocol.is_closing
        await peer.hear(Ping)
        loop.ahead_s += interval_s
        connection._edge._check_all()
        assert connection.protocol.is_closing, "now it was listened to"


# ---------------------------------------------------------------- whoever does not come to an end

WHOLE: Any = binary.LARGE_FRAMES._replace(at_once_max=1_000_000, patience_s=0.0, whole_s=3600.0)
LARGE = 600_000


class Peers:
    """Connections to one edge."""

    def __init__(self, edge: BinaryEdge, port: int) -> None:
        self.edge = edge
        self._port = port
        self.lines: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        line = await asyncio.open_connection("127.0.0.1", self._port)
        self.lines.append(line)
        return line

    async def greet(self) -> tuple[MutePeer, asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self.connect()
        peer = MutePeer(reader, writer)
        peer.say(Hello(1, 1, "test"), 1)
        await peer.hear(Welcome)
        return peer, reader, writer

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(HANG_S):
            while not is_so():  # noqa: ASYNC110  # what is waited for has no event
                await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def listening(bench: Any) -> AsyncGenerator[Peers]:
    edge = BinaryEdge(Door(bench.node), asyncio.get_running_loop(), "broker")
    peers = Peers(edge, await edge.open("127.0.0.1", 0, "127.0.0.1"))
    try:
        yield peers
    finally:
        for connection in list(edge.connections):
            connection.protocol.abort()
        edge.close()
        await edge.wait_closed()
        for _, writer in peers.lines:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def test_connections_that_say_nothing_keep_nobody_out(bench: Any) -> None:
    async with listening(bench) as peers:
        greeted, *_ = await peers.greet()
        silent = [(await peers.connect())[0] for _ in range(3)]
        await peers.until(lambda: len(peers.edge.connections) == 4)
        bench.shard.config = msgspec.structs.replace(bench.shard.config, connections_max=4)
        for _ in range(2):
            await peers.greet()
        async with asyncio.timeout(HANG_S):
            for reader in silent[:2]:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
        greeted.say(Ping(), 9)
        assert await greeted.hear(Pong) == 9


async def test_an_unfinished_large_frame_gives_way_to_one_that_waits(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary, "LARGE_FRAMES", WHOLE)
    monkeypatch.setattr(binary, "LARGE_FRAMES_WATCH_S", 0.0)
    async with listening(bench) as peers:
        turns = peers.edge.large_frames
        attacker, stalled, writer = await peers.greet()
        writer.write(attacker.large_frame(7)[:-1])
        await peers.until(lambda: turns.reading == 1)
        (cut_off,) = peers.edge.connections
        honest, _, writer = await peers.greet()
        writer.write(honest.large_frame(8))
        async with asyncio.timeout(HANG_S):
            with contextlib.suppress(ConnectionResetError):
                assert await stalled.read() == b""
            assert await honest.hear(Error) == 8  # there is no such producer, and it was asked
        await peers.until(lambda: turns.reading == turns.waiting == 0)
        assert cut_off._wire._inbox.is_empty, "the half frame stays until somebody collects garbage"


async def test_while_there_is_room_an_unfinished_large_frame_is_waited_for(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary, "LARGE_FRAMES", WHOLE._replace(at_once_max=10 * LARGE))
    monkeypatch.setattr(binary, "LARGE_FRAMES_WATCH_S", 0.0)
    async with listening(bench) as peers:
        slow, _, first = await peers.greet()
        frame = slow.large_frame(7)
        first.write(frame[:-1])
        await peers.until(lambda: peers.edge.large_frames.reading == 1)
        quick, _, second = await peers.greet()
        second.write(quick.large_frame(8))
        assert await quick.hear(Error) == 8
        first.write(frame[-1:])
        assert await slow.hear(Error) == 7
