"""Figures: they add up, they fade, and asking for them changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from danubius.admin.rates import RateMeter
from danubius.model import admin
from danubius.model.admin_codec import decode_reply, encode_request
from danubius.model.admin_replies import EventKind
from danubius.model.subscription import AtEarliest, SubscriptionType
from danubius.model.topic import TopicSpec
from danubius.shard.hosting.history import EVENTS_MAX
from danubius.wire.commands import (
    Ack,
    Administer,
    Administered,
    CloseConsumer,
    ConsumerClosed,
    CreateTopic,
    Flow,
    Nack,
    ProducerClosed,
    Subscribe,
)

if TYPE_CHECKING:
    from danubius.model.admin import AdminRequest

TOPIC = "/default/orders"


def ask(peer: Any, request: AdminRequest) -> Any:
    answer = peer.call(Administer(msgspec.Raw(encode_request(request))))
    return decode_reply(answer.reply) if isinstance(answer, Administered) else answer


def subscribe(peer: Any, name: str = "c", *, credit: int = 100) -> int:
    command = Subscribe(TOPIC, "s", SubscriptionType.SHARED, name, AtEarliest())
    handle = peer.call(command).handle
    peer.session.handle(Flow(handle, credit, 1 << 20), 0, memoryview(b""))
    return handle


def tell(peer: Any, command: Any) -> None:
    peer.session.handle(command, 0, memoryview(b""))


@pytest.fixture
def peer(bench: Any) -> Any:
    peer = bench.connect()
    peer.publish(TOPIC, [b"%d" % n for n in range(10)])
    return peer


async def test_what_was_delivered_is_acknowledged_unacknowledged_or_given_back(peer: Any) -> None:
    one = subscribe(peer, "one", credit=4)
    two = subscribe(peer, "two", credit=4)
    tell(peer, Ack(one, [(0, 2)]))
    tell(peer, Nack(one, [(2, 3)]))
    tell(peer, Flow(two, 2, 1 << 20))
    figures = ask(peer, admin.DescribeSubscription(TOPIC, "s")).statistics
    assert figures.delivered_messages == (
        figures.acked_messages + figures.unacked_messages + figures.nacked_messages
    )
    assert (figures.acked_messages, figures.nacked_messages) == (2, 1)
    assert figures.backlog_messages == 8
    consumers = ask(peer, admin.ListConsumers(TOPIC)).consumers
    assert [line.consumer for line in consumers] == ["one", "two"]
    assert sum(line.delivered_messages for line in consumers) == figures.delivered_messages
    assert sum(line.unacked_messages for line in consumers) == figures.unacked_messages
    assert sum(line.acked_messages for line in consumers) == 2
    assert sum(line.redelivered_messages for line in consumers) == figures.redelivered_messages
    topic = ask(peer, admin.MeasureTopic(TOPIC)).statistics
    assert topic.delivered_messages == figures.delivered_messages
    assert topic.delivered_bytes == figures.delivered_bytes > 0
    assert topic.consumers == 2
    whole = ask(peer, admin.MeasureNamespace("default")).statistics
    assert (whole.topics, whole.consumers, whole.backlog_messages) == (1, 2, 8)
    assert whole.delivered_messages == figures.delivered_messages


async def test_a_backlog_has_a_size_and_an_age(bench: Any, peer: Any) -> None:
    subscribe(peer)
    bench.clock.now_ms += 60_000
    figures = ask(peer, admin.DescribeSubscription(TOPIC, "s")).statistics
    stored = ask(peer, admin.MeasureTopic(TOPIC)).statistics.stored_bytes
    assert 0 < figures.backlog_bytes <= stored
    # The batch was published at the first microsecond of 1970.
    assert figures.backlog_age_s == pytest.approx(bench.clock.wall_us() / 1e6, abs=1)
    ask(peer, admin.SkipMessages(TOPIC, "s", 5))
    half = ask(peer, admin.DescribeSubscription(TOPIC, "s")).statistics
    assert half.backlog_bytes == pytest.approx(figures.backlog_bytes / 2, abs=2)
    ask(peer, admin.ClearBacklog(TOPIC, "s"))
    none = ask(peer, admin.DescribeSubscription(TOPIC, "s")).statistics
    assert (none.backlog_messages, none.backlog_bytes, none.backlog_age_s) == (0, 0, 0.0)


async def test_rates_rise_and_fade(bench: Any, peer: Any) -> None:
    rates = bench.node.rates
    rates.begin_round()
    for _ in range(20):
        peer.publish(TOPIC, [b"x"] * 100)
        bench.clock.now_ms += 1000
        rates.begin_round()
    busy = ask(peer, admin.MeasureTopic(TOPIC)).statistics
    assert busy.publish_rate == pytest.approx(100, rel=0.05)
    assert ask(peer, admin.DescribeBroker()).statistics.publish_rate == pytest.approx(100, rel=0.05)
    for _ in range(10):
        bench.clock.now_ms += 1000
        rates.begin_round()
    assert ask(peer, admin.MeasureTopic(TOPIC)).statistics.publish_rate < 10


def test_a_meter_takes_a_counter_that_falls_for_one_that_stands() -> None:
    meter = RateMeter((1000,), 0)
    meter.look((10,), 10**9)
    assert meter.rates == [0.0]


async def test_a_topic_that_is_still_is_not_measured_again(bench: Any, peer: Any) -> None:
    bench.node.rates.begin_round()
    peer.session.close()
    for _ in range(30):
        bench.clock.now_ms += 1000
        bench.node.rates.begin_round()
    assert bench.node.rates.of(bench.shard.topic(TOPIC), 4) == (0.0,) * 4
    assert bench.shard.topic(TOPIC) not in bench.node.rates._meters


async def test_producers_are_listed_by_pages_and_ended(bench: Any, peer: Any) -> None:
    for _ in range(2):
        peer.publish(TOPIC, [b"x", b"y"])
    page = ask(peer, admin.ListProducers(TOPIC, limit=2))
    rest = ask(peer, admin.ListProducers(TOPIC, limit=2, after=page.next))
    lines = [*page.producers, *rest.producers]
    assert len(page.producers) == 2
    assert rest.next == ""
    assert sorted(line.published_messages for line in lines) == [2, 2, 10]
    assert all(line.address == "test" and line.next_sequence for line in lines)
    ended = lines[0].producer
    ask(peer, admin.DisconnectProducer(TOPIC, ended))
    assert len(peer.told(ProducerClosed)) == 1
    left = ask(peer, admin.ListProducers(TOPIC)).producers
    assert [line.producer for line in left] == [line.producer for line in lines[1:]]
    assert "no producer" in ask(peer, admin.DisconnectProducer(TOPIC, ended)).message


async def test_a_consumer_is_ended_and_another_gets_its_messages(bench: Any, peer: Any) -> None:
    one = subscribe(peer, "one")
    subscribe(peer, "two")
    assert ask(peer, admin.ListConsumers(TOPIC, "s")).consumers[0].unacked_messages == 10
    ask(peer, admin.DisconnectConsumer(TOPIC, "s", "one"))
    assert [closed.handle for closed in peer.told(ConsumerClosed)] == [one]
    (left,) = ask(peer, admin.ListConsumers(TOPIC, "s")).consumers
    assert (left.consumer, left.unacked_messages, left.redelivered_messages) == ("two", 10, 10)
    assert "no consumer" in ask(peer, admin.DisconnectConsumer(TOPIC, "s", "one")).message


async def test_a_story_is_told_in_order_and_bounded(bench: Any, peer: Any) -> None:
    handle = subscribe(peer, "one")
    peer.call(CloseConsumer(handle))
    first = ask(peer, admin.ListEvents(TOPIC, "s"))
    assert [(event.kind, event.who) for event in first.events] == [
        ("created", ""),
        ("joined", "one"),
        ("left", "one"),
    ]
    assert ask(peer, admin.ListEvents(TOPIC, "s", first.next)).events == []
    topic = bench.shard.topic(TOPIC)
    for n in range(EVENTS_MAX + 10):
        bench.clock.now_ms += 2000
        detail = f"number {n}"
        bench.shard.history.tell(topic, topic.subscriptions["s"], EventKind.EXPIRED, detail=detail)
    last = ask(peer, admin.ListEvents(TOPIC, "s", limit=1000)).events
    assert len(last) == EVENTS_MAX
    assert last[-1].detail == f"number {EVENTS_MAX + 9}"
    for _ in range(5):
        bench.shard.history.tell(topic, topic.subscriptions["s"], EventKind.DROPPED)
    again = ask(peer, admin.ListEvents(TOPIC, "s", last[-1].number)).events
    assert [(event.kind, event.count) for event in again] == [("dropped", 5)]


async def test_figures_of_partitions_are_summed(bench: Any) -> None:
    peer = bench.connect()
    base = "/default/parts"
    peer.call(CreateTopic(base, TopicSpec(), partitions=3))
    for n in range(3):
        peer.publish(f"{base}-part-{n}", [b"x"] * (n + 1))
    ask(peer, admin.CreateSubscription(base, "s", start=AtEarliest()))
    topic = ask(peer, admin.DescribeTopic(base))
    assert (topic.partitions, topic.statistics.partitions) == (3, 3)
    assert (topic.statistics.stored_messages, topic.statistics.published_messages) == (6, 6)
    assert (topic.subscriptions, topic.statistics.subscriptions) == (["s"], 1)
    figures = ask(peer, admin.DescribeSubscription(base, "s")).statistics
    assert (figures.backlog_messages, figures.floor, figures.end_offset) == (6, 0, 0)
    assert [line.topic for line in ask(peer, admin.ListTopics()).topics] == [base]
    (line,) = ask(peer, admin.ListSubscriptions(base)).subscriptions
    assert line.backlog_messages == 6
