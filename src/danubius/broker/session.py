"""One client's life on the broker: what each of its commands does, and what is undone when it goes."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, ClassVar, Final, ParamSpec

from danubius.broker.consuming import ConsumerHandle, check_subscribe, find_subscription
from danubius.broker.description import describe_topic, summarise_topic
from danubius.broker.fetch_gate import FetchGate
from danubius.broker.fetching import FetchRequest
from danubius.broker.producing import ProducerHandle, open_producer
from danubius.broker.topics import create_topic, delete_topic, list_topics
from danubius.errors import (
    DanubiusError,
    HandleNotFound,
    InvalidArgument,
    LedgerDamaged,
)
from danubius.model.limits import FRAME_BYTES_MAX
from danubius.wire.commands import (
    Ack,
    AnyCommand,
    CloseConsumer,
    CloseProducer,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    Done,
    Error,
    Fetch,
    Fetched,
    Flow,
    Goodbye,
    Hello,
    ListTopics,
    Located,
    Lookup,
    Nack,
    OffsetResolved,
    OpenProducer,
    Ping,
    Pong,
    Produce,
    ResolveOffset,
    Subscribe,
    Subscribed,
    TopicsListed,
    Welcome,
)
from danubius.wire.version import choose_version

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from danubius.broker.node import Node
    from danubius.broker.peer import Buffer, Peer
    from danubius.broker.subscription import Subscription
    from danubius.broker.topic import Topic
    from danubius.publish.core.sequencer import Producer

P = ParamSpec("P")

HANDLES_MAX: Final = 100_000
"""Producers and consumers open on one connection: room for one producer on each of 100,000 topics."""

LIST_PAGE_MAX: Final = 1_500
"""Topics in one answer: stays far below the bound of a frame's command part."""


class Session:
    """The commands of one connection. A request fails alone: its error is its answer."""

    def __init__(self, node: Node, peer: Peer, advertised_url: str, name: str) -> None:
        self._broker = node.broker
        self._peer = peer
        self._advertised_url = advertised_url
        self._name = name
        self._producers: dict[int, ProducerHandle] = {}
        self._consumers: dict[int, ConsumerHandle] = {}
        self._opening: set[int] = set()
        """Handles promised to requests that wait for the disk or for another peer."""
        self._next_handle = 1
        self._is_closed = False
        self._fetch_gate = FetchGate()
        self._is_paused = False
        self._is_writable = True
        self.client = "unknown"

    # ------------------------------------------------------------ the edge's side

    def handle(self, command: AnyCommand, correlation_id: int, payload: memoryview) -> None:
        """Do what a command asks; DanubiusErrors become its answer."""
        try:
            if type(command) is Produce:
                self._produce(command, correlation_id, payload)
            else:
                self._HANDLERS[type(command)](self, command, correlation_id)
        except DanubiusError as error:
            if correlation_id or type(command) is Hello:
                self._fail(correlation_id, error)
            else:
                # Nobody waits for it: the answer says what it is about, and that the connection lives on.
                handle: int = getattr(command, "handle", 0)
                self._peer.send(_error_frame(error, command.opcode, handle))

    def set_writable(self, *, is_writable: bool) -> None:
        """The connection's send buffer is full, or has room again."""
        self._fetch_gate.set_open(is_open=is_writable)
        self._is_writable = is_writable
        for consumer in list(self._consumers.values()):
            consumer.set_writable(is_writable=is_writable)

    def close(self) -> None:
        """The connection is gone: others get what this one held."""
        self._is_closed = True
        self._fetch_gate.close()
        producers, self._producers = self._producers, {}
        consumers, self._consumers = self._consumers, {}
        for producer in producers.values():
            producer.detach()
        for consumer in consumers.values():
            _detach(consumer)

    def resume_publishing(self) -> None:
        self._is_paused = False
        self._peer.resume_reading("publish")

    # ------------------------------------------------------------ connection

    def _hello(self, command: Hello, correlation_id: int) -> None:
        version = choose_version(command)
        self.client = command.client[:200]
        config = self._broker.config
        self._peer.send(
            Welcome(
                version, self._name, FRAME_BYTES_MAX, config.message_bytes_max, config.keepalive_ms
            ),
            correlation_id,
        )

    def _ping(self, _command: Ping, correlation_id: int) -> None:
        self._peer.send(Pong(), correlation_id)

    def _goodbye(self, _command: Goodbye, _correlation_id: int) -> None:
        self.close()

    def _ignore(self, _command: AnyCommand, _correlation_id: int) -> None:
        """Pongs matter to the edge's keepalive only."""

    # ------------------------------------------------------------ topics

    def _lookup(self, command: Lookup, correlation_id: int) -> None:
        topic = self._broker.topic(command.topic)
        self._peer.send(Located(topic.name, self._advertised_url), correlation_id)

    def _create_topic(self, command: CreateTopic, correlation_id: int) -> None:
        def created(result: Topic | DanubiusError) -> None:
            self._finish(correlation_id, result if isinstance(result, DanubiusError) else None)

        create_topic(
            self._broker,
            command.topic,
            command.spec,
            exist_ok=command.exist_ok,
            on_done=self._later(correlation_id, created),
        )

    def _delete_topic(self, command: DeleteTopic, correlation_id: int) -> None:
        deleted = functools.partial(self._finish, correlation_id)
        delete_topic(self._broker, command.topic, self._later(correlation_id, deleted))

    def _list_topics(self, command: ListTopics, correlation_id: int) -> None:
        if not 1 <= command.limit <= LIST_PAGE_MAX:
            raise InvalidArgument(f"limit is {command.limit}; it must be 1 to {LIST_PAGE_MAX}")
        topics, more = list_topics(self._broker, command.namespace, command.after, command.limit)
        self._peer.send(TopicsListed([summarise_topic(t) for t in topics], more), correlation_id)

    def _describe_topic(self, command: DescribeTopic, correlation_id: int) -> None:
        self._peer.send(describe_topic(self._broker.topic(command.topic)), correlation_id)

    def _resolve_offset(self, command: ResolveOffset, correlation_id: int) -> None:
        topic = self._broker.topic(command.topic)

        def resolved(offset: int | DanubiusError) -> None:
            if isinstance(offset, DanubiusError):
                self._fail(correlation_id, offset)
            else:
                log = topic.log
                self._peer.send(
                    OffsetResolved(offset, log.start_offset, log.end_offset), correlation_id
                )

        topic.resolve(command.position, self._later(correlation_id, resolved))

    # ------------------------------------------------------------ producing

    def _open_producer(self, command: OpenProducer, correlation_id: int) -> None:
        handle = self._reserve_handle()

        def opened(topic: Topic, producer: Producer) -> None:
            if self._is_closed:
                return
            attached = ProducerHandle(
                self._broker, self._peer, topic, producer, handle, self._forget_producer
            )
            self._producers[handle] = attached
            self._peer.send(attached.attach(), correlation_id)

        def failed(error: DanubiusError) -> None:
            self._fail(correlation_id, error)

        with self._promising(handle):
            open_producer(
                self._broker,
                command,
                self._later(correlation_id, opened, handle),
                self._later(correlation_id, failed, handle),
            )

    def _produce(self, command: Produce, correlation_id: int, payload: memoryview) -> None:
        producer = self._producers.get(command.handle)
        if producer is None:
            raise HandleNotFound(
                f"no producer is open under handle {command.handle}; open it again"
            )
        producer.produce(payload, correlation_id)
        if not self._is_paused and self._broker.pressure.is_high:
            self._is_paused = True
            self._peer.pause_reading("publish")
            self._broker.pressure.pause(self)

    def _close_producer(self, command: CloseProducer, correlation_id: int) -> None:
        producer = self._producers.pop(command.handle, None)
        if producer is not None:
            producer.detach()
        self._finish(correlation_id, None)

    def _forget_producer(self, handle: int) -> None:
        self._producers.pop(handle, None)

    # ------------------------------------------------------------ consuming

    def _subscribe(self, command: Subscribe, correlation_id: int) -> None:
        check_subscribe(command)
        topic = self._broker.topic(command.topic)
        handle = self._reserve_handle()

        def find() -> None:
            find_subscription(
                self._broker, topic, command, self._later(correlation_id, found, handle)
            )

        def found(subscription: Subscription | DanubiusError) -> None:
            if self._is_closed:
                return
            if isinstance(subscription, DanubiusError):
                self._fail(correlation_id, subscription)
                return
            if not topic.hosts(subscription):
                # Its last consumer went while another peer was asked, and the topic has forgotten it.
                self._opening.add(handle)
                find()
                return
            consumer = ConsumerHandle(self._broker, self._peer, command, topic, subscription)
            self._consumers[handle] = consumer
            consumer.attach(handle, self._forget_consumer)
            if not self._is_writable:
                consumer.set_writable(is_writable=False)
            self._peer.send(Subscribed(handle, consumer.is_active), correlation_id)

        with self._promising(handle):
            find()

    def _flow(self, command: Flow, _correlation_id: int) -> None:
        if command.messages < 0 or command.bytes < 0:
            raise InvalidArgument(
                "credit is granted, never taken back: messages and bytes are 0 or more"
            )
        consumer = self._consumers.get(command.handle)
        if consumer is not None:
            consumer.grant(command.messages, command.bytes)

    def _ack(self, command: Ack, correlation_id: int) -> None:
        self._consumer_for(
            command.handle, correlation_id, lambda c: c.ack(command.ranges), command.ranges
        )

    def _nack(self, command: Nack, correlation_id: int) -> None:
        if command.delay_ms < 0:
            raise InvalidArgument(f"nack delay is {command.delay_ms} ms; it must be 0 or more")
        self._consumer_for(
            command.handle,
            correlation_id,
            lambda c: c.nack(command.ranges, command.delay_ms),
            command.ranges,
        )

    def _consumer_for(
        self,
        handle: int,
        correlation_id: int,
        action: Callable[[ConsumerHandle], None],
        ranges: list[tuple[int, int]],
    ) -> None:
        """Apply an acknowledgement; one that crossed the consumer's end on its way fails only if awaited."""
        for first, end in ranges:
            if not 0 <= first < end:
                raise InvalidArgument(f"the offset range [{first}, {end}) is empty or negative")
        consumer = self._consumers.get(handle)
        if consumer is not None:
            action(consumer)
        elif correlation_id:
            raise HandleNotFound(f"no consumer is open under handle {handle}")
        if consumer is not None and correlation_id:
            finish = functools.partial(self._finish, correlation_id)
            self._broker.acks.confirm(
                consumer.topic, consumer.subscription, self._later(correlation_id, finish)
            )

    def _close_consumer(self, command: CloseConsumer, correlation_id: int) -> None:
        consumer = self._consumers.pop(command.handle, None)
        if consumer is not None:
            _detach(consumer)
        self._finish(correlation_id, None)

    def _forget_consumer(self, handle: int) -> None:
        consumer = self._consumers.pop(handle, None)
        if consumer is not None:
            consumer.topic.release(consumer.subscription)

    def _fetch(self, command: Fetch, correlation_id: int) -> None:
        def fetched(result: Fetched | DanubiusError, payload: Sequence[Buffer] = ()) -> None:
            if isinstance(result, DanubiusError):
                self._fail(correlation_id, result)
            else:
                self._peer.send(result, correlation_id, payload)

        topic = self._broker.topic(command.topic)
        answer = self._later(correlation_id, fetched)
        FetchRequest(self._broker, topic, command, self._fetch_gate, answer).start()

    # ------------------------------------------------------------ answers

    def _reserve_handle(self) -> int:
        """Count a producer or consumer from its request on, so that no callback can find the room gone."""
        if len(self._producers) + len(self._consumers) + len(self._opening) >= HANDLES_MAX:
            raise InvalidArgument(
                f"a connection has room for {HANDLES_MAX} producers and consumers"
            )
        handle = self._next_handle
        self._next_handle += 1
        self._opening.add(handle)
        return handle

    @contextlib.contextmanager
    def _promising(self, handle: int) -> Generator[None]:
        """Take the promise of a handle back if the request fails at once."""
        try:
            yield
        except DanubiusError:
            self._opening.discard(handle)
            raise

    def _later(
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
                self._fail(correlation_id, error)

        return run

    def _finish(self, correlation_id: int, error: DanubiusError | None) -> None:
        if error is not None:
            self._fail(correlation_id, error)
        else:
            self._peer.send(Done(), correlation_id)

    def _fail(self, correlation_id: int, error: DanubiusError) -> None:
        self._peer.send(_error_frame(error), correlation_id)

    _HANDLERS: ClassVar[dict[type, Callable[[Session, Any, int], None]]] = {
        Hello: _hello,
        Ping: _ping,
        Pong: _ignore,
        Goodbye: _goodbye,
        Lookup: _lookup,
        CreateTopic: _create_topic,
        DeleteTopic: _delete_topic,
        ListTopics: _list_topics,
        DescribeTopic: _describe_topic,
        ResolveOffset: _resolve_offset,
        OpenProducer: _open_producer,
        CloseProducer: _close_producer,
        Subscribe: _subscribe,
        Flow: _flow,
        Ack: _ack,
        Nack: _nack,
        CloseConsumer: _close_consumer,
        Fetch: _fetch,
    }


def _detach(consumer: ConsumerHandle) -> None:
    consumer.detach()
    consumer.topic.release(consumer.subscription)


def _error_frame(error: DanubiusError, about: int = 0, handle: int = 0) -> Error:
    first, end = (error.first, error.end) if isinstance(error, LedgerDamaged) else (0, 0)
    return Error(error.code, error.message, error.retry, about, handle, first, end)
