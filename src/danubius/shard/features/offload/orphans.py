"""Objects that no ledger has: which of them the state knows to be past, and which it knows nothing of.

An object that the state knows nothing of may be known to a later one: of a data directory beside which an old copy was
put, or of the broker of which this is the copy. Such are never removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.ledger.managed import ManagedLedger
from danubius.model.ids import TopicId
from danubius.tier.core.object_format import parse_name

if TYPE_CHECKING:
    from danubius.shard.shard import Shard


def is_there(shard: Shard, topic_id: int, ledger_id: int, epoch: int) -> bool:
    topic = shard.topics_by_id.get(TopicId(topic_id))
    log = topic.log if topic is not None else None
    return isinstance(log, ManagedLedger) and log.has_ledger(ledger_id, epoch)


def is_explained(shard: Shard, name: str) -> bool:
    """Whether a ledger has this object, or will: a fact that failed may be found by a recovery all the same."""
    found = parse_name(name)
    return found is not None and is_there(shard, *found[1:])


def is_past(shard: Shard, name: str) -> bool:
    """Whether the state knows that the ledger of an object was, and is not any more."""
    found = parse_name(name)
    if found is None:
        return False
    _, topic_id, ledger_id, epoch = found
    if epoch == shard.epoch:
        return True
    topic = shard.topics_by_id.get(TopicId(topic_id))
    if topic is None:
        return topic_id < shard.recovered_next_number
    return isinstance(topic.log, ManagedLedger) and ledger_id < topic.log.known_ledgers_end
