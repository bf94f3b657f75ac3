"""Dead letters on their way, and what can be in it: a disk that fails, a range that is gone, policies, other acks."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from danubius.ack.core.ranges import Segment
from danubius.errors import StorageFull
from danubius.model import admin
from danubius.model.admin_codec import decode_reply, encode_request
from danubius.model.policy import Exhausted, FailurePolicy
from danubius.model.subscription import EARLIEST, SubscriptionType
from danubius.model.topic import TopicSpec
from danubius.shard.features.dead_letters import moving as dead_letters
from danubius.wire.commands import (
    Administer,
    CreateTopic,
    DeleteTopic,
    Deliver,
    Done,
    Error,
    Flow,
    Nack,
    Subscribe,
    Subscribed,
)

TOPIC, GRAVE = "/default/work", "/default/work-s-dlq"
POLICY = FailurePolicy(redeliveries_max=0)


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be moved is tried again in the next turn of the loop, not in seconds."""
    monkeypatch.setattr(dead_letters, "RETRY_S_MIN", 0.0)
    monkeypatch.setattr(dead_letters, "RETRY_S_MAX", 0.0)


class Worker:
    """A consumer that gives everything back."""

    def __init__(self, bench: Any, *, policy: FailurePolicy = POLICY, count: int = 10) -> None:
        self.bench = bench
        self.peer = bench.connect()
        self.peer.publish(TOPIC, [b"%d" % number for number in range(count)])
        command = Subscribe(
            TOPIC, "s", SubscriptionType.SHARED, "c", EARLIEST, 0, False, failure=policy
        )
        answer = self.peer.call(command)
        assert isinstance(answer, Subscribed), answer
        self.handle = answer.handle
        self.peer.session.handle(Flow(self.handle, 1000, 1 << 20), 0, memoryview(b""))
        bench.settle()

    @property
    def topic(self) -> Any:
        return self.bench.shard.topics[TOPIC]

    @property
    def subscription(self) -> Any:
        return self.topic.subscriptions["s"]

    @property
    def letters(self) -> int:
        letters_topic = self.bench.shard.topics.get(GRAVE)
        return letters_topic.log.end_offset if letters_topic is not None else 0

    def give_back(self, *ranges: tuple[int, int]) -> None:
        self.peer.session.handle(Nack(self.handle, list(ranges)), 0, memoryview(b""))

    def ask(self, request: Any) -> Any:
        answer = self.peer.call(Administer(msgspec.Raw(encode_request(request))))
        return answer if isinstance(answer, Error) else decode_reply(answer.reply)


async def turns(bench: Any, count: int = 20) -> None:
    """Let the loop and the disk do what is to be done."""
    for _ in range(count):
        await asyncio.sleep(0)
        bench.settle()


async def test_a_full_disk_holds_them_up_and_loses_none(bench: Any) -> None:
    worker = Worker(bench)
    bench.files.fail("write", times=10_000, error=StorageFull)
    worker.give_back((2, 5))
    await turns(bench)
    assert worker.letters == 0
    assert [(one.first, one.end) for one in worker.subscription.pump.core.condemned()] == [(2, 5)]
    assert worker.subscription.reserved is None, "others may acknowledge them meanwhile"
    assert len(worker.peer.told(Deliver)) == 1, "they are not delivered meanwhile"
    bench.files.heal()
    await turns(bench)
    assert worker.letters == 3
    assert worker.subscription.cursor.unacked(0, 10) == [(0, 2), (5, 10)]
    assert worker.subscription.dead_lettered == 3


async def test_a_disk_that_fails_between_the_grave_and_the_letters(bench: Any) -> None:
    worker = Worker(bench)
    assert worker.peer.call(CreateTopic(GRAVE, TopicSpec())) == Done()
    for after in range(4):
        bench.files.fail("write", after=after, times=3)
        worker.give_back((after, after + 1))
        await turns(bench)
        bench.files.heal()
        await turns(bench)
        assert worker.letters == after + 1


async def test_what_was_acknowledged_while_the_disk_failed_stays(bench: Any) -> None:
    worker = Worker(bench)
    bench.files.fail("write", times=10_000)
    worker.give_back((0, 4))
    await turns(bench, 5)
    worker.subscription.pump.acked([(1, 3)])
    bench.files.heal()
    await turns(bench)
    assert worker.letters == 2
    assert worker.subscription.cursor.floor == 4


async def test_letters_of_a_range_that_was_dropped_are_given_up_and_counted(bench: Any) -> None:
    worker = Worker(bench)
    # As a full topic does that drops its oldest, delivered or not.
    worker.topic.log.seal_open(0)
    bench.ledgers.flush([].append)
    worker.peer.publish(TOPIC, [b"behind"] * 10)
    worker.topic.log.trim_to(10)
    assert worker.topic.log.start_offset == 10
    worker.give_back((8, 12))
    await turns(bench)
    assert worker.letters == 2
    assert worker.subscription.discarded == 2
    assert worker.subscription.cursor.unacked(0, 20) == [(0, 8), (12, 20)]


async def test_a_topic_that_is_deleted_takes_them_with_it(bench: Any) -> None:
    worker = Worker(bench)
    bench.files.fail("write", times=10_000)
    worker.give_back((0, 4))
    await turns(bench, 5)
    bench.files.heal()
    assert worker.peer.call(DeleteTopic(TOPIC)) == Done()
    await turns(bench)
    assert worker.letters == 0
    assert not bench.node.dead_letters._moves


async def test_a_seek_takes_them_back_while_they_are_held_up(bench: Any) -> None:
    worker = Worker(bench)
    bench.files.fail("write", times=10_000)
    worker.give_back((0, 4))
    await turns(bench, 5)
    bench.files.heal()
    worker.ask(admin.SeekSubscription(TOPIC, "s", EARLIEST))
    await turns(bench)
    # Before the seek or not at all: never moved and delivered again both.
    assert worker.letters in (0, 4)
    assert worker.subscription.cursor.floor == 0
    assert worker.subscription.reserved is None
    assert not bench.node.dead_letters._moves


async def test_a_policy_that_drops_ends_the_move(bench: Any) -> None:
    worker = Worker(bench)
    bench.files.fail("write", times=10_000)
    worker.give_back((0, 4))
    await turns(bench, 5)
    bench.files.heal()
    drop = FailurePolicy(redeliveries_max=0, then=Exhausted.DROP)
    worker.ask(admin.UpdateSubscription(TOPIC, "s", drop))
    await turns(bench)
    assert worker.letters + worker.subscription.discarded == 4
    assert worker.subscription.cursor.floor == 4
    assert not bench.node.dead_letters._moves


async def test_a_stricter_policy_moves_what_an_idle_subscription_counted(bench: Any) -> None:
    peer = bench.connect()
    peer.publish(TOPIC, [b"x"] * 5)
    worker = Worker.__new__(Worker)
    worker.bench, worker.peer = bench, peer
    worker.ask(admin.CreateSubscription(TOPIC, "s", start=EARLIEST))
    bench.shard.acks.count(worker.topic, worker.subscription, [Segment(1, 3, 4)])
    await turns(bench)
    assert worker.subscription.pump is None
    worker.ask(admin.UpdateSubscription(TOPIC, "s", FailurePolicy(redeliveries_max=9)))
    await turns(bench)
    assert worker.letters == 0
    worker.ask(admin.UpdateSubscription(TOPIC, "s", FailurePolicy(redeliveries_max=3)))
    await turns(bench)
    assert worker.letters == 2
    assert worker.subscription.cursor.unacked(0, 5) == [(0, 1), (3, 5)]
