"""A broker that says what a test tells it to, over a real socket."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from danubius.errors import TopicMoved
from danubius.record.batch import stamp
from danubius.record.encode import encode
from danubius.runtime.net import StreamProtocol, listen
from danubius.wire.commands import (
    AnyCommand,
    Command,
    Deliver,
    Done,
    Error,
    Goodbye,
    Hello,
    Located,
    Lookup,
    OpenProducer,
    Ping,
    Pong,
    ProducerOpened,
    Subscribe,
    Subscribed,
    Welcome,
)
from danubius.wire.connection import Connection
from danubius.wire.states import ConnectionState, Role

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from danubius.wire.frame import Frame


CommandT = TypeVar("CommandT", bound=Command)


def stored_batch(first: int, payloads: list[bytes]) -> bytes:
    """A record batch as the broker stores it."""
    batch = encode(payloads, publish_time_us=1)
    stamp(batch, first, 1)
    return bytes(batch)


class Peer:
    """One client's connection, seen by the scripted broker."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self._wire = Connection(Role.BROKER)
        self.protocol = StreamProtocol(
            self._wire,
            self._on_frame,
            on_closed=lambda _error: broker.forget(self),
            on_protocol_error=broker.problems.append,
            on_connected=lambda: broker.peers.append(self),
        )

    def send(self, command: AnyCommand, correlation: int = 0, payload: bytes = b"") -> None:
        if self._wire.state is not ConnectionState.CLOSED:
            self.protocol.write(
                self._wire.send(command, correlation, (payload,) if payload else ())
            )

    def drop(self) -> None:
        self.protocol.abort()

    def _on_frame(self, frame: Frame) -> None:
        self._broker.on_frame(self, frame)


class ScriptedBroker:
    """Answers the usual things by itself; a test's own handlers, one per command type, come first."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.problems: list[Exception] = []
        self.received: list[Frame] = []
        self.on: dict[type[AnyCommand], Callable[[Peer, Frame], None]] = {}
        self.keepalive_ms = 10_000
        self.epoch = 0
        self.next_sequence = 0
        self.handle = 0
        self.version = 1
        self.partitions: dict[str, int] = {}
        self.topics: dict[int, str] = {}
        """The topic of each handle."""
        self.url = ""
        self.name = ""
        """What it calls itself in Welcome; empty: it does not say."""
        self.places: dict[str, str] = {}
        """The broker that it names for a topic, if not itself."""
        self.is_strict = False
        """Whether it refuses the topics that it names others for."""
        self._is_deserted = asyncio.Event()
        self._arrived: list[tuple[type[AnyCommand], int, asyncio.Future[None]]] = []

    def commands(self, kind: type[CommandT]) -> list[CommandT]:
        return [frame.command for frame in self.received if isinstance(frame.command, kind)]

    def deliver(self, first: int, payloads: list[bytes], topic: str = "") -> None:
        """Send messages to the newest consumer (of a topic), at offsets from `first` on."""
        end = first + len(payloads)
        command = Deliver(self.handle_of(topic), first, end, len(payloads))
        self.peers[-1].send(command, 0, stored_batch(first, payloads))

    def handle_of(self, topic: str) -> int:
        """The newest handle, or the newest of one topic."""
        return max(handle for handle in self.topics if topic in ("", self.topics[handle]))

    async def arrived(self, kind: type[AnyCommand], count: int = 1) -> None:
        """Wait until as many commands of this type came, counted from the start."""
        if len(self.commands(kind)) < count:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._arrived.append((kind, count, future))
            await future

    def forget(self, peer: Peer) -> None:
        self.peers.remove(peer)
        if not self.peers:
            self._is_deserted.set()

    async def deserted(self) -> None:
        if self.peers:
            self._is_deserted.clear()
            await self._is_deserted.wait()

    def on_frame(self, peer: Peer, frame: Frame) -> None:
        self.received.append(frame)
        handler = self.on.get(type(frame.command))
        if handler is not None:
            handler(peer, frame)
        else:
            self.answer(peer, frame)
        for kind, count, future in self._arrived:
            if not future.done() and len(self.commands(kind)) >= count:
                future.set_result(None)

    def answer(self, peer: Peer, frame: Frame) -> None:
        command, correlation, _ = frame
        if self.is_strict and self._is_elsewhere(command):
            peer.send(Error(TopicMoved.code, "it is not here", int(TopicMoved.retry)), correlation)
            return
        match command:
            case Hello():
                peer.send(
                    Welcome(
                        self.version, "scripted", 1 << 24, 1 << 20, self.keepalive_ms, self.name
                    )
                )
            case Ping():
                peer.send(Pong(), correlation)
            case Lookup(topic=topic):
                url = self.places.get(topic, self.name or self.url)
                located = Located(topic, url, self.partitions.get(topic, 0))
                peer.send(located, correlation)
            case OpenProducer(topic=topic, resume_epoch=resume_epoch):
                self.handle += 1
                self.topics[self.handle] = topic
                if not resume_epoch:
                    self.epoch += 1
                    self.next_sequence = 0
                peer.send(
                    ProducerOpened(self.handle, 7, self.epoch, self.next_sequence), correlation
                )
            case Subscribe(topic=topic):
                self.handle += 1
                self.topics[self.handle] = topic
                peer.send(Subscribed(self.handle, True), correlation)
            case Goodbye():
                peer.protocol.close()
            case _:
                if correlation:
                    peer.send(Done(), correlation)

    def _is_elsewhere(self, command: AnyCommand) -> bool:
        topic = getattr(command, "topic", None)
        return not isinstance(command, Lookup) and topic in self.places


@asynccontextmanager
async def serve() -> AsyncGenerator[ScriptedBroker]:
    broker = ScriptedBroker()
    listener = await listen("127.0.0.1", 0, lambda: Peer(broker).protocol)
    broker.url = f"danube://127.0.0.1:{listener.port}"
    try:
        yield broker
    finally:
        listener.close()
        for peer in list(broker.peers):
            peer.drop()
        await broker.deserted()
    assert broker.problems == []
