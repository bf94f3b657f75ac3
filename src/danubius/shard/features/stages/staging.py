"""Stages of jobs: many connections write them, one names those that count, and that is decided once.

Invariants:
- What is journaled is in `broker.jobs`; here is only what is on its way: a crash forgets it, and nobody relied on it.
- The batches of a stage are stored in the order of their indexes. One that could not be stored spoils its stage: it is
  never committed, whatever comes behind it.
- While a batch is being decided and published its stages stand still: no upload, no abort, no expiry.
- Bounds: how many stages and logs, how many bytes, how long a job may be silent, how many jobs are remembered.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Final

from danubius.errors import (
    DanubiusError,
    InvalidArgument,
    OutOfSequence,
    Overloaded,
    StageNotFound,
    TopicDeleted,
)
from danubius.model.ids import TopicId, parse_name
from danubius.record.batch import check_batch, read_header
from danubius.shard.features.stages.logs import LOG_IDLE_MS, StageLogs
from danubius.shard.features.stages.publishing import Publishing
from danubius.shard.features.stages.wrapper import WRAPPER_BYTES, check_stageable, wrap_staged
from danubius.shard.hosting.publish_door import admit
from danubius.shard.state.facts import (
    BatchDecided,
    StageOpened,
    StagesDropped,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.model.ids import Offset
    from danubius.shard.hosting.publish_door import Admitted
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard
    from danubius.shard.state.atomic import Atomic
    from danubius.shard.state.core.stages import Job, Stage
    from danubius.shard.state.tokens import OnDone

    OnOpened = Callable[[Stage | DanubiusError | None], None]

TEND_MS: Final = 1000
WAITING_MAX: Final = 100
"""Requests that wait for one commit: the first, and repetitions of it over new connections."""

log = logging.getLogger(__name__)


class _Intake:
    """What of one stage is on its way."""

    __slots__ = ("admitted", "is_spoilt", "waiting")

    def __init__(self, stored: int) -> None:
        self.admitted = stored
        """So many batches were taken, stored or not yet."""
        self.is_spoilt = False
        self.waiting: dict[int, list[OnDone]] = {}
        """By index: who hears when it is stored."""


class Staging:
    """All stages of one broker, on the loop."""

    def __init__(self, shard: Shard, atomic: Atomic) -> None:
        self._shard = shard
        self._atomic = atomic
        self._intakes: dict[int, _Intake] = {}
        """By stage, of those that were written to since the start."""
        self._publishing: dict[str, Publishing] = {}
        """By job: one batch at a time."""
        self._logs = StageLogs(shard)
        self._opening_stages: dict[tuple[str, int, str], list[OnOpened]] = {}
        # Since the start of the broker.
        self.committed = 0
        self.expired = 0

    def start(self) -> None:
        """Go on with what was decided before the broker ended."""
        for job in self._shard.jobs.by_name.values():
            decision = job.decision
            if decision is not None:
                stages = list(decision.stages)
                fact = BatchDecided(job.name, decision.batch, stages, decision.next, decision.end)
                self._publish(job.name, fact, 0).go_on()
        self._shard.ticks.add(TEND_MS, self.tend)

    # ------------------------------------------------------------ opening

    def open(self, name: str, batch: int, task: str, on_done: OnOpened) -> None:
        """The stage of an attempt, made if it is new; None if its batch is committed. Answered once it is durable."""
        parse_name("task", task)
        job = self._shard.jobs.by_name.get(parse_name("job", name))
        if job is not None and self._is_settled(job, batch):
            on_done(None)
            return
        known = job.find(batch, task) if job is not None else None
        if known is not None:
            self._check_whole(known)
            on_done(known)
            return
        key = (name, batch, task)
        if key in self._opening_stages:
            self._opening_stages[key].append(on_done)
            return
        self._check_room(0)
        self._opening_stages[key] = [on_done]
        self._logs.open(name, functools.partial(self._open_in, key))

    def _open_in(self, key: tuple[str, int, str], source: Topic | DanubiusError) -> None:
        name, batch, task = key
        if isinstance(source, DanubiusError):
            self._answer_opened(key, source)
            return
        shard = self._shard
        job = shard.jobs.by_name[name]
        self._logs.touch(job)
        first = source.pipeline.sequencer.next_offset
        fact = StageOpened(source.id, shard.numbers.draw(), batch, task, first)

        def done(error: DanubiusError | None) -> None:
            gone = StageNotFound(f"the log of job {name} was removed: try again")
            self._answer_opened(key, error or job.stages.get(fact.stage_id) or gone)

        shard.commit(fact, done)

    def _answer_opened(self, key: tuple[str, int, str], result: Stage | DanubiusError) -> None:
        for on_done in self._opening_stages.pop(key):
            on_done(result)

    # ------------------------------------------------------------ uploading

    def upload(
        self, number: int, index: int, topic_name: str, batch: memoryview, on_done: OnDone
    ) -> int:
        """Store a batch of a stage; `on_done` is called once unless this raises. Returns how long, in ns, to wait."""
        shard = self._shard
        job, stage = self._find(number)
        intake = self._intake(stage)
        self._logs.touch(job)
        if index < intake.admitted:
            waiting = intake.waiting.get(index)
            if waiting is None:
                on_done(None)
            else:
                waiting.append(on_done)
            return 0
        if index > intake.admitted:
            raise OutOfSequence(
                f"batch {index} of stage {number} came where {intake.admitted} must come: send them in order"
            )
        self._check_still(job, stage.batch)
        topic = shard.topic(topic_name)
        if not topic.is_reliable:
            raise InvalidArgument(
                f"topic {topic.name} is not reliable: it stores nothing, so nothing can be staged for it"
            )
        inner = check_batch(batch)
        check_stageable(inner)
        self._check_room(inner.length + WRAPPER_BYTES)
        admitted = admit(shard, topic, batch, inner)
        source = shard.topics_by_id[TopicId(job.log_id)]
        wrapper = memoryview(wrap_staged(batch, inner, number, topic.id, shard.clock.wall_us()))
        intake.waiting[index] = [on_done]
        intake.admitted += 1
        stored = functools.partial(
            self._on_stored, number, intake, index, admitted, (topic.id, inner.count, len(wrapper))
        )
        source.pipeline.publish_own(wrapper, read_header(wrapper), stored)
        return 0 if admitted is None else admitted.wait_ns

    def _on_stored(
        self,
        number: int,
        intake: _Intake,
        index: int,
        admitted: Admitted | None,
        counted: tuple[int, int, int],
        result: Offset | DanubiusError,
    ) -> None:
        error: DanubiusError | None = None
        if isinstance(result, DanubiusError):
            error, intake.is_spoilt = result, True
            if admitted is not None:
                admitted.give_back()
        else:
            self._shard.jobs.count(number, *counted)
        for on_done in intake.waiting.pop(index):
            on_done(error)

    def _find(self, number: int) -> tuple[Job, Stage]:
        job = self._shard.jobs.job_of_stage(number)
        if job is None:
            raise _gone(number)
        stage = job.stages[number]
        self._check_whole(stage)
        return job, stage

    def _intake(self, stage: Stage) -> _Intake:
        intake = self._intakes.get(stage.number)
        if intake is None:
            intake = self._intakes[stage.number] = _Intake(stage.batches)
        return intake

    def _check_whole(self, stage: Stage) -> None:
        intake = self._intakes.get(stage.number)
        if intake is not None and intake.is_spoilt:
            raise _gone(stage.number)

    def _check_room(self, size: int) -> None:
        config, jobs = self._shard.config, self._shard.jobs
        count = jobs.stage_count + len(self._opening_stages)
        if not size and max(count, jobs.log_count) >= config.stages_max:
            raise Overloaded(
                f"{count:,} stages of {jobs.log_count:,} jobs are open, of which {config.stages_max:,} are allowed "
                "(stages_max); try again when others were committed"
            )
        if jobs.bytes + size > config.stages_bytes_max:
            raise Overloaded(
                f"stages hold {jobs.bytes:,} of {config.stages_bytes_max:,} bytes (stages_bytes_max); commit smaller "
                "batches, or try again when others were committed"
            )

    def _check_still(self, job: Job, batch: int) -> None:
        """Nothing changes under a commit."""
        publishing = self._publishing.get(job.name)
        if publishing is not None and publishing.batch >= batch:
            raise InvalidArgument(
                f"batch {publishing.batch} of job {job.name} is being committed: nothing of it can be changed"
            )

    def _is_settled(self, job: Job, batch: int) -> bool:
        """Whether nothing that is staged for this batch from now on can count."""
        decided = job.decision.batch if job.decision is not None else job.committed
        return batch <= decided

    # ------------------------------------------------------------ committing

    def is_committing(self, name: str) -> bool:
        """Whether a batch of the job is being decided or published."""
        return name in self._publishing

    def commit(
        self, name: str, batch: int, stages: Sequence[tuple[int, int]], on_done: OnDone
    ) -> None:
        """Publish what these stages hold; each is given with the number of its batches. Answered once it is visible."""
        parse_name("job", name)
        shard = self._shard
        known = shard.jobs.by_name.get(name)
        if known is not None and batch <= known.committed:
            on_done(None)
            return
        publishing = self._publishing.get(name)
        if publishing is not None:
            if publishing.batch != batch:
                raise Overloaded(
                    f"batch {publishing.batch} of job {name} is being committed; try again when it is done"
                )
            if len(publishing.waiting) >= WAITING_MAX:
                raise Overloaded(f"{WAITING_MAX} requests wait for batch {batch} of job {name}")
            publishing.waiting.append(on_done)
            return
        shard.pressure.check()
        found = [self._check_counted(name, batch, *named) for named in dict(stages).items()]
        for target in {target for stage in found for target in stage.targets}:
            topic = shard.topics_by_id.get(TopicId(target))
            if topic is None:
                raise TopicDeleted(
                    f"a topic of batch {batch} of job {name} was deleted since it was staged: run its tasks again"
                )
            topic.check_open()
        # An empty batch is decided too, or a stage that comes late could still be committed as that batch.
        first = end = 0
        if found:
            assert known is not None
            self._logs.touch(known)
            first = min(stage.first for stage in found)
            end = shard.topics_by_id[TopicId(known.log_id)].log.end_offset
        fact = BatchDecided(name, batch, [stage.number for stage in found], first, end)
        publishing = self._publish(name, fact, sum(stage.bytes for stage in found) or 1)
        publishing.waiting.append(on_done)
        publishing.start()

    def _check_counted(self, name: str, batch: int, number: int, batches: int) -> Stage:
        """A stage that is all there."""
        job, stage = self._find(number)
        if job.name != name or stage.batch != batch:
            raise InvalidArgument(
                f"stage {number} belongs to batch {stage.batch} of job {job.name}, not to batch {batch} of {name}"
            )
        if stage.batches != batches:
            raise StageNotFound(
                f"stage {number} holds {stage.batches:,} batches where {batches:,} were uploaded: run its task again"
            )
        return stage

    def _publish(self, name: str, fact: BatchDecided, size: int) -> Publishing:
        job = self._shard.jobs.by_name.get(name)
        source = None
        if job is not None and job.log_id:
            source = self._shard.topics_by_id[TopicId(job.log_id)]
        publishing = Publishing(self._shard, self._atomic, source, fact, size=size)
        publishing.on_end = functools.partial(self._on_published, name)
        self._publishing[name] = publishing
        return publishing

    def _on_published(self, name: str) -> None:
        publishing = self._publishing.pop(name)
        job = self._shard.jobs.by_name.get(name)
        if job is not None and job.committed >= publishing.batch:
            self.committed += 1
        self._forget_intakes()

    # ------------------------------------------------------------ dropping

    def abort(
        self, name: str, batch: int, stages: Sequence[tuple[int, int]], on_done: OnDone
    ) -> None:
        """Drop these stages of a batch, or all of it. What is not there is dropped already."""
        job = self._shard.jobs.by_name.get(parse_name("job", name))
        if job is None:
            on_done(None)
            return
        if batch <= job.committed:
            raise InvalidArgument(f"batch {batch} of job {name} is committed")
        self._check_still(job, batch)
        self._logs.touch(job)
        named = {number for number, _ in stages}
        gone = [
            stage.number
            for stage in job.stages.values()
            if stage.batch == batch and (not named or stage.number in named)
        ]
        self._drop(job, gone, on_done)

    def _drop(self, job: Job, numbers: list[int], on_done: OnDone) -> None:
        if not numbers:
            on_done(None)
            return
        for number in numbers:
            # From here on nothing can be added to it, nor can it be committed.
            self._intake(job.stages[number]).is_spoilt = True
        fact = StagesDropped(job.log_id, numbers)

        def done(error: DanubiusError | None) -> None:
            if error is None:
                self._forget_intakes()
            on_done(error)

        self._shard.commit(fact, done)

    def _forget_intakes(self) -> None:
        find = self._shard.jobs.job_of_stage
        for number in [number for number in self._intakes if find(number) is None]:
            if not self._intakes[number].waiting:
                del self._intakes[number]

    # ------------------------------------------------------------ letting go

    def tend(self) -> None:
        """Go on with what failed, free what was published, drop what was abandoned."""
        for publishing in list(self._publishing.values()):
            publishing.retry()
        self._forget_intakes()
        for job in [job for job in self._shard.jobs.by_name.values() if job.log_id]:
            if job.name in self._publishing:
                continue
            idle_ms = self._logs.idle_ms(job)
            if job.stages and idle_ms > self._shard.config.stage_idle_max_ms:
                self.expired += len(job.stages)
                log.warning("stages expired", extra={"job": job.name, "stages": len(job.stages)})
                self._drop(job, list(job.stages), _ignore)
            elif not job.stages and idle_ms > LOG_IDLE_MS and not self._is_opening(job):
                self._logs.remove(job)
            else:
                self._logs.trim(job)

    def _is_opening(self, job: Job) -> bool:
        return any(key[0] == job.name for key in self._opening_stages)


def _gone(number: int) -> StageNotFound:
    return StageNotFound(
        f"stage {number} is not there: it was aborted, has expired, could not be stored, or its batch was committed "
        "without it; run its task again"
    )


def _ignore(_error: DanubiusError | None) -> None:
    """If it failed, the next round tries again."""
