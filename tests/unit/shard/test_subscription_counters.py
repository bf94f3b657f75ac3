"""What statistics are made of: plain counts of a subscription and of each of its consumers."""

from __future__ import annotations

from typing import Any

from danubius.model.subscription import AtEarliest, SubscriptionType
from danubius.model.topic import TopicSpec
from danubius.wire.commands import Ack, CreateTopic, Done, Flow, Nack, Subscribe

TOPIC = "/default/orders"


async def test_deliveries_and_their_outcome_are_counted(bench: Any) -> None:
    peer = bench.connect()
    assert peer.call(CreateTopic(TOPIC, TopicSpec())) == Done()
    handle = peer.call(Subscribe(TOPIC, "s", SubscriptionType.SHARED, "c", AtEarliest())).handle
    peer.publish(TOPIC, [b"x"] * 10)
    peer.session.handle(Flow(handle, 100, 10_000), 0, memoryview(b""))
    bench.settle()
    subscription = bench.shard.topic(TOPIC).subscriptions["s"]
    consumer = peer.session.consumers[handle]
    assert (subscription.delivered, subscription.redelivered) == (10, 0)

    peer.call(Ack(handle, [(0, 3), (5, 6)]))
    peer.call(Ack(handle, [(0, 3)]))  # again: nothing new
    peer.call(Nack(handle, [(3, 5)]))

    assert subscription.acked == 4
    assert subscription.nacked == 2
    assert (subscription.delivered, subscription.redelivered) == (12, 2)
    assert (consumer.delivered, consumer.redelivered) == (12, 2)
    # All that went out was acknowledged, came back, or is still out.
    assert (
        subscription.delivered
        == subscription.acked + subscription.nacked + subscription.pump.unacked
    )


async def test_a_peer_cannot_count_more_back_than_it_was_given(bench: Any) -> None:
    peer = bench.connect()
    peer.call(CreateTopic(TOPIC, TopicSpec()))
    handle = peer.call(Subscribe(TOPIC, "s", SubscriptionType.SHARED, "c", AtEarliest())).handle
    peer.publish(TOPIC, [b"x"] * 10)
    peer.session.handle(Flow(handle, 5, 10_000), 0, memoryview(b""))
    bench.settle()

    peer.call(Nack(handle, [(0, 2**62)]))

    assert bench.shard.topic(TOPIC).subscriptions["s"].nacked == 5
