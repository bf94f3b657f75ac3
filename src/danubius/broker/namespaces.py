"""Namespaces: made, changed and deleted; what they say holds for their topics unless those say otherwise.

Invariants:
- `default` and `system` are always there. They are written down only when they are changed.
- Every topic is in a namespace that exists: making a topic may make it, in the same record.
- A change reaches all topics of the namespace before it is answered, a few of them in each turn of the loop. Topics
  made meanwhile have it from the start.
"""

from __future__ import annotations

import bisect
import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from danubius.broker.changes import commit_facts, remove_topics
from danubius.broker.events import NamespaceChanged, NamespaceCreated, NamespaceRemoved
from danubius.broker.slices import in_slices
from danubius.broker.snapshot import NamespaceState
from danubius.broker.spaces import BUILT_IN
from danubius.errors import (
    DanubiusError,
    InvalidArgument,
    NamespaceExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
)
from danubius.model import admin, admin_replies
from danubius.model.admin_pages import take_page
from danubius.model.ids import namespace_of, parse_name
from danubius.model.policy import Policies, effective

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from danubius.broker.broker import Broker
    from danubius.broker.events import Event
    from danubius.broker.node import Node
    from danubius.model.ids import TopicName
    from danubius.model.policy import Effective

    OnReply = Callable[[admin_replies.AdminReply | DanubiusError], None]

SLICE: Final = 100
"""Topics that a change of a namespace reaches in one turn of the loop: about a millisecond."""

COUNTED_SLICE: Final = 1_000
"""Topics whose bytes are added up in one turn: about a millisecond too."""

log = logging.getLogger(__name__)


def namespace_exists(broker: Broker, name: str) -> bool:
    return name in BUILT_IN or name in broker.namespaces


def find_namespace(broker: Broker, name: str) -> NamespaceState:
    if name in broker.namespaces:
        return broker.namespaces[name]
    if name in BUILT_IN:
        return NamespaceState(name, Policies(), 0)
    raise NamespaceNotFound(
        f"namespace {name!r} does not exist; `danubius namespaces create {name}` creates it"
    )


def layers_below(broker: Broker, name: str) -> tuple[Policies, ...]:
    """What lies under the topics of a namespace, whether or not it exists yet."""
    config, known = broker.config, broker.namespaces.get(name)
    return (
        Policies(message_bytes_max=config.message_bytes_max),
        config.policies,
        known.policies if known is not None else Policies(),
    )


def namespace_policies(broker: Broker, name: str) -> Effective:
    """What holds in a namespace for topics that set nothing."""
    return effective(*layers_below(broker, name))


def namespace_facts(broker: Broker, name: str) -> list[Event]:
    """What has to become true with the first topic of a namespace. Raises if nothing may be made in it."""
    if name in broker.spaces.leaving:
        raise NamespaceNotFound(f"namespace {name!r} is being deleted; create it again afterwards")
    if namespace_exists(broker, name):
        return []
    if not broker.config.auto_create_namespaces:
        raise NamespaceNotFound(
            f"namespace {name!r} does not exist; `danubius namespaces create {name}` creates it"
        )
    return [NamespaceCreated(name, Policies(), broker.clock.wall_us() // 1000)]


# ---------------------------------------------------------------- changes


def create_namespace(
    broker: Broker,
    name: str,
    policies: Policies,
    *,
    exist_ok: bool,
    on_done: Callable[[DanubiusError | None], None],
) -> None:
    parse_name("namespace", name)
    policies.check()
    if name in broker.spaces.leaving:
        raise NamespaceExists(f"namespace {name!r} is just being deleted; create it afterwards")
    layer = Policies().patched(policies)

    def accept() -> DanubiusError | None:
        if not exist_ok:
            return NamespaceExists(f"namespace {name!r} exists already")
        known = find_namespace(broker, name)
        if known.policies != layer:
            return NamespaceExists(
                f"namespace {name!r} exists already with other policies: {known.policies}; "
                f"`danubius namespaces update {name}` changes them"
            )
        return None

    def committed(error: DanubiusError | None) -> None:
        # Someone may have been quicker, or a topic have been made in it: the first fact stands.
        if error is None and broker.namespaces[name] != NamespaceState(name, layer, created_ms):
            error = accept()
        elif error is None:
            log.info("namespace created", extra={"namespace": name})
        on_done(error)

    if namespace_exists(broker, name):
        on_done(accept())
        return
    created_ms = broker.clock.wall_us() // 1000
    commit_facts(broker, [NamespaceCreated(name, layer, created_ms)], committed)


def update_namespace(
    broker: Broker, name: str, change: Policies, on_done: Callable[[DanubiusError | None], None]
) -> None:
    """Change its policies; answered when they hold for all its topics."""
    change.check()
    if name in broker.spaces.leaving:
        raise NamespaceNotFound(f"namespace {name!r} is being deleted")
    known = find_namespace(broker, name)
    # Changes that were appended and are not durable yet come before this one.
    before = broker.spaces.planned.get(name, known.policies)
    layer = broker.spaces.planned[name] = before.patched(change)

    def committed(error: DanubiusError | None) -> None:
        if broker.spaces.planned.get(name) is layer or error is not None:
            broker.spaces.planned.pop(name, None)
        if error is not None:
            on_done(error)
            return
        log.info("namespace changed", extra={"namespace": name})
        names = list(broker.spaces.names(name))
        in_slices(broker.loop, names, SLICE, reach, lambda: on_done(None))

    def reach(topic_name: TopicName) -> None:
        topic = broker.topics.get(topic_name)
        if topic is not None:
            broker.apply_policies(topic)

    commit_facts(broker, [NamespaceChanged(name, layer)], committed)


def delete_namespace(
    broker: Broker, name: str, *, force: bool, on_done: Callable[[DanubiusError | None], None]
) -> None:
    """Delete it; with `force` its topics too, all in one record."""
    if name in BUILT_IN:
        raise InvalidArgument(f"namespace {name!r} cannot be deleted: it is always there")
    find_namespace(broker, name)
    spaces = broker.spaces
    if name in spaces.leaving:
        raise NamespaceNotFound(f"namespace {name!r} is being deleted already")
    arriving = [n for n in (*broker.creating, *spaces.changing) if namespace_of(n) == name]
    if arriving:
        raise NamespaceNotEmpty(
            f"namespace {name!r} is in use: topic {arriving[0]} is just being made or changed; try again"
        )
    names = spaces.names(name)
    if names and not force:
        raise NamespaceNotEmpty(
            f"namespace {name!r} has {len(names)} topic(s), {names[0]} among them; "
            "delete them first, or give force (`--force`) to delete them with it"
        )
    topics = [broker.topics[n] for n in names]
    bases = [n for n in broker.partitioned if namespace_of(n) == name]

    def done(error: DanubiusError | None) -> None:
        spaces.leaving.discard(name)
        if error is None:
            log.info("namespace deleted", extra={"namespace": name, "topics": len(topics)})
        on_done(error)

    remove_topics(broker, topics, bases, [NamespaceRemoved(name)], done)
    spaces.leaving.add(name)


# ---------------------------------------------------------------- what operators ask for


def _sum_stored(
    broker: Broker, namespaces: list[str], on_done: Callable[[dict[str, int]], None]
) -> None:
    """The bytes that namespaces store, looked at in turns of the loop."""
    stored = dict.fromkeys(namespaces, 0)
    names = [(space, name) for space in namespaces for name in broker.spaces.names(space)]

    def add(named: tuple[str, TopicName]) -> None:
        topic = broker.topics.get(named[1])
        if topic is not None:
            stored[named[0]] += topic.stored_bytes

    in_slices(broker.loop, names, COUNTED_SLICE, add, lambda: on_done(stored))


def _describe_to(broker: Broker, name: str, on_reply: OnReply) -> None:
    find_namespace(broker, name)

    def summed(stored: dict[str, int]) -> None:
        if not namespace_exists(broker, name):
            on_reply(NamespaceNotFound(f"namespace {name!r} was deleted just now"))
            return
        known = find_namespace(broker, name)
        on_reply(
            admin_replies.NamespaceDescribed(
                name,
                known.policies,
                namespace_policies(broker, name),
                len(broker.spaces.names(name)),
                stored[name],
                known.created_ms,
            )
        )

    _sum_stored(broker, [name], summed)


def _list(node: Node, request: admin.ListNamespaces, on_reply: OnReply) -> None:
    broker = node.broker
    names = sorted({*BUILT_IN, *broker.namespaces})

    def lines() -> Iterator[admin_replies.NamespaceSummary]:
        for name in names[bisect.bisect_right(names, request.after) :]:
            yield admin_replies.NamespaceSummary(
                name,
                len(broker.spaces.names(name)),
                0,
                find_namespace(broker, name).created_ms,
            )

    page, more = take_page(lines(), request.limit, lambda line: line.namespace)

    def summed(stored: dict[str, int]) -> None:
        counted = [
            msgspec.structs.replace(line, stored_bytes=stored[line.namespace]) for line in page
        ]
        on_reply(admin_replies.NamespacesListed(counted, next=more))

    _sum_stored(broker, [line.namespace for line in page], summed)


def _describe(node: Node, request: admin.DescribeNamespace, on_reply: OnReply) -> None:
    _describe_to(node.broker, request.namespace, on_reply)


def _replying(node: Node, name: str, on_reply: OnReply) -> Callable[[DanubiusError | None], None]:
    """Answer a change with the namespace as it is then."""

    def done(error: DanubiusError | None) -> None:
        if error is None and not namespace_exists(node.broker, name):
            error = NamespaceNotFound(f"namespace {name!r} was deleted just now")
        if error is None:
            _describe_to(node.broker, name, on_reply)
        else:
            on_reply(error)

    return done


def _create(node: Node, request: admin.CreateNamespace, on_reply: OnReply) -> None:
    create_namespace(
        node.broker,
        request.namespace,
        request.policies,
        exist_ok=request.exist_ok,
        on_done=_replying(node, request.namespace, on_reply),
    )


def _update(node: Node, request: admin.UpdateNamespace, on_reply: OnReply) -> None:
    done = _replying(node, request.namespace, on_reply)
    update_namespace(node.broker, request.namespace, request.policies, done)


def _delete(node: Node, request: admin.DeleteNamespace, on_reply: OnReply) -> None:
    def done(error: DanubiusError | None) -> None:
        on_reply(admin_replies.Done() if error is None else error)

    delete_namespace(node.broker, request.namespace, force=request.force, on_done=done)


ADMIN: Final[dict[type, Callable[[Node, Any, OnReply], None]]] = {
    admin.ListNamespaces: _list,
    admin.DescribeNamespace: _describe,
    admin.CreateNamespace: _create,
    admin.UpdateNamespace: _update,
    admin.DeleteNamespace: _delete,
}
