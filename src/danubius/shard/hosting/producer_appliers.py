"""Lives of producer names as the facts say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.model.ids import Epoch, ProducerId, TopicId
from danubius.shard.state.facts import ProducerStarted

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.shard.shard import Broker


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


APPLIERS: Final[dict[type, Callable[[Broker, Any], None]]] = {
    ProducerStarted: _producer_started,
}
