"""Facts about who publishes, applied: lives of producer names, transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.broker.events import ProducerStarted, TransactionCommitted
from danubius.model.ids import Epoch, ProducerId, TopicId

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.broker.broker import Broker


def _producer_started(broker: Broker, fact: ProducerStarted) -> None:
    broker.next_id = max(broker.next_id, fact.producer_id + 1)
    topic = broker.topics_by_id.get(TopicId(fact.topic_id))
    if topic is None:
        return
    sequencer = topic.pipeline.sequencer
    if not sequencer.opened(ProducerId(fact.producer_id), fact.name, Epoch(fact.epoch)):
        sequencer.open(
            ProducerId(fact.producer_id),
            fact.name,
            Epoch(fact.epoch),
            resumed=fact.resumed,
            next_sequence=fact.next_sequence,
            is_replay=True,
        )


def _transaction_committed(broker: Broker, fact: TransactionCommitted) -> None:
    broker.committed_transactions.add(fact.transaction_id, fact.transaction_id + 1)


APPLIERS: Final[dict[type, Callable[[Broker, Any], None]]] = {
    ProducerStarted: _producer_started,
    TransactionCommitted: _transaction_committed,
}
