"""Topics as operators make, change and delete them; they are answered with the topic as it is then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.admin.description import describe_target
from danubius.admin.targets import find_target
from danubius.errors import DanubiusError
from danubius.model import admin, admin_replies
from danubius.shard.hosting.partitions import create_partitioned
from danubius.shard.hosting.topics import create_topic, delete_topic, update_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.broker.node import Node
    from danubius.model.admin_replies import OnReply
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.state.tokens import OnDone


def _describing(node: Node, text: str, on_reply: OnReply) -> OnDone:
    """Answer a change with the topic as it is then."""

    def done(error: DanubiusError | None) -> None:
        on_reply(describe() if error is None else error)

    def describe() -> admin_replies.AdminReply | DanubiusError:
        try:
            return describe_target(node, find_target(node.shard, text))
        except DanubiusError as gone:
            return gone

    return done


def _create(node: Node, request: admin.CreateTopic, on_reply: OnReply) -> None:
    text, spec, exist_ok = request.topic, request.spec, request.exist_ok
    done = _describing(node, text, on_reply)
    if request.partitions:
        create_partitioned(
            node.shard, text, spec, request.partitions, exist_ok=exist_ok, on_done=done
        )
        return

    def created(result: Topic | DanubiusError) -> None:
        done(result if isinstance(result, DanubiusError) else None)

    create_topic(node.shard, text, spec, exist_ok=exist_ok, on_done=created)


def _update(node: Node, request: admin.UpdateTopic, on_reply: OnReply) -> None:
    done = _describing(node, request.topic, on_reply)
    update_topic(node.shard, request.topic, request.policies, request.partitions, done)


def _delete(node: Node, request: admin.DeleteTopic, on_reply: OnReply) -> None:
    def done(error: DanubiusError | None) -> None:
        on_reply(admin_replies.Done() if error is None else error)

    delete_topic(node.shard, request.topic, done)


ADMIN: Final[dict[type, Callable[[Node, Any, OnReply], None]]] = {
    admin.CreateTopic: _create,
    admin.UpdateTopic: _update,
    admin.DeleteTopic: _delete,
}
