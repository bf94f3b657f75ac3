"""Dead letters on a bad disk, with kills and power loss at any step: each message that fails too often moves once.

Messages with a number that three divides are bad: their consumer gives them back, and never acknowledges them. So at
any moment a bad message is acknowledged if and only if it lies in the dead-letter topic, and there it lies once. A
good one may lie there too: a lost connection is a failure of all that was on it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from danubius.ack.core.ranges import Segment
from danubius.errors import DanubiusError
from danubius.model.policy import FailurePolicy
from danubius.model.subscription import EARLIEST, SubscriptionType
from danubius.publish.core.sequencer import Producer
from danubius.record.encode import encode
from danubius.session.session import Session
from danubius.shard.features.dead_letters import moving as dead_letters
from danubius.shard.hosting.producer_lives import open_producer
from danubius.wire.commands import Ack, Deliver, Flow, Nack, Subscribe, Subscribed
from property.broker_lives import SMALL_LEDGERS, BrokerLives, must_succeed
from proving import sized

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.model.buffers import Buffer
    from danubius.wire.commands import AnyCommand

NAME, GRAVE = "/default/work", "/default/work-s-dlq"
POLICY = FailurePolicy(redeliveries_max=1)
SEEDS = sized(25, 300)


class Peer:
    """A consumer's connection; it keeps what came."""

    address = "test"
    is_writable = True

    def __init__(self) -> None:
        self.deliveries: list[Deliver] = []
        self.handle = 0

    def send(
        self, command: AnyCommand, correlation_id: int = 0, payload: Sequence[Buffer] = ()
    ) -> None:
        if isinstance(command, Subscribed):
            self.handle = command.handle
        elif isinstance(command, Deliver):
            self.deliveries.append(command)

    def flush(self) -> None: ...

    def pause_reading(self, reason: str) -> None: ...

    def resume_reading(self, reason: str) -> None: ...

    def probe(self, on_result: Callable[[bool], None]) -> None: ...


class World(BrokerLives):
    """The lives of brokers on one disk, what they stored, and what became of it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, ledgers=SMALL_LEDGERS)
        self.next_number = 0
        self.safe: set[int] = set()
        """Answered: it is there, or in its grave."""
        self.peer: Peer | None = None
        self.boot()

    def boot(self) -> None:
        super().boot()
        self.peer = None
        self.topic = self.host(NAME)
        self.shard.create_subscription(
            self.topic, "s", SubscriptionType.SHARED, EARLIEST, must_succeed, POLICY
        )
        opened: list[Any] = []
        open_producer(self.shard, self.topic, "p", 0, opened.append)
        self.settle()
        assert isinstance(opened[0], Producer)
        self.producer = opened[0]

    # ---------------------------------------------------------------- steps

    def publish(self) -> None:
        numbers = range(self.next_number, self.next_number + self.dice.randint(1, 4))
        self.next_number = numbers.stop
        size = self.dice.choice([0, 10, 3000])
        batch = encode(
            [b"%d/" % number + bytes(size) for number in numbers],
            publish_time_us=1,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            base_sequence=self.producer.admitted_next,
        )

        def answered(result: object) -> None:
            if not isinstance(result, DanubiusError):
                self.safe.update(numbers)

        self.topic.pipeline.publish(memoryview(batch), self.producer, answered)

    def attach(self) -> None:
        if self.peer is None:
            self.peer = Peer()
            self.session = Session(self.node, self.peer, "danube://test", "broker")
            self.ask(Subscribe(NAME, "s", SubscriptionType.SHARED, "c", EARLIEST))
            if self.peer.handle:
                self.ask(Flow(self.peer.handle, 1000, 1 << 30))

    def detach(self) -> None:
        if self.peer is not None:
            self.session.close()
            self.peer = None

    def ask(self, command: AnyCommand) -> None:
        self.session.handle(command, 1, memoryview(b""))

    def work(self) -> None:
        """Acknowledge what is good, give back what is bad, of all that has come."""
        self.attach()
        assert self.peer is not None
        deliveries, self.peer.deliveries = self.peer.deliveries, []
        if not deliveries:
            return
        numbers = self.numbers()
        for one in deliveries:
            for offset in range(one.first, one.end):
                kind = Ack if numbers[offset] % 3 else Nack
                self.ask(kind(self.peer.handle, [(offset, offset + 1)]))
        self.ask(Flow(self.peer.handle, 1000, 1 << 20))
        self.shard.acks.write()

    def power_off_at_work(self) -> None:
        self.power_off_inside(self.publish, self.work)

    # ---------------------------------------------------------------- what became of it

    def numbers(self) -> dict[int, int]:
        return {offset: int(data.split(b"/")[0]) for offset, data in self.messages(self.topic)}

    def letters(self) -> Counter[int]:
        letters_topic = self.shard.topic_or_none(GRAVE)
        if letters_topic is None:
            return Counter()
        return Counter(int(data.split(b"/")[0]) for _, data in self.messages(letters_topic))

    def compare(self) -> None:
        """Publishing there and acknowledging here are one."""
        letters, numbers = self.letters(), self.numbers()
        assert self.safe <= set(numbers.values())
        cursor = self.topic.subscriptions["s"].cursor
        gone = {number for offset, number in numbers.items() if offset in cursor}
        assert set(letters.values()) <= {1}, "none moves twice"
        assert letters.keys() <= gone
        assert {number for number in gone if number % 3 == 0} <= letters.keys()

    def finish(self) -> None:
        for _ in range(400):
            self.work()
            self.settle()
            if self.topic.subscriptions["s"].cursor.floor == self.topic.log.end_offset:
                return
        raise AssertionError("something never moved")

    def meanwhile(self) -> None:
        for _ in range(self.dice.randint(0, 3)):
            self.dice.choice([self.publish, self.work, self.turn])()


STEPS = {
    "publish": 8,
    "attach": 3,
    "detach": 1,
    "work": 8,
    "turn": 14,
    "fault": 1,
    "heal": 2,
    "checkpoint": 1,
    "kill": 1,
    "power_off": 1,
    "power_off_at_work": 1,
}


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be moved is tried again in the next turn of the loop, not in seconds."""
    monkeypatch.setattr(dead_letters, "RETRY_S_MIN", 0.0)
    monkeypatch.setattr(dead_letters, "RETRY_S_MAX", 0.0)


@pytest.mark.grows
@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_moves_once(seed: int) -> None:
    world = World(seed)
    try:
        for step in world.dice.choices(list(STEPS), weights=list(STEPS.values()), k=150):
            getattr(world, step)()
            if step in {"kill", "power_off", "power_off_at_work"}:
                world.compare()
        world.kill()
        world.finish()
        world.compare()
        bad = {number for number in world.numbers().values() if number % 3 == 0}
        assert bad <= world.letters().keys()
    finally:
        world.loop.close()


def test_what_failed_too_often_before_a_crash_moves_though_no_consumer_comes_back() -> None:
    world = World(0)
    try:
        for _ in range(5):
            world.publish()
        world.settle()
        numbers = world.numbers()
        bad = [offset for offset, number in numbers.items() if number % 3 == 0]
        assert bad
        counts = [Segment(offset, offset + 1, 2) for offset in bad]
        world.shard.acks.count(world.topic, world.topic.subscriptions["s"], counts)
        world.shard.acks.write()
        world.settle()
        assert not world.letters()
        world.kill()
        world.settle()
        assert world.letters() == Counter(numbers[offset] for offset in bad)
        world.compare()
    finally:
        world.loop.close()
