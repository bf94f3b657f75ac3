"""Transactions that are done, as the facts say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.shard.state.facts import TransactionCommitted

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.shard.shard import Shard


def _committed(shard: Shard, fact: TransactionCommitted) -> None:
    shard.committed_transactions.add(fact.transaction_id, fact.transaction_id + 1)


APPLIERS: Final[dict[type, Callable[[Shard, Any], None]]] = {TransactionCommitted: _committed}
