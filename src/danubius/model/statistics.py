"""The figures that a broker tells: of topics, subscriptions, consumers, producers, namespaces and of itself.

Rules: a count is of this life of the broker and only rises, unless its text says `now`; rates are averages that fade
within about ten seconds; times are milliseconds since 1970, UTC. Of a partitioned topic, figures are the sums over its
partitions and ages the greatest of them. Fields are only appended, each with a default: readers may be older.
The text below a field is its documentation everywhere (`field_docs`), so it names the unit.
"""

from __future__ import annotations

import msgspec

from danubius.model.subscription import SubscriptionType


class Figures(msgspec.Struct, frozen=True, gc=False):
    """A map of figures."""


class TopicStatistics(Figures, frozen=True, gc=False):
    """What one topic holds and does."""

    topic: str
    """`/namespace/topic`."""
    partitions: int = 0
    """Partitions now; 0 if it is not partitioned."""
    start_offset: int = 0
    """Offset of the oldest message that is stored now; 0 for a partitioned topic."""
    end_offset: int = 0
    """Offset behind the newest message now; 0 for a partitioned topic."""
    stored_messages: int = 0
    """Messages stored now."""
    stored_bytes: int = 0
    """Bytes stored now."""
    ledgers: int = 0
    """Ledgers now."""
    producers: int = 0
    """Producers attached now."""
    subscriptions: int = 0
    """Subscriptions now."""
    consumers: int = 0
    """Consumers attached now, of all subscriptions."""
    published_messages: int = 0
    """Messages stored, or handed on by a non-reliable topic."""
    published_bytes: int = 0
    """Bytes of their batches."""
    publish_rate: float = 0.0
    """Messages published per second."""
    publish_bytes_rate: float = 0.0
    """Bytes published per second."""
    delivered_messages: int = 0
    """Messages sent to consumers, redeliveries included."""
    delivered_bytes: int = 0
    """Bytes sent to consumers."""
    delivery_rate: float = 0.0
    """Messages sent to consumers per second."""
    delivery_bytes_rate: float = 0.0
    """Bytes sent to consumers per second."""
    delayed_messages: int = 0
    """Messages that wait for their time now."""
    delayed_bytes: int = 0
    """Bytes stored now for messages that wait for their time."""
    throttled_batches: int = 0
    """Batches whose answer was held back, or that were sent back to wait, because of a publish rate."""
    refused_batches: int = 0
    """Batches refused because of a quota or a message's size."""
    unheard_messages: int = 0
    """Messages of a non-reliable topic that nobody was there for."""
    quota_dropped_messages: int = 0
    """Messages deleted before everyone had acknowledged them, to stay within the quota."""


class SubscriptionStatistics(Figures, frozen=True, gc=False):
    """How far a subscription is, and what became of its messages."""

    topic: str
    """`/namespace/topic`."""
    subscription: str
    """Its name."""
    type: SubscriptionType
    """How its consumers share the messages."""
    consumers: int = 0
    """Consumers attached now."""
    is_blocked: bool = False
    """Whether delivery stands still now because a message failed too often."""
    floor: int = 0
    """Every offset below it is acknowledged; 0 for a partitioned topic."""
    end_offset: int = 0
    """Offset behind the topic's newest message now; 0 for a partitioned topic."""
    backlog_messages: int = 0
    """Messages not acknowledged now."""
    backlog_bytes: int = 0
    """Bytes of what is not acknowledged now, estimated from whole ledgers."""
    backlog_age_s: float = 0.0
    """Seconds since the oldest message that is not acknowledged was published; 0 without a backlog."""
    held_back_bytes: int = 0
    """Bytes that retention would have deleted, had this subscription acknowledged them."""
    idle_s: float = 0.0
    """Seconds without a consumer, as far as the running broker has seen; 0 with one."""
    unacked_messages: int = 0
    """Messages with consumers now, delivered and not acknowledged."""
    waiting_messages: int = 0
    """Messages that wait to be delivered again now."""
    unmatched_messages: int = 0
    """Messages read so far that wait because no attached consumer takes their key."""
    condemned_messages: int = 0
    """Messages that failed too often and are neither moved, dropped nor released yet."""
    delivered_messages: int = 0
    """Messages sent to consumers, redeliveries included."""
    delivered_bytes: int = 0
    """Bytes sent to consumers."""
    redelivered_messages: int = 0
    """Messages sent to consumers once more."""
    acked_messages: int = 0
    """Messages acknowledged by consumers."""
    nacked_messages: int = 0
    """Messages that consumers gave back."""
    timed_out_messages: int = 0
    """Messages taken back because their acknowledgement did not come in time."""
    expired_messages: int = 0
    """Messages passed over because their time to live was over."""
    filtered_messages: int = 0
    """Messages of a non-reliable topic that went by because no consumer's key filter wanted them."""
    dead_lettered_messages: int = 0
    """Messages moved to the dead-letter topic."""
    discarded_messages: int = 0
    """Messages that failed too often and were dropped, as the failure policy says."""
    dropped_absent_messages: int = 0
    """Messages of a non-reliable topic lost because no consumer was attached."""
    dropped_slow_messages: int = 0
    """Messages of a non-reliable topic lost because consumers were too slow."""
    dropped_quota_messages: int = 0
    """Messages not acknowledged that were deleted to stay within the quota."""
    delivery_rate: float = 0.0
    """Messages sent to consumers per second."""
    redelivery_rate: float = 0.0
    """Messages sent to consumers once more, per second."""
    ack_rate: float = 0.0
    """Messages acknowledged per second."""


class ConsumerStatistics(Figures, frozen=True, gc=False):
    """One attached consumer."""

    topic: str
    """`/namespace/topic`; of a partitioned topic, the partition."""
    subscription: str
    """The subscription's name."""
    consumer: str
    """Its name."""
    address: str = ""
    """Where it is connected from, as `host:port`."""
    attached_ms: int = 0
    """When it was attached."""
    is_active: bool = True
    """Whether it gets messages now; false for one that stands by."""
    key_filters: list[str] = []
    """The patterns of the keys it takes; none: all."""
    unacked_messages: int = 0
    """Messages with it now, delivered and not acknowledged."""
    credit_messages: int = 0
    """Messages it would take now."""
    credit_bytes: int = 0
    """Bytes it would take now."""
    delivered_messages: int = 0
    """Messages sent to it, redeliveries included."""
    delivered_bytes: int = 0
    """Bytes sent to it."""
    redelivered_messages: int = 0
    """Messages sent to it that had been sent to somebody before."""
    acked_messages: int = 0
    """Messages it acknowledged."""
    nacked_messages: int = 0
    """Messages it gave back."""
    delivery_rate: float = 0.0
    """Messages sent to it per second."""
    redelivery_rate: float = 0.0
    """Messages sent to it that had been sent before, per second."""


class ProducerStatistics(Figures, frozen=True, gc=False):
    """One attached producer."""

    topic: str
    """`/namespace/topic`; of a partitioned topic, the partition."""
    producer: str
    """Its name."""
    address: str = ""
    """Where it is connected from, as `host:port`."""
    attached_ms: int = 0
    """When it was attached."""
    access: str = "shared"
    """Its access mode: `shared`, `exclusive` or `wait-for-exclusive`."""
    is_waiting: bool = False
    """Whether it waits for an exclusive producer to leave now."""
    is_delayed: bool = False
    """Whether it schedules messages for later."""
    producer_id: int = 0
    """The number of its name in this topic."""
    epoch: int = 0
    """How many lives its name has had in this topic."""
    next_sequence: int = 0
    """The sequence number that its next message will have."""
    published_messages: int = 0
    """Messages it published since it was attached."""
    published_bytes: int = 0
    """Bytes it published since it was attached."""
    unanswered_bytes: int = 0
    """Bytes it published that wait for their answer now; of what waits for the disk, by the average of its messages."""
    throttled_batches: int = 0
    """Batches of it that a publish rate held back."""
    publish_rate: float = 0.0
    """Messages it publishes per second."""
    publish_bytes_rate: float = 0.0
    """Bytes it publishes per second."""


class NamespaceStatistics(Figures, frozen=True, gc=False):
    """All topics of one namespace together."""

    namespace: str
    """Its name."""
    topics: int = 0
    """Topics now, each partition being one."""
    partitioned_topics: int = 0
    """Partitioned topics now."""
    producers: int = 0
    """Producers attached now."""
    subscriptions: int = 0
    """Subscriptions now."""
    consumers: int = 0
    """Consumers attached now."""
    stored_bytes: int = 0
    """Bytes stored now."""
    backlog_messages: int = 0
    """Messages not acknowledged now, of all subscriptions."""
    published_messages: int = 0
    """Messages published."""
    published_bytes: int = 0
    """Bytes published."""
    publish_rate: float = 0.0
    """Messages published per second."""
    publish_bytes_rate: float = 0.0
    """Bytes published per second."""
    delivered_messages: int = 0
    """Messages sent to consumers, redeliveries included."""
    delivered_bytes: int = 0
    """Bytes sent to consumers."""
    delivery_rate: float = 0.0
    """Messages sent to consumers per second."""
    delivery_bytes_rate: float = 0.0
    """Bytes sent to consumers per second."""


class BrokerStatistics(Figures, frozen=True, gc=False):
    """Everything together."""

    uptime_s: float = 0.0
    """Seconds since it was ready."""
    connections: int = 0
    """Connections open now."""
    namespaces: int = 0
    """Namespaces now."""
    topics: int = 0
    """Topics now, each partition being one."""
    partitioned_topics: int = 0
    """Partitioned topics now."""
    producers: int = 0
    """Producers attached now."""
    subscriptions: int = 0
    """Subscriptions now."""
    consumers: int = 0
    """Consumers attached now."""
    transactions: int = 0
    """Transactions open now."""
    transaction_bytes: int = 0
    """Bytes staged in open transactions now."""
    delayed_messages: int = 0
    """Messages that wait for their time now."""
    stored_bytes: int = 0
    """Bytes stored in ledgers now."""
    journal_bytes: int = 0
    """Bytes of the journal's files now."""
    publish_queue_bytes: int = 0
    """Bytes on their way to the journal now."""
    published_messages: int = 0
    """Messages published."""
    published_bytes: int = 0
    """Bytes published."""
    publish_rate: float = 0.0
    """Messages published per second."""
    publish_bytes_rate: float = 0.0
    """Bytes published per second."""
    delivered_messages: int = 0
    """Messages sent to consumers, redeliveries included."""
    delivered_bytes: int = 0
    """Bytes sent to consumers."""
    delivery_rate: float = 0.0
    """Messages sent to consumers per second."""
    delivery_bytes_rate: float = 0.0
    """Bytes sent to consumers per second."""
