"""A start on a disk without room for ledgers: all is in the journal, so all can be read, and only publishing waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from danubius.errors import DanubiusError, StorageFailed, StorageFull
from danubius.ledger.config import LedgerConfig
from danubius.model.subscription import AtEarliest, SubscriptionType
from danubius.publish.core.sequencer import Producer
from danubius.record.encode import encode
from danubius.shard.hosting.producer_lives import open_producer
from danubius.shard.recovery import replay as recovery
from danubius.shard.recovery.replay import Recovery
from property.broker_lives import ROOT, BrokerLives, must_succeed

if TYPE_CHECKING:
    from collections.abc import Generator

ROOT_LEDGERS = ROOT / "ledgers"
TOPIC = "/default/t"
LEDGERS = LedgerConfig(cache_bytes=40_000, dirty_bytes_max=20_000, flush_bytes=10_000)
COUNT = 60


class World(BrokerLives):
    """One topic with far more in the journal than may be unwritten."""

    def __init__(self) -> None:
        super().__init__(0, ledgers=LEDGERS)
        self.boot()
        topic = self.host(TOPIC)
        self.shard.create_subscription(
            topic, "s", SubscriptionType.SHARED, AtEarliest(), must_succeed
        )
        opened: list[Producer | DanubiusError] = []
        open_producer(self.shard, topic, "p", 0, opened.append)
        self.settle()
        (producer,) = opened
        assert isinstance(producer, Producer)
        for number in range(COUNT):
            batch = encode(
                [b"%d" % number, bytes(1000)],
                publish_time_us=1,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                base_sequence=producer.admitted_next,
            )
            topic.pipeline.publish(memoryview(batch), producer, must_succeed)
            self.settle()

    async def turn_threads(self) -> None:
        """A start waits for the storage thread, which does nothing by itself here."""
        while True:
            self.threads.turn(self.clock.monotonic_ns())
            self.deliver()
            await asyncio.sleep(0)

    def restart_without_room(self) -> None:
        self.files.kill()
        for name in self.files.listdir(ROOT_LEDGERS):
            self.files.rmtree(ROOT_LEDGERS / name)
        self.files.capacity_bytes = self.files.used_bytes()
        turning = self.loop.create_task(self.turn_threads())
        try:
            self.boot()
        finally:
            turning.cancel()
            self.loop_once()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Generator[World]:
    monkeypatch.setattr(recovery, "YIELD_BYTES", 8_000)
    world = World()
    yield world
    world.loop.close()


def test_a_broker_starts_on_a_full_disk_and_serves_all_it_has(world: World) -> None:
    world.restart_without_room()
    topic = world.shard.topic(TOPIC)
    texts = [payload for _, payload in world.messages(topic) if len(payload) < 1000]
    assert texts == [b"%d" % number for number in range(COUNT)]
    assert world.ledgers.is_congested
    assert world.ledgers.dirty_bytes < world.journal.bytes_max
    with pytest.raises(StorageFull):
        world.shard.pressure.check()


def test_it_publishes_again_once_there_is_room_and_loses_nothing(world: World) -> None:
    world.restart_without_room()
    world.files.capacity_bytes = None
    for _ in range(5):
        world.clock.now_ms += 10_000
        world.settle()
    world.shard.pressure.check()
    assert not world.ledgers.is_congested
    topic = world.shard.topic(TOPIC)
    subscription = topic.subscriptions["s"]
    world.shard.acks.add(topic, subscription, subscription.cursor.ack([(0, 2)]))
    world.shard.acks.write()
    world.settle()
    world.checkpoint()
    world.kill()
    topic = world.shard.topic(TOPIC)
    texts = [payload for _, payload in world.messages(topic) if len(payload) < 1000]
    assert texts == [b"%d" % number for number in range(COUNT)]
    assert topic.subscriptions["s"].cursor.floor == 2


def test_a_disk_that_fails_otherwise_still_stops_the_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.files.kill()
    run = Recovery.run

    async def failing(self: Recovery) -> int:
        world.files.fail("write", times=1000, error=StorageFailed)
        return await run(self)

    monkeypatch.setattr(Recovery, "run", failing)
    turning = world.loop.create_task(world.turn_threads())
    with pytest.raises(DanubiusError):
        world.boot()
    turning.cancel()
    world.loop_once()
