"""A broker that goes on while its state is captured, topic by topic: what is recovered is what it had in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from captured import snapshot_of
from danubius.model.subscription import AtEarliest, SubscriptionType
from danubius.publish.core.sequencer import Producer
from danubius.record.encode import encode
from danubius.shard.features.delays.log import DelayLog
from danubius.shard.hosting.changes import commit_facts
from danubius.shard.hosting.producer_lives import open_producer
from danubius.shard.hosting.topics import delete_topic
from danubius.shard.state.capture import Capture
from danubius.shard.state.core.stages import Stage
from danubius.shard.state.facts import RangesAcked, SubscriptionMoved, SubscriptionRemoved
from danubius.shard.state.snapshot import encode_snapshot
from property.broker_lives import BrokerLives, must_succeed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

A, B, C = "/default/a", "/default/b", "/default/c"


class World(BrokerLives):
    """Some topics, and steps that change them; each is durable when it returns."""

    def __init__(self) -> None:
        super().__init__(0)
        self.boot()
        for name in (A, B, C):
            self.host(name)

    def publish(self, name: str, count: int) -> None:
        """By a producer that is opened for it and remembered under its name."""
        pipeline, opened = self.shard.topic(name).pipeline, list[Any]()
        open_producer(self.shard, self.shard.topic(name), "p", 0, opened.append)
        self.settle()
        (producer,) = opened
        assert isinstance(producer, Producer)
        batch = encode(
            [b"m"] * count,
            publish_time_us=1,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=producer.admitted_next,
        )
        pipeline.publish(memoryview(batch), producer, must_succeed)
        self.settle()

    def subscribe(self, name: str) -> None:
        topic, kind = self.shard.topic(name), SubscriptionType.SHARED
        self.shard.create_subscription(topic, "s", kind, AtEarliest(), must_succeed)
        self.settle()

    def commit(self, *facts: Any) -> None:
        commit_facts(self.shard, facts, must_succeed)
        self.settle()

    def delete(self, name: str) -> None:
        delete_topic(self.shard, name, must_succeed)
        self.settle()

    def open_delay_log(self, name: str) -> None:
        opened: list[Any] = []
        self.node.delays.open_log(self.shard.topic(name), opened.append)
        self.settle()
        assert isinstance(opened[0], DelayLog)

    def stage(self, job: str, batch: int) -> None:
        """Two messages for each topic."""
        opened: list[Any] = []
        self.node.staging.open(job, batch, "task", opened.append)
        self.settle()
        assert isinstance(opened[0], Stage)
        for index, name in enumerate((A, B, C)):
            staged = memoryview(encode([b"s"] * 2, publish_time_us=1))
            self.node.staging.upload(opened[0].number, index, name, staged, must_succeed)
            self.settle()

    def commit_stage(self, job: str, batch: int) -> None:
        (stage,) = self.shard.jobs.by_name[job].stages.values()
        self.node.staging.commit(job, batch, [(stage.number, 3)], must_succeed)
        self.settle()

    def save(self, capture: Capture) -> None:
        flushed: list[object] = []
        self.ledgers.flush(flushed.append)
        self.settle()
        assert flushed == [None]
        self.snapshots.save(capture.position, encode_snapshot(capture.snapshot()))

    def state(self) -> Any:
        """Without ledgers, which a new life seals, and the position."""
        snapshot, replace = snapshot_of(self.shard), msgspec.structs.replace
        topics = sorted(snapshot.topics, key=lambda topic: topic.topic_id)
        jobs = sorted(snapshot.jobs, key=lambda job: job.name)
        return snapshot.next_id, [replace(t, ledgers=[], position=0) for t in topics], jobs


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.loop.close()


def change_nothing(_world: World) -> None: ...


def publish_everywhere(world: World) -> None:
    for name in (A, B, C):
        world.publish(name, 3)


def subscribe_and_move(world: World) -> None:
    for name in (A, B, C):
        world.publish(name, 5)
        world.subscribe(name)
        topic = world.shard.topic(name)
        number = topic.subscriptions["s"].id
        world.commit(RangesAcked(topic.id, number, [(0, 4)]))
        world.commit(SubscriptionMoved(topic.id, number, 1))


def subscribe_and_leave(world: World) -> None:
    for name in (A, B, C):
        topic = world.shard.topic(name)
        world.subscribe(name)
        world.commit(SubscriptionRemoved(topic.id, topic.subscriptions["s"].id))
        world.subscribe(name)


def delete_and_create_again(world: World) -> None:
    for name in (A, B):
        world.publish(name, 1)
        world.delete(name)
        world.host(name)
        world.publish(name, 2)


def delete_with_its_delay_log(world: World) -> None:
    world.delete(C)


def stage_and_commit(world: World) -> None:
    """One stage was there before, and one is new; a third waits."""
    world.stage("new", 0)
    world.commit_stage("old", 0)
    world.commit_stage("new", 0)
    world.stage("old", 1)


@pytest.mark.parametrize(
    "change",
    [
        change_nothing,
        publish_everywhere,
        subscribe_and_move,
        subscribe_and_leave,
        delete_and_create_again,
        delete_with_its_delay_log,
        stage_and_commit,
    ],
)
@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_a_broker_goes_on_while_it_is_captured(
    world: World, before: int, change: Callable[[World], None]
) -> None:
    """`before` of the topics are looked at before the change, the others behind it."""
    world.publish(A, 2)
    world.open_delay_log(C)
    world.stage("old", 0)
    capture = Capture(world.shard)
    for topic in capture.topics[:before]:
        capture.look_at(topic)
    change(world)
    for topic in capture.topics[before:]:
        capture.look_at(topic)
    world.save(capture)
    expected = world.state()
    world.kill()
    assert world.state() == expected
    world.publish(B, 1)
    world.kill()
    assert world.shard.topic(B).log.end_offset > 0
