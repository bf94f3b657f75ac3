"""In a commit of many batches publishers are answered before the logs grow; readers see all of it in the same turn."""

from __future__ import annotations

from typing import Any

from danubius.model.subscription import AtEarliest, SubscriptionType
from danubius.model.topic import TopicSpec
from danubius.record.encode import encode
from danubius.shard.shard import ANSWERED_FIRST
from danubius.wire.commands import (
    Deliver,
    Flow,
    OpenProducer,
    Produce,
    Produced,
    Subscribe,
    Subscribed,
)

TOPIC = "/default/many"


def produce(peer: Any, opened: Any, count: int) -> list[int]:
    """Batches of one message each, on their way to the journal together; the requests' numbers."""
    return [
        peer.ask(
            Produce(opened.handle),
            encode(
                [b"%d" % number],
                publish_time_us=1,
                producer_id=opened.producer_id,
                producer_epoch=opened.producer_epoch,
                base_sequence=number,
            ),
        )
        for number in range(count)
    ]


def ends_when_flushed(bench: Any) -> list[int]:
    """Where the log ends whenever answers leave."""
    ends: list[int] = []
    log = bench.shard.topic(TOPIC).log
    bench.shard.on_answered = lambda: ends.append(log.end_offset)
    return ends


async def test_answers_to_many_leave_before_the_log_grows_which_it_does_in_the_same_turn(
    bench: Any,
) -> None:
    peer = bench.connect()
    opened = peer.call(OpenProducer(TOPIC, "p", TopicSpec()))
    ends = ends_when_flushed(bench)
    bench.journal.hold()
    numbers = produce(peer, opened, ANSWERED_FIRST)
    bench.journal.release()
    bench.settle()
    assert ends == [0, ANSWERED_FIRST]
    assert [peer.answer_to(number) for number in numbers] == [
        Produced(offset) for offset in range(ANSWERED_FIRST)
    ]


async def test_answers_to_few_leave_with_what_is_delivered(bench: Any) -> None:
    peer = bench.connect()
    opened = peer.call(OpenProducer(TOPIC, "p", TopicSpec()))
    ends = ends_when_flushed(bench)
    bench.journal.hold()
    produce(peer, opened, ANSWERED_FIRST - 1)
    bench.journal.release()
    bench.settle()
    assert ends == [ANSWERED_FIRST - 1]


async def test_what_else_is_in_a_commit_keeps_its_place_among_the_batches(bench: Any) -> None:
    """A subscription that becomes durable behind some batches, and before others, gets each of them once."""
    peer = bench.connect()
    opened = peer.call(OpenProducer(TOPIC, "p", TopicSpec()))
    bench.journal.hold()
    numbers = produce(peer, opened, ANSWERED_FIRST)
    subscribing = peer.ask(Subscribe(TOPIC, "s", SubscriptionType.EXCLUSIVE, "c", AtEarliest()))
    bench.journal.release()
    bench.settle()
    subscribed = peer.answer_to(subscribing)
    assert isinstance(subscribed, Subscribed)
    peer.ask(Flow(subscribed.handle, 1_000_000, 1 << 40))
    bench.settle()
    assert all(isinstance(peer.answer_to(number), Produced) for number in numbers)
    assert sum(command.messages for command in peer.told(Deliver)) == ANSWERED_FIRST
