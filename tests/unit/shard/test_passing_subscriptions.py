"""Subscriptions of non-reliable topics: they last as long as their consumers, and what they lost stays counted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from danubius.app.metrics import Text, tell_topics
from danubius.model.subscription import SubscriptionType
from danubius.model.topic import Dispatch, TopicSpec
from danubius.record.encode import encode
from danubius.wire.commands import (
    CloseConsumer,
    ConsumerClosed,
    CreateTopic,
    DeleteTopic,
    Deliver,
    DescribeTopic,
    Done,
    Flow,
    OpenProducer,
    Produce,
    Subscribe,
    Subscribed,
)

LIVE = "/default/live"
STORED = "/default/stored"
LIVE_SPEC = TopicSpec(dispatch=Dispatch.NON_RELIABLE)


def subscribe(
    subscription: str, consumer: str = "c", *, topic: str = LIVE, kind: str = "exclusive"
) -> Subscribe:
    return Subscribe(topic, subscription, SubscriptionType(kind), consumer)


class LivePublisher:
    """A producer of the non-reliable topic; readers have heard of a batch when `send` returns."""

    def __init__(self, bench: Any) -> None:
        self._peer = bench.connect()
        self._opened = self._peer.call(OpenProducer(LIVE, "p", LIVE_SPEC))
        self._sequence = self._opened.next_sequence

    async def send(self, count: int) -> None:
        batch = encode(
            [b"x"] * count,
            publish_time_us=1,
            producer_id=self._opened.producer_id,
            producer_epoch=self._opened.producer_epoch,
            base_sequence=self._sequence,
        )
        self._sequence += count
        self._peer.call(Produce(self._opened.handle), batch)
        await asyncio.sleep(0)


@pytest.fixture
async def publisher(bench: Any) -> LivePublisher:
    return LivePublisher(bench)


def known(bench: Any, topic: str = LIVE) -> list[str]:
    return list(bench.shard.topic(topic).subscriptions)


@pytest.mark.usefixtures("publisher")
async def test_many_passing_names_leave_nothing_behind(bench: Any) -> None:
    for number in range(500):
        peer = bench.connect()
        handle = peer.call(subscribe(f"s{number}")).handle
        if number % 2:
            assert peer.call(CloseConsumer(handle)) == Done()
        peer.session.close()
    assert known(bench) == []


async def test_a_subscription_of_a_reliable_topic_outlives_its_consumers(bench: Any) -> None:
    peer = bench.connect()
    assert peer.call(CreateTopic(STORED, TopicSpec())) == Done()
    peer.call(subscribe("s", topic=STORED))
    peer.session.close()
    assert known(bench, STORED) == ["s"]


@pytest.mark.usefixtures("publisher")
async def test_a_subscription_lasts_until_its_last_consumer_goes(bench: Any) -> None:
    one, two = bench.connect(), bench.connect()
    one.call(subscribe("s", "one", kind="shared"))
    two.call(subscribe("s", "two", kind="shared"))
    one.session.close()
    assert known(bench) == ["s"]
    two.session.close()
    assert known(bench) == []


async def test_a_consumer_that_comes_back_gets_what_comes_from_then_on(
    bench: Any, publisher: LivePublisher
) -> None:
    peer = bench.connect()
    peer.call(CloseConsumer(peer.call(subscribe("s")).handle))
    await publisher.send(3)
    handle = peer.call(subscribe("s")).handle
    peer.session.handle(Flow(handle, 100, 10_000), 0, memoryview(b""))
    await publisher.send(2)
    assert [(one.first, one.end) for one in peer.told(Deliver)] == [(3, 5)]


async def test_a_consumer_that_is_replaced_by_its_namesake_leaves_it_the_subscription(
    bench: Any, publisher: LivePublisher
) -> None:
    one, two = bench.connect(), bench.connect()
    one.call(subscribe("s"))
    handle = two.call(subscribe("s")).handle
    assert len(one.told(ConsumerClosed)) == 1
    assert known(bench) == ["s"]
    two.session.handle(Flow(handle, 100, 10_000), 0, memoryview(b""))
    await publisher.send(2)
    assert [one.messages for one in two.told(Deliver)] == [2]


@pytest.mark.parametrize("is_alive", [False, True])
async def test_a_consumer_that_waits_for_a_probe_finds_the_subscription_gone(
    bench: Any, publisher: LivePublisher, is_alive: bool
) -> None:
    """The incumbent is ended as dead, or goes by itself while it is asked: the other one gets messages."""
    one, two = bench.connect(), bench.connect()
    one.call(subscribe("s", "one"))
    asked = two.ask(subscribe("s", "two"))
    if is_alive:
        one.session.close()
    one.probes.pop()(is_alive)
    joined = two.answer_to(asked)
    assert isinstance(joined, Subscribed)
    assert known(bench) == ["s"]
    two.session.handle(Flow(joined.handle, 100, 10_000), 0, memoryview(b""))
    await publisher.send(2)
    assert [one.messages for one in two.told(Deliver)] == [2]


async def test_what_passing_subscriptions_lost_stays_counted(
    bench: Any, publisher: LivePublisher
) -> None:
    topic = bench.shard.topic(LIVE)
    peer = bench.connect()
    handle = peer.call(subscribe("s")).handle  # grants no credit
    await publisher.send(3)
    assert topic.dropped == 0
    peer.call(CloseConsumer(handle))
    assert topic.dropped == 3
    await publisher.send(4)
    assert topic.dropped == 7, "nobody is there"


@pytest.mark.usefixtures("publisher")
async def test_deleting_the_topic_ends_every_consumer_once(bench: Any) -> None:
    peer = bench.connect()
    handles = [peer.call(subscribe(f"s{number}")).handle for number in range(3)]
    assert peer.call(DeleteTopic(LIVE)) == Done()
    assert [one.handle for one in peer.told(ConsumerClosed)] == handles


@pytest.mark.usefixtures("publisher")
async def test_the_description_lists_those_who_listen(bench: Any) -> None:
    one, two = bench.connect(), bench.connect()
    one.call(subscribe("a"))
    two.call(subscribe("b"))
    one.session.close()
    described = two.call(DescribeTopic(LIVE))
    assert [each.name for each in described.subscriptions] == ["b"]


async def test_the_metrics_keep_what_forgotten_subscriptions_lost(
    bench: Any, publisher: LivePublisher
) -> None:
    peer = bench.connect()
    peer.call(subscribe("s"))
    await publisher.send(3)
    peer.session.close()
    text = Text()
    tell_topics(text, bench.node, [bench.shard.topic(LIVE)])
    lines = text.encode().decode().splitlines()
    assert f'danubius_topic_dropped_messages_total{{topic="{LIVE}"}} 3' in lines


async def test_the_broker_counts_what_all_topics_lost_also_those_that_are_gone(
    bench: Any, publisher: LivePublisher
) -> None:
    await publisher.send(2)  # nobody listens
    peer = bench.connect()
    peer.call(subscribe("s"))
    await publisher.send(3)  # the one who listens grants no credit
    peer.session.close()
    assert bench.connect().call(DeleteTopic(LIVE)) == Done()
    assert bench.shard.messages_dropped == 5
