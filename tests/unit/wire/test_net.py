"""The glue over real loopback sockets, on both event loops: gathering, back-pressure, refusals, the end."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from danubius.errors import BrokerUnavailable, DanubiusError, ProtocolViolation
from danubius.runtime import net
from danubius.runtime.net import DIRECT_BYTES_MAX, StreamProtocol, dial, listen
from danubius.wire.commands import Error, Hello, Ping, Pong, Produce, Welcome
from danubius.wire.connection import Connection
from danubius.wire.states import ConnectionState, Role
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.runtime.net import Listener
    from danubius.wire.frame import Frame

MIB = 1 << 20


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


class Peer:
    """One end that records what happens to it."""

    def __init__(self, role: Role, on_frame: Callable[[Peer, Frame], None] | None = None) -> None:
        self.connection = Connection(role)
        self.frames: list[Frame] = []
        self.batches = 0
        self.refusals: list[DanubiusError] = []
        self.closings: list[Exception | None] = []
        self.closed = asyncio.Event()
        self.changed = asyncio.Event()
        self.writing_paused = asyncio.Event()
        self.writing_resumed = asyncio.Event()
        self.on_frame = on_frame
        self.on_connected: Callable[[], None] = lambda: None
        self.protocol: StreamProtocol[Frame] = StreamProtocol(
            self.connection,
            self._event,
            on_batch_end=self._batch_end,
            on_closed=self._closed,
            on_protocol_error=self._refused,
            on_pause_writing=self.writing_paused.set,
            on_resume_writing=self.writing_resumed.set,
            on_connected=lambda: self.on_connected(),
        )

    def send(self, command: object, correlation_id: int = 0, *payload: bytes) -> None:
        self.protocol.write(self.connection.send(command, correlation_id, payload))  # pyright: ignore[reportArgumentType]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(HANG_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def _event(self, frame: Frame) -> None:
        self.frames.append(frame)
        if isinstance(frame.command, Hello):
            self.send(Welcome(1, "b", 17 * MIB, 8 * MIB, 30_000))
        elif self.on_frame is not None:
            self.on_frame(self, frame)

    def _batch_end(self, _count: int) -> None:
        self.batches += 1
        self.changed.set()

    def _refused(self, error: DanubiusError) -> None:
        self.refusals.append(error)
        if self.connection.role is Role.BROKER:
            self.send(Error(error.code, error.message, error.retry))

    def _closed(self, reason: Exception | None) -> None:
        self.closings.append(reason)
        self.closed.set()


class World:
    """A listener that keeps its ends, and a dialler."""

    def __init__(self, on_frame: Callable[[Peer, Frame], None] | None) -> None:
        self.brokers: list[Peer] = []
        self.clients: list[Peer] = []
        self.on_frame = on_frame
        self.prepare: Callable[[Peer], None] = lambda peer: None
        self.listener: Listener
        self.arrived = asyncio.Event()

    def accept(self) -> StreamProtocol[Frame]:
        peer = Peer(Role.BROKER, self.on_frame)
        peer.on_connected = self.arrived.set
        self.prepare(peer)
        self.brokers.append(peer)
        return peer.protocol

    async def connect(self) -> tuple[Peer, Peer]:
        client = Peer(Role.CLIENT)
        self.clients.append(client)
        await dial("127.0.0.1", self.listener.port, lambda: client.protocol, timeout_s=HANG_S)
        client.send(Hello(1, 1, "test"))
        await client.until(lambda: client.connection.state is ConnectionState.OPEN)
        return client, self.brokers[-1]

    async def raw(self) -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        self.arrived.clear()
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.listener.port))
        await self.arrived.wait()
        return sock


class Running:
    """`async with Running(on_frame) as world`: nothing outlives the block."""

    def __init__(self, on_frame: Callable[[Peer, Frame], None] | None = None) -> None:
        self._world = World(on_frame)

    async def __aenter__(self) -> World:
        self._world.listener = await listen("127.0.0.1", 0, self._world.accept, backlog=16)
        return self._world

    async def __aexit__(self, *_: object) -> None:
        self._world.listener.close()
        for peer in self._world.brokers + self._world.clients:
            peer.protocol.abort()
        async with asyncio.timeout(HANG_S):
            for peer in self._world.brokers + self._world.clients:
                if peer.protocol.peer != "unknown":
                    await peer.closed.wait()


def answer(peer: Peer, frame: Frame) -> None:
    peer.send(Pong(), frame.correlation_id)


async def read_all(sock: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    parts: list[bytes] = []
    async with asyncio.timeout(HANG_S):
        while part := await loop.sock_recv(sock, 65536):
            parts.append(part)
    return b"".join(parts)


async def test_large_and_small_frames_arrive_whole_and_in_order() -> None:
    async with Running() as world:
        client, broker = await world.connect()
        sizes = [10, 3 * MIB, 0, 70_000, 65_536, 5, 8 * MIB, 1]
        for number, size in enumerate(sizes):
            client.send(Produce(number), number, bytes([number]) * size)

        await broker.until(lambda: len(broker.frames) == 1 + len(sizes))

        for number, (size, frame) in enumerate(zip(sizes, broker.frames[1:], strict=True)):
            assert frame.command == Produce(number)
            assert frame.payload == bytes([number]) * size


async def test_frames_of_one_read_are_one_batch_and_their_answers_one_write() -> None:
    async with Running(answer) as world:
        client, broker = await world.connect()
        batches = broker.batches
        for number in range(100):
            client.send(Ping(), number)

        await client.until(lambda: len(client.frames) == 101)

        assert [frame.correlation_id for frame in client.frames[1:]] == list(range(100))
        assert broker.batches - batches <= 2
        assert client.batches <= 4


async def test_what_is_written_before_the_connection_is_up_is_sent() -> None:
    async with Running() as world:
        client = Peer(Role.CLIENT)
        world.clients.append(client)
        client.send(Hello(1, 1, "early"))
        await dial("127.0.0.1", world.listener.port, lambda: client.protocol, timeout_s=HANG_S)

        await client.until(lambda: len(client.frames) == 1)

        assert isinstance(client.frames[0].command, Welcome)


async def test_paused_reader_stops_the_writer_and_loses_nothing() -> None:
    async with Running() as world:
        client, broker = await world.connect()
        broker.protocol.pause_reading("test")
        sent = 0
        async with asyncio.timeout(HANG_S):
            while not client.writing_paused.is_set():
                client.send(Produce(1), sent, bytes(MIB))
                sent += 1
                await asyncio.sleep(0)
        assert sent < 64
        assert client.protocol.write_buffer_size > net.WRITE_HIGH_BYTES
        assert len(broker.frames) <= 2

        broker.protocol.resume_reading("test")
        async with asyncio.timeout(HANG_S):
            await client.writing_resumed.wait()
        await broker.until(lambda: len(broker.frames) == 1 + sent)

        assert [frame.correlation_id for frame in broker.frames[1:]] == list(range(sent))
        assert not client.protocol.is_writing_paused


async def test_writer_hears_of_the_bound_in_the_same_turn() -> None:
    """A loop that writes without awaiting sees pause_writing before it has written much more."""
    async with Running() as world:
        client, broker = await world.connect()
        broker.protocol.pause_reading()
        written = 0
        while not client.protocol.is_writing_paused and written < 256 * MIB:
            client.send(Produce(1), 1, bytes(MIB))
            written += MIB
        assert client.protocol.is_writing_paused


async def test_what_is_flushed_at_once_never_overtakes_what_the_transport_holds() -> None:
    """Until the socket is full, beyond it, and when it has room again: small flushes and large ones in turn."""
    async with Running() as world:
        client, broker = await world.connect()
        broker.protocol.pause_reading("test")
        count = 0
        while not client.protocol.is_writing_paused:
            count += 1
            client.send(Produce(1), count, bytes(DIRECT_BYTES_MAX if count % 7 == 0 else 1000))
            client.protocol.flush()

        broker.protocol.resume_reading("test")
        await broker.until(lambda: len(broker.frames) > count // 2)
        for _ in range(100):
            count += 1
            client.send(Produce(1), count, b"")
            client.protocol.flush()

        await broker.until(lambda: len(broker.frames) == 1 + count)
        assert [frame.correlation_id for frame in broker.frames[1:]] == list(range(1, count + 1))


async def test_reading_goes_on_only_when_every_reason_is_withdrawn() -> None:
    async with Running(answer) as world:
        client, broker = await world.connect()
        broker.protocol.pause_reading("storage")
        broker.protocol.pause_reading("writing")
        broker.protocol.pause_reading("writing")
        broker.protocol.resume_reading("storage")
        broker.protocol.resume_reading("never paused")
        assert broker.protocol.is_reading_paused

        broker.protocol.resume_reading("writing")
        assert not broker.protocol.is_reading_paused
        client.send(Ping(), 1)
        await client.until(lambda: len(client.frames) == 2)


async def test_connection_can_start_out_paused() -> None:
    async with Running() as world:
        paused = asyncio.Event()

        def pause(peer: Peer) -> None:
            def on_connected() -> None:
                peer.protocol.pause_reading("start")
                asyncio.get_running_loop().call_later(0.01, paused.set)

            peer.on_connected = on_connected

        world.prepare = pause
        client = Peer(Role.CLIENT)
        world.clients.append(client)
        await dial("127.0.0.1", world.listener.port, lambda: client.protocol, timeout_s=HANG_S)
        await paused.wait()
        client.send(Hello(1, 1, "early"))
        while not client.protocol.is_writing_paused:
            client.protocol.write([bytes(MIB)])
            await asyncio.sleep(0)
        (broker,) = world.brokers
        assert broker.frames == []

        broker.protocol.resume_reading("start")
        await broker.until(lambda: bool(broker.frames))
        assert isinstance(broker.frames[0].command, Hello)


async def test_bytes_received_move_the_keepalive_clock() -> None:
    async with Running(answer) as world:
        client, broker = await world.connect()
        broker.protocol._last_received_s = 0.0
        start = asyncio.get_running_loop().time() * 1e9
        client.send(Ping(), 1)
        await client.until(lambda: len(client.frames) == 2)

        now = asyncio.get_running_loop().time() * 1e9
        assert int(start) <= broker.protocol.last_received_ns <= now


async def test_stranger_is_told_why_even_if_it_sends_on() -> None:
    async with Running() as world:
        loop = asyncio.get_running_loop()
        with await world.raw() as sock:
            await loop.sock_sendall(sock, b"GET / HTTP/1.1\r\n" + bytes(MIB))
            data = await read_all(sock)
        reader = Connection(Role.CLIENT)
        reader.send(Hello(1, 1, "stranger"))
        reader.receive_data(data)

        frame = reader.next_event()

        assert frame is not None
        assert isinstance(frame.command, Error)
        assert "does not speak the Danubius protocol" in frame.command.message
        (broker,) = world.brokers
        await broker.closed.wait()
        assert broker.closings == broker.refusals
        assert isinstance(broker.closings[0], ProtocolViolation)


async def test_refusal_of_one_peer_leaves_the_others_alone() -> None:
    async with Running(answer) as world:
        client, _ = await world.connect()
        with await world.raw() as sock:
            await asyncio.get_running_loop().sock_sendall(sock, b"\xff" * 100)
            await read_all(sock)

        client.send(Ping(), 7)
        await client.until(lambda: len(client.frames) == 2)

        assert client.frames[1].correlation_id == 7


async def test_connection_can_be_refused_as_soon_as_it_is_made() -> None:
    async with Running() as world:

        def refuse(peer: Peer) -> None:
            def on_connected() -> None:
                peer.send(Error(402, "too many connections", 2))
                peer.protocol.close()

            peer.on_connected = on_connected

        world.prepare = refuse
        client = Peer(Role.CLIENT)
        world.clients.append(client)
        await dial("127.0.0.1", world.listener.port, lambda: client.protocol, timeout_s=HANG_S)
        client.send(Hello(1, 1, "test"))

        await client.until(lambda: len(client.frames) == 1)
        await client.closed.wait()

        assert client.frames[0].command == Error(402, "too many connections", 2)
        assert client.closings == [None]


async def test_close_sends_what_was_written_and_ends_both_sides_once() -> None:
    async with Running() as world:
        client, broker = await world.connect()
        client.send(Produce(1), 5, bytes(4 * MIB))
        client.protocol.close()
        client.protocol.close()
        client.protocol.write([b"into the void"])

        await client.closed.wait()
        await broker.closed.wait()

        assert len(broker.frames[-1].payload) == 4 * MIB
        assert client.closings == broker.closings == [None]
        assert client.connection.state is broker.connection.state is ConnectionState.CLOSED


async def test_no_frame_is_handed_over_after_close() -> None:
    def close(peer: Peer, _frame: Frame) -> None:
        peer.protocol.close()

    async with Running(close) as world:
        client, broker = await world.connect()
        for number in range(10):
            client.send(Ping(), number)
        await broker.closed.wait()

        assert len(broker.frames) == 2


async def test_close_does_not_wait_for_a_peer_that_never_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(net, "CLOSE_TIMEOUT_S", 0.1)
    async with Running() as world:
        with await world.raw() as sock:
            hello = Connection(Role.CLIENT).send(Hello(1, 1, "deaf"))
            await asyncio.get_running_loop().sock_sendall(sock, b"".join(hello))
            (broker,) = world.brokers
            await broker.until(lambda: bool(broker.frames))
            for _ in range(32):
                broker.protocol.write([bytes(MIB)])
            assert broker.protocol.write_buffer_size > 0
            broker.protocol.close()
            async with asyncio.timeout(HANG_S):
                await broker.closed.wait()
            assert broker.protocol.write_buffer_size == 0


async def test_end_in_the_middle_of_a_frame_is_a_loss_not_a_violation() -> None:
    async with Running() as world:
        client, broker = await world.connect()
        client.protocol.write([client.connection.send(Produce(1), 1, [bytes(100)])[0]])
        client.protocol.close()
        await broker.closed.wait()

        assert broker.refusals == []
        (reason,) = broker.closings
        assert isinstance(reason, BrokerUnavailable)
        assert "middle of a frame" in str(reason)


async def test_reset_is_reported_as_a_lost_connection() -> None:
    async with Running() as world:
        sock = await world.raw()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        (broker,) = world.brokers
        await broker.closed.wait()

        (reason,) = broker.closings
        assert isinstance(reason, BrokerUnavailable)
        assert "was lost: Connection reset by peer" in str(reason)


async def test_abort_ends_at_once_and_once() -> None:
    async with Running() as world:
        client, broker = await world.connect()
        client.protocol.abort()
        client.protocol.abort()
        await client.closed.wait()
        await broker.closed.wait()

        assert client.closings == [None]
        assert client.protocol.is_closing
        assert not client.protocol.is_connected


async def test_bug_in_a_callback_ends_that_connection_only() -> None:
    problems: list[dict[str, object]] = []

    def fail(_peer: Peer, frame: Frame) -> None:
        if frame.correlation_id == 13:
            raise ZeroDivisionError
        answer(_peer, frame)

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: problems.append(context))
    async with Running(fail) as world:
        client, broker = await world.connect()
        other, _ = await world.connect()
        client.send(Ping(), 13)
        await broker.closed.wait()
        other.send(Ping(), 1)
        await other.until(lambda: len(other.frames) == 2)

        assert isinstance(broker.closings[0], ZeroDivisionError)
        assert len(problems) == 1
