"""The services of the data port: producing, consuming, finding topics, staying alive.

Here requests are read and answered; what they mean is in `producing` and `consuming`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.edge.grpc.bounds import CLIENT_MESSAGE_BYTES_MAX, ENVELOPE_BYTES_MAX, TIME_MS_MAX
from danubius.edge.grpc.data.consumer_book import Known
from danubius.edge.grpc.data.partitioning import Partitioning
from danubius.edge.grpc.data.producing import Draft, Producers
from danubius.edge.grpc.data.schemas import refuse_subject
from danubius.edge.grpc.messages import danube
from danubius.edge.grpc.names import inner_name, number_of
from danubius.edge.grpc.servicer import Servicer
from danubius.edge.grpc.status import Code, Refused
from danubius.errors import InvalidArgument, MessageTooLarge, TopicExists, TopicNotFound
from danubius.model.ids import TopicName, namespace_of, parse_topic_name
from danubius.model.limits import DELAY_MAX_MS
from danubius.model.partitions import partition_names
from danubius.model.subscription import SubscriptionType
from danubius.model.topic import Dispatch
from danubius.wire.commands import Access

if TYPE_CHECKING:
    from danubius.edge.grpc.addresses import Addresses
    from danubius.edge.grpc.data.consuming import Consumers
    from danubius.edge.grpc.servicer import Context, QuickCall
    from danubius.errors import DanubiusError
    from danubius.session.door import Door

_DISPATCHES: Final = {0: Dispatch.NON_RELIABLE, 1: Dispatch.RELIABLE}
_ACCESSES: Final = {0: Access.SHARED, 1: Access.EXCLUSIVE}
_TYPES: Final = {
    0: SubscriptionType.EXCLUSIVE,
    1: SubscriptionType.SHARED,
    2: SubscriptionType.FAILOVER,
    3: SubscriptionType.KEY_SHARED,
}


def _known_value(values: dict[int, Any], number: int, what: str) -> Any:
    if number not in values:
        raise InvalidArgument(
            f"{what} is {number}; it must be one of {', '.join(map(str, values))}"
        )
    return values[number]


class ProducerEdge:
    """danube.ProducerService."""

    def __init__(self, door: Door, producers: Producers) -> None:
        self._door = door
        self._producers = producers
        self._partitioning = Partitioning(door, producers.line)

    def servicer(self) -> Servicer:
        return Servicer(
            danube.service("ProducerService"),
            {"CreateProducer": self._create},
            quick={"SendMessage": self._send},
        )

    async def _create(self, request: Any, context: Context) -> Any:
        del context
        topic = parse_topic_name(request.topic_name)
        name = inner_name("producer", request.producer_name)
        dispatch = _known_value(_DISPATCHES, request.dispatch_strategy, "dispatch_strategy")
        access = _known_value(_ACCESSES, request.producer_access_mode, "producer_access_mode")
        if request.HasField("schema_ref"):
            refuse_subject(request.schema_ref.subject)
        if self._door.lookup(topic) is None:
            self._door.check_namespace(namespace_of(topic))  # only operators make one
        await self._partitioning.provide(topic, dispatch)
        self._check_dispatch(topic, dispatch)
        producer = await self._producers.open(topic, name, dispatch, access)
        return danube.ProducerResponse(
            request_id=request.request_id,
            producer_id=producer.number,
            producer_name=request.producer_name,
        )

    def _check_dispatch(self, topic: TopicName, dispatch: Dispatch) -> None:
        existing = self._door.lookup(topic)
        if existing is None or existing.partitions:
            return
        if existing.spec.dispatch is not dispatch:
            raise Refused(
                Code.FAILED_PRECONDITION,
                f"topic {topic} is {existing.spec.dispatch.value}, the producer asked for {dispatch.value}",
            )

    def _send(self, request: Any, call: QuickCall) -> None:
        if not request.HasField("msg_id"):
            raise InvalidArgument("the message has no msg_id, which names its topic")
        topic = parse_topic_name(request.msg_id.topic_name)
        name = inner_name("producer", request.producer_name)
        number = request.request_id

        def stored(error: DanubiusError | None) -> None:
            if error is None:
                call.answer(danube.MessageResponse(request_id=number))
            else:
                call.fail(error)

        self._producers.start_send(topic, name, self._draft(request), stored)

    def _draft(self, request: Any) -> Draft:
        size = request.ByteSize()
        most = CLIENT_MESSAGE_BYTES_MAX - ENVELOPE_BYTES_MAX
        if size > most:
            raise MessageTooLarge(
                f"the message has {size:,} bytes with its attributes; Danube's clients can receive {most:,}"
            )
        time_ms = request.publish_time
        if time_ms > TIME_MS_MAX:
            raise InvalidArgument(
                f"publish_time is {time_ms}; it must be milliseconds since 1970, up to the year 9999"
            )
        return Draft(
            request.payload,
            request.routing_key.encode() if request.HasField("routing_key") else None,
            dict(request.attributes) if request.attributes else None,
            time_ms * 1000 if time_ms else self._door.wall_us(),
            (request.schema_id, request.schema_version),
            size,
        )


class ConsumerEdge:
    """danube.ConsumerService."""

    def __init__(self, consumers: Consumers) -> None:
        self._consumers = consumers

    def servicer(self) -> Servicer:
        return Servicer(
            danube.service("ConsumerService"),
            {"Subscribe": self._subscribe},
            {"ReceiveMessages": self._receive},
            {"Ack": self._ack, "Nack": self._nack},
            asking_peer=frozenset({"Subscribe", "ReceiveMessages"}),
        )

    async def _subscribe(self, request: Any, context: Context) -> Any:
        topic = parse_topic_name(request.topic_name)
        subscription = inner_name("subscription", request.subscription)
        consumer = inner_name("consumer", request.consumer_name)
        kind = _known_value(_TYPES, request.subscription_type, "subscription_type")
        # The other types do not look at keys, and Danube's broker not at their filters.
        filters = tuple(request.key_filters) if kind is SubscriptionType.KEY_SHARED else ()
        number = number_of(topic, subscription, consumer)
        known = Known(number, topic, subscription, consumer, kind, filters)
        try:
            await self._consumers.subscribe(known, context.peer())
        except TopicExists as error:  # it is partitioned
            raise InvalidArgument(error.message) from error
        return danube.ConsumerResponse(
            request_id=request.request_id,
            consumer_id=number,
            consumer_name=request.consumer_name,
        )

    async def _receive(self, request: Any, context: Context) -> None:
        await self._consumers.receive(request.consumer_id, context.peer(), context.write)

    def _ack(self, request: Any, call: QuickCall) -> Any:
        del call
        topic, subscription, offset = _place(request)
        self._consumers.ack(topic, subscription, offset)
        return danube.AckResponse(request_id=request.request_id)

    def _nack(self, request: Any, call: QuickCall) -> Any:
        del call
        topic, subscription, offset = _place(request)
        delay_ms = min(request.delay_ms, DELAY_MAX_MS)
        self._consumers.nack(topic, subscription, offset, delay_ms, request.reason)
        return danube.NackResponse(request_id=request.request_id)


def _place(request: Any) -> tuple[TopicName, str, int]:
    """The topic, subscription and offset that an acknowledgement is about."""
    if not request.HasField("msg_id"):
        raise InvalidArgument("there is no msg_id, which names the message")
    topic = parse_topic_name(request.msg_id.topic_name)
    subscription = inner_name("subscription", request.subscription_name)
    return topic, subscription, request.msg_id.topic_offset


class DiscoveryEdge:
    """danube.Discovery, danube.HealthCheck and danube.StorageService."""

    def __init__(
        self, door: Door, addresses: Addresses, producers: Producers, consumers: Consumers
    ) -> None:
        self._door = door
        self._addresses = addresses
        self._producers = producers
        self._consumers = consumers

    def servicers(self) -> list[Servicer]:
        discovery = {"TopicLookup": self._look_up, "TopicPartitions": self._partitions}
        storage = {"ListSegmentDescriptors": self._segments}
        asking = frozenset({"TopicLookup"})
        return [
            Servicer(danube.service("Discovery"), quick=discovery, asking_peer=asking),
            Servicer(danube.service("HealthCheck"), quick={"HealthCheck": self._check}),
            Servicer(danube.service("StorageService"), quick=storage),
        ]

    def _look_up(self, request: Any, call: QuickCall) -> Any:
        self._check_topic(request.topic)
        found = self._addresses.for_peer(call.peer())
        return danube.TopicLookupResponse(
            request_id=request.request_id,
            response_type="Connect",
            connect_url=found.connect_url,
            broker_url=found.broker_url,
            proxy=found.is_proxied,
        )

    def _partitions(self, request: Any, call: QuickCall) -> Any:
        del call
        # Of a topic that is not there, none: Java's producer asks before it creates its topic.
        names = self._names(parse_topic_name(request.topic))
        return danube.TopicPartitionsResponse(request_id=request.request_id, partitions=names)

    def _names(self, name: TopicName) -> list[TopicName]:
        """The topic itself, or its partitions; nothing if there is none of this name."""
        found = self._door.lookup(name)
        if found is None:
            return []
        return partition_names(name, found.partitions) if found.partitions else [name]

    def _check_topic(self, text: str) -> None:
        name = parse_topic_name(text)
        if not self._names(name):
            raise TopicNotFound(f"topic {name} does not exist; a producer creates it")

    def _check(self, request: Any, call: QuickCall) -> Any:
        del call
        if request.client == 0:
            # Whatever became of it, its next message brings it back.
            self._producers.touch(request.id)
            return danube.HealthCheckResponse(status="OK")
        if request.client != 1:
            raise InvalidArgument(f"client is {request.client}; it must be 0 (producer) or 1")
        is_well = self._consumers.is_well(request.id)
        return danube.HealthCheckResponse(status="OK" if is_well else "CLOSE")

    def _segments(self, request: Any, call: QuickCall) -> Any:
        """None of a topic's messages are in an object store: they are on this broker's disk."""
        del call
        self._check_topic(request.topic)
        return danube.ListSegmentDescriptorsResponse()
