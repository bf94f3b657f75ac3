"""The state that one connection holds on the broker, and how its requests are answered.

The functions that do what commands ask are in the modules beside this one; they get this, and `Session` finds them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias

from msgspec import UNSET

from danubius.errors import DanubiusError, LimitReached
from danubius.session.fetch_gate import FetchGate
from danubius.session.found import ProducerLife
from danubius.shard.hosting.failures import policy_of
from danubius.wire.commands import Done, Error
from danubius.wire.version import PROTOCOL_VERSION_MIN

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from danubius.broker.node import Node
    from danubius.shard.hosting.consumer import ConsumerHandle
    from danubius.shard.hosting.peer import Peer
    from danubius.shard.hosting.producer import ProducerHandle

P = ParamSpec("P")

Handler: TypeAlias = "Callable[[SessionState, Any, int], None]"
"""Does what a command asks, given the number of its answer. It raises a DanubiusError, or answers once."""
PayloadHandler: TypeAlias = "Callable[[SessionState, Any, int, memoryview], None]"
"""The same for a command that batches follow."""


class SessionState:
    """One client's producers, consumers and open requests."""

    def __init__(self, node: Node, peer: Peer, advertised_url: str, name: str) -> None:
        self.node = node
        self.shard = node.shard
        self.peer = peer
        self.advertised_url = advertised_url
        self.name = name
        """The broker's."""
        self.client = "unknown"
        self.version = PROTOCOL_VERSION_MIN
        """Of the protocol, once it is agreed on."""
        self.producers: dict[int, ProducerHandle] = {}
        self.consumers: dict[int, ConsumerHandle] = {}
        self.on_closed: set[Callable[[], None]] = set()
        """What else is to be undone when the connection goes; whoever is done earlier takes itself out."""
        self.fetch_gate = FetchGate()
        self.is_closed = False
        self.is_writable = True
        self._is_paused = False
        self._next_handle = 1
        self._opening: set[int] = set()
        """Handles promised to requests that wait for the disk or for another peer."""

    @property
    def address(self) -> str:
        """The peer's."""
        return self.peer.address

    # ------------------------------------------------------------ the connection

    def set_writable(self, *, is_writable: bool) -> None:
        """The connection's send buffer is full, or has room again."""
        self.fetch_gate.set_open(is_open=is_writable)
        self.is_writable = is_writable
        for consumer in list(self.consumers.values()):
            consumer.set_writable(is_writable=is_writable)

    def close(self) -> None:
        """The connection is gone: others get what this one held."""
        self.is_closed = True
        self.fetch_gate.close()
        self.shard.pressure.forget(self)
        producers, self.producers = self.producers, {}
        consumers, self.consumers = self.consumers, {}
        on_closed, self.on_closed = self.on_closed, set()
        for undo in on_closed:
            undo()
        for producer in producers.values():
            producer.detach()
        for consumer in consumers.values():
            consumer.detach()

    def pause_publishing(self) -> None:
        """Read nothing more from this connection until the broker has room."""
        if not self._is_paused:
            self._is_paused = True
            self.peer.pause_reading("publish")
            self.shard.pressure.pause(self)

    def resume_publishing(self) -> None:
        self._is_paused = False
        self.peer.resume_reading("publish")

    # ------------------------------------------------------------ handles

    def reserve_handle(self) -> int:
        """Count a producer or consumer from its request on, so that no callback can find the room gone."""
        limit = self.shard.config.connection_handles_max
        if len(self.producers) + len(self.consumers) + len(self._opening) >= limit:
            raise LimitReached(
                f"a connection has room for {limit:,} producers and consumers, by the setting "
                "broker.connection_handles_max: close some, use another connection, or raise it"
            )
        handle = self._next_handle
        self._next_handle += 1
        self._opening.add(handle)
        return handle

    def promise_again(self, handle: int) -> None:
        """The answer that ended the promise leads to another wait."""
        self._opening.add(handle)

    @contextlib.contextmanager
    def promising(self, handle: int) -> Generator[None]:
        """Take the promise of a handle back if the request fails at once."""
        try:
            yield
        except DanubiusError:
            self._opening.discard(handle)
            raise

    def forget_producer(self, handle: int) -> None:
        self.producers.pop(handle, None)

    def forget_consumer(self, handle: int) -> None:
        consumer = self.consumers.pop(handle, None)
        if consumer is not None:
            consumer.topic.release(consumer.subscription)

    # ------------------------------------------------------------ questions of its edge

    def producer_life(self, handle: int) -> ProducerLife | None:
        """What the next batch of a producer has to say; None if it is not open any more."""
        producer = self.producers.get(handle)
        if producer is None:
            return None
        life = producer.producer
        return ProducerLife(life.id, life.epoch, max(0, life.admitted_next))

    @property
    def is_consuming(self) -> bool:
        """Whether one of its consumers gets messages: it is no standby."""
        return any(consumer.is_active for consumer in self.consumers.values())

    def unacked_messages_max(self, handle: int) -> int | None:
        """How many messages its subscription was told a consumer may have; None: nothing, or it is gone."""
        consumer = self.consumers.get(handle)
        if consumer is None:
            return None
        told = policy_of(consumer.topic, consumer.subscription).unacked_messages_max
        return None if told is UNSET else told

    def still_unacked(self, handle: int, offsets: Iterable[int]) -> set[int]:
        """Those that nobody has acknowledged on the subscription of a consumer."""
        consumer = self.consumers.get(handle)
        if consumer is None:
            return set(offsets)
        cursor = consumer.subscription.cursor
        return {one for one in offsets if cursor.unacked(one, one + 1)}

    # ------------------------------------------------------------ answers

    def later(
        self, correlation_id: int, action: Callable[P, None], handle: int = 0
    ) -> Callable[P, None]:
        """`action` for the loop to call, outside `handle`: its error is the request's answer there too.

        What escaped here would end the process. The first call ends the promise of `handle`.
        """

        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            self._opening.discard(handle)
            try:
                action(*args, **kwargs)
            except DanubiusError as error:
                self.fail(correlation_id, error)

        return run

    def finish(self, correlation_id: int, error: DanubiusError | None) -> None:
        if error is not None:
            self.fail(correlation_id, error)
        else:
            self.peer.send(Done(), correlation_id)

    def fail(self, correlation_id: int, error: DanubiusError) -> None:
        self.peer.send(Error.of(error), correlation_id)
