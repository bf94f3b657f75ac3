"""Lives of producer names: begun or resumed, under an epoch that is durable before anybody hears of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.model.ids import ProducerId
from danubius.shard.state.facts import ProducerStarted

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.errors import DanubiusError
    from danubius.publish.core.sequencer import Producer
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard


def open_producer(
    shard: Shard,
    topic: Topic,
    name: str,
    resume_epoch: int,
    on_done: Callable[[Producer | DanubiusError], None],
    *,
    keep_sequence: bool = False,
) -> None:
    """Begin or resume the life of a producer name; answered once the epoch is durable.

    A new life that keeps the sequence goes on behind the last batch of the old one. What of it is under way is before
    this fact in the journal, so if this is stored, all of it is.
    """
    sequencer = topic.pipeline.sequencer
    known = sequencer.producer_or_none(name)
    epoch = sequencer.plan_open(name, resume_epoch)
    if epoch is None:
        assert known is not None
        if known.is_opening:
            shard.openings[known].append(on_done)
        else:
            on_done(known)
        return
    producer_id = known.id if known else ProducerId(shard.numbers.draw())
    next_sequence = max(0, known.admitted_next) if known and keep_sequence else 0
    producer = sequencer.open(
        producer_id, name, epoch, resumed=bool(resume_epoch), next_sequence=next_sequence
    )
    if not topic.is_reliable:
        on_done(producer)
        return
    # The life before is fenced from here on, and this one takes nothing before its fact has made it true.
    producer.is_opening, producer.previous = True, known
    shard.openings[producer] = [on_done]

    def done(error: DanubiusError | None) -> None:
        if error is not None:
            # The life before goes on as if nothing had been tried.
            sequencer.close(producer, known)
        for answer in shard.openings.pop(producer):
            answer(producer if error is None else error)

    shard.commit(
        ProducerStarted(topic.id, producer_id, name, epoch, bool(resume_epoch), next_sequence), done
    )
