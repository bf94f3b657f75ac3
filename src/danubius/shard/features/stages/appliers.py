"""Jobs and their stages as they are put up again: from a snapshot, and by facts and staged batches behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.shard.features.stages.wrapper import messages_of, stage_of, target_of
from danubius.shard.state.core.stages import Decision, Stage
from danubius.shard.state.facts import BatchAdvanced, BatchDecided, StageOpened, StagesDropped

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.record.header import Header
    from danubius.shard.shard import Broker
    from danubius.shard.state.snapshot import JobState


def restore_jobs(broker: Broker, states: list[JobState]) -> None:
    """Before the topics: those that are logs of jobs find them."""
    for state in states:
        job = broker.jobs.job(state.name)
        job.committed = state.committed
        for stored in state.stages:
            stage = Stage(stored.stage_id, stored.batch, stored.task, stored.first)
            stage.batches, stage.messages = stored.batches, stored.messages
            stage.bytes, stage.targets = stored.bytes, set(stored.targets)
            broker.jobs.add(job, stage)
        if state.decision is not None:
            batch, stages, first, end = state.decision
            job.decision = Decision(batch, frozenset(stages), first, end)


def count_staged(broker: Broker, wrapper: Header) -> None:
    """A staged batch is stored."""
    broker.jobs.count(stage_of(wrapper), target_of(wrapper), messages_of(wrapper), wrapper.length)


def _stage_opened(broker: Broker, fact: StageOpened) -> None:
    broker.next_id = max(broker.next_id, fact.stage_id + 1)
    job = broker.jobs.job_of_log(fact.topic_id)
    if job is not None:
        broker.jobs.add(job, Stage(fact.stage_id, fact.batch, fact.task, fact.first))


def _stages_dropped(broker: Broker, fact: StagesDropped) -> None:
    job = broker.jobs.job_of_log(fact.topic_id)
    if job is not None:
        broker.jobs.drop(job, fact.stages)


def _batch_decided(broker: Broker, fact: BatchDecided) -> None:
    decision = Decision(fact.batch, frozenset(fact.stages), fact.first, fact.end)
    broker.jobs.decide(fact.job, decision)


def _batch_advanced(broker: Broker, fact: BatchAdvanced) -> None:
    broker.jobs.advance(fact.job, fact.batch, fact.next_offset, is_done=fact.is_done)


APPLIERS: Final[dict[type, Callable[[Broker, Any], None]]] = {
    StageOpened: _stage_opened,
    StagesDropped: _stages_dropped,
    BatchDecided: _batch_decided,
    BatchAdvanced: _batch_advanced,
}
