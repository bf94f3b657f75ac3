"""Namespaces as operators list, describe, make, change and delete them."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any, Final

import msgspec

from danubius.errors import NamespaceNotFound
from danubius.model import admin, admin_replies
from danubius.model.admin_pages import take_page
from danubius.runtime.slices import in_slices
from danubius.shard.hosting.namespaces import (
    create_namespace,
    delete_namespace,
    namespace_policies,
    update_namespace,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from danubius.broker.node import Node
    from danubius.errors import DanubiusError
    from danubius.model.admin_replies import OnReply
    from danubius.model.ids import TopicName
    from danubius.shard.shard import Shard
    from danubius.shard.state.tokens import OnDone


COUNTED_SLICE: Final = 1_000
"""Topics whose bytes are added up in one turn: about a millisecond."""


def _sum_stored(
    shard: Shard, namespaces: list[str], on_done: Callable[[dict[str, int]], None]
) -> None:
    """The bytes that namespaces store, looked at in turns of the loop."""
    stored = dict.fromkeys(namespaces, 0)
    names = [(space, name) for space in namespaces for name in shard.catalog.names.names(space)]

    def add(named: tuple[str, TopicName]) -> None:
        topic = shard.topics.get(named[1])
        if topic is not None:
            stored[named[0]] += topic.stored_bytes

    in_slices(shard.loop, names, COUNTED_SLICE, add, lambda: on_done(stored))


def _describe_to(shard: Shard, name: str, on_reply: OnReply) -> None:
    shard.catalog.namespace(name)

    def summed(stored: dict[str, int]) -> None:
        if not shard.catalog.has_namespace(name):
            on_reply(NamespaceNotFound(f"namespace {name!r} was deleted just now"))
            return
        known = shard.catalog.namespace(name)
        on_reply(
            admin_replies.NamespaceDescribed(
                name,
                known.policies,
                namespace_policies(shard, name),
                len(shard.catalog.names.names(name)),
                stored[name],
                known.created_ms,
            )
        )

    _sum_stored(shard, [name], summed)


def _list(node: Node, request: admin.ListNamespaces, on_reply: OnReply) -> None:
    shard = node.shard
    names = shard.catalog.all_namespaces()

    def lines() -> Iterator[admin_replies.NamespaceSummary]:
        for name in names[bisect.bisect_right(names, request.after) :]:
            yield admin_replies.NamespaceSummary(
                name,
                len(shard.catalog.names.names(name)),
                0,
                shard.catalog.namespace(name).created_ms,
            )

    page, more = take_page(lines(), request.limit, lambda line: line.namespace)

    def summed(stored: dict[str, int]) -> None:
        counted = [
            msgspec.structs.replace(line, stored_bytes=stored[line.namespace]) for line in page
        ]
        on_reply(admin_replies.NamespacesListed(counted, next=more))

    _sum_stored(shard, [line.namespace for line in page], summed)


def _describe(node: Node, request: admin.DescribeNamespace, on_reply: OnReply) -> None:
    _describe_to(node.shard, request.namespace, on_reply)


def _replying(node: Node, name: str, on_reply: OnReply) -> OnDone:
    """Answer a change with the namespace as it is then."""

    def done(error: DanubiusError | None) -> None:
        if error is None and not node.shard.catalog.has_namespace(name):
            error = NamespaceNotFound(f"namespace {name!r} was deleted just now")
        if error is None:
            _describe_to(node.shard, name, on_reply)
        else:
            on_reply(error)

    return done


def _create(node: Node, request: admin.CreateNamespace, on_reply: OnReply) -> None:
    create_namespace(
        node.shard,
        request.namespace,
        request.policies,
        exist_ok=request.exist_ok,
        on_done=_replying(node, request.namespace, on_reply),
    )


def _update(node: Node, request: admin.UpdateNamespace, on_reply: OnReply) -> None:
    done = _replying(node, request.namespace, on_reply)
    update_namespace(node.shard, request.namespace, request.policies, done)


def _delete(node: Node, request: admin.DeleteNamespace, on_reply: OnReply) -> None:
    def done(error: DanubiusError | None) -> None:
        on_reply(admin_replies.Done() if error is None else error)

    delete_namespace(node.shard, request.namespace, force=request.force, on_done=done)


ADMIN: Final[dict[type, Callable[[Node, Any, OnReply], None]]] = {
    admin.ListNamespaces: _list,
    admin.DescribeNamespace: _describe,
    admin.CreateNamespace: _create,
    admin.UpdateNamespace: _update,
    admin.DeleteNamespace: _delete,
}
