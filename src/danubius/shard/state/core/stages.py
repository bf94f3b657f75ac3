"""Stages: what task attempts of jobs have written, and which batch of each job was decided.

Invariants:
- A batch of a job is decided once; from then on nothing of that batch or a lower one can be staged or decided.
- All this is what journaled facts say, in their order: a snapshot keeps it and recovery repeats it.
- A stage counts what is stored in the log of its job, no more: what is still on its way is its owner's to know.
"""

from __future__ import annotations

from typing import Final

NO_BATCH: Final = -1
"""Of a job that has not decided anything yet."""


class Stage:
    """What one attempt of one task has written."""

    __slots__ = ("batch", "batches", "bytes", "first", "messages", "number", "targets", "task")

    def __init__(self, number: int, batch: int, task: str, first: int) -> None:
        self.number = number
        self.batch = batch
        self.task = task
        self.first = first
        """Nothing of it is below this offset of the job's log."""
        self.batches = 0
        self.messages = 0
        self.bytes = 0
        self.targets: set[int] = set()
        """The topics that it writes to."""


class Decision:
    """A batch that was decided and is not wholly published yet."""

    __slots__ = ("batch", "end", "next", "stages")

    def __init__(self, batch: int, stages: frozenset[int], first: int, end: int) -> None:
        self.batch = batch
        self.stages = stages
        self.next = first
        """Everything below this offset of the job's log is published."""
        self.end = end
        """Nothing of it is at this offset or behind."""


class Job:
    """One query or one batch job."""

    __slots__ = ("by_task", "committed", "decision", "log_id", "name", "stages")

    def __init__(self, name: str) -> None:
        self.name = name
        self.log_id = 0
        """The topic in which its stages wait; 0: it has none now."""
        self.committed = NO_BATCH
        """The highest batch that was decided and published."""
        self.stages: dict[int, Stage] = {}
        self.by_task: dict[tuple[int, str], Stage] = {}
        """The same by batch and task."""
        self.decision: Decision | None = None

    def find(self, batch: int, task: str) -> Stage | None:
        """The stage of an attempt, if it is there already."""
        return self.by_task.get((batch, task))

    def free_below(self, end: int) -> int:
        """Nobody needs what is below this offset of its log, which ends at `end`."""
        if self.decision is not None:
            end = min(end, self.decision.next)
        return min((stage.first for stage in self.stages.values()), default=end)


class Jobs:
    """All jobs of one broker, those that decided something last at the end."""

    __slots__ = ("_by_log", "_by_stage", "by_name", "bytes", "jobs_max")

    def __init__(self, jobs_max: int) -> None:
        self.jobs_max = jobs_max
        self.by_name: dict[str, Job] = {}
        self._by_log: dict[int, Job] = {}
        self._by_stage: dict[int, Job] = {}
        self.bytes = 0
        """What all stages hold."""

    @property
    def stage_count(self) -> int:
        return len(self._by_stage)

    @property
    def log_count(self) -> int:
        return len(self._by_log)

    def job_of_log(self, log_id: int) -> Job | None:
        return self._by_log.get(log_id)

    def job_of_stage(self, number: int) -> Job | None:
        return self._by_stage.get(number)

    def job(self, name: str) -> Job:
        """The job of this name, which begins here if nobody knows it."""
        known = self.by_name.get(name)
        if known is None:
            known = self.by_name[name] = Job(name)
        return known

    # ------------------------------------------------------------ what facts say

    def open_log(self, name: str, log_id: int) -> None:
        job = self.job(name)
        job.log_id = log_id
        self._by_log[log_id] = job

    def close_log(self, log_id: int) -> None:
        """Its log is gone, with all stages in it; what was decided is remembered."""
        job = self._by_log.pop(log_id, None)
        if job is None:
            return
        self.drop(job, list(job.stages))
        job.log_id, job.decision = 0, None
        if job.committed == NO_BATCH:
            del self.by_name[job.name]

    def add(self, job: Job, stage: Stage) -> None:
        job.stages[stage.number] = job.by_task[stage.batch, stage.task] = stage
        self._by_stage[stage.number] = job
        self.bytes += stage.bytes

    def count(self, number: int, target: int, messages: int, size: int) -> None:
        """A batch of a stage is stored."""
        job = self._by_stage.get(number)
        if job is None:
            return  # it was dropped while this was on its way
        stage = job.stages[number]
        stage.batches += 1
        stage.messages += messages
        stage.bytes += size
        stage.targets.add(target)
        self.bytes += size

    def drop(self, job: Job, numbers: list[int]) -> None:
        for number in numbers:
            stage = job.stages.pop(number, None)
            if stage is not None:
                job.by_task.pop((stage.batch, stage.task), None)
                del self._by_stage[number]
                self.bytes -= stage.bytes

    def decide(self, name: str, decision: Decision) -> None:
        self.job(name).decision = decision

    def advance(self, name: str, batch: int, next_offset: int, *, is_done: bool) -> None:
        """So much of a decided batch is published, or all of it: then its stages and all older ones are gone."""
        job = self.job(name)
        if job.decision is not None and job.decision.batch == batch:
            job.decision.next = next_offset
        if not is_done:
            return
        job.decision = None
        job.committed = max(job.committed, batch)
        self.drop(job, [s.number for s in job.stages.values() if s.batch <= batch])
        self.by_name[name] = self.by_name.pop(name)
        self._forget()

    def _forget(self) -> None:
        """Keep the bound: those without a log that decided something longest ago go first."""
        excess = len(self.by_name) - self.jobs_max
        if excess > 0:
            idle = [job.name for job in self.by_name.values() if not job.log_id]
            for name in idle[:excess]:
                del self.by_name[name]
