"""Figures of producers: how they hold their topic, who waits, what has no answer yet and what a rate held back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from danubius.model import admin
from danubius.model.admin_codec import decode_reply, encode_request
from danubius.model.policy import Policies
from danubius.model.topic import TopicSpec
from danubius.record.encode import encode
from danubius.wire.commands import (
    Access,
    Administer,
    Administered,
    CreateTopic,
    Error,
    OpenProducer,
    Produce,
    Schedule,
)

if TYPE_CHECKING:
    from danubius.model.statistics import ProducerStatistics

TOPIC = "/default/orders"


def ask(peer: Any, request: Any) -> Any:
    answer = peer.call(Administer(msgspec.Raw(encode_request(request))))
    return decode_reply(answer.reply) if isinstance(answer, Administered) else answer


def producers(peer: Any) -> dict[str, ProducerStatistics]:
    lines = ask(peer, admin.ListProducers(TOPIC)).producers
    return {line.producer + ("+" if line.is_delayed else ""): line for line in lines}


def open_producer(peer: Any, name: str, **how: Any) -> Any:
    return peer.call(OpenProducer(TOPIC, name, TopicSpec(), **how))


def batch_of(opened: Any, count: int, sequence: int = 0) -> bytearray:
    return encode(
        [b"x" * 100] * count,
        publish_time_us=1,
        producer_id=opened.producer_id,
        producer_epoch=opened.producer_epoch,
        base_sequence=sequence,
    )


async def test_who_holds_the_topic_and_who_waits_for_it(bench: Any) -> None:
    peer, other = bench.connect(), bench.connect()
    open_producer(peer, "first", access=Access.EXCLUSIVE)
    number = other.ask(OpenProducer(TOPIC, "second", TopicSpec(), access=Access.WAIT_FOR_EXCLUSIVE))
    bench.settle()
    found = producers(peer)
    assert (found["first"].access, found["first"].is_waiting) == ("exclusive", False)
    assert (found["second"].access, found["second"].is_waiting) == ("wait-for-exclusive", True)
    assert found["second"].address == "test"
    ask(peer, admin.DisconnectProducer(TOPIC, "second"))
    assert isinstance(other.answer_to(number), Error)
    assert list(producers(peer)) == ["first"]


async def test_what_waits_for_the_disk_has_no_answer_yet(bench: Any) -> None:
    peer = bench.connect()
    opened = open_producer(peer, "p")
    batch = batch_of(opened, 10)
    peer.ask(Produce(opened.handle), batch)
    node_view = bench.shard.topic(TOPIC).attached["p"]
    assert node_view.unanswered_bytes == len(batch)
    bench.settle()
    assert producers(peer)["p"].unanswered_bytes == 0
    assert producers(peer)["p"].published_bytes == len(batch)


async def test_batches_that_a_rate_held_back_are_counted(bench: Any) -> None:
    peer = bench.connect()
    spec = TopicSpec(policies=Policies(publish_messages_per_s=100))
    peer.call(CreateTopic(TOPIC, spec))
    opened = open_producer(peer, "p")
    refused = 0
    for number in range(3):
        answer = peer.call(Produce(opened.handle), batch_of(opened, 110, 110 * number))
        refused += isinstance(answer, Error)
    figures = producers(peer)["p"]
    assert refused
    assert figures.throttled_batches == bench.shard.topic(TOPIC).gate.throttled_batches > 0


async def test_a_producer_of_delayed_messages_shows_beside_its_namesake(bench: Any) -> None:
    peer = bench.connect()
    open_producer(peer, "p")
    later = open_producer(peer, "p", is_delayed=True)
    batch = batch_of(later, 4)
    due_ms = bench.clock.now_ms + 60_000
    assert not isinstance(peer.call(Schedule(later.handle, due_ms), batch), Error)
    found = producers(peer)
    assert sorted(found) == ["p", "p+"]
    assert found["p+"].topic == TOPIC
    assert found["p+"].published_messages == 4
    assert found["p"].published_messages == 0
    shard = ask(peer, admin.DescribeBroker()).statistics
    assert shard.delayed_messages == 4
    assert shard.journal_bytes > 0


async def test_an_operator_ends_both_ways_of_a_producer(bench: Any) -> None:
    peer = bench.connect()
    open_producer(peer, "p")
    open_producer(peer, "p", is_delayed=True)
    ask(peer, admin.DisconnectProducer(TOPIC, "p"))
    assert producers(peer) == {}
