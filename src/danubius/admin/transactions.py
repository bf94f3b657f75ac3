"""Open transactions, as operators see and end them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.errors import InvalidArgument
from danubius.model import admin, admin_replies
from danubius.model.admin_pages import take_page

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.broker.node import Node
    from danubius.model.admin_replies import OnReply
    from danubius.shard.features.transactions.transactions import OpenTransaction


def _list(node: Node, request: admin.ListTransactions, on_reply: OnReply) -> None:
    if request.after and not request.after.isdecimal():
        raise InvalidArgument(f"after is {request.after!r}; it must be the number of a transaction")
    after = int(request.after or -1)
    lines = (_summarise(node, one) for one in node.transactions.in_order() if one.core.id > after)
    page, more = take_page(lines, request.limit, lambda line: str(line.transaction))
    on_reply(admin_replies.TransactionsListed(page, next=more))


def _summarise(node: Node, one: OpenTransaction) -> admin_replies.TransactionSummary:
    core, owner, loop = one.core, one.owner, node.shard.loop
    left_ms = max(0, round((one.timer.when() - loop.time()) * 1000))
    return admin_replies.TransactionSummary(
        core.id,
        core.state.name.lower(),
        owner.address,
        one.begun_ms,
        node.shard.clock.wall_us() // 1000 + left_ms,
        sum(append.header.count for append in core.staged),
        core.bytes,
        sum(ranges.count for ranges in core.acks.values()),
    )


def _abort(node: Node, request: admin.AbortTransaction, on_reply: OnReply) -> None:
    node.transactions.end(request.transaction)
    on_reply(admin_replies.Done())


ADMIN: Final[dict[type, Callable[[Node, Any, OnReply], None]]] = {
    admin.ListTransactions: _list,
    admin.AbortTransaction: _abort,
}
