"""Openings of a producer's name that overlap: each is answered once its epoch is durable, and not before."""

from __future__ import annotations

from typing import Any

import pytest

from danubius.errors import StorageFailed
from danubius.model.topic import TopicSpec
from danubius.record.encode import encode
from danubius.wire.commands import (
    CreateTopic,
    Error,
    OpenProducer,
    Produce,
    Produced,
    ProducerClosed,
    ProducerOpened,
)

TOPIC = "/default/orders"
EPOCH = 5
"""Of a life that this broker has not heard of: that of a topic which was made anew, for example."""


@pytest.fixture
def peers(bench: Any) -> tuple[Any, Any]:
    """Two connections of one client: the second was made after the first was lost."""
    bench.connect().call(CreateTopic(TOPIC, TopicSpec()))
    return bench.connect(), bench.connect()


def resume(peer: Any) -> int:
    return peer.ask(OpenProducer(TOPIC, "loader", TopicSpec(), EPOCH))


def produce(peer: Any, opened: ProducerOpened, sequence: int = 0) -> Any:
    batch = encode(
        [b"x"],
        publish_time_us=1,
        producer_id=opened.producer_id,
        producer_epoch=opened.producer_epoch,
        base_sequence=sequence,
    )
    return peer.call(Produce(opened.handle), batch)


async def test_a_second_resumption_of_one_epoch_waits_for_the_first(bench: Any, peers: Any) -> None:
    first, second = peers
    asked, again = resume(first), resume(second)
    assert first.answer_to(asked) is None
    assert second.answer_to(again) is None, "its epoch is not durable either"
    bench.settle()
    opened = second.answer_to(again)
    assert isinstance(opened, ProducerOpened)
    assert opened.producer_epoch == first.answer_to(asked).producer_epoch == EPOCH
    assert opened.producer_id == first.answer_to(asked).producer_id
    assert len(first.told(ProducerClosed)) == 1, "a name has one producer"
    assert produce(second, opened) == Produced(0)


async def test_both_fail_if_the_epoch_cannot_be_stored(bench: Any, peers: Any) -> None:
    first, second = peers
    bench.files.fail("write", times=100)
    asked, again = resume(first), resume(second)
    bench.settle()
    for peer, number in ((first, asked), (second, again)):
        answer = peer.answer_to(number)
        assert isinstance(answer, Error), answer
        assert answer.code == StorageFailed.code
    bench.files.heal()
    bench.clock.now_ms += 10_000
    again = resume(second)
    bench.settle()
    assert produce(second, second.answer_to(again)) == Produced(0)


async def test_a_newer_life_asked_for_meanwhile_is_the_one_that_stays(
    bench: Any, peers: Any
) -> None:
    first, second = peers
    asked = resume(first)
    newer = second.ask(OpenProducer(TOPIC, "loader", TopicSpec()))
    again = resume(first)
    bench.settle()
    opened = second.answer_to(newer)
    assert opened.producer_epoch == EPOCH + 1
    assert isinstance(first.answer_to(asked), ProducerOpened)
    assert isinstance(first.answer_to(again), Error), "it was fenced when it asked"
    assert produce(second, opened) == Produced(0)
    assert isinstance(produce(first, first.answer_to(asked)), Error)
