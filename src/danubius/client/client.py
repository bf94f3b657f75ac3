"""The client: connections to brokers; producers, consumers and readers on them; and the topics themselves."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from danubius.client.administration import Administration
from danubius.client.connection.partitions import (
    PARTITIONS_MAX,
    PARTITIONS_VERSION,
    Openable,
)
from danubius.client.consuming.consumer_lane import ConsumerLane
from danubius.client.consuming.partitioned_consumer import PartitionedConsumer
from danubius.client.consuming.partitioned_reader import PartitionedReader
from danubius.client.consuming.reader_lane import ReaderLane
from danubius.client.opening import Opening
from danubius.client.options import (
    BATCH_BYTES,
    BATCH_RECORDS,
    BUFFER_BYTES,
    CHUNK_PATIENCE_S,
    FETCH_BYTES,
    PREFETCH_BYTES,
    PREFETCH_MESSAGES,
    AccessName,
    CompressionName,
    ConsumerOptions,
    DispatchName,
    DurabilityName,
    ProducerOptions,
    ReaderOptions,
    Start,
    SubscriptionTypeName,
    check_count,
    name_of,
    parse_codec,
    parse_spec,
    parse_start,
    parse_word,
    producer_name,
    random_name,
    to_milliseconds,
    topic_of,
)
from danubius.client.producing.staging import abort_stages, commit_stages, open_stage
from danubius.client.transactions.transaction import begin
from danubius.errors import DanubiusError, InvalidArgument, TopicExists, UnsupportedVersion
from danubius.model.subscription import SubscriptionType
from danubius.model.topic import Retention
from danubius.wire.commands import (
    Access,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    Done,
    ListTopics,
    OffsetResolved,
    ResolveOffset,
    TopicDescribed,
    TopicsListed,
    TopicSummary,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from danubius.client.connection.connections import Connections
    from danubius.client.connection.route import Route
    from danubius.client.consuming.consumer import Consumer
    from danubius.client.consuming.reader import Reader
    from danubius.client.producing.partitioned_producer import PartitionedProducer
    from danubius.client.producing.producer import Producer
    from danubius.client.producing.producer_lane import ProducerLane
    from danubius.client.producing.staging import Stage, StageReceipt
    from danubius.client.transactions.transaction import Transaction
    from danubius.model.ids import TopicName
    from danubius.model.policy import FailurePolicy

FAILURE_VERSION: Final = 2
"""Of the protocol: the first that knows failure policies and key filters."""
RETENTION_AGE: Final = timedelta(days=7)


OpenableT = TypeVar("OpenableT", bound=Openable)


class ProducerKinds(NamedTuple):
    """What the producers of a client are made of."""

    lane: Callable[[Route, ProducerOptions], ProducerLane]
    partitioned: Callable[[Connections, ProducerOptions, int], PartitionedProducer]


class Client:
    """Connections to brokers, re-established when they are lost. Made by `danubius.connect(...)`.

    Use it from the event loop it was made on.
    """

    def __init__(self, connections: Connections, kinds: ProducerKinds) -> None:
        self._connections = connections
        self._kinds = kinds
        self._things: weakref.WeakSet[Openable] = weakref.WeakSet()

    @property
    def url(self) -> str:
        """Where the broker is; of several, the one that answered first."""
        return self._connections.home.address.url

    @property
    def admin(self) -> Administration:
        """What operators do: namespaces, policies, positions, figures."""
        return Administration(self._connections)

    # ------------------------------------------------------------ producers, consumers, readers

    def producer(  # noqa: PLR0913  # one keyword per setting
        self,
        topic: str,
        *,
        name: str | None = None,
        dispatch: DispatchName = "reliable",
        durability: DurabilityName = "synced",
        compression: CompressionName | None = None,
        batch_bytes: int = BATCH_BYTES,
        batch_records: int = BATCH_RECORDS,
        linger: float = 0.0,
        buffer_bytes: int = BUFFER_BYTES,
        send_timeout: float = 60.0,
        access: AccessName = "shared",
        resume: bool = False,
        chunk_bytes: int | None = None,
    ) -> Opening[Producer]:
        """Open a producer; creates the topic if it does not exist.

        Args:
            topic: `/namespace/topic`.
            name: under which the broker recognises repeated batches; a newer producer of the same name ends an older
                one (ProducerFenced). None picks one that nobody has.
            dispatch: for a new topic: "reliable" (stored, delivered at least once) or "non-reliable".
            durability: for a new reliable topic: "synced" (on disk when acknowledged) or "written" (in the page cache).
            compression: of whole batches: None, "lz4" or "zstd"; needs `pip install 'danubius[compression]'`.
            batch_bytes: a batch is sent when it has this many bytes …
            batch_records: … or this many messages …
            linger: … or is this many seconds old; 0 sends it in the next turn of the event loop.
            buffer_bytes: bound of what is accepted and not acknowledged: send() waits at it, send_nowait() raises.
            send_timeout: seconds until a message that is not acknowledged fails, reconnects included.
            access: "shared" with other producers, "exclusive" (alone, or ProducerBusy), or "wait-for-exclusive" (alone,
                as soon as the others are gone: opening it waits without a time limit).
            resume: go on where the last producer of this name stopped, also one of a process that is gone:
                `producer.next_sequence` then says how many messages are stored under the name. Needs `name`.
            chunk_bytes: send() sends a message with more bytes than this in pieces of at most so many (and as the
                broker accepts), up to a gigabyte; None: what the broker does not accept is MessageTooLarge.
        """
        options = ProducerOptions(
            topic_of(topic),
            producer_name(name, resume=resume),
            parse_spec(dispatch, durability),
            parse_codec(compression),
            batch_bytes,
            batch_records,
            linger,
            buffer_bytes,
            send_timeout,
            parse_word(Access, "access", access),
            resume,
            chunk_bytes,
        )
        options.check()
        return Opening(
            lambda: self._open(
                options.topic,
                lambda route: self._kinds.lane(route, options),
                lambda partitions: self._kinds.partitioned(self._connections, options, partitions),
            )
        )

    def consumer(  # noqa: PLR0913  # one keyword per setting
        self,
        topic: str,
        *,
        subscription: str,
        type: SubscriptionTypeName = "exclusive",  # noqa: A002  # the public word for it
        start: Start = "latest",
        name: str | None = None,
        prefetch_messages: int = PREFETCH_MESSAGES,
        prefetch_bytes: int = PREFETCH_BYTES,
        ack_timeout: float | timedelta | None = None,
        skip_damaged: bool = False,
        failure: FailurePolicy | None = None,
        key_filters: Sequence[str] = (),
        chunk_patience: float = CHUNK_PATIENCE_S,
    ) -> Opening[Consumer]:
        """Open a consumer; creates the subscription if it does not exist.

        Args:
            topic: `/namespace/topic`.
            subscription: the name whose position is remembered; consumers of one subscription share its messages.
            type: "exclusive", "shared", "failover" or "key-shared".
            start: where a new subscription begins: "earliest", "latest", an offset or an aware datetime.
            name: of this consumer; a newer one of the same name replaces it. None picks one that nobody has.
            prefetch_messages: how many messages the broker may send ahead; small values spread a shared
                subscription more evenly, large ones are faster.
            prefetch_bytes: how many bytes the broker may send ahead.
            ack_timeout: seconds after which a message that was delivered (it may still wait in this process) and not
                acknowledged is delivered again; None means never while this consumer lives.
            skip_damaged: pass over stored ranges that fail their checksum, instead of ending with LedgerDamaged.
            failure: when messages that failed come again, how often, and what then; used if this consumer creates
                the subscription. None: what the topic's policies say.
            key_filters: of a "key-shared" consumer: take only keys that match one of these patterns, in which `*`
                stands for any characters and `?` for one. Keys that nobody takes wait until somebody does.
            chunk_patience: seconds after which the pieces of a message whose last one did not come in time are looked
                after, and acknowledged if it will never come.
        """
        options = ConsumerOptions(
            topic_of(topic),
            name_of("subscription", subscription),
            parse_word(SubscriptionType, "type", type),
            random_name("consumer") if name is None else name_of("consumer name", name),
            parse_start(start),
            prefetch_messages,
            prefetch_bytes,
            to_milliseconds("ack_timeout", ack_timeout) or 0,
            skip_damaged,
            failure,
            chunk_patience,
            key_filters,
        )
        options.check()
        self._refuse_what_is_too_new(options)
        return Opening(
            lambda: self._open(
                options.topic,
                lambda route: ConsumerLane(route, options),
                lambda partitions: PartitionedConsumer(self._connections, options, partitions),
            )
        )

    def reader(
        self,
        topic: str,
        *,
        start: Start = 0,
        stop_at_end: bool = False,
        fetch_bytes: int = FETCH_BYTES,
        skip_damaged: bool = False,
    ) -> Opening[Reader]:
        """Open a reader: the messages of a reliable topic by position, without a subscription.

        Args:
            topic: `/namespace/topic`.
            start: "earliest", "latest", an offset or an aware datetime.
            stop_at_end: end with the last message that is there when the reader is opened, instead of waiting for more.
            fetch_bytes: about how much one request to the broker brings.
            skip_damaged: pass over stored ranges that fail their checksum, instead of raising LedgerDamaged.
        """
        options = ReaderOptions(
            topic_of(topic), parse_start(start), stop_at_end, fetch_bytes, skip_damaged
        )
        options.check()
        return Opening(
            lambda: self._open(
                options.topic,
                lambda route: ReaderLane(route, options),
                lambda partitions: PartitionedReader(self._connections, options, partitions),
            )
        )

    def transaction(self, *, timeout: float | timedelta = 60.0) -> Opening[Transaction]:
        """Begin a transaction: messages to any topics and acknowledgements that take effect together or not at all.

        Leaving its block commits it, an exception aborts it.

        Args:
            timeout: seconds after which the broker aborts it if it is still open; at most 15 minutes.

        Raises:
            Overloaded: when entered, if the broker has as many open transactions as it allows.
            UnsupportedVersion: when entered, if the broker is too old to know transactions.
        """
        timeout_ms = to_milliseconds("timeout", timeout)
        if not timeout_ms:
            raise InvalidArgument(f"timeout is {timeout!r}; a transaction needs time, such as 60")
        return Opening(lambda: begin(self._connections, timeout_ms))

    async def stage(self, job: str, batch: int, *, task: str | None = None) -> Stage:
        """Begin to stage what one attempt of one task writes for a batch of a job. `task` None picks a name."""
        return await open_stage(self._connections, job, batch, task)

    async def commit_stages(
        self, job: str, batch: int, receipts: Sequence[StageReceipt], *, patience: float = 600.0
    ) -> None:
        """Publish what these stages hold, once: a batch that was committed, or a lower one, changes nothing.

        Raises:
            StageNotFound: one of them is not all there, and nothing was published: run its task again.
        """
        await commit_stages(self._connections, job, batch, receipts, patience)

    async def abort_stages(
        self, job: str, batch: int, receipts: Sequence[StageReceipt] = ()
    ) -> None:
        """Drop these stages of a batch; without any, all of them."""
        await abort_stages(self._connections, job, batch, receipts)

    def _refuse_what_is_too_new(self, options: ConsumerOptions) -> None:
        if self._connections.home.protocol_version >= FAILURE_VERSION:
            return
        if options.failure is not None:
            raise UnsupportedVersion(
                f"the broker at {self.url} is too old for failure policies: upgrade it, or leave out `failure`"
            )
        if options.key_filters:
            raise UnsupportedVersion(
                f"the broker at {self.url} is too old for key filters: upgrade it, or leave out `key_filters`"
            )

    async def _open(
        self,
        topic: TopicName,
        plain: Callable[[Route], OpenableT],
        partitioned: Callable[[int], OpenableT],
    ) -> OpenableT:
        """Open what suits the topic: a lane, or several behind one face."""
        route, partitions = await self._connections.locate(topic)
        thing = partitioned(partitions) if partitions else plain(route)
        try:
            await thing.open()
        except TopicExists:
            # It was made in between, and partitioned: by somebody else, or by its namespace's rule for new topics.
            known = partitions
            _, partitions = await self._connections.locate(topic)
            if known or not partitions:
                raise
            thing = partitioned(partitions)
            await thing.open()
        self._things.add(thing)
        return thing

    # ------------------------------------------------------------ topics

    async def create_topic(  # noqa: PLR0913  # one keyword per setting
        self,
        topic: str,
        *,
        dispatch: DispatchName = "reliable",
        durability: DurabilityName = "synced",
        retention_age: float | timedelta | None = RETENTION_AGE,
        retention_bytes: int | None = None,
        exist_ok: bool = False,
        partitions: int = 0,
    ) -> None:
        """Create a topic.

        Args:
            topic: `/namespace/topic`.
            dispatch: "reliable" or "non-reliable".
            durability: "synced" or "written"; reliable topics only.
            retention_age: how long acknowledged messages stay, in seconds; None for no limit. The default is to
                inherit what the namespace says, and that is seven days unless somebody said otherwise.
            retention_bytes: how much of them stays; None for no limit.
            exist_ok: do not complain if the topic is there already, with the same settings.
            partitions: 0 for a plain topic; otherwise it consists of this many, named `{topic}-part-0` and so on.

        Raises:
            TopicExists: it exists, with other settings or without `exist_ok`.
            UnsupportedVersion: the broker is too old to know partitions.
        """
        check_count("partitions", partitions, 0, PARTITIONS_MAX)
        if partitions and self._connections.home.protocol_version < PARTITIONS_VERSION:
            raise UnsupportedVersion(
                f"the broker at {self.url} is too old for partitioned topics: upgrade it"
            )
        retention = Retention(to_milliseconds("retention_age", retention_age), retention_bytes)
        # What is the default anyway is left to the namespace.
        own = retention if retention != Retention() else None
        spec = parse_spec(dispatch, durability, own)
        spec.check()
        name = topic_of(topic)
        command = CreateTopic(name, spec, exist_ok, partitions)
        await self._connections.request(name, command, Done, repeats=exist_ok)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages and subscriptions; its producers and consumers end with TopicDeleted."""
        name = topic_of(topic)
        await self._connections.request(name, DeleteTopic(name), Done, repeats=False)

    async def list_topics(self, namespace: str | None = None) -> list[TopicSummary]:
        """All topics, or those of one namespace, in the order of their names."""
        space = "" if namespace is None else name_of("namespace", namespace)
        topics: list[TopicSummary] = []
        while True:
            after = topics[-1].topic if topics else ""
            page, _ = await self._connections.home.request(ListTopics(space, after), TopicsListed)
            topics += page.topics
            if not page.more or not page.topics:
                return topics

    async def describe_topic(self, topic: str) -> TopicDescribed:
        """Everything the broker knows about a topic: settings, offsets, subscriptions, producers."""
        name = topic_of(topic)
        described, _ = await self._connections.request(name, DescribeTopic(name), TopicDescribed)
        return described

    async def resolve_offset(self, topic: str, start: Start) -> int:
        """The offset that "earliest", "latest", an offset or a datetime means now."""
        name = topic_of(topic)
        command = ResolveOffset(name, parse_start(start))
        found, _ = await self._connections.request(name, command, OffsetResolved)
        return found.offset

    # ------------------------------------------------------------ life

    async def close(self) -> None:
        """Close what is still open on this client, then the connection. Closing twice does nothing.

        Errors of producers that still had messages to flush are not raised here: close them yourself to see them.
        """
        try:
            for thing in list(self._things):
                try:
                    await thing.close()
                except DanubiusError:  # each is closed, whatever the one before said
                    continue
        finally:
            await self._connections.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
