"""The figures of topics, subscriptions, those attached and the broker, taken when somebody asks.

Reading them changes nothing and reads no disk. Of a partitioned topic they are sums, and ages the greatest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from danubius.admin.targets import Member, visible_subscriptions
from danubius.ledger.managed import ManagedLedger
from danubius.model.ids import namespace_of
from danubius.model.statistics import (
    BrokerStatistics,
    ConsumerStatistics,
    Figures,
    NamespaceStatistics,
    ProducerStatistics,
    SubscriptionStatistics,
    TopicStatistics,
)
from danubius.shard.hosting.abandoned import held_back_bytes, idle_ms
from danubius.shard.hosting.admission import Limits
from danubius.shard.hosting.consumer import ConsumerHandle
from danubius.shard.hosting.core.access import Mode
from danubius.shard.hosting.place import Place
from danubius.shard.hosting.producer import ProducerHandle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.admin.targets import Target
    from danubius.broker.node import Node
    from danubius.shard.hosting.core.access import Claim
    from danubius.shard.hosting.subscription import ConsumerOutlet
    from danubius.shard.hosting.topic import AttachedProducer, Topic

FiguresT = TypeVar("FiguresT", bound=Figures)


def measure_topic(node: Node, topic: Topic) -> TopicStatistics:
    """One topic or partition."""
    log, pipeline, gate = topic.log, topic.pipeline, topic.gate
    subscriptions = topic.subscriptions.values()
    messages_in, bytes_in, messages_out, bytes_out = node.rates.of(topic, 4)
    return TopicStatistics(
        topic.name,
        start_offset=log.start_offset,
        end_offset=log.end_offset,
        stored_messages=log.end_offset - log.start_offset if topic.is_reliable else 0,
        stored_bytes=topic.stored_bytes,
        ledgers=len(log.ledgers) if isinstance(log, ManagedLedger) else 0,
        producers=len(topic.attached),
        subscriptions=len(subscriptions),
        consumers=sum(len(one.consumers) for one in subscriptions),
        published_messages=pipeline.messages_in,
        published_bytes=pipeline.bytes_in,
        publish_rate=messages_in,
        publish_bytes_rate=bytes_in,
        delivered_messages=sum(one.delivered for one in subscriptions),
        delivered_bytes=sum(one.delivered_bytes for one in subscriptions),
        delivery_rate=messages_out,
        delivery_bytes_rate=bytes_out,
        delayed_messages=node.delays.pending(topic),
        delayed_bytes=node.delays.pending_bytes(topic),
        unheard_messages=topic.dropped - sum(one.dropped for one in subscriptions),
        quota_dropped_messages=sum(one.quota_dropped for one in subscriptions),
        throttled_batches=gate.throttled_batches if isinstance(gate, Limits) else 0,
        refused_batches=gate.refused_batches if isinstance(gate, Limits) else 0,
    )


def measure_target(node: Node, target: Target) -> TopicStatistics:
    """A topic, or the sums over all partitions."""
    figures = [measure_topic(node, topic) for topic in target.topics]
    if target.partitioned is None:
        return figures[0]
    return msgspec.structs.replace(
        add_up(figures, TopicStatistics(target.name)),
        partitions=target.partitions,
        start_offset=0,
        end_offset=0,
        subscriptions=len(visible_subscriptions(target)),
    )


def add_up(parts: Sequence[FiguresT], whole: FiguresT) -> FiguresT:
    """`whole` with the sums of all numbers of its parts; of ages the greatest."""
    sums: dict[str, float] = {}
    for name in whole.__struct_fields__:
        value = getattr(whole, name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        values = [getattr(part, name) for part in parts]
        sums[name] = max(values, default=0.0) if name.endswith("_age_s") else sum(values)
    return msgspec.structs.replace(whole, **sums)


# ---------------------------------------------------------------- subscriptions


def measure_subscription(node: Node, member: Member) -> SubscriptionStatistics:
    """A subscription in one topic or partition."""
    topic, subscription = member
    log, cursor = topic.log, subscription.cursor
    core = subscription.pump.core if subscription.pump is not None else None
    delivery_rate, redelivery_rate, ack_rate = node.rates.of(subscription, 3)
    backlog = backlog_of(member)
    first = cursor.next_unacked(max(cursor.floor, log.start_offset))
    size, age_s, held = 0, 0.0, 0
    if backlog and isinstance(log, ManagedLedger):
        # Gaps among what is acknowledged are spread as evenly as its bytes are taken to be.
        size = log.bytes_from(first) * backlog // max(1, log.end_offset - first)
        now_us = node.shard.clock.wall_us()
        age_s = max(0.0, (now_us - log.time_near(first)) / 1e6)
        held = held_back_bytes(topic, subscription, now_us // 1000)
    return SubscriptionStatistics(
        topic.name,
        subscription.name,
        subscription.type,
        consumers=len(subscription.consumers),
        is_blocked=core is not None and core.is_blocked,
        floor=cursor.floor,
        end_offset=log.end_offset,
        backlog_messages=backlog,
        backlog_bytes=size,
        backlog_age_s=age_s,
        held_back_bytes=held,
        idle_s=idle_ms(subscription, node.shard.clock.monotonic_ns()) / 1000,
        unacked_messages=core.unacked if core is not None else 0,
        waiting_messages=core.waiting if core is not None else 0,
        unmatched_messages=core.unmatched if core is not None else 0,
        condemned_messages=core.condemned_count if core is not None else 0,
        delivered_messages=subscription.delivered,
        delivered_bytes=subscription.delivered_bytes,
        redelivered_messages=subscription.redelivered,
        acked_messages=subscription.acked,
        nacked_messages=subscription.nacked,
        timed_out_messages=subscription.timed_out,
        expired_messages=subscription.expired,
        filtered_messages=subscription.filtered,
        dead_lettered_messages=subscription.dead_lettered,
        discarded_messages=subscription.discarded,
        dropped_slow_messages=subscription.dropped,
        dropped_quota_messages=subscription.quota_dropped,
        delivery_rate=delivery_rate,
        redelivery_rate=redelivery_rate,
        ack_rate=ack_rate,
    )


def backlog_of(member: Member) -> int:
    """Messages that are stored and not acknowledged."""
    log, cursor = member.topic.log, member.subscription.cursor
    backlog = cursor.backlog(log.end_offset)
    if cursor.floor < log.start_offset:  # retention was quicker
        backlog -= cursor.backlog(log.start_offset)
    return backlog


def measure_members(
    node: Node, target: Target, members: Sequence[Member]
) -> SubscriptionStatistics:
    """A subscription of a topic, or of all its partitions together."""
    figures = [measure_subscription(node, member) for member in members]
    if target.partitioned is None:
        return figures[0]
    whole = SubscriptionStatistics(target.name, figures[0].subscription, figures[0].type)
    return msgspec.structs.replace(
        add_up(figures, whole),
        floor=0,
        end_offset=0,
        is_blocked=any(one.is_blocked for one in figures),
        idle_s=min(one.idle_s for one in figures),
    )


# ---------------------------------------------------------------- those attached


def measure_consumer(node: Node, member: Member, consumer: ConsumerOutlet) -> ConsumerStatistics:
    topic, subscription = member
    figures = ConsumerStatistics(topic.name, subscription.name, consumer.name)
    if subscription.pump is None or not isinstance(consumer, ConsumerHandle):
        return figures
    core = subscription.pump.core
    credit_messages, credit_bytes = core.credit_of(consumer.consumer_id)
    delivery_rate, redelivery_rate = node.rates.of(consumer, 2)
    return msgspec.structs.replace(
        figures,
        address=consumer.address,
        attached_ms=consumer.since_ms,
        is_active=consumer.is_active,
        key_filters=list(consumer.key_filters),
        unacked_messages=core.unacked_of(consumer.consumer_id),
        credit_messages=credit_messages,
        credit_bytes=credit_bytes,
        delivered_messages=consumer.delivered,
        delivered_bytes=consumer.delivered_bytes,
        redelivered_messages=consumer.redelivered,
        acked_messages=consumer.acked,
        nacked_messages=consumer.nacked,
        delivery_rate=delivery_rate,
        redelivery_rate=redelivery_rate,
    )


_ACCESS: Final = {
    Mode.SHARED: "shared",
    Mode.EXCLUSIVE: "exclusive",
    Mode.WAIT: "wait-for-exclusive",
}


def measure_waiting(topic: Topic, claim: Claim) -> ProducerStatistics:
    """A producer that waits for its turn: it has not begun to live, and has no figures."""
    address = claim.address if isinstance(claim, Place) else ""
    access = _ACCESS[claim.mode]
    return ProducerStatistics(topic.name, claim.name, address, access=access, is_waiting=True)


def measure_producer(node: Node, topic: Topic, attached: AttachedProducer) -> ProducerStatistics:
    """One that is attached to the topic, or to the log where its messages wait for their time."""
    producer = attached.producer
    figures = ProducerStatistics(
        topic.name,
        producer.name,
        producer_id=producer.id,
        epoch=producer.epoch,
        next_sequence=max(0, producer.admitted_next),
    )
    if not isinstance(attached, ProducerHandle):
        return figures
    publish_rate, publish_bytes_rate = node.rates.of(attached, 2)
    return msgspec.structs.replace(
        figures,
        address=attached.address,
        attached_ms=attached.since_ms,
        access=_ACCESS[attached.access],
        is_delayed=bool(attached.topic.parent),
        published_messages=attached.published_messages,
        published_bytes=attached.published_bytes,
        unanswered_bytes=attached.unanswered_bytes,
        throttled_batches=attached.throttled_batches,
        publish_rate=publish_rate,
        publish_bytes_rate=publish_bytes_rate,
    )


# ---------------------------------------------------------------- many topics together


def measure_namespace(node: Node, namespace: str) -> NamespaceStatistics:
    """All topics of a namespace; what they wait with is summed up, not measured one by one."""
    shard = node.shard
    topics = [topic for name, topic in shard.topics.items() if namespace_of(name) == namespace]
    members = [Member(topic, one) for topic in topics for one in topic.subscriptions.values()]
    rates = [sum(some) for some in zip(*(node.rates.of(topic, 4) for topic in topics), strict=True)]
    messages_in, bytes_in, messages_out, bytes_out = rates or [0.0] * 4
    return NamespaceStatistics(
        namespace,
        topics=len(topics),
        partitioned_topics=sum(
            namespace_of(name) == namespace for name in shard.catalog.partitioned
        ),
        producers=sum(len(topic.attached) for topic in topics),
        subscriptions=len(members),
        consumers=sum(len(one.subscription.consumers) for one in members),
        stored_bytes=sum(topic.stored_bytes for topic in topics),
        backlog_messages=sum(map(backlog_of, members)),
        published_messages=sum(topic.pipeline.messages_in for topic in topics),
        published_bytes=sum(topic.pipeline.bytes_in for topic in topics),
        publish_rate=messages_in,
        publish_bytes_rate=bytes_in,
        delivered_messages=sum(one.subscription.delivered for one in members),
        delivered_bytes=sum(one.subscription.delivered_bytes for one in members),
        delivery_rate=messages_out,
        delivery_bytes_rate=bytes_out,
    )


def measure_broker(node: Node) -> BrokerStatistics:
    """Everything together."""
    shard = node.shard
    topics = shard.topics_by_id.values()
    now_ms = shard.clock.wall_us() // 1000
    messages_in, bytes_in, messages_out, bytes_out = node.rates.of(shard, 4)
    return BrokerStatistics(
        uptime_s=max(0, now_ms - node.about.started_ms) / 1000,
        connections=node.about.connections(),
        namespaces=len(
            {"default", "system", *shard.catalog.namespaces, *map(namespace_of, shard.topics)}
        ),
        topics=len(shard.topics),
        partitioned_topics=len(shard.catalog.partitioned),
        producers=sum(len(topic.attached) for topic in topics),
        subscriptions=sum(len(topic.subscriptions) for topic in topics),
        consumers=sum(len(s.consumers) for topic in topics for s in topic.subscriptions.values()),
        transactions=len(node.transactions),
        transaction_bytes=node.transactions.bytes,
        delayed_messages=node.delays.messages,
        journal_bytes=shard.journal.size_bytes,
        stored_bytes=sum(topic.stored_bytes for topic in topics),
        publish_queue_bytes=shard.journal.queued_bytes,
        published_messages=shard.messages_in,
        published_bytes=shard.bytes_in,
        publish_rate=messages_in,
        publish_bytes_rate=bytes_in,
        delivered_messages=shard.messages_out,
        delivered_bytes=shard.bytes_out,
        delivery_rate=messages_out,
        delivery_bytes_rate=bytes_out,
    )
