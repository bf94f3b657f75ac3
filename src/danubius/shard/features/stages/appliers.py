"""Jobs and their stages as they are put up again: from a snapshot, and by facts and staged batches behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.shard.features.stages.wrapper import messages_of, stage_of, target_of
from danubius.shard.state.core.stages import Decision, Stage
from danubius.shard.state.facts import BatchAdvanced, BatchDecided, StageOpened, StagesDropped

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.record.header import Header
    from danubius.shard.shard import Shard
    from danubius.shard.state.snapshot import JobState


def restore_jobs(shard: Shard, states: list[JobState]) -> None:
    """Before the topics: those that are logs of jobs find them."""
    for state in states:
        job = shard.jobs.job(state.name)
        job.committed = state.committed
        for stored in state.stages:
            stage = Stage(stored.stage_id, stored.batch, stored.task, stored.first)
            stage.batches, stage.messages = stored.batches, stored.messages
            stage.bytes, stage.targets = stored.bytes, set(stored.targets)
            shard.jobs.add(job, stage)
        if state.decision is not None:
            batch, stages, first, end = state.decision
            job.decision = Decision(batch, frozenset(stages), first, end)


def count_staged(shard: Shard, wrapper: Header) -> None:
    """A staged batch is stored."""
    shard.jobs.count(stage_of(wrapper), target_of(wrapper), messages_of(wrapper), wrapper.length)


def _stage_opened(shard: Shard, fact: StageOpened) -> None:
    shard.numbers.seen(fact.stage_id)
    job = shard.jobs.job_of_log(fact.topic_id)
    if job is not None:
        shard.jobs.add(job, Stage(fact.stage_id, fact.batch, fact.task, fact.first))


def _stages_dropped(shard: Shard, fact: StagesDropped) -> None:
    job = shard.jobs.job_of_log(fact.topic_id)
    if job is not None:
        shard.jobs.drop(job, fact.stages)


def _batch_decided(shard: Shard, fact: BatchDecided) -> None:
    decision = Decision(fact.batch, frozenset(fact.stages), fact.first, fact.end)
    shard.jobs.decide(fact.job, decision)


def _batch_advanced(shard: Shard, fact: BatchAdvanced) -> None:
    shard.jobs.advance(fact.job, fact.batch, fact.next_offset, is_done=fact.is_done)


APPLIERS: Final[dict[type, Callable[[Shard, Any], None]]] = {
    StageOpened: _stage_opened,
    StagesDropped: _stages_dropped,
    BatchDecided: _batch_decided,
    BatchAdvanced: _batch_advanced,
}
