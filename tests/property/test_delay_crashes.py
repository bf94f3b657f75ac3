"""Delayed batches on a bad disk, with kills and power loss at any step: what was answered comes, once, never early.

Every batch says when it may come. Whatever happens, a topic holds it at most once; and once the disk is well and its
time is over, exactly once.
"""

from __future__ import annotations

from collections import Counter

import pytest

from danubius.broker.config import BrokerConfig
from danubius.errors import DanubiusError
from danubius.publish.core.sequencer import Producer
from danubius.record.encode import encode
from danubius.shard.features.delays import log as delay_log
from danubius.shard.features.delays import reparking as delay_repark
from danubius.shard.features.delays.core.index import ENDLESS
from danubius.shard.features.delays.log import DelayLog
from danubius.shard.hosting.producer_lives import open_producer
from property.broker_lives import PAUSE_MS, SMALL_LEDGERS, BrokerLives
from proving import sized

NAME = "/default/later"
SEEDS = sized(15, 300)


class World(BrokerLives):
    """The lives of brokers on one disk, and what they promised."""

    def __init__(self, seed: int) -> None:
        few_or_many = (1, 5, 1000)[seed % 3]
        super().__init__(seed, BrokerConfig(delay_entries_max=few_or_many), SMALL_LEDGERS)
        self.next_number = 0
        self.due: dict[int, int] = {}
        self.safe: set[int] = set()
        """Answered: it must come."""
        self.boot()

    def boot(self) -> None:
        super().boot()
        self.topic = self.host(NAME)
        sources: list[object] = []
        self.node.delays.open_log(self.topic, sources.append)
        self.settle()
        assert isinstance(sources[0], DelayLog)
        self.source = sources[0]
        producers: list[object] = []
        open_producer(self.shard, self.source.topic, "p", 0, producers.append)
        self.settle()
        assert isinstance(producers[0], Producer)
        self.producer = producers[0]
        self.node.delays.kept_bytes = 0

    # ---------------------------------------------------------------- steps

    def schedule(self) -> None:
        self.next_number = number = self.next_number + 1
        delay_ms = self.dice.choice([4000, 4000, 4000, 20_000])
        self.due[number] = due_ms = self.clock.now_ms + self.dice.randint(-2000, delay_ms)
        payload = b"%d/" % number + bytes(self.dice.choice([0, 10, 3000]))
        batch = encode(
            [payload],
            publish_time_us=1,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            base_sequence=self.producer.admitted_next,
        )

        def answered(result: object) -> None:
            if not isinstance(result, DanubiusError):
                self.safe.add(number)

        self.node.delays.schedule(self.source, memoryview(batch), due_ms, self.producer, answered)

    def turn(self) -> None:
        self.clock.now_ms += self.dice.choice([0, 1, PAUSE_MS, 700])
        self.node.delays.look()
        self.threads.turn(self.clock.monotonic_ns())
        if self.dice.random() < 0.8:
            self.deliver()
        self.loop_once()

    def tend(self) -> None:
        self.shard.ticks.advance(10_000)

    def power_off_at_work(self) -> None:
        self.power_off_inside(self.schedule)

    # ---------------------------------------------------------------- what came

    def came(self) -> Counter[int]:
        return Counter(int(payload.split(b"/")[0]) for _, payload in self.messages(self.topic))

    def check(self) -> None:
        self.source.index.check()
        if self.source.scan_from == ENDLESS and not self.source.is_busy:
            assert self.node.delays.pending(self.topic) == self.source.index.pending
        self.topic.pipeline.sequencer.check()
        self.source.topic.pipeline.sequencer.check()

    def check_came(self) -> None:
        for number, count in self.came().items():
            assert count == 1, f"{number} came {count} times"
            assert self.due[number] <= self.clock.now_ms, f"{number} came early"

    def meanwhile(self) -> None:
        for _ in range(self.dice.randint(0, 3)):
            self.dice.choice([self.schedule, self.tend, self.turn])()


STEPS = {
    "schedule": 16,
    "turn": 14,
    "tend": 3,
    "fault": 1,
    "heal": 2,
    "checkpoint": 1,
    "kill": 1,
    "power_off": 1,
    "power_off_at_work": 1,
}


@pytest.mark.grows
@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_comes_once_and_none_before_its_time(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small steps, so that much happens while a log is looked through.
    monkeypatch.setattr(delay_log, "SCAN_BYTES", 1)
    monkeypatch.setattr(delay_repark, "STEP_BYTES", 1)
    world = World(seed)
    try:
        for step in world.dice.choices(list(STEPS), weights=list(STEPS.values()), k=150):
            getattr(world, step)()
            world.check()
            if step in {"kill", "power_off", "power_off_at_work"}:
                world.check_came()
        world.kill()
        for _ in range(2000):
            world.clock.now_ms += 500
            world.node.delays.look()
            world.settle()
            if world.source.is_empty:
                break
        world.check_came()
        assert world.safe <= world.came().keys(), "what was answered comes"
    finally:
        world.loop.close()
