"""The hidden logs in which the stages of jobs wait: made for the first stage, trimmed, removed after a silence."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from danubius.errors import DanubiusError, Overloaded
from danubius.ledger.managed import ManagedLedger
from danubius.model.ids import TopicId
from danubius.model.limits import MIB
from danubius.model.topic import Durability, TopicSpec
from danubius.shard.state.facts import STAGE_LOG, LogTrimmed, TopicCreated, TopicRemoved

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard
    from danubius.shard.state.core.stages import Job

    OnLog = Callable[[Topic | DanubiusError], None]

LOG_IDLE_MS: Final = 60_000
"""The log of a job that has had nothing staged for this long is removed."""
SEAL_BYTES: Final = 1 * MIB
"""An emptied log frees its open ledger from this size on."""

log = logging.getLogger(__name__)


class StageLogs:
    """One log a job, on the loop."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._opening: dict[str, list[OnLog]] = {}
        """Jobs whose logs are being made, and who waits for them."""
        self._closing: set[int] = set()
        """Logs that are being removed."""
        self._touched_ms: dict[str, int] = {}
        """When something of a job was last asked for; jobs with a log only."""

    def open(self, name: str, on_done: OnLog) -> None:
        """The log of a job, made if it has none. What is in it is durable with the decision about it."""
        shard = self._shard
        job = shard.jobs.by_name.get(name)
        if job is not None and job.log_id:
            if job.log_id in self._closing:
                on_done(Overloaded(f"job {name} is being tidied up after a silence: try again"))
            else:
                on_done(shard.topics_by_id[TopicId(job.log_id)])
            return
        if name in self._opening:
            self._opening[name].append(on_done)
            return
        self._opening[name] = [on_done]
        fact = TopicCreated(
            shard.numbers.draw(),
            f"/~stages/{name}",
            TopicSpec(durability=Durability.WRITTEN),
            shard.clock.wall_us() // 1000,
            None,
            STAGE_LOG,
        )

        def done(error: DanubiusError | None) -> None:
            if error is None:
                self._touched_ms[name] = self._now_ms()
            for waiting in self._opening.pop(name):
                waiting(error or shard.topics_by_id[TopicId(fact.topic_id)])

        shard.commit(fact, done)

    def touch(self, job: Job) -> None:
        """Something of the job was asked for: it is alive."""
        if job.log_id:
            self._touched_ms[job.name] = self._now_ms()

    def idle_ms(self, job: Job) -> int:
        """For how long nothing was asked for; since the start, for all that anybody knows."""
        now_ms = self._now_ms()
        return now_ms - self._touched_ms.setdefault(job.name, now_ms)

    def trim(self, job: Job) -> None:
        """Free what was published or dropped."""
        source = self._shard.topics_by_id[TopicId(job.log_id)]
        ledger = source.log
        assert isinstance(ledger, ManagedLedger)
        start = job.free_below(ledger.end_offset)
        if start == ledger.end_offset:
            ledger.seal_open(SEAL_BYTES)
        if job.log_id in self._closing or not ledger.would_free(start):
            return
        self._shard.commit(LogTrimmed(source.id, start), _trimmed)

    def remove(self, job: Job) -> None:
        """Nothing is in it: what was decided is remembered without it."""
        if job.log_id in self._closing:
            return
        topic = self._shard.topics_by_id[TopicId(job.log_id)]
        self._closing.add(topic.id)

        def done(error: DanubiusError | None) -> None:
            self._closing.discard(topic.id)
            if error is None:
                self._touched_ms.pop(job.name, None)
            _trimmed(error)

        self._shard.commit(TopicRemoved(topic.id), done)

    def _now_ms(self) -> int:
        return self._shard.clock.monotonic_ns() // 1_000_000


def _trimmed(error: DanubiusError | None) -> None:
    if error is not None:
        log.warning("the log of a job is kept for now", extra={"error": error.message})
