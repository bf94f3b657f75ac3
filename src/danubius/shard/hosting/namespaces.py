"""Namespaces: made, changed and deleted; what they say holds for their topics unless those say otherwise.

Invariants:
- `default` and `system` are always there. They are written down only when they are changed.
- Every topic is in a namespace that exists: making a topic may make it, in the same record.
- A change reaches all topics of the namespace before it is answered, a few of them in each turn of the loop. Topics
  made meanwhile have it from the start.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from danubius.catalog.core.catalog import BUILT_IN
from danubius.catalog.core.states import NamespaceState
from danubius.errors import (
    DanubiusError,
    InvalidArgument,
    NamespaceExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
)
from danubius.model.ids import namespace_of, parse_name
from danubius.model.policy import Policies, effective
from danubius.runtime.slices import in_slices
from danubius.shard.hosting.changes import commit_facts, remove_topics
from danubius.shard.state.facts import NamespaceChanged, NamespaceCreated, NamespaceRemoved

if TYPE_CHECKING:
    from danubius.model.ids import TopicName
    from danubius.model.policy import Effective
    from danubius.shard.shard import Shard
    from danubius.shard.state.facts import Event
    from danubius.shard.state.tokens import OnDone


SLICE: Final = 100
"""Topics that a change of a namespace reaches in one turn of the loop: about a millisecond."""

COUNTED_SLICE: Final = 1_000
"""Topics whose bytes are added up in one turn: about a millisecond too."""

log = logging.getLogger(__name__)


def layers_below(shard: Shard, name: str) -> tuple[Policies, ...]:
    """What lies under the topics of a namespace, whether or not it exists yet."""
    config = shard.config
    return (
        Policies(message_bytes_max=config.message_bytes_max),
        config.policies,
        shard.catalog.layer(name),
    )


def namespace_policies(shard: Shard, name: str) -> Effective:
    """What holds in a namespace for topics that set nothing."""
    return effective(*layers_below(shard, name))


def namespace_facts(shard: Shard, name: str) -> list[Event]:
    """What has to become true with the first topic of a namespace. Raises if nothing may be made in it."""
    if name in shard.catalog.changes.leaving:
        raise NamespaceNotFound(f"namespace {name!r} is being deleted; create it again afterwards")
    if shard.catalog.has_namespace(name):
        return []
    if not shard.config.auto_create_namespaces:
        raise NamespaceNotFound(
            f"namespace {name!r} does not exist; `danubius namespaces create {name}` creates it"
        )
    return [NamespaceCreated(name, Policies(), shard.clock.wall_us() // 1000)]


# ---------------------------------------------------------------- changes


def create_namespace(
    shard: Shard,
    name: str,
    policies: Policies,
    *,
    exist_ok: bool,
    on_done: OnDone,
) -> None:
    parse_name("namespace", name)
    policies.check()
    if name in shard.catalog.changes.leaving:
        raise NamespaceExists(f"namespace {name!r} is just being deleted; create it afterwards")
    layer = Policies().patched(policies)

    def accept() -> DanubiusError | None:
        if not exist_ok:
            return NamespaceExists(f"namespace {name!r} exists already")
        known = shard.catalog.namespace(name)
        if known.policies != layer:
            return NamespaceExists(
                f"namespace {name!r} exists already with other policies: {known.policies}; "
                f"`danubius namespaces update {name}` changes them"
            )
        return None

    def committed(error: DanubiusError | None) -> None:
        # Someone may have been quicker, or a topic have been made in it: the first fact stands.
        if error is None and shard.catalog.namespaces[name] != NamespaceState(
            name, layer, created_ms
        ):
            error = accept()
        elif error is None:
            log.info("namespace created", extra={"namespace": name})
        on_done(error)

    if shard.catalog.has_namespace(name):
        on_done(accept())
        return
    created_ms = shard.clock.wall_us() // 1000
    commit_facts(shard, [NamespaceCreated(name, layer, created_ms)], committed)


def update_namespace(shard: Shard, name: str, change: Policies, on_done: OnDone) -> None:
    """Change its policies; answered when they hold for all its topics."""
    change.check()
    if name in shard.catalog.changes.leaving:
        raise NamespaceNotFound(f"namespace {name!r} is being deleted")
    known = shard.catalog.namespace(name)
    # Changes that were appended and are not durable yet come before this one.
    before = shard.catalog.changes.planned.get(name, known.policies)
    layer = shard.catalog.changes.planned[name] = before.patched(change)

    def committed(error: DanubiusError | None) -> None:
        if shard.catalog.changes.planned.get(name) is layer or error is not None:
            shard.catalog.changes.planned.pop(name, None)
        if error is not None:
            on_done(error)
            return
        log.info("namespace changed", extra={"namespace": name})
        names = list(shard.catalog.names.names(name))
        in_slices(shard.loop, names, SLICE, reach, lambda: on_done(None))

    def reach(topic_name: TopicName) -> None:
        topic = shard.topics.get(topic_name)
        if topic is not None:
            shard.apply_policies(topic)

    commit_facts(shard, [NamespaceChanged(name, layer)], committed)


def delete_namespace(shard: Shard, name: str, *, force: bool, on_done: OnDone) -> None:
    """Delete it; with `force` its topics too, all in one record."""
    if name in BUILT_IN:
        raise InvalidArgument(f"namespace {name!r} cannot be deleted: it is always there")
    shard.catalog.namespace(name)
    changes = shard.catalog.changes
    if name in changes.leaving:
        raise NamespaceNotFound(f"namespace {name!r} is being deleted already")
    arriving = [n for n in (*shard.creating, *changes.changing) if namespace_of(n) == name]
    if arriving:
        raise NamespaceNotEmpty(
            f"namespace {name!r} is in use: topic {arriving[0]} is just being made or changed; try again"
        )
    names = shard.catalog.names.names(name)
    if names and not force:
        raise NamespaceNotEmpty(
            f"namespace {name!r} has {len(names)} topic(s), {names[0]} among them; "
            "delete them first, or give force (`--force`) to delete them with it"
        )
    topics = [shard.topics[n] for n in names]
    bases = [n for n in shard.catalog.partitioned if namespace_of(n) == name]

    def done(error: DanubiusError | None) -> None:
        changes.leaving.discard(name)
        if error is None:
            log.info("namespace deleted", extra={"namespace": name, "topics": len(topics)})
        on_done(error)

    remove_topics(shard, topics, bases, [NamespaceRemoved(name)], done)
    changes.leaving.add(name)
