"""Targets of requests, as the name of a topic means them: that topic, or all partitions of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from danubius.errors import SubscriptionNotFound
from danubius.model.ids import TopicName, parse_topic_name
from danubius.model.partitions import base_of, partition_names

if TYPE_CHECKING:
    from danubius.catalog.core.states import PartitionedState
    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard


class Target(NamedTuple):
    """One topic, or a partitioned one with the topics it consists of."""

    name: TopicName
    topics: list[Topic]
    partitioned: PartitionedState | None

    @property
    def partitions(self) -> int:
        return len(self.topics) if self.partitioned is not None else 0


class Member(NamedTuple):
    """A subscription in one topic."""

    topic: Topic
    subscription: Subscription


def find_target(shard: Shard, text: str) -> Target:
    """TopicNotFound if there is neither."""
    name = parse_topic_name(text)
    partitioned = shard.catalog.partitioned.get(name)
    if partitioned is None:
        return Target(name, [shard.topic(name)], None)
    names = partition_names(name, partitioned.partitions)
    # One that is just being made or deleted is not there to be asked.
    return Target(name, [shard.topics[n] for n in names if n in shard.topics], partitioned)


def find_members(target: Target, subscription: str) -> list[Member]:
    """The subscription in every topic that has it; SubscriptionNotFound if none does."""
    members = [
        Member(topic, topic.subscriptions[subscription])
        for topic in target.topics
        if subscription in topic.subscriptions
    ]
    if not members:
        raise SubscriptionNotFound(
            f"topic {target.name} has no subscription {subscription!r}; "
            f"`danubius subscriptions list {target.name}` shows those it has"
        )
    return members


def visible_subscriptions(target: Target) -> set[str]:
    """The names of a topic's subscriptions, without those that the broker keeps for itself."""
    return {name for topic in target.topics for name in topic.subscriptions if "~" not in name}


def is_partition(shard: Shard, name: TopicName) -> bool:
    """Whether a topic belongs to a partitioned one, and is listed with it."""
    found = base_of(name)
    if found is None:
        return False
    base, index = found
    partitioned = shard.catalog.partitioned.get(base)
    return partitioned is not None and index < partitioned.partitions
