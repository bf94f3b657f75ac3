"""Messages older than their topic's TTL count as acknowledged, whether somebody listens or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.model.policy import Policies
from danubius.model.subscription import EARLIEST, SubscriptionType
from danubius.model.topic import TopicSpec
from danubius.record.encode import encode
from danubius.wire.commands import (
    Ack,
    CloseConsumer,
    CreateTopic,
    OpenProducer,
    Produce,
    Produced,
    Subscribe,
)

if TYPE_CHECKING:
    from danubius.shard.hosting.subscription import Subscription
    from unit.shard.conftest import BrokerBench, RecordingPeer

NAME = "/default/news"


def publish(bench: BrokerBench, peer: RecordingPeer, count: int) -> None:
    opened = peer.call(OpenProducer(NAME, "p", TopicSpec()))
    batch = encode(
        [b"x"] * count,
        publish_time_us=bench.clock.wall_us(),
        producer_id=opened.producer_id,
        producer_epoch=opened.producer_epoch,
    )
    assert isinstance(peer.call(Produce(opened.handle), batch), Produced)


def sweep(bench: BrokerBench) -> None:
    bench.node.retention.trim_some()
    bench.settle()


def prepare(bench: BrokerBench, peer: RecordingPeer) -> tuple[Subscription, int]:
    peer.call(CreateTopic(NAME, TopicSpec(policies=Policies(ttl_ms=10_000))))
    handle: int = peer.call(Subscribe(NAME, "s", SubscriptionType.EXCLUSIVE, "c", EARLIEST)).handle
    return bench.shard.topic(NAME).subscriptions["s"], handle


async def test_old_messages_are_acknowledged_and_counted(bench: BrokerBench) -> None:
    peer = bench.connect()
    subscription, handle = prepare(bench, peer)
    publish(bench, peer, 3)
    peer.call(Ack(handle, [(1, 2)]))
    bench.clock.now_ms += 6000
    publish(bench, peer, 2)
    sweep(bench)
    assert subscription.cursor.floor == 0
    bench.clock.now_ms += 6000
    sweep(bench)
    assert subscription.cursor.floor == 3
    assert subscription.expired == 2
    bench.clock.now_ms += 6000
    sweep(bench)
    assert (subscription.cursor.floor, subscription.expired) == (5, 4)


async def test_nobody_has_to_listen(bench: BrokerBench) -> None:
    peer = bench.connect()
    subscription, handle = prepare(bench, peer)
    peer.call(CloseConsumer(handle))
    publish(bench, peer, 3)
    bench.clock.now_ms += 11_000
    sweep(bench)
    assert subscription.cursor.floor == 3


async def test_a_failing_disk_only_postpones_it(bench: BrokerBench) -> None:
    peer = bench.connect()
    subscription, _ = prepare(bench, peer)
    publish(bench, peer, 3)
    bench.clock.now_ms += 11_000
    bench.files.fail("write", times=100)
    sweep(bench)
    assert bench.shard.journal_failure is not None
    assert subscription.cursor.floor == 0
    bench.files.heal()
    sweep(bench)
    assert subscription.cursor.floor == 3
    assert subscription.expired == 3
