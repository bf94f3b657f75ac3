"""One broker behind several faces: a cluster whose topics can be moved at once, and which forgets nothing.

Each face is an address of its own that serves some topics, names the face that serves another, and refuses what is
not its. The broker behind them has everything that was stored, as the brokers of a cluster have. What was under way
over a face when its topic moved may have been stored, and its answer is lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from danubius.errors import TopicMoved
from danubius.runtime.net import StreamProtocol, dial, listen
from danubius.wire.commands import (
    AnyCommand,
    CloseConsumer,
    CloseProducer,
    ConsumerClosed,
    Deliver,
    Error,
    Goodbye,
    Hello,
    Located,
    Lookup,
    ProducerClosed,
    ProducerOpened,
    Subscribed,
    Welcome,
)
from danubius.wire.connection import Connection
from danubius.wire.frame import Frame
from danubius.wire.states import ConnectionState, Role
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType

    from danubius.runtime.net import Listener


class Relay:
    """One client's connection to a face, and its twin to the broker."""

    def __init__(self, face: Face) -> None:
        self._face = face
        self._inside = Connection(Role.CLIENT)
        self._outside = Connection(Role.BROKER)
        self._early: list[Frame] = []
        self._upstream: StreamProtocol[Frame] | None = None
        self._asked: dict[int, AnyCommand] = {}
        self._producers: dict[int, str] = {}
        self._consumers: dict[int, str] = {}
        self._given_up: set[int] = set()
        """Correlations whose answers are lost, for their topic moved."""
        self.client = StreamProtocol(
            self._outside,
            self._on_client_frame,
            on_closed=lambda _error: self.cut(),
            on_protocol_error=face.cluster.problems.append,
            on_connected=lambda: face.relays.append(self),
        )

    def cut(self) -> None:
        self.client.abort()
        if self._upstream is not None:
            self._upstream.abort()
        if self in self._face.relays:
            self._face.relays.remove(self)

    def move(self, topic: str) -> None:
        """The face serves the topic no longer."""
        for correlation, command in self._asked.items():
            handle = getattr(command, "handle", 0)
            if topic in (self._producers.get(handle), self._consumers.get(handle)):
                self._given_up.add(correlation)
        for handles, closed, close in (
            (self._producers, ProducerClosed, CloseProducer),
            (self._consumers, ConsumerClosed, CloseConsumer),
        ):
            for handle in [handle for handle, name in handles.items() if name == topic]:
                del handles[handle]
                self._to_client(closed(handle, TopicMoved.code, f"{topic} moved"))
                self._to_broker(close(handle))

    # ------------------------------------------------------------ from the client

    def _on_client_frame(self, frame: Frame) -> None:
        command, correlation, payload = frame
        if isinstance(command, Hello):
            self._face.cluster.spawn(self._connect(frame))
        elif self._upstream is None:
            self._early.append(Frame(command, correlation, memoryview(bytes(payload))))
        elif self._is_elsewhere(command):
            if correlation:
                self._to_client(Error.of(TopicMoved("it is served elsewhere")), correlation)
        else:
            if correlation:
                self._asked[correlation] = command
            self._to_broker(command, correlation, bytes(payload))
            if isinstance(command, Goodbye):
                self._upstream.close()

    def _is_elsewhere(self, command: AnyCommand) -> bool:
        topic = getattr(command, "topic", None)
        if isinstance(topic, str):
            return not isinstance(command, Lookup) and not self._face.serves(topic)
        handle = getattr(command, "handle", None)
        return handle is not None and handle not in self._producers | self._consumers

    async def _connect(self, hello: Frame) -> None:
        self._upstream = await dial(
            "127.0.0.1", self._face.cluster.broker_port, self._make_upstream, timeout_s=HANG_S
        )
        self._to_broker(hello.command, hello.correlation_id)
        for frame in self._early:
            self._on_client_frame(frame)

    def _make_upstream(self) -> StreamProtocol[Frame]:
        return StreamProtocol(
            self._inside,
            self._on_broker_frame,
            on_closed=lambda _error: self.cut(),
            on_protocol_error=self._face.cluster.problems.append,
        )

    # ------------------------------------------------------------ from the broker

    def _on_broker_frame(self, frame: Frame) -> None:
        command, correlation, payload = frame
        asked = self._asked.pop(correlation, None)
        if correlation in self._given_up:
            self._given_up.discard(correlation)
            return
        match command:
            case Welcome():
                command = msgspec.structs.replace(command, url=self._face.url)
            case Located(topic=topic):
                url = self._face.cluster.home_of(topic).url
                command = msgspec.structs.replace(command, url=url)
            case ProducerOpened(handle=handle):
                self._producers[handle] = getattr(asked, "topic", "")
            case Subscribed(handle=handle):
                self._consumers[handle] = getattr(asked, "topic", "")
            case Deliver(handle=handle) if handle not in self._consumers:
                return
            case _:
                pass
        self._to_client(command, correlation, bytes(payload))

    def _to_client(self, command: AnyCommand, correlation: int = 0, payload: bytes = b"") -> None:
        if self._outside.state is not ConnectionState.CLOSED and not self.client.is_closing:
            parts = (payload,) if payload else ()
            self.client.write(self._outside.send(command, correlation, parts))

    def _to_broker(self, command: AnyCommand, correlation: int = 0, payload: bytes = b"") -> None:
        if self._upstream is not None and not self._upstream.is_closing:
            parts = (payload,) if payload else ()
            self._upstream.write(self._inside.send(command, correlation, parts))


class Face:
    """An address of the cluster."""

    def __init__(self, cluster: Faces) -> None:
        self.cluster = cluster
        self.relays: list[Relay] = []
        self.url = ""
        self._listener: Listener | None = None

    async def open(self) -> None:
        self._listener = await listen("127.0.0.1", 0, lambda: Relay(self).client)
        self.url = f"danube://127.0.0.1:{self._listener.port}"

    def serves(self, topic: str) -> bool:
        return self.cluster.home_of(topic) is self

    def kill(self) -> None:
        """Nobody is connected, and nobody can connect."""
        if self._listener is not None:
            self._listener.close()
        for relay in list(self.relays):
            relay.cut()


class Faces:
    """Several faces of one broker."""

    def __init__(self, broker_port: int, count: int = 3) -> None:
        self.broker_port = broker_port
        self.faces = [Face(self) for _ in range(count)]
        self.problems: list[Exception] = []
        self._homes: dict[str, Face] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def home_of(self, topic: str) -> Face:
        return self._homes.get(topic, self.faces[0])

    def move(self, topic: str, face: Face) -> None:
        """From now on this face serves the topic, and all know it."""
        before = self.home_of(topic)
        self._homes[topic] = face
        if before is not face:
            for relay in list(before.relays):
                relay.move(topic)

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def __aenter__(self) -> Faces:
        for face in self.faces:
            await face.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for face in self.faces:
            face.kill()
        if self._tasks:
            await asyncio.wait(self._tasks)
        assert self.problems == []
