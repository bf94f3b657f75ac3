"""Gates of topics: made from policies, charged once a batch, late with answers and never wrong about them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from captured import snapshot_of
from danubius.errors import OutOfSequence, ProducerFenced, Throttled
from danubius.model.policy import Policies
from danubius.model.topic import TopicSpec
from danubius.record.encode import encode
from danubius.shard.hosting.admission import DEBT_MAX_NS, Limits
from danubius.shard.state.facts import NamespaceChanged, TopicChanged
from danubius.wire.commands import (
    Access,
    CloseProducer,
    CreateTopic,
    Error,
    OpenProducer,
    Produce,
    Produced,
    ProducerClosed,
    ProducerOpened,
)
from patience import HANG_S, LOOK_S

TOPIC = "/default/limited"


def create(bench: Any, policies: Policies) -> Any:
    bench.connect().call(CreateTopic(TOPIC, TopicSpec(policies=policies)))
    return bench.shard.topic(TOPIC)


def open_producer(peer: Any, name: str = "p", **settings: Any) -> ProducerOpened:
    opened = peer.call(OpenProducer(TOPIC, name, TopicSpec(), **settings))
    assert isinstance(opened, ProducerOpened), opened
    return opened


def batch(opened: ProducerOpened, count: int, sequence: int) -> bytearray | bytes:
    return encode(
        [b"x"] * count,
        publish_time_us=1,
        producer_id=opened.producer_id,
        producer_epoch=opened.producer_epoch,
        base_sequence=sequence,
    )


async def test_a_topic_has_a_gate_only_while_it_has_limits(bench: Any) -> None:
    topic = create(bench, Policies())
    assert topic.gate is None

    bench.shard.apply(TopicChanged(topic.id, Policies(producers_max=1)))
    assert isinstance(topic.gate, Limits)
    bench.shard.apply(TopicChanged(topic.id, Policies()))
    assert topic.gate is None


async def test_a_namespace_with_a_rate_gives_all_its_topics_one_share(bench: Any) -> None:
    topic = create(bench, Policies())
    bench.shard.apply(NamespaceChanged("default", Policies(publish_messages_per_s=10)))
    bench.shard.apply_policies(topic)
    assert isinstance(topic.gate, Limits)

    topic.gate.admit(10, 100, bench.clock.monotonic_ns())
    bench.connect().call(CreateTopic("/default/second", TopicSpec()))
    second = bench.shard.topic("/default/second")
    with pytest.raises(Throttled):
        second.gate.admit(1, 10, bench.clock.monotonic_ns())

    bench.shard.apply(NamespaceChanged("default", Policies()))
    for one in (topic, second):
        bench.shard.apply_policies(one)
        assert one.gate is None


async def test_an_answer_waits_until_what_came_before_is_paid_for(bench: Any) -> None:
    create(bench, Policies(publish_messages_per_s=1_000))
    peer = bench.connect()
    opened = open_producer(peer)

    assert isinstance(peer.call(Produce(opened.handle), batch(opened, 150, 0)), Produced)
    number = peer.ask(Produce(opened.handle), batch(opened, 1, 150))
    bench.settle()
    assert peer.answer_to(number) is None
    bench.clock.now_ms += 200
    async with asyncio.timeout(HANG_S):
        while peer.answer_to(number) is None:  # noqa: ASYNC110  # it is a line in a list
            await asyncio.sleep(LOOK_S)
    assert peer.answer_to(number) == Produced(150)


async def test_too_much_debt_is_refused_with_the_time_to_wait(bench: Any) -> None:
    topic = create(bench, Policies(publish_messages_per_s=100))
    peer = bench.connect()
    opened = open_producer(peer)
    peer.call(Produce(opened.handle), batch(opened, 105, 0))

    refused = peer.call(Produce(opened.handle), batch(opened, 1, 105))

    assert isinstance(refused, Error)
    assert refused.code == Throttled.code
    assert refused.wait_ms == 1_000 - DEBT_MAX_NS // 2 // 1_000_000
    assert topic.log.end_offset == 105
    bench.clock.now_ms += refused.wait_ms
    number = peer.ask(Produce(opened.handle), batch(opened, 1, 105))
    bench.settle()
    assert topic.log.end_offset == 106
    peer.call(CloseProducer(opened.handle))
    assert peer.answer_to(number) == Produced(105)  # it ends: nobody is left to be slowed down


async def test_repeated_batches_and_refused_ones_cost_nothing(bench: Any) -> None:
    topic = create(bench, Policies(publish_messages_per_s=1_000))
    peer = bench.connect()
    opened = open_producer(peer)
    peer.call(Produce(opened.handle), batch(opened, 50, 0))
    now_ns = bench.clock.monotonic_ns()
    before = topic.gate.admit(0, 0, now_ns)

    for _ in range(100):
        assert peer.call(Produce(opened.handle), batch(opened, 50, 0)) == Produced(0)
        gap = peer.call(Produce(opened.handle), batch(opened, 50, 500))
        assert gap.code == OutOfSequence.code

    assert topic.gate.admit(0, 0, now_ns) == before


async def test_raising_a_rate_forgives_nothing_and_pays_sooner(bench: Any) -> None:
    topic = create(bench, Policies(publish_messages_per_s=1))
    now_ns = bench.clock.monotonic_ns()
    topic.gate.admit(100, 1_000, now_ns)
    with pytest.raises(Throttled):
        topic.gate.admit(1, 10, now_ns)

    bench.shard.apply(TopicChanged(topic.id, Policies(publish_messages_per_s=1_000)))

    assert 90_000_000 < topic.gate.admit(1, 10, now_ns) <= 100_000_000


async def test_a_waiting_producer_that_vanishes_is_passed_by(bench: Any) -> None:
    create(bench, Policies())
    first, second, third = bench.connect(), bench.connect(), bench.connect()
    holder = open_producer(first, "a", access=Access.EXCLUSIVE)
    wait = Access.WAIT_FOR_EXCLUSIVE
    lost = second.ask(OpenProducer(TOPIC, "b", TopicSpec(), access=wait))
    number = third.ask(OpenProducer(TOPIC, "c", TopicSpec(), access=wait))
    bench.settle()

    second.session.close()
    first.call(CloseProducer(holder.handle))
    await asyncio.sleep(0)
    bench.settle()

    assert second.answer_to(lost) is None
    assert isinstance(third.answer_to(number), ProducerOpened)


async def test_a_dead_incumbent_makes_way_and_a_living_one_does_not(bench: Any) -> None:
    create(bench, Policies())
    first, second = bench.connect(), bench.connect()
    open_producer(first, "a", access=Access.EXCLUSIVE)

    number = second.ask(OpenProducer(TOPIC, "b", TopicSpec()))
    first.probes.pop()(True)
    assert isinstance(second.answer_to(number), Error)

    number = second.ask(OpenProducer(TOPIC, "b", TopicSpec()))
    first.probes.pop()(False)
    bench.settle()
    assert isinstance(second.answer_to(number), ProducerOpened)
    assert [closed.code for closed in first.told(ProducerClosed)] == [ProducerFenced.code]


async def test_a_kept_sequence_counts_what_is_under_way(bench: Any) -> None:
    create(bench, Policies())
    peer = bench.connect()
    opened = open_producer(peer, "loader", keep_sequence=True)
    peer.ask(Produce(opened.handle), batch(opened, 7, 0))
    number = bench.connect().ask(OpenProducer(TOPIC, "loader", TopicSpec(), keep_sequence=True))
    del number
    bench.settle()

    again = open_producer(bench.connect(), "loader", keep_sequence=True)

    assert again.next_sequence == 7
    assert again.producer_epoch > opened.producer_epoch


async def test_a_snapshot_during_an_opening_has_the_life_before(bench: Any) -> None:
    """What is under way may still be lost: a loader that went on behind it would leave it out."""
    create(bench, Policies())
    peer = bench.connect()
    opened = open_producer(peer, "loader", keep_sequence=True)
    peer.call(Produce(opened.handle), batch(opened, 3, 0))
    peer.ask(Produce(opened.handle), batch(opened, 4, 3))
    bench.connect().ask(OpenProducer(TOPIC, "loader", TopicSpec(), keep_sequence=True))

    (state,) = snapshot_of(bench.shard).topics[0].producers
    assert (state.epoch, state.next_sequence) == (opened.producer_epoch, 3)

    bench.settle()
    (state,) = snapshot_of(bench.shard).topics[0].producers
    assert (state.epoch, state.next_sequence) == (opened.producer_epoch + 1, 7)
