"""Partitioned topics: made, grown, changed and deleted, each in one record.

`/ns/t-part-0`, `/ns/t-part-1` … are ordinary topics; `/ns/t` itself is none, but an entry of the catalog.

Invariants:
- A partitioned topic has all its partitions or does not exist, whenever the process dies.
- Names of the form `/ns/t-part-N` belong to `/ns/t` from the moment it is partitioned, also those beyond its last.
- A partition's policies are those of the whole.
- A new partition begins with the subscriptions of the others, at its start: nothing is missed that is published there
  before its consumers have come.
- Those who watch hear of a change when the partitions are there.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from danubius.errors import InvalidArgument, TopicExists
from danubius.model.ids import TopicName, namespace_of, parse_topic_name
from danubius.model.partitions import base_of, partition_name, partition_names
from danubius.model.policy import PARTITIONS_MAX, Policies, effective
from danubius.model.topic import Dispatch, TopicSpec
from danubius.shard.hosting.changes import attempt, commit_facts, remove_topics
from danubius.shard.hosting.counts import check_topics
from danubius.shard.hosting.namespaces import layers_below, namespace_facts
from danubius.shard.state.facts import (
    PartitionsSet,
    SubscriptionCreated,
    TopicChanged,
    TopicCreated,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.catalog.core.states import PartitionedState
    from danubius.errors import DanubiusError
    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard
    from danubius.shard.state.facts import Event
    from danubius.shard.state.tokens import OnDone


log = logging.getLogger(__name__)


def partitions_of(shard: Shard, known: PartitionedState) -> list[Topic]:
    """The topics it consists of, in order; TopicDeleted if they are just being deleted."""
    names = partition_names(TopicName(known.name), known.partitions)
    topics = [shard.topics[name] for name in names]
    topics[0].check_open()
    return topics


def same_settings(shard: Shard, name: TopicName, one: TopicSpec, other: TopicSpec) -> bool:
    """Whether it makes no difference, in its namespace, with which of them a topic is created."""
    if one == other:
        return True
    if (one.dispatch, one.durability) != (other.dispatch, other.durability):
        return False
    below = layers_below(shard, namespace_of(name))
    return effective(*below, one.layer()) == effective(*below, other.layer())


def when_settled(
    shard: Shard,
    name: TopicName,
    action: Callable[[], None],
    on_error: Callable[[DanubiusError], None],
) -> bool:
    """If a partitioned topic of this name is under change: do it after that, and say so."""
    around = shard.catalog.changes.changing_around(name)
    if around is None:
        return False
    shard.catalog.changes.wait(around, functools.partial(attempt, action, on_error))
    return True


# ---------------------------------------------------------------- create


def create_partitioned(
    shard: Shard,
    text: str,
    spec: TopicSpec,
    partitions: int,
    *,
    exist_ok: bool,
    on_done: OnDone,
) -> None:
    """Make a topic of so many partitions, all or none; answered once that is durable."""
    base = parse_topic_name(text)
    spec.check()
    _check_count(base, partitions)
    again = functools.partial(
        create_partitioned, shard, text, spec, partitions, exist_ok=exist_ok, on_done=on_done
    )
    if when_settled(shard, base, again, on_done):
        return
    known = shard.catalog.partitioned.get(base)
    if known is not None:
        on_done(_accept_existing(shard, known, spec, partitions, exist_ok=exist_ok))
        return
    _check_clash(shard, base)
    check_topics(shard, namespace_of(base), partitions)
    now_ms = shard.clock.wall_us() // 1000
    facts = namespace_facts(shard, namespace_of(base))
    facts.append(PartitionsSet(base, partitions, spec, now_ms))
    for name in partition_names(base, partitions):
        facts.append(TopicCreated(shard.numbers.draw(), name, spec, now_ms))
    _change(shard, base, facts, partitions, on_done)


def _check_count(base: TopicName, partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidArgument(f"partitions is {partitions}; it must be 1 to {PARTITIONS_MAX}")
    parse_topic_name(partition_name(base, partitions - 1))  # the longest of their names


def _accept_existing(
    shard: Shard, known: PartitionedState, spec: TopicSpec, partitions: int, *, exist_ok: bool
) -> DanubiusError | None:
    if not exist_ok:
        return TopicExists(
            f"topic {known.name} exists already, partitioned into {known.partitions}"
        )
    first = partitions_of(shard, known)[0]
    # What was asked for when it was made is accepted after a change by an operator too.
    if not any(same_settings(shard, first.name, one, spec) for one in (known.spec, first.spec)):
        told = known.spec.describe()
        return TopicExists(f"topic {known.name} exists already with other settings: {told}")
    if partitions > known.partitions:
        return TopicExists(
            f"topic {known.name} exists already with {known.partitions} partitions, not {partitions}; "
            f"to add some, `danubius topics update {known.name} --partitions {partitions}`"
        )
    return None


def _check_clash(shard: Shard, base: TopicName) -> None:
    """Refuse a partitioned topic if a name that it needs, now or when it grows, is taken."""
    shard.catalog.check_free(base)
    taken = [base] if base in shard.topics else shard.catalog.names.partitions_named(base)
    coming = (*shard.creating, *shard.catalog.partitioned, *shard.catalog.changes.changing)
    taken += [name for name in coming if name == base or _is_under(base, name)]
    if taken:
        raise TopicExists(
            f"topic {base} cannot be partitioned: there is a topic {taken[0]} already"
        )


def _is_under(base: TopicName, name: TopicName) -> bool:
    found = base_of(name)
    return found is not None and found[0] == base


# ---------------------------------------------------------------- change


def update_partitioned(
    shard: Shard, base: TopicName, change: Policies, partitions: int | None, on_done: OnDone
) -> None:
    """Change the policies of all partitions, or add some, or both at once."""
    change.check()
    again = functools.partial(update_partitioned, shard, base, change, partitions, on_done)
    if when_settled(shard, base, again, on_done):
        return
    known = shard.catalog.partitioned.get(base)
    if known is None:
        shard.topic(base)  # it is gone, or was never there
        raise InvalidArgument(
            f"topic {base} is not partitioned; the number of partitions is chosen when it is created"
        )
    count = known.partitions if partitions is None else partitions
    _check_count(base, count)
    if count < known.partitions:
        raise InvalidArgument(
            f"topic {base} has {known.partitions} partitions; they can be added, not taken away, since they hold "
            "messages: to have fewer, create another topic"
        )
    if count > known.partitions:
        check_topics(shard, namespace_of(base), count - known.partitions)
    facts = _update_facts(shard, known, change, count)
    _change(shard, base, facts, count, on_done)


def _update_facts(
    shard: Shard, known: PartitionedState, change: Policies, count: int
) -> list[Event]:
    base, spec, old = TopicName(known.name), known.spec, partitions_of(shard, known)
    is_changed = change != Policies()
    if is_changed:
        layer = spec.layer().patched(change)
        spec = TopicSpec(spec.dispatch, spec.durability, policies=layer)
    facts: list[Event] = [PartitionsSet(base, count, spec, known.created_ms)]
    if is_changed:
        facts += [TopicChanged(topic.id, spec.policies) for topic in old]
    now_ms = shard.clock.wall_us() // 1000
    subscriptions: dict[str, Subscription] = {}
    if spec.dispatch is Dispatch.RELIABLE:
        subscriptions = {s.name: s for topic in old for s in topic.subscriptions.values()}
    for index in range(known.partitions, count):
        topic_id = shard.numbers.draw()
        facts.append(TopicCreated(topic_id, partition_name(base, index), spec, now_ms))
        facts += [
            SubscriptionCreated(
                topic_id, shard.numbers.draw(), s.name, s.type, 0, s.failure, now_ms
            )
            for s in subscriptions.values()
        ]
    return facts


def delete_partitioned(shard: Shard, base: TopicName, on_done: OnDone) -> None:
    """Delete it with all its partitions. Nothing of it may be under change."""
    topics = partitions_of(shard, shard.catalog.partitioned[base])
    remove_topics(shard, topics, [base], [], _settling(shard, base, on_done))
    shard.catalog.changes.begin(base)


def _change(
    shard: Shard, base: TopicName, facts: Sequence[Event], partitions: int, on_done: OnDone
) -> None:
    def done(error: DanubiusError | None) -> None:
        if error is None:
            log.info("topic partitioned", extra={"topic": base, "partitions": partitions})
            shard.catalog.watchers.tell(base, partitions)
        on_done(error)

    commit_facts(shard, facts, _settling(shard, base, done))
    shard.catalog.changes.begin(base)


def _settling(shard: Shard, base: TopicName, on_done: OnDone) -> OnDone:
    """The change is over with this answer; those who waited for it look again in a turn of their own."""

    def done(error: DanubiusError | None) -> None:
        for action in shard.catalog.changes.finish(base):
            shard.loop.call_soon(action)
        on_done(error)

    return done
