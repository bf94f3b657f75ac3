"""Stages in one broker: bounds, expiry, what a commit refuses, and what is left of them on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from danubius.broker.config import BrokerConfig
from danubius.errors import (
    DanubiusError,
    InvalidArgument,
    InvalidName,
    OutOfSequence,
    Overloaded,
    StageNotFound,
    TopicDeleted,
    TopicNotFound,
)
from danubius.record.encode import encode
from danubius.shard.features.stages.logs import LOG_IDLE_MS
from danubius.shard.state.core.stages import Decision, Jobs, Stage
from danubius.shard.state.snapshot import BrokerSnapshot, decode_snapshot
from property.broker_lives import BrokerLives

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOPIC = "/default/target"


class World(BrokerLives):
    """A broker with one topic, whose answers are waited for."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        super().__init__(1, config)
        self.boot()
        self.topic = self.host(TOPIC)

    def open(self, batch: int = 0, task: str = "t", job: str = "job") -> Stage | None:
        answers: list[Stage | DanubiusError | None] = []
        self.node.staging.open(job, batch, task, answers.append)
        self.settle()
        if isinstance(answers[0], DanubiusError):
            raise answers[0]
        return answers[0]

    def stage(self, batch: int = 0, task: str = "t", job: str = "job") -> Stage:
        stage = self.open(batch, task, job)
        assert stage is not None
        return stage

    def upload(self, stage: Stage, index: int, payload: bytes, topic: str = TOPIC) -> None:
        batch = memoryview(encode([payload], publish_time_us=1))
        self._wait(lambda done: self.node.staging.upload(stage.number, index, topic, batch, done))

    def commit(self, stages: list[tuple[int, int]], batch: int = 0, job: str = "job") -> None:
        self._wait(lambda done: self.node.staging.commit(job, batch, stages, done))

    def _wait(self, ask: Callable[[Callable[[DanubiusError | None], None]], object]) -> None:
        answers: list[DanubiusError | None] = []
        ask(answers.append)
        for _ in range(5):
            self.settle()
        assert len(answers) == 1
        if answers[0] is not None:
            raise answers[0]

    def tend(self, elapsed_ms: int) -> None:
        self.clock.now_ms += elapsed_ms
        self.shard.ticks.advance(5000)
        self.settle()

    def payloads(self) -> list[bytes]:
        return [payload for _, payload in self.messages(self.shard.topic(TOPIC))]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop.close()


def test_a_repeated_opening_or_upload_changes_nothing(world: World) -> None:
    stage = world.stage()
    assert world.stage() is stage
    world.upload(stage, 0, b"a")
    world.upload(stage, 0, b"a")
    world.upload(stage, 1, b"b")
    with pytest.raises(OutOfSequence, match="2 must come"):
        world.upload(stage, 3, b"d")
    world.commit([(stage.number, 2)])
    assert world.payloads() == [b"a", b"b"]


def test_a_committed_batch_and_older_ones_are_over(world: World) -> None:
    first = world.stage(batch=4)
    world.upload(first, 0, b"a")
    late = world.stage(batch=3)
    world.commit([(first.number, 1)], batch=4)
    assert world.open(batch=4) is None
    assert world.open(batch=2) is None
    with pytest.raises(StageNotFound):
        world.upload(late, 0, b"late")
    world.commit([(late.number, 1)], batch=3)
    world.commit([], batch=4)
    assert world.payloads() == [b"a"]
    world.kill()
    world.commit([(first.number, 1)], batch=4)
    assert world.payloads() == [b"a"]
    assert world.stage(batch=5).batches == 0


def test_an_empty_batch_is_decided_too(world: World) -> None:
    stage = world.stage()
    world.upload(stage, 0, b"a")
    world.commit([])
    world.commit([(stage.number, 1)])
    assert world.payloads() == []


def test_what_a_commit_refuses_is_still_there(world: World) -> None:
    stage = world.stage()
    world.upload(stage, 0, b"a")
    with pytest.raises(InvalidArgument, match="belongs to batch 0 of job job"):
        world.commit([(stage.number, 1)], batch=1)
    with pytest.raises(StageNotFound, match="holds 1 batches where 2"):
        world.commit([(stage.number, 2)])
    with pytest.raises(StageNotFound):
        world.commit([(stage.number, 1), (stage.number + 1000, 1)])
    with pytest.raises(TopicNotFound):
        world.upload(stage, 1, b"b", topic="/default/nowhere")
    with pytest.raises(InvalidName):
        world.open(job="no/such")
    world.commit([(stage.number, 1)])
    assert world.payloads() == [b"a"]


def test_a_topic_that_is_gone_refuses_the_commit(world: World) -> None:
    other = world.host("/default/other")
    stage = world.stage()
    world.upload(stage, 0, b"a")
    world.upload(stage, 1, b"b", topic="/default/other")
    world.shard.unhost(other)
    with pytest.raises(TopicDeleted, match="run its tasks again"):
        world.commit([(stage.number, 2)])
    assert world.payloads() == []


def test_bounds_are_kept_and_named() -> None:
    world = World(BrokerConfig(stages_max=2, stages_bytes_max=3000))
    try:
        stage = world.stage(task="a")
        world.stage(task="b")
        with pytest.raises(Overloaded, match="stages_max"):
            world.stage(task="c")
        world.upload(stage, 0, bytes(2000))
        with pytest.raises(Overloaded, match="stages_bytes_max"):
            world.upload(stage, 1, bytes(2000))
        world.commit([(stage.number, 1)])
        assert world.shard.jobs.bytes == 0
        world.upload(world.stage(batch=1), 0, bytes(2000))
    finally:
        world.loop.close()


def test_abandoned_stages_expire_and_their_log_goes(world: World) -> None:
    stage = world.stage()
    world.upload(stage, 0, b"a")
    idle_ms = world.shard.config.stage_idle_max_ms
    world.tend(idle_ms - 1000)
    assert world.stage() is stage
    world.tend(idle_ms + 1)
    assert world.node.staging.expired == 1
    assert world.shard.jobs.stage_count == world.shard.jobs.bytes == 0
    with pytest.raises(StageNotFound, match="run its task again"):
        world.commit([(stage.number, 1)])
    world.tend(LOG_IDLE_MS + 1)
    assert not world.shard.jobs.by_name
    assert len(world.shard.topics_by_id) == 1


def test_a_job_without_a_log_remembers_its_last_batch(world: World) -> None:
    stage = world.stage()
    world.upload(stage, 0, b"a")
    world.commit([(stage.number, 1)])
    world.tend(0)
    world.tend(LOG_IDLE_MS + 1)
    assert world.shard.jobs.log_count == 0
    world.checkpoint()
    world.kill()
    assert world.open() is None
    again = world.stage(batch=1)
    world.upload(again, 0, b"b")
    world.commit([(again.number, 1)], batch=1)
    assert world.payloads() == [b"a", b"b"]


def test_stages_survive_a_checkpoint_and_a_kill(world: World) -> None:
    stage = world.stage()
    world.upload(stage, 0, b"a")
    world.checkpoint()
    world.upload(stage, 1, b"b")
    world.kill()
    again = world.stage()
    assert (again.number, again.batches, again.messages) == (stage.number, 2, 2)
    world.upload(again, 1, b"b")
    world.upload(again, 2, b"c")
    world.commit([(again.number, 3)])
    assert world.payloads() == [b"a", b"b", b"c"]


def test_only_so_many_jobs_are_remembered() -> None:
    jobs = Jobs(jobs_max=2)
    for name in ("a", "b", "a", "c"):
        batch = jobs.job(name).committed + 1
        jobs.decide(name, Decision(batch, frozenset(), 0, 0))
        jobs.advance(name, batch, 0, is_done=True)
    assert list(jobs.by_name) == ["a", "c"]


def test_a_snapshot_of_before_has_no_jobs() -> None:
    old = msgspec.msgpack.encode([7, [], [], [], [(1, 2)]])
    assert decode_snapshot(old) == BrokerSnapshot(7, [], [], [], [(1, 2)], [])
