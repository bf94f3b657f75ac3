"""A world in which what exists changes all the time: namespaces, topics, partitions that grow, policies, subscriptions.

It keeps no books: what it is compared with is a broker that replays its journal.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from danubius.errors import DanubiusError, StorageFailed, StorageFull
from danubius.model.policy import Policies
from danubius.model.subscription import EARLIEST, AtOffset, SubscriptionType
from danubius.model.topic import TopicSpec
from danubius.publish.core.sequencer import Producer
from danubius.record.encode import encode
from danubius.shard.hosting.namespaces import create_namespace, delete_namespace, update_namespace
from danubius.shard.hosting.partitions import create_partitioned
from danubius.shard.hosting.producer_lives import open_producer
from danubius.shard.hosting.topics import create_topic, delete_topic, update_topic
from property.broker_lives import SMALL_LEDGERS, BrokerLives

if TYPE_CHECKING:
    from danubius.shard.hosting.topic import Topic

STEPS: Final = {
    "make_namespace": 2,
    "change_namespace": 2,
    "delete_namespace": 1,
    "make_topic": 4,
    "partition": 4,
    "grow": 4,
    "change_topic": 4,
    "delete_topic": 2,
    "publish": 8,
    "subscribe": 5,
    "retype": 2,
    "acknowledge": 4,
    "settle": 8,
    "fail": 1,
    "kill": 1,
    "power_off": 1,
}
_SPACES: Final = ("default", "a", "b")
_TOPICS: Final = ("t", "u", "p", "q")
_TYPES: Final = tuple(SubscriptionType)


def _answered(_result: object) -> None:
    """Whatever it is: the journal says what is true."""


class World(BrokerLives):
    """Requests of operators and clients over a few names."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, ledgers=SMALL_LEDGERS)
        self.boot()

    @property
    def _space(self) -> str:
        return self.dice.choice(_SPACES)

    @property
    def _name(self) -> str:
        return f"/{self._space}/{self.dice.choice(_TOPICS)}"

    @property
    def _policies(self) -> Policies:
        return Policies(ttl_ms=self.dice.choice([0, 10**9]), producers_max=self.dice.randrange(9))

    def _any_topic(self) -> Topic | None:
        there = [one for one in self.shard.topics.values() if not one.is_deleting]
        return self.dice.choice(there) if there else None

    # ---------------------------------------------------------------- what exists

    def make_namespace(self) -> None:
        with contextlib.suppress(DanubiusError):
            create_namespace(
                self.shard, self._space, self._policies, exist_ok=True, on_done=_answered
            )

    def change_namespace(self) -> None:
        with contextlib.suppress(DanubiusError):
            update_namespace(self.shard, self._space, self._policies, _answered)

    def delete_namespace(self) -> None:
        with contextlib.suppress(DanubiusError):
            delete_namespace(self.shard, self._space, force=True, on_done=_answered)

    def make_topic(self) -> None:
        with contextlib.suppress(DanubiusError):
            create_topic(self.shard, self._name, TopicSpec(), exist_ok=True, on_done=_answered)

    def partition(self) -> None:
        count = self.dice.randint(1, 4)
        with contextlib.suppress(DanubiusError):
            create_partitioned(
                self.shard, self._name, TopicSpec(), count, exist_ok=True, on_done=_answered
            )

    def grow(self) -> None:
        known = list(self.shard.catalog.partitioned.values())
        if known:
            one = self.dice.choice(known)
            count = one.partitions + self.dice.randint(0, 2)
            change = self.dice.choice([Policies(), self._policies])
            with contextlib.suppress(DanubiusError):
                update_topic(self.shard, one.name, change, count, _answered)

    def change_topic(self) -> None:
        with contextlib.suppress(DanubiusError):
            update_topic(self.shard, self._name, self._policies, None, _answered)

    def delete_topic(self) -> None:
        with contextlib.suppress(DanubiusError):
            delete_topic(self.shard, self._name, _answered)

    # ---------------------------------------------------------------- what is in it

    def publish(self) -> None:
        topic = self._any_topic()
        if topic is None:
            return
        name = f"p{self.dice.randrange(2)}"

        def opened(producer: Producer | DanubiusError) -> None:
            if isinstance(producer, Producer) and not topic.is_deleting:
                batch = encode(
                    [bytes(self.dice.randrange(2000))],
                    publish_time_us=1,
                    producer_id=producer.id,
                    producer_epoch=producer.epoch,
                    base_sequence=max(0, producer.admitted_next),
                )
                topic.pipeline.publish(memoryview(batch), producer, _answered)

        with contextlib.suppress(DanubiusError):
            open_producer(self.shard, topic, name, 0, opened)
            self.settle()

    def subscribe(self) -> None:
        topic = self._any_topic()
        if topic is not None:
            start = self.dice.choice([EARLIEST, AtOffset(self.dice.randint(0, 3))])
            with contextlib.suppress(DanubiusError):
                self.shard.create_subscription(
                    topic, self.dice.choice("st"), self.dice.choice(_TYPES), start, _answered
                )

    def retype(self) -> None:
        topic = self._any_topic()
        for subscription in list(topic.subscriptions.values()) if topic is not None else ():
            if topic is not None and not subscription.is_moving:
                kind = self.dice.choice(_TYPES)
                self.shard.retype_subscription(topic, subscription, kind, _answered)

    def acknowledge(self) -> None:
        topic = self._any_topic()
        if topic is None or not topic.log.end_offset:
            return
        for subscription in topic.subscriptions.values():
            first = self.dice.randrange(topic.log.end_offset)
            news = subscription.cursor.ack([(first, first + 1)])
            self.shard.acks.add(topic, subscription, news)
        self.shard.acks.write()

    # ---------------------------------------------------------------- what goes wrong

    def fail(self) -> None:
        error = self.dice.choice([StorageFailed, StorageFull])
        self.files.fail("write", times=self.dice.randint(1, 3), error=error)
