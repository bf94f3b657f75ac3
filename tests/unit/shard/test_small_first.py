"""In one commit, who brought little is told and sent to before who brought much."""

from __future__ import annotations

import asyncio
from typing import Any

from danubius.edge.native.binary import LARGE_WRITE_BYTES, BinaryEdge
from danubius.model.subscription import AtEarliest, SubscriptionType
from danubius.model.topic import TopicSpec
from danubius.record.encode import encode
from danubius.session.door import Door
from danubius.wire.commands import Deliver, Flow, OpenProducer, Produce, Subscribe

BUSY, QUIET = "/default/busy", "/default/quiet"


def open_pair(peer: Any, topic: str) -> tuple[Any, int]:
    """A producer, and the handle of a consumer that takes everything."""
    opened = peer.call(OpenProducer(topic, "p", TopicSpec()))
    subscribed = peer.call(Subscribe(topic, "s", SubscriptionType.EXCLUSIVE, "c", AtEarliest()))
    peer.ask(Flow(subscribed.handle, 1_000_000, 1 << 40))
    return opened, subscribed.handle


def batch(opened: Any, sequence: int, size: int) -> Any:
    return encode(
        [bytes(size)],
        publish_time_us=1,
        producer_id=opened.producer_id,
        producer_epoch=opened.producer_epoch,
        base_sequence=sequence,
    )


async def test_a_small_batch_is_delivered_before_large_ones_of_the_same_commit(bench: Any) -> None:
    peer = bench.connect()
    busy, busy_consumer = open_pair(peer, BUSY)
    quiet, quiet_consumer = open_pair(peer, QUIET)

    peer.ask(Produce(busy.handle), batch(busy, 0, 100_000))
    peer.ask(Produce(busy.handle), batch(busy, 1, 10))
    peer.ask(Produce(quiet.handle), batch(quiet, 0, 100))
    bench.settle()

    delivered = [command.handle for command in peer.told(Deliver)]
    assert delivered[0] == quiet_consumer
    assert set(delivered[1:]) == {busy_consumer}


async def test_one_large_batch_waits_for_a_small_one_too(bench: Any) -> None:
    peer = bench.connect()
    busy, busy_consumer = open_pair(peer, BUSY)
    quiet, quiet_consumer = open_pair(peer, QUIET)

    peer.ask(Produce(busy.handle), batch(busy, 0, 100_000))
    peer.ask(Produce(quiet.handle), batch(quiet, 0, 100))
    bench.settle()

    delivered = [command.handle for command in peer.told(Deliver)]
    assert delivered == [quiet_consumer, busy_consumer]


async def test_what_is_large_leaves_last_and_nothing_stays(bench: Any) -> None:
    class Written:
        """A connection that was written to."""

        def __init__(self, size: int) -> None:
            self.gathered_bytes = size

        def flush(self) -> None:
            if self.gathered_bytes:
                flushed.append(self.gathered_bytes)
            self.gathered_bytes = 0

    flushed: list[int] = []
    edge: Any = BinaryEdge(Door(bench.node), asyncio.get_running_loop(), "broker")
    large, huge = Written(LARGE_WRITE_BYTES), Written(10 * LARGE_WRITE_BYTES)
    answer, delivery = Written(10), Written(200)
    edge.written = [answer, huge, delivery, large, huge]

    edge.flush()

    assert flushed[:2] == [200, 10]
    assert sorted(flushed[2:]) == [LARGE_WRITE_BYTES, 10 * LARGE_WRITE_BYTES]
    assert not edge.written
