"""Descriptions of topics, as operators get them."""

from __future__ import annotations

import heapq
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from danubius.admin.statistics import (
    measure_broker,
    measure_consumer,
    measure_members,
    measure_namespace,
    measure_producer,
    measure_target,
    measure_waiting,
)
from danubius.admin.targets import (
    Member,
    Target,
    find_members,
    find_target,
    is_partition,
    visible_subscriptions,
)
from danubius.errors import ConsumerReplaced, InvalidArgument, ProducerFenced
from danubius.ledger.managed import ManagedLedger
from danubius.model import admin, admin_replies
from danubius.model.admin_pages import take_page
from danubius.model.ids import namespace_of
from danubius.model.policy import Policies, effective
from danubius.shard.hosting.history import merge_histories
from danubius.shard.hosting.place import Place
from danubius.wire.commands import SubscriptionSummary, TopicDescribed, TopicSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from danubius.admin.about import LiveSettings
    from danubius.broker.node import Node
    from danubius.model.admin_replies import OnReply
    from danubius.model.ids import TopicName
    from danubius.model.statistics import ProducerStatistics
    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard


FoundT = TypeVar("FoundT")
LineT = TypeVar("LineT", bound=msgspec.Struct)

NAMES_MAX: Final = 1000
"""Names of producers, subscriptions or consumers in one description."""


def summarise_topic(topic: Topic) -> TopicSummary:
    """The line of a listing."""
    return TopicSummary(
        topic.name,
        topic.spec,
        topic.log.start_offset,
        topic.log.end_offset,
        topic.stored_bytes,
        len(topic.attached),
        len(topic.subscriptions),
        topic.incarnation,
    )


def describe_topic(topic: Topic) -> TopicDescribed:
    """The whole story."""
    ledgers = len(topic.log.ledgers) if isinstance(topic.log, ManagedLedger) else 0
    return TopicDescribed(
        summarise_topic(topic),
        ledgers,
        [_summarise_subscription(topic, s) for s in topic.subscriptions.values()],
        sorted(topic.attached),
    )


def _summarise_subscription(topic: Topic, subscription: Subscription) -> SubscriptionSummary:
    pump = subscription.pump
    return SubscriptionSummary(
        subscription.name,
        subscription.type,
        sorted(consumer.name for consumer in subscription.consumers.values()),
        subscription.cursor.floor,
        subscription.cursor.backlog(topic.log.end_offset),
        pump.unacked if pump is not None else 0,
        subscription.dropped,
    )


# ---------------------------------------------------------------- what operators ask for


def describe_target(node: Node, target: Target) -> admin_replies.TopicDescribed:
    """A topic, or a partitioned one as a whole."""
    if target.partitioned is not None:
        spec, created_ms = target.partitioned.spec, target.partitioned.created_ms
    else:
        spec, created_ms = target.topics[0].spec, target.topics[0].created_ms
    first = target.topics[0] if target.topics else None
    own = first.own_policies if first is not None else None
    return admin_replies.TopicDescribed(
        target.name,
        spec.dispatch,
        spec.durability,
        own if own is not None else spec.layer(),
        first.policies if first is not None else effective(spec.layer()),
        measure_target(node, target),
        partitions=target.partitions,
        created_ms=created_ms,
        producers=sorted({name for topic in target.topics for name in topic.attached})[:NAMES_MAX],
        subscriptions=sorted(visible_subscriptions(target))[:NAMES_MAX],
    )


def _describe_topic(node: Node, request: admin.DescribeTopic, on_reply: OnReply) -> None:
    on_reply(describe_target(node, find_target(node.shard, request.topic)))


def _measure_topic(node: Node, request: admin.MeasureTopic, on_reply: OnReply) -> None:
    statistics = measure_target(node, find_target(node.shard, request.topic))
    on_reply(admin_replies.TopicMeasured(statistics))


def _measure_namespace(node: Node, request: admin.MeasureNamespace, on_reply: OnReply) -> None:
    node.shard.catalog.namespace(request.namespace)
    on_reply(admin_replies.NamespaceMeasured(measure_namespace(node, request.namespace)))


def _list_topics(node: Node, request: admin.ListTopics, on_reply: OnReply) -> None:
    shard = node.shard
    names = heapq.nsmallest(request.limit + 1, _listed(shard, request.namespace, request.after))
    lines = (_summarise(node, find_target(shard, name)) for name in names)
    page, more = take_page(lines, request.limit, lambda line: line.topic)
    on_reply(admin_replies.TopicsListed(page, next=more))


def _listed(shard: Shard, namespace: str | None, after: str) -> Iterator[TopicName]:
    for names in (shard.topics, shard.catalog.partitioned):
        for name in names:
            if (
                name > after
                and (namespace is None or namespace_of(name) == namespace)
                and not is_partition(shard, name)
                and not _is_going(shard, name)
            ):
                yield name


def _is_going(shard: Shard, name: TopicName) -> bool:
    topic = shard.topics.get(name)
    return topic is not None and topic.is_deleting


def _summarise(node: Node, target: Target) -> admin_replies.TopicSummary:
    figures = measure_target(node, target)
    spec = target.partitioned.spec if target.partitioned is not None else target.topics[0].spec
    return admin_replies.TopicSummary(
        target.name,
        target.partitions,
        spec.dispatch,
        spec.durability,
        figures.stored_messages,
        figures.stored_bytes,
        figures.producers,
        figures.subscriptions,
        figures.consumers,
    )


def _describe_broker(node: Node, _request: admin.DescribeBroker, on_reply: OnReply) -> None:
    shard, about = node.shard, node.about
    config = shard.config
    on_reply(
        admin_replies.BrokerDescribed(
            about.broker_id,
            about.version,
            shard.epoch,
            config.policies,
            effective(Policies(message_bytes_max=config.message_bytes_max), config.policies),
            measure_broker(node),
            url=about.url,
            started_ms=about.started_ms,
            unexplained=shard.ledgers.unexplained[:NAMES_MAX],
        )
    )


def _settings_of(node: Node) -> LiveSettings:
    settings = node.about.settings
    if settings is None:
        raise InvalidArgument(
            "this broker was started by a program, not with settings: ask the program to change them"
        )
    return settings


def _describe_settings(node: Node, _request: admin.DescribeSettings, on_reply: OnReply) -> None:
    on_reply(admin_replies.SettingsDescribed(_settings_of(node).describe()))


def _update_settings(node: Node, request: admin.UpdateSettings, on_reply: OnReply) -> None:
    settings = _settings_of(node)
    settings.change(request.settings)
    on_reply(admin_replies.SettingsDescribed(settings.describe()))


# ---------------------------------------------------------------- subscriptions


def describe_members(
    node: Node, target: Target, members: Sequence[Member]
) -> admin_replies.SubscriptionDescribed:
    """A subscription of a topic, or of all its partitions together."""
    topic, subscription = members[0]
    created = [one.created_ms for _, one in members if one.created_ms]
    failure = subscription.failure
    return admin_replies.SubscriptionDescribed(
        target.name,
        subscription.name,
        subscription.type,
        failure,
        failure if failure is not None else topic.policies.failure,
        measure_members(node, target, members),
        created_ms=min(created, default=0),
        consumers=sorted({c.name for _, s in members for c in s.consumers.values()})[:NAMES_MAX],
    )


def _describe_subscription(
    node: Node, request: admin.DescribeSubscription, on_reply: OnReply
) -> None:
    target = find_target(node.shard, request.topic)
    members = find_members(target, request.subscription)
    on_reply(describe_members(node, target, members))


def _list_subscriptions(node: Node, request: admin.ListSubscriptions, on_reply: OnReply) -> None:
    target = find_target(node.shard, request.topic)
    names = (name for name in visible_subscriptions(target) if name > request.after)
    first = heapq.nsmallest(request.limit + 1, names)
    lines = (_summarise_members(node, target, find_members(target, name)) for name in first)
    page, more = take_page(lines, request.limit, lambda line: line.subscription)
    on_reply(admin_replies.SubscriptionsListed(page, next=more))


def _summarise_members(
    node: Node, target: Target, members: Sequence[Member]
) -> admin_replies.SubscriptionSummary:
    figures = measure_members(node, target, members)
    return admin_replies.SubscriptionSummary(
        figures.subscription,
        figures.type,
        figures.consumers,
        figures.backlog_messages,
        figures.backlog_age_s,
        figures.unacked_messages,
        figures.is_blocked,
        figures.idle_s,
        figures.held_back_bytes,
    )


def _list_events(node: Node, request: admin.ListEvents, on_reply: OnReply) -> None:
    target = find_target(node.shard, request.topic)
    members = find_members(target, request.subscription)
    history = [node.shard.history.of(one.subscription, request.after) for one in members]
    events = merge_histories(history, request.limit)
    on_reply(admin_replies.EventsListed(events, events[-1].number if events else request.after))


# ---------------------------------------------------------------- those attached


def _list_producers(node: Node, request: admin.ListProducers, on_reply: OnReply) -> None:
    target = find_target(node.shard, request.topic)
    found: dict[str, Callable[[], ProducerStatistics]] = {}
    for place, topic in enumerate(target.topics):
        for name, attached in topic.attached.items():
            found[f"{place:04}/{name}/"] = partial(measure_producer, node, topic, attached)
        later = node.delays.log_of(topic)
        for name, attached in later.attached.items() if later is not None else ():
            found[f"{place:04}/{name}/delayed"] = partial(measure_producer, node, topic, attached)
        for claim in node.shard.admission.waiting_for(topic):
            found[f"{place:04}/{claim.name}/waiting"] = partial(measure_waiting, topic, claim)
    page, more = _page_of(found, request, lambda measure: measure())
    on_reply(admin_replies.ProducersListed(page, next=more))


def _list_consumers(node: Node, request: admin.ListConsumers, on_reply: OnReply) -> None:
    target = find_target(node.shard, request.topic)
    if request.subscription is None:
        members = [Member(t, s) for t in target.topics for s in t.subscriptions.values()]
    else:
        members = find_members(target, request.subscription)
    places = {topic: place for place, topic in enumerate(target.topics)}
    found = {
        f"{member.subscription.name}/{consumer.name}/{places[member.topic]:04}/{number:012}": (
            member,
            consumer,
        )
        for member in members
        for number, consumer in member.subscription.consumers.items()
    }
    page, more = _page_of(found, request, lambda one: measure_consumer(node, one[0], one[1]))
    on_reply(admin_replies.ConsumersListed(page, next=more))


def _page_of(
    found: dict[str, FoundT], request: admin.PageRequest, line: Callable[[FoundT], LineT]
) -> tuple[list[LineT], str]:
    """One page of what was found, in the order of its places; only what is shown is measured."""
    places = heapq.nsmallest(request.limit + 1, (one for one in found if one > request.after))
    page, more = take_page(
        (line(found[place]) for place in places), request.limit, lambda _: "more"
    )
    return page, places[len(page) - 1] if more else ""


def _disconnect_producer(node: Node, request: admin.DisconnectProducer, on_reply: OnReply) -> None:
    target = find_target(node.shard, request.topic)
    name, topics = request.producer, target.topics
    logs = [topic for topic in map(node.delays.log_of, topics) if topic is not None]
    attached = [topic.attached[name] for topic in topics + logs if name in topic.attached]
    waiting = [
        claim
        for topic in topics
        for claim in node.shard.admission.waiting_for(topic)
        if claim.name == name and isinstance(claim, Place)
    ]
    if not attached and not waiting:
        raise InvalidArgument(
            f"no producer {request.producer!r} is attached to {target.name}; "
            f"`danubius producers list {target.name}` shows those that are"
        )
    error = ProducerFenced(f"an operator ended producer {name!r}")
    for claim in waiting:
        claim.on_refused(error)
    for one in attached:
        one.end(error)
    on_reply(admin_replies.Done())


def _disconnect_consumer(node: Node, request: admin.DisconnectConsumer, on_reply: OnReply) -> None:
    target = find_target(node.shard, request.topic)
    found = [
        (member, consumer)
        for member in find_members(target, request.subscription)
        for consumer in member.subscription.consumers.values()
        if consumer.name == request.consumer
    ]
    if not found:
        raise InvalidArgument(
            f"no consumer {request.consumer!r} is on subscription {request.subscription!r} of {target.name}; "
            f"`danubius consumers list {target.name}` shows those that are"
        )
    for (topic, subscription), consumer in found:
        subscription.leave(consumer.consumer_id)
        consumer.end(ConsumerReplaced(f"an operator ended consumer {request.consumer!r}"))
        topic.release(subscription)
    on_reply(admin_replies.Done())


# ---------------------------------------------------------------- the table

ADMIN: Final[dict[type, Callable[[Node, Any, OnReply], None]]] = {
    admin.MeasureNamespace: _measure_namespace,
    admin.ListTopics: _list_topics,
    admin.DescribeTopic: _describe_topic,
    admin.MeasureTopic: _measure_topic,
    admin.ListSubscriptions: _list_subscriptions,
    admin.DescribeSubscription: _describe_subscription,
    admin.ListEvents: _list_events,
    admin.ListProducers: _list_producers,
    admin.DisconnectProducer: _disconnect_producer,
    admin.ListConsumers: _list_consumers,
    admin.DisconnectConsumer: _disconnect_consumer,
    admin.DescribeBroker: _describe_broker,
    admin.DescribeSettings: _describe_settings,
    admin.UpdateSettings: _update_settings,
}
