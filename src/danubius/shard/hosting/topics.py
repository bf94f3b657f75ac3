"""Topics come and go: created, changed, deleted, listed.

A topic is hosted from the commit of its creation to the commit of its removal, and never in between.
"""

from __future__ import annotations

import bisect
import functools
import logging
from typing import TYPE_CHECKING

import msgspec

from danubius.errors import DanubiusError, InvalidArgument, TopicExists, TopicNotFound
from danubius.model.ids import namespace_of, parse_topic_name
from danubius.model.partitions import base_of, partitioned_error
from danubius.model.topic import Retention
from danubius.shard.hosting.changes import commit_facts, remove_topics
from danubius.shard.hosting.counts import check_topics
from danubius.shard.hosting.namespaces import namespace_facts, namespace_policies
from danubius.shard.hosting.partitions import (
    create_partitioned,
    delete_partitioned,
    same_settings,
    update_partitioned,
    when_settled,
)
from danubius.shard.state.facts import TopicChanged, TopicCreated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from danubius.model.ids import TopicName
    from danubius.model.policy import Policies
    from danubius.model.topic import TopicSpec
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard
    from danubius.shard.state.tokens import OnDone


log = logging.getLogger(__name__)

# ---------------------------------------------------------------- create


def create_topic(
    shard: Shard,
    text: str,
    spec: TopicSpec,
    *,
    exist_ok: bool,
    on_done: Callable[[Topic | DanubiusError], None],
) -> None:
    """Create a topic; answered once it is durable. Those who ask for one under way share its answer."""
    name = parse_topic_name(text)
    spec.check()
    existing = shard.topics.get(name)
    if existing is not None:
        existing.check_open()
        on_done(_accept_existing(shard, existing, spec, exist_ok=exist_ok))
        return
    if name in shard.creating:
        shard.creating[name].append(
            lambda result: on_done(
                result
                if isinstance(result, DanubiusError)
                else _accept_existing(shard, result, spec, exist_ok=exist_ok)
            )
        )
        return
    again = functools.partial(create_topic, shard, text, spec, exist_ok=exist_ok, on_done=on_done)
    if when_settled(shard, name, again, on_done):
        return
    known = shard.catalog.partitioned.get(name)
    if known is not None:
        raise partitioned_error(name, known.partitions)
    shard.catalog.check_free(name)
    check_topics(shard, namespace_of(name))
    facts = namespace_facts(shard, namespace_of(name))
    shard.creating[name] = [on_done]
    created = TopicCreated(shard.numbers.draw(), name, spec, shard.clock.wall_us() // 1000)
    if facts:
        commit_facts(shard, [*facts, created], functools.partial(_created, shard, created))
        return
    shard.commit(created, functools.partial(_created, shard, created))


def create_missing(
    shard: Shard,
    text: str,
    spec: TopicSpec,
    on_done: Callable[[Topic | DanubiusError], None],
) -> None:
    """A producer opens a topic that is not there: create it, if and as its namespace says."""
    name = parse_topic_name(text)
    if spec.retention == Retention():
        # Clients send it with every producer, which has no say in this: the namespace has.
        spec = msgspec.structs.replace(spec, retention=None)
    again = functools.partial(create_missing, shard, text, spec, on_done)
    if when_settled(shard, name, again, on_done):
        return
    is_new = not (
        name in shard.topics or name in shard.creating or name in shard.catalog.partitioned
    )
    if not is_new:
        create_topic(shard, text, spec, exist_ok=True, on_done=on_done)
        return
    shard.catalog.check_free(name)
    space = namespace_of(name)
    policies = namespace_policies(shard, space)
    if not policies.auto_create:
        raise TopicNotFound(
            f"topic {name} does not exist, and auto-creation is off in namespace {space!r}; "
            f"`danubius topics create {name}` creates it"
        )
    found = base_of(name)
    if found is not None:
        # Most likely {base} was deleted while this producer was away; its partitions must not come back one by one.
        raise TopicNotFound(
            f"topic {name} would be a partition of {found[0]}, which does not exist; create that with partitions, or "
            f"`danubius topics create {name}` if you want a plain topic of this name"
        )
    if not policies.auto_partitions:
        create_topic(shard, text, spec, exist_ok=True, on_done=on_done)
        return

    def partitioned(error: DanubiusError | None) -> None:
        # The client looks again, and opens the partitions.
        on_done(error or partitioned_error(name, policies.auto_partitions))

    create_partitioned(
        shard, text, spec, policies.auto_partitions, exist_ok=True, on_done=partitioned
    )


def _created(shard: Shard, created: TopicCreated, error: DanubiusError | None) -> None:
    name = parse_topic_name(created.name)
    if error is not None:
        _finish_creating(shard, name, error)
        return
    log.info("topic created", extra={"topic": name, "dispatch": created.spec.dispatch.value})
    _finish_creating(shard, name, shard.topics[name])


def _finish_creating(shard: Shard, name: TopicName, result: Topic | DanubiusError) -> None:
    for on_done in shard.creating.pop(name):
        on_done(result)


def _accept_existing(
    shard: Shard, topic: Topic, spec: TopicSpec, *, exist_ok: bool
) -> Topic | DanubiusError:
    if not exist_ok:
        return TopicExists(f"topic {topic.name} exists already")
    if not same_settings(shard, topic.name, topic.spec, spec):
        told = topic.spec.describe()
        return TopicExists(f"topic {topic.name} exists already with other settings: {told}")
    return topic


# ---------------------------------------------------------------- change, delete


def update_topic(
    shard: Shard, text: str, change: Policies, partitions: int | None, on_done: OnDone
) -> None:
    """Change a topic's own policies; of a partitioned one also the number of partitions."""
    name = parse_topic_name(text)
    _check_whole(shard, name, "change")
    if (
        partitions is not None
        or name in shard.catalog.partitioned
        or shard.catalog.changes.changing_around(name) is not None
    ):
        update_partitioned(shard, name, change, partitions, on_done)
        return
    topic = shard.topic(name)
    change.check()
    # Changes that were appended and are not durable yet come before this one.
    planned = shard.catalog.changes.planned
    own = topic.own_policies
    before = planned.get(name, own if own is not None else topic.spec.layer())
    layer = planned[name] = before.patched(change)

    def done(error: DanubiusError | None) -> None:
        if error is not None or planned.get(name) is layer:
            planned.pop(name, None)
        on_done(error)

    commit_facts(shard, [TopicChanged(topic.id, layer)], done)


def delete_topic(shard: Shard, text: str, on_done: OnDone) -> None:
    """Delete a topic; it takes nothing more from here on, and is gone once that is durable."""
    name = parse_topic_name(text)
    again = functools.partial(delete_topic, shard, text, on_done)
    if when_settled(shard, name, again, on_done):
        return
    _check_whole(shard, name, "delete")
    if name in shard.catalog.partitioned:
        delete_partitioned(shard, name, on_done)
    else:
        remove_topics(shard, [shard.topic(name)], [], [], on_done)


def _check_whole(shard: Shard, name: TopicName, deed: str) -> None:
    known = shard.catalog.whole_of(name)
    if known is not None:
        raise InvalidArgument(
            f"Cannot {deed} individual partition {name}: {deed} {known.name} as a whole"
        )


# ---------------------------------------------------------------- list


def list_topics(shard: Shard, namespace: str, after: str, limit: int) -> tuple[list[Topic], bool]:
    """One page in order of name, and whether there is more."""
    page: list[Topic] = []
    for name in _names_after(shard, namespace, after):
        if len(page) == limit:
            return page, True
        page.append(shard.topics[name])
    return page, False


def _names_after(shard: Shard, namespace: str, after: str) -> Iterator[TopicName]:
    taken = shard.catalog.names
    # In the order of the whole names: '/a-b/t' comes before '/a/t'.
    order = [namespace] if namespace else sorted(taken.namespaces, key=lambda n: f"/{n}/")
    for space in order:
        names = taken.names(space)
        yield from names[bisect.bisect_right(names, after) :]
