"""Lives of producer names as the facts say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.model.ids import Epoch, ProducerId, TopicId
from danubius.shard.state.facts import ProducerStarted

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.shard.shard import Shard


def _producer_started(shard: Shard, fact: ProducerStarted) -> None:
    shard.numbers.seen(fact.producer_id)
    topic = shard.topics_by_id.get(TopicId(fact.topic_id))
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


APPLIERS: Final[dict[type, Callable[[Shard, Any], None]]] = {
    ProducerStarted: _producer_started,
}
