"""`client.admin` of the blocking client: the same methods, without await."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.client.administration import DEFAULT_SPEC, NO_POLICIES
from danubius.model.admin import LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from danubius.client.administration import Administration
    from danubius.client.blocking.loop_thread import LoopThread
    from danubius.client.messages import Message
    from danubius.client.options import Start, SubscriptionTypeName
    from danubius.model.admin import AdminRequest
    from danubius.model.admin_replies import (
        AdminReply,
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
    from danubius.model.policy import FailurePolicy, Policies
    from danubius.model.statistics import (
        ConsumerStatistics,
        NamespaceStatistics,
        ProducerStatistics,
        TopicStatistics,
    )
    from danubius.model.topic import TopicSpec


class BlockingAdministration:
    """Everything an operator may ask of the broker. See `danubius.Client.admin`."""

    def __init__(self, loop: LoopThread, administration: Administration) -> None:
        self._loop = loop
        self._admin = administration

    # ------------------------------------------------------------ namespaces
    def list_namespaces(self, *, limit: int | None = None) -> list[NamespaceSummary]:
        """All namespaces in order of their names; the first `limit` of them if it is given."""
        return self._loop.run(self._admin.list_namespaces(limit=limit))

    def describe_namespace(self, namespace: str) -> NamespaceDescribed:
        """A namespace with its policies, and what holds in it."""
        return self._loop.run(self._admin.describe_namespace(namespace))

    def create_namespace(
        self, namespace: str, policies: Policies = NO_POLICIES, *, exist_ok: bool = False
    ) -> NamespaceDescribed:
        """Create a namespace; NamespaceExists if it is there, unless `exist_ok` and it has the same policies."""
        return self._loop.run(self._admin.create_namespace(namespace, policies, exist_ok=exist_ok))

    def update_namespace(self, namespace: str, policies: Policies) -> NamespaceDescribed:
        """Change policies of a namespace: those that are set; None means back to the broker's."""
        return self._loop.run(self._admin.update_namespace(namespace, policies))

    def delete_namespace(self, namespace: str, *, force: bool = False) -> None:
        """Delete an empty namespace; with `force`, also with all its topics."""
        self._loop.run(self._admin.delete_namespace(namespace, force=force))

    def measure_namespace(self, namespace: str) -> NamespaceStatistics:
        """The figures of all topics of a namespace together."""
        return self._loop.run(self._admin.measure_namespace(namespace))

    # ------------------------------------------------------------ topics
    def list_topics(
        self, namespace: str | None = None, *, limit: int | None = None
    ) -> list[TopicSummary]:
        """All topics, or those of one namespace, in order of their names; a partitioned one is one line."""
        return self._loop.run(self._admin.list_topics(namespace, limit=limit))

    def describe_topic(self, topic: str) -> TopicDescribed:
        """A topic with its policies, figures, producers and subscriptions."""
        return self._loop.run(self._admin.describe_topic(topic))

    def create_topic(
        self,
        topic: str,
        spec: TopicSpec = DEFAULT_SPEC,
        *,
        partitions: int = 0,
        exist_ok: bool = False,
    ) -> TopicDescribed:
        """Create a topic; with `partitions`, one that consists of as many."""
        return self._loop.run(
            self._admin.create_topic(topic, spec, partitions=partitions, exist_ok=exist_ok)
        )

    def update_topic(
        self, topic: str, policies: Policies = NO_POLICIES, *, partitions: int | None = None
    ) -> TopicDescribed:
        """Change policies of a topic (None means back to the namespace's), or add partitions."""
        return self._loop.run(self._admin.update_topic(topic, policies, partitions=partitions))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages and subscriptions; its producers and consumers end."""
        self._loop.run(self._admin.delete_topic(topic))

    def measure_topic(self, topic: str) -> TopicStatistics:
        """The figures of a topic."""
        return self._loop.run(self._admin.measure_topic(topic))

    # ------------------------------------------------------------ subscriptions
    def list_subscriptions(
        self, topic: str, *, limit: int | None = None
    ) -> list[SubscriptionSummary]:
        """All subscriptions of a topic in order of their names."""
        return self._loop.run(self._admin.list_subscriptions(topic, limit=limit))

    def describe_subscription(self, topic: str, subscription: str) -> SubscriptionDescribed:
        """A subscription with its failure policy, figures and consumers."""
        return self._loop.run(self._admin.describe_subscription(topic, subscription))

    def create_subscription(
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
        return self._loop.run(
            self._admin.create_subscription(
                topic, subscription, type=type, start=start, failure=failure, exist_ok=exist_ok
            )
        )

    def update_subscription(
        self, topic: str, subscription: str, failure: FailurePolicy | None
    ) -> SubscriptionDescribed:
        """Change the failure policy of a subscription, live; None means that of its topic."""
        return self._loop.run(self._admin.update_subscription(topic, subscription, failure))

    def delete_subscription(self, topic: str, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription; SubscriptionBusy while it has consumers, unless `force`."""
        self._loop.run(self._admin.delete_subscription(topic, subscription, force=force))

    def seek(self, topic: str, subscription: str, to: Start) -> list[TopicPosition]:
        """Go on from another position, back or forward; consumers that are attached go on from there."""
        return self._loop.run(self._admin.seek(topic, subscription, to))

    def skip(self, topic: str, subscription: str, count: int) -> int:
        """Acknowledge the first `count` messages that are not acknowledged; returns how many there were."""
        return self._loop.run(self._admin.skip(topic, subscription, count))

    def peek_ranges(self, topic: str, subscription: str, limit: int = 1) -> list[TopicRanges]:
        """Where the first messages lie that are not acknowledged."""
        return self._loop.run(self._admin.peek_ranges(topic, subscription, limit))

    def peek(self, topic: str, subscription: str, limit: int = 1) -> list[Message]:
        """The first messages that are not acknowledged; nothing changes, consumers may have them already."""
        return self._loop.run(self._admin.peek(topic, subscription, limit))

    def clear_backlog(self, topic: str, subscription: str) -> int:
        """Acknowledge everything up to now; returns how many messages that were."""
        return self._loop.run(self._admin.clear_backlog(topic, subscription))

    def unblock(self, topic: str, subscription: str) -> int:
        """Deliver again what failed too often; returns how many messages."""
        return self._loop.run(self._admin.unblock(topic, subscription))

    def list_events(
        self, topic: str, subscription: str, *, after: int = 0, limit: int = LIMIT
    ) -> EventsListed:
        """What happened to a subscription lately, the oldest first."""
        return self._loop.run(
            self._admin.list_events(topic, subscription, after=after, limit=limit)
        )

    def list_dead_letters(
        self, topic: str, subscription: str, *, limit: int | None = None
    ) -> list[DeadLetter]:
        """The dead letters of a subscription, the oldest first."""
        return self._loop.run(self._admin.list_dead_letters(topic, subscription, limit=limit))

    def redrive(self, topic: str, subscription: str, count: int | None = None) -> int:
        """Publish dead letters to their original topic again, the oldest first; returns how many."""
        return self._loop.run(self._admin.redrive(topic, subscription, count))

    def purge_dead_letters(self, topic: str, subscription: str, count: int | None = None) -> int:
        """Give up dead letters, the oldest first; returns how many."""
        return self._loop.run(self._admin.purge_dead_letters(topic, subscription, count))

    # ------------------------------------------------------------ producers, consumers, transactions, the broker
    def list_producers(self, topic: str, *, limit: int | None = None) -> list[ProducerStatistics]:
        """Who publishes to a topic."""
        return self._loop.run(self._admin.list_producers(topic, limit=limit))

    def disconnect_producer(self, topic: str, producer: str) -> None:
        """End a producer; it hears ProducerFenced."""
        self._loop.run(self._admin.disconnect_producer(topic, producer))

    def list_consumers(
        self, topic: str, subscription: str | None = None, *, limit: int | None = None
    ) -> list[ConsumerStatistics]:
        """Who consumes from a topic, or from one subscription of it."""
        return self._loop.run(self._admin.list_consumers(topic, subscription, limit=limit))

    def disconnect_consumer(self, topic: str, subscription: str, consumer: str) -> None:
        """End a consumer; what it had not acknowledged goes to others."""
        self._loop.run(self._admin.disconnect_consumer(topic, subscription, consumer))

    def list_ledgers(self, topic: str, *, limit: int | None = None) -> list[LedgerSummary]:
        """The ledgers of a topic, or of all its partitions, and where they lie."""
        return self._loop.run(self._admin.list_ledgers(topic, limit=limit))

    def offload_topic(self, topic: str, until: Mapping[str, int] | None = None) -> TopicOffloading:
        """Move what the topic holds to cold storage; with the `until` of the answer, ask how far that has come."""
        return self._loop.run(self._admin.offload_topic(topic, until))

    def check_ledger(self, topic: str, ledger_id: int) -> LedgerChecked:
        """Have the broker read a ledger wherever it lies, and prove its checksums."""
        return self._loop.run(self._admin.check_ledger(topic, ledger_id))

    def list_transactions(self, *, limit: int | None = None) -> list[TransactionSummary]:
        """Open transactions in order of their numbers."""
        return self._loop.run(self._admin.list_transactions(limit=limit))

    def abort_transaction(self, transaction: int) -> None:
        """End a transaction without a trace."""
        self._loop.run(self._admin.abort_transaction(transaction))

    def describe_broker(self) -> BrokerDescribed:
        """What the broker is, what its settings say, and how it does."""
        return self._loop.run(self._admin.describe_broker())

    def describe_settings(self) -> list[Setting]:
        """Every setting of the broker: its value, its default, where it came from, whether it may change live."""
        return self._loop.run(self._admin.describe_settings())

    def update_settings(self, settings: Mapping[str, SettingValue]) -> list[Setting]:
        """Change settings without a restart, until the broker ends; None means back to what was configured."""
        return self._loop.run(self._admin.update_settings(settings))

    def perform(self, request: AdminRequest) -> AdminReply:
        """Any request, as data; the other methods are for people."""
        return self._loop.run(self._admin.perform(request))
