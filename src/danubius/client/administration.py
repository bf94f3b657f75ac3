"""Administration through a client: `client.admin`.

One method a request of `model/admin.py`; answers are its replies, or what matters of them. A request is checked here as
the broker checks it, so that a mistake is told where it was made. Changes are not repeated by themselves when the
connection is lost: nobody knows whether they were done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from danubius.client.consuming.reader_lane import ReaderLane
from danubius.client.options import ReaderOptions, parse_start, parse_word, topic_of
from danubius.errors import OffsetOutOfRange, ProtocolViolation, UnsupportedVersion
from danubius.model import admin, admin_replies
from danubius.model.admin import LIMIT, LIMIT_MAX
from danubius.model.admin_codec import decode_reply, decode_request, encode_request
from danubius.model.policy import Policies
from danubius.model.subscription import AtOffset, SubscriptionType
from danubius.model.topic import TopicSpec
from danubius.wire.commands import Administer, Administered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from danubius.client.connection.connections import Connections
    from danubius.client.messages import Message
    from danubius.client.options import Start, SubscriptionTypeName
    from danubius.model.admin_replies import (
        BrokerDescribed,
        DeadLetter,
        EventsListed,
        LedgerChecked,
        LedgerSummary,
        NamespaceDescribed,
        NamespaceSummary,
        Setting,
        SettingValue,
        SubscriptionDescribed,
        SubscriptionSummary,
        TopicDescribed,
        TopicOffloading,
        TopicPosition,
        TopicRanges,
        TopicSummary,
        TransactionSummary,
    )
    from danubius.model.ids import TopicName
    from danubius.model.policy import FailurePolicy
    from danubius.model.statistics import (
        ConsumerStatistics,
        NamespaceStatistics,
        ProducerStatistics,
        TopicStatistics,
    )

ADMINISTRATION_VERSION: Final = 2
"""Of the protocol: brokers before it know nothing of this."""
PEEK_BYTES: Final = 1 << 18
"""Asked for at once while peeking."""
NO_POLICIES: Final = Policies()
DEFAULT_SPEC: Final = TopicSpec()

ReplyT = TypeVar("ReplyT", bound=admin_replies.Reply)
PageT = TypeVar("PageT", bound=admin_replies.Page)
LineT = TypeVar("LineT")


class Administration:
    """Everything an operator may ask of the broker. Made by a client: `client.admin`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    # ------------------------------------------------------------ namespaces
    async def list_namespaces(self, *, limit: int | None = None) -> list[NamespaceSummary]:
        """All namespaces in order of their names; the first `limit` of them if it is given."""
        return await self._gather(
            admin.ListNamespaces(),
            admin_replies.NamespacesListed,
            lambda page: page.namespaces,
            limit,
        )

    async def describe_namespace(self, namespace: str) -> NamespaceDescribed:
        """A namespace with its policies, and what holds in it."""
        return await self._ask(admin.DescribeNamespace(namespace), admin_replies.NamespaceDescribed)

    async def create_namespace(
        self, namespace: str, policies: Policies = NO_POLICIES, *, exist_ok: bool = False
    ) -> NamespaceDescribed:
        """Create a namespace; NamespaceExists if it is there, unless `exist_ok` and it has the same policies."""
        return await self._tell(
            admin.CreateNamespace(namespace, policies, exist_ok), admin_replies.NamespaceDescribed
        )

    async def update_namespace(self, namespace: str, policies: Policies) -> NamespaceDescribed:
        """Change policies of a namespace: those that are set; None means back to the broker's."""
        return await self._tell(
            admin.UpdateNamespace(namespace, policies), admin_replies.NamespaceDescribed
        )

    async def delete_namespace(self, namespace: str, *, force: bool = False) -> None:
        """Delete an empty namespace; with `force`, also with all its topics."""
        await self._tell(admin.DeleteNamespace(namespace, force), admin_replies.Done)

    async def measure_namespace(self, namespace: str) -> NamespaceStatistics:
        """The figures of all topics of a namespace together."""
        reply = await self._ask(admin.MeasureNamespace(namespace), admin_replies.NamespaceMeasured)
        return reply.statistics

    # ------------------------------------------------------------ topics
    async def list_topics(
        self, namespace: str | None = None, *, limit: int | None = None
    ) -> list[TopicSummary]:
        """All topics, or those of one namespace, in order of their names; a partitioned one is one line."""
        return await self._gather(
            admin.ListTopics(namespace=namespace),
            admin_replies.TopicsListed,
            lambda page: page.topics,
            limit,
        )

    async def describe_topic(self, topic: str) -> TopicDescribed:
        """A topic with its policies, figures, producers and subscriptions."""
        return await self._ask(admin.DescribeTopic(topic), admin_replies.TopicDescribed)

    async def create_topic(
        self,
        topic: str,
        spec: TopicSpec = DEFAULT_SPEC,
        *,
        partitions: int = 0,
        exist_ok: bool = False,
    ) -> TopicDescribed:
        """Create a topic; with `partitions`, one that consists of as many."""
        return await self._tell(
            admin.CreateTopic(topic, spec, partitions, exist_ok), admin_replies.TopicDescribed
        )

    async def update_topic(
        self, topic: str, policies: Policies = NO_POLICIES, *, partitions: int | None = None
    ) -> TopicDescribed:
        """Change policies of a topic (None means back to the namespace's), or add partitions."""
        return await self._tell(
            admin.UpdateTopic(topic, policies, partitions), admin_replies.TopicDescribed
        )

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages and subscriptions; its producers and consumers end."""
        await self._tell(admin.DeleteTopic(topic), admin_replies.Done)

    async def measure_topic(self, topic: str) -> TopicStatistics:
        """The figures of a topic."""
        reply = await self._ask(admin.MeasureTopic(topic), admin_replies.TopicMeasured)
        return reply.statistics

    # ------------------------------------------------------------ subscriptions
    async def list_subscriptions(
        self, topic: str, *, limit: int | None = None
    ) -> list[SubscriptionSummary]:
        """All subscriptions of a topic in order of their names."""
        return await self._gather(
            admin.ListSubscriptions(topic),
            admin_replies.SubscriptionsListed,
            lambda page: page.subscriptions,
            limit,
        )

    async def describe_subscription(self, topic: str, subscription: str) -> SubscriptionDescribed:
        """A subscription with its failure policy, figures and consumers."""
        return await self._ask(
            admin.DescribeSubscription(topic, subscription), admin_replies.SubscriptionDescribed
        )

    async def create_subscription(
        self,
        topic: str,
        subscription: str,
        *,
        type: SubscriptionTypeName = "exclusive",  # noqa: A002  # the public word for it
        start: Start = "latest",
        failure: FailurePolicy | None = None,
        exist_ok: bool = False,
    ) -> SubscriptionDescribed:  # one keyword per setting
        """Create a subscription without a consumer: it keeps what comes from `start` on."""
        return await self._tell(
            admin.CreateSubscription(
                topic,
                subscription,
                parse_word(SubscriptionType, "type", type),
                parse_start(start),
                failure,
                exist_ok,
            ),
            admin_replies.SubscriptionDescribed,
        )

    async def update_subscription(
        self, topic: str, subscription: str, failure: FailurePolicy | None
    ) -> SubscriptionDescribed:
        """Change the failure policy of a subscription, live; None means that of its topic."""
        return await self._tell(
            admin.UpdateSubscription(topic, subscription, failure),
            admin_replies.SubscriptionDescribed,
        )

    async def delete_subscription(
        self, topic: str, subscription: str, *, force: bool = False
    ) -> None:
        """Delete a subscription; SubscriptionBusy while it has consumers, unless `force`."""
        await self._tell(admin.DeleteSubscription(topic, subscription, force), admin_replies.Done)

    async def seek(self, topic: str, subscription: str, to: Start) -> list[TopicPosition]:
        """Go on from another position, back or forward; consumers that are attached go on from there.

        Returns where that is, for each partition. Acks of what was delivered before change nothing any more.
        """
        reply = await self._tell(
            admin.SeekSubscription(topic, subscription, parse_start(to)), admin_replies.PositionsSet
        )
        return reply.positions

    async def skip(self, topic: str, subscription: str, count: int) -> int:
        """Acknowledge the first `count` messages that are not acknowledged; returns how many there were."""
        reply = await self._tell(
            admin.SkipMessages(topic, subscription, count), admin_replies.MessagesCounted
        )
        return reply.messages

    async def peek_ranges(self, topic: str, subscription: str, limit: int = 1) -> list[TopicRanges]:
        """Where the first messages lie that are not acknowledged."""
        reply = await self._ask(
            admin.PeekMessages(topic, subscription, limit), admin_replies.MessagesPeeked
        )
        return reply.ranges

    async def peek(self, topic: str, subscription: str, limit: int = 1) -> list[Message]:
        """The first messages that are not acknowledged; nothing changes, consumers may have them already."""
        messages: list[Message] = []
        for line in await self.peek_ranges(topic, subscription, limit):
            messages += await self._read(topic_of(line.topic), line.ranges)
        return messages

    async def _read(self, topic: TopicName, ranges: list[tuple[int, int]]) -> list[Message]:
        """The messages of rising ranges, without those that are gone by now."""
        messages: list[Message] = []
        options = ReaderOptions(topic, AtOffset(ranges[0][0]), True, PEEK_BYTES, True)
        lane = ReaderLane(self._connections.route(topic), options)
        try:
            await lane.open()
            async for message in lane:
                while ranges and message.offset >= ranges[0][1]:
                    ranges = ranges[1:]
                if not ranges:
                    break
                if message.offset >= ranges[0][0]:
                    messages.append(message)
        except OffsetOutOfRange:
            pass  # retention was quicker
        finally:
            await lane.close()
        return messages

    async def clear_backlog(self, topic: str, subscription: str) -> int:
        """Acknowledge everything up to now; returns how many messages that were."""
        reply = await self._tell(
            admin.ClearBacklog(topic, subscription), admin_replies.MessagesCounted
        )
        return reply.messages

    async def unblock(self, topic: str, subscription: str) -> int:
        """Deliver again what failed too often; returns how many messages."""
        reply = await self._tell(
            admin.UnblockSubscription(topic, subscription), admin_replies.MessagesCounted
        )
        return reply.messages

    async def list_events(
        self, topic: str, subscription: str, *, after: int = 0, limit: int = LIMIT
    ) -> EventsListed:
        """What happened to a subscription lately, the oldest first."""
        return await self._ask(
            admin.ListEvents(topic, subscription, after, limit), admin_replies.EventsListed
        )

    async def list_dead_letters(
        self, topic: str, subscription: str, *, limit: int | None = None
    ) -> list[DeadLetter]:
        """The dead letters of a subscription, the oldest first."""
        return await self._gather(
            admin.ListDeadLetters(topic, subscription),
            admin_replies.DeadLettersListed,
            lambda page: page.dead_letters,
            limit,
        )

    async def redrive(self, topic: str, subscription: str, count: int | None = None) -> int:
        """Publish dead letters to their original topic again, the oldest first; returns how many."""
        reply = await self._tell(
            admin.RedriveDeadLetters(topic, subscription, count), admin_replies.MessagesCounted
        )
        return reply.messages

    async def purge_dead_letters(
        self, topic: str, subscription: str, count: int | None = None
    ) -> int:
        """Give up dead letters, the oldest first; returns how many."""
        reply = await self._tell(
            admin.PurgeDeadLetters(topic, subscription, count), admin_replies.MessagesCounted
        )
        return reply.messages

    # ------------------------------------------------------------ producers, consumers, transactions, the broker
    async def list_producers(
        self, topic: str, *, limit: int | None = None
    ) -> list[ProducerStatistics]:
        """Who publishes to a topic."""
        return await self._gather(
            admin.ListProducers(topic),
            admin_replies.ProducersListed,
            lambda page: page.producers,
            limit,
        )

    async def disconnect_producer(self, topic: str, producer: str) -> None:
        """End a producer; it hears ProducerFenced."""
        await self._tell(admin.DisconnectProducer(topic, producer), admin_replies.Done)

    async def list_consumers(
        self, topic: str, subscription: str | None = None, *, limit: int | None = None
    ) -> list[ConsumerStatistics]:
        """Who consumes from a topic, or from one subscription of it."""
        return await self._gather(
            admin.ListConsumers(topic, subscription),
            admin_replies.ConsumersListed,
            lambda page: page.consumers,
            limit,
        )

    async def disconnect_consumer(self, topic: str, subscription: str, consumer: str) -> None:
        """End a consumer; what it had not acknowledged goes to others."""
        await self._tell(
            admin.DisconnectConsumer(topic, subscription, consumer), admin_replies.Done
        )

    async def list_ledgers(self, topic: str, *, limit: int | None = None) -> list[LedgerSummary]:
        """The ledgers of a topic, or of all its partitions, and where they lie."""
        return await self._gather(
            admin.ListLedgers(topic), admin_replies.LedgersListed, lambda page: page.ledgers, limit
        )

    async def offload_topic(
        self, topic: str, until: Mapping[str, int] | None = None
    ) -> TopicOffloading:
        """Move what the topic holds to cold storage; with the `until` of the answer, ask how far that has come."""
        request = admin.OffloadTopic(topic, dict(until or {}))
        return await self._tell(request, admin_replies.TopicOffloading)

    async def check_ledger(self, topic: str, ledger_id: int) -> LedgerChecked:
        """Have the broker read a ledger wherever it lies, and prove its checksums."""
        return await self._ask(admin.CheckLedger(topic, ledger_id), admin_replies.LedgerChecked)

    async def list_transactions(self, *, limit: int | None = None) -> list[TransactionSummary]:
        """Open transactions in order of their numbers."""
        return await self._gather(
            admin.ListTransactions(),
            admin_replies.TransactionsListed,
            lambda page: page.transactions,
            limit,
        )

    async def abort_transaction(self, transaction: int) -> None:
        """End a transaction without a trace."""
        await self._tell(admin.AbortTransaction(transaction), admin_replies.Done)

    async def describe_broker(self) -> BrokerDescribed:
        """What the broker is, what its settings say, and how it does."""
        return await self._ask(admin.DescribeBroker(), admin_replies.BrokerDescribed)

    async def describe_settings(self) -> list[Setting]:
        """Every setting of the broker: its value, its default, where it came from, whether it may change live."""
        reply = await self._ask(admin.DescribeSettings(), admin_replies.SettingsDescribed)
        return reply.settings

    async def update_settings(self, settings: Mapping[str, SettingValue]) -> list[Setting]:
        """Change settings without a restart, by path as `policies.ttl_ms`, until the broker ends; all or none.

        None means back to what file, environment and flags say. InvalidArgument for what needs a restart.
        """
        reply = await self._tell(
            admin.UpdateSettings(dict(settings)), admin_replies.SettingsDescribed
        )
        return reply.settings

    # ------------------------------------------------------------ asking

    async def perform(self, request: admin.AdminRequest) -> admin_replies.AdminReply:
        """Any request, as data; the other methods are for people."""
        return await self._tell(request, admin.ADMIN_REPLIES[type(request)])

    async def _ask(self, request: admin.AdminRequest, reply_type: type[ReplyT]) -> ReplyT:
        """What only looks may be asked again after a lost connection."""
        return await self._send(request, reply_type, repeats=True)

    async def _tell(self, request: admin.AdminRequest, reply_type: type[ReplyT]) -> ReplyT:
        return await self._send(request, reply_type, repeats=False)

    async def _send(
        self, request: admin.AdminRequest, reply_type: type[ReplyT], *, repeats: bool
    ) -> ReplyT:
        encoded = encode_request(request)
        decode_request(encoded)
        if self._connections.home.protocol_version < ADMINISTRATION_VERSION:
            raise UnsupportedVersion(
                f"the broker at {self._connections.home.address.url} is too old to be administered: upgrade it"
            )
        command = Administer(msgspec.Raw(encoded))
        topic: TopicName | None = getattr(request, "topic", None)
        if topic is None:
            home = self._connections.home
            answer, _ = await home.request(command, Administered, repeats=repeats)
        else:
            answer, _ = await self._connections.request(
                topic, command, Administered, repeats=repeats
            )
        reply = decode_reply(answer.reply)
        if not isinstance(reply, reply_type):
            raise ProtocolViolation(
                f"the broker answered {type(request).__name__} with {type(reply).__name__}"
            )
        return reply

    async def _gather(
        self,
        request: admin.AdminRequest,
        page_type: type[PageT],
        lines_of: Callable[[PageT], list[LineT]],
        limit: int | None,
    ) -> list[LineT]:
        """The lines of all pages, or the first `limit` of them."""
        lines: list[LineT] = []
        after = ""
        while True:
            wanted = LIMIT_MAX if limit is None else min(limit - len(lines), LIMIT_MAX)
            part = msgspec.structs.replace(request, after=after, limit=wanted)
            page = await self._ask(part, page_type)
            lines += lines_of(page)
            after = page.next
            if not after or (limit is not None and len(lines) >= limit):
                return lines
