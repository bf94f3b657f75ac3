"""Atomic records, plain publishes and a bad disk: whole or not at all, whatever happens, and no offset is missing.

Every message says what it is part of, so what a broker recovers can be compared with what was tried and what was
answered: nothing that was answered is missing, nothing is there twice, and no atomic record is there in part.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

from danubius.errors import DanubiusError
from danubius.model.subscription import AtEarliest, SubscriptionType
from danubius.model.topic import Durability, TopicSpec
from danubius.record.batch import read_header
from danubius.record.encode import encode
from danubius.shard.hosting.producer_lives import open_producer
from danubius.shard.state.atomic import Append
from danubius.shard.state.facts import RangesAcked, TransactionCommitted
from property.broker_lives import BrokerLives
from proving import sized

if TYPE_CHECKING:
    from danubius.model.ids import Offset
    from danubius.publish.core.sequencer import Producer
    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic

SPECS = {
    "/default/a": TopicSpec(),
    "/default/b": TopicSpec(),
    "/default/c": TopicSpec(durability=Durability.WRITTEN),
}


class World(BrokerLives):
    """The lives of brokers on one disk, and what they promised."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.next_number = 1
        self.parts: dict[int, list[tuple[str, bytes]]] = {}
        """Of everything that was tried: topic and payload of each message."""
        self.atomic: set[int] = set()
        self.sequenced: dict[int, tuple[tuple[str, int], int]] = {}
        """Of plain publishes: topic and epoch of the producer, and the sequence behind the batch."""
        self.open: set[int] = set()
        """Not answered yet."""
        self.safe: dict[int, list[tuple[str, int]]] = {}
        """Answered: topic and offset of each batch."""
        self.fragile: set[int] = set()
        """Answered, but power loss may take it: written, not synced."""
        self.boot()

    # ---------------------------------------------------------------- lives

    def boot(self) -> None:
        super().boot()
        for name, spec in SPECS.items():
            self.host(name, spec)
        self.topics: dict[str, Topic] = {str(n): t for n, t in self.shard.topics.items()}
        self.compare()
        self.producers: dict[str, Producer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        for name, topic in self.topics.items():
            open_producer(
                self.shard, topic, "plain", 0, functools.partial(_keep, self.producers, name)
            )
            self.shard.create_subscription(
                topic,
                "s",
                SubscriptionType.SHARED,
                AtEarliest(),
                functools.partial(_keep, self.subscriptions, name),
            )
        self.settle()
        assert len(self.producers) == len(self.subscriptions) == len(SPECS)

    # ---------------------------------------------------------------- what recovery found

    def compare(self) -> None:
        """What was answered is there, what is there was tried, and it is there whole and once."""
        found: dict[int, list[tuple[str, int, bytes]]] = {}
        for name, topic in self.topics.items():
            topic.pipeline.sequencer.check()
            assert topic.pipeline.sequencer.next_offset == topic.log.end_offset
            for offset, payload in self.messages(topic):
                number = int(payload.split(b"/")[0])
                found.setdefault(number, []).append((name, offset, payload))
        for number, there in found.items():
            expected = sorted(self.parts[number])
            assert sorted((name, payload) for name, _, payload in there) == expected, "in part"
            assert (number in self.shard.committed_transactions) == (number in self.atomic)
        for number, places in self.safe.items():
            assert number in found, "what was answered is there"
            assert {(name, offset) for name, offset, _ in found[number]} >= set(places)
        assert self.shard.committed_transactions.count == len(self.atomic & found.keys())
        self.check_acks(found)
        self.check_sequences(found)
        # From here on only what was found counts.
        self.parts = {number: self.parts[number] for number in found}
        self.atomic &= found.keys()
        self.safe = {
            number: [(name, offset) for name, offset, _ in there] for number, there in found.items()
        }
        self.open.clear()
        self.fragile.clear()

    def check_acks(self, found: dict[int, list[tuple[str, int, bytes]]]) -> None:
        """Each atomic record acknowledged the message that has its number as offset."""
        for name, topic in self.topics.items():
            subscription = topic.subscriptions.get("s")
            if subscription is not None:
                for number in self.atomic:
                    assert (number in subscription.cursor) == (number in found), name

    def check_sequences(self, found: dict[int, list[tuple[str, int, bytes]]]) -> None:
        """A producer goes on behind what it sent itself, whatever the headers of other batches say."""
        for name, topic in self.topics.items():
            producer = topic.pipeline.sequencer.producer_or_none("plain")
            if producer is not None:
                life = (name, producer.epoch)
                ends = [end for n, (by, end) in self.sequenced.items() if n in found and by == life]
                assert producer.committed_next == max(ends, default=0)

    # ---------------------------------------------------------------- steps

    def batch(self, number: int, name: str, count: int, **header: Any) -> memoryview:
        payloads: list[bytes] = []
        for _ in range(count):
            part = len(self.parts.setdefault(number, []))
            payload = b"%d/%d/" % (number, part) + bytes(self.dice.choice([0, 10, 700]))
            self.parts[number].append((name, payload))
            payloads.append(payload)
        return memoryview(encode(payloads, publish_time_us=1, **header))

    def number(self) -> int:
        self.next_number += 1
        return self.next_number

    def publish(self) -> None:
        number, name = self.number(), self.dice.choice(list(SPECS))
        producer, count = self.producers[name], self.dice.randint(1, 3)
        self.sequenced[number] = (name, producer.epoch), producer.admitted_next + count
        batch = self.batch(
            number,
            name,
            count,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=producer.admitted_next,
        )
        self.open.add(number)
        answer = functools.partial(self.answered_one, number, name)
        self.topics[name].pipeline.publish(batch, producer, answer)

    def publish_unsequenced(self) -> None:
        number, name = self.number(), self.dice.choice(list(SPECS))
        self.open.add(number)
        batch = self.batch(number, name, self.dice.randint(1, 3))
        answer = functools.partial(self.answered_one, number, name)
        self.topics[name].pipeline.publish_unsequenced(batch, answer)

    def commit(self) -> None:
        number = self.number()
        self.atomic.add(number)
        self.open.add(number)
        names = self.dice.choices(list(SPECS), k=self.dice.randint(1, 5))
        appends: list[Append] = []
        for name in names:
            producer = self.producers[name]
            # As a delayed batch or one of a transaction: its header speaks of a producer, and must not count.
            batch = self.batch(
                number,
                name,
                self.dice.randint(1, 3),
                producer_id=self.dice.choice([0, producer.id]),
                producer_epoch=producer.epoch,
                base_sequence=self.dice.choice([0, producer.admitted_next, 77]),
            )
            appends.append(Append(self.topics[name], batch, read_header(batch)))
        facts = [
            TransactionCommitted(number),
            *(
                RangesAcked(self.topics[name].id, s.id, [(number, number + 1)])
                for name, s in self.subscriptions.items()
            ),
        ]
        self.node.atomic.commit(appends, facts, functools.partial(self.answered_all, number, names))

    def answered_one(self, number: int, name: str, answer: Offset | DanubiusError) -> None:
        self.open.remove(number)
        if not isinstance(answer, DanubiusError):
            self.safe[number] = [(name, answer)]
            if SPECS[name].durability is Durability.WRITTEN:
                self.fragile.add(number)

    def answered_all(
        self, number: int, names: list[str], answer: list[Offset] | DanubiusError
    ) -> None:
        self.open.remove(number)
        is_done = not isinstance(answer, DanubiusError)
        assert (number in self.shard.committed_transactions) == is_done
        for subscription in self.subscriptions.values():
            assert (number in subscription.cursor) == is_done
        if isinstance(answer, DanubiusError):
            return
        self.safe[number] = list(zip(names, answer, strict=True))
        for name, offset in self.safe[number]:
            assert self.topics[name].log.end_offset > offset, "visible before it is answered"
        # Its sync covers all that was written before.
        self.fragile.clear()

    def power_off(self) -> None:
        for number in self.fragile:
            self.safe.pop(number, None)
        super().power_off()

    def power_off_at_work(self) -> None:
        self.power_off_inside(self.publish, self.commit)

    def meanwhile(self) -> None:
        for _ in range(self.dice.randint(0, 3)):
            self.dice.choice([self.publish, self.publish_unsequenced, self.commit, self.turn])()

    def check(self) -> None:
        for topic in self.topics.values():
            topic.pipeline.sequencer.check()
            assert topic.pipeline.sequencer.committed_offset == topic.log.end_offset


STEPS = {
    "publish": 10,
    "publish_unsequenced": 3,
    "commit": 10,
    "turn": 10,
    "fault": 2,
    "heal": 2,
    "checkpoint": 1,
    "kill": 1,
    "power_off": 1,
    "power_off_at_work": 1,
}


@pytest.mark.grows
@pytest.mark.parametrize("seed", range(sized(30, 80)))
def test_an_atomic_record_is_there_whole_or_not_at_all(seed: int) -> None:
    world = World(seed)
    try:
        for step in world.dice.choices(list(STEPS), weights=list(STEPS.values()), k=120):
            getattr(world, step)()
            world.check()
        # The disk is well again: everything that is tried is stored.
        world.kill()
        world.publish()
        world.commit()
        number = world.next_number
        world.settle()
        assert {number - 1, number} <= world.safe.keys()
        world.kill()
        assert {number - 1, number} <= world.safe.keys()
    finally:
        world.loop.close()


def _keep(kept: dict[str, Any], name: str, answer: object) -> None:
    assert not isinstance(answer, DanubiusError), answer
    kept[name] = answer
