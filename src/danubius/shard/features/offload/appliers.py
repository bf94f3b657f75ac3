"""Appliers of offloading: where ledgers are, as the facts say: in the object store too, or there alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.ledger.entry import StoredObject
from danubius.ledger.managed import ManagedLedger
from danubius.model.ids import TopicId
from danubius.shard.state.facts import LedgerOffloaded, LedgersReclaimed

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.shard.shard import Shard


def _ledger_offloaded(shard: Shard, fact: LedgerOffloaded) -> None:
    topic = shard.topics_by_id.get(TopicId(fact.topic_id))
    if topic is not None and isinstance(topic.log, ManagedLedger):
        if not fact.name:
            topic.log.object_lost(fact.ledger_id)
            return
        stored = StoredObject(fact.name, fact.object_bytes, fact.data_crc, fact.index_rows)
        topic.log.offloaded(fact.ledger_id, fact.epoch, stored)


def _ledgers_reclaimed(shard: Shard, fact: LedgersReclaimed) -> None:
    topic = shard.topics_by_id.get(TopicId(fact.topic_id))
    if topic is not None and isinstance(topic.log, ManagedLedger):
        topic.log.reclaim(fact.ledger_ids)


APPLIERS: Final[dict[type, Callable[[Shard, Any], None]]] = {
    LedgerOffloaded: _ledger_offloaded,
    LedgersReclaimed: _ledgers_reclaimed,
}
