"""What holds for a topic: layers of policies, applied when it is put up and when a layer changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from danubius.errors import LimitReached
from danubius.model.policy import FOREVER, Policies
from danubius.model.subscription import AtEarliest, SubscriptionType
from danubius.model.topic import Retention, TopicSpec
from danubius.shard.hosting.retention import RETENTION_SLICES
from danubius.shard.state.facts import NamespaceCreated, TopicChanged
from danubius.wire.commands import CreateTopic, Done, Error, OpenProducer, Subscribe

if TYPE_CHECKING:
    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic

TOPIC = "/default/orders"


def create(bench: Any, spec: TopicSpec) -> Topic:
    assert bench.connect().call(CreateTopic(TOPIC, spec)) == Done()
    return bench.shard.topic(TOPIC)


async def test_a_topic_obeys_its_own_layer_and_the_broker_below(bench: Any) -> None:
    topic = create(bench, TopicSpec(policies=Policies(ttl_ms=5)))

    assert topic.policies.ttl_ms == 5
    assert topic.ttl_us == 5000
    assert topic.policies.message_bytes_max == bench.shard.config.message_bytes_max
    assert topic.gate is None


async def test_the_older_way_to_set_retention_is_the_topics_own_layer(bench: Any) -> None:
    topic = create(bench, TopicSpec(retention=Retention(age_ms=None, size_bytes=7)))

    assert topic.policies.retention_age_ms == FOREVER
    assert topic.policies.retention_bytes == 7


async def test_a_changed_layer_holds_at_once(bench: Any) -> None:
    topic = create(bench, TopicSpec(policies=Policies(ttl_ms=5)))

    bench.shard.apply(TopicChanged(topic.id, Policies(ttl_ms=9)))

    assert topic.ttl_us == 9000


async def test_a_namespace_lies_between_broker_and_topic(bench: Any) -> None:
    layer = Policies(ttl_ms=1, producers_max=3)
    bench.shard.apply(NamespaceCreated("default", layer, 0))

    topic = create(bench, TopicSpec(policies=Policies(ttl_ms=5)))

    assert (topic.policies.ttl_ms, topic.policies.producers_max) == (5, 3)


async def test_topics_with_the_same_layers_share_their_policies(bench: Any) -> None:
    """Ten thousand topics must not have ten thousand copies."""
    peer = bench.connect()
    for name in ("/default/a", "/default/b"):
        peer.call(CreateTopic(name, TopicSpec(policies=Policies(ttl_ms=77))))

    assert bench.shard.topic("/default/a").policies is bench.shard.topic("/default/b").policies


@pytest.mark.parametrize(
    ("policies", "is_freed"),
    [
        (Policies(retention_age_ms=0), True),
        (Policies(retention_age_ms=FOREVER), False),
        (Policies(retention_age_ms=FOREVER, retention_bytes=0), True),
    ],
)
async def test_retention_goes_by_the_policies_of_the_moment(
    bench: Any, policies: Policies, is_freed: bool
) -> None:
    topic = create(bench, TopicSpec())
    bench.connect().publish(TOPIC, [b"x"] * 10)
    bench.shard.apply(TopicChanged(topic.id, policies))

    bench.clock.now_ms += 1000 * 24 * 3600 * 1000  # enough for any ledger to be closed
    for _ in range(2 * RETENTION_SLICES):
        bench.node.retention.trim_some()
        bench.settle()

    assert topic.log.start_offset == (10 if is_freed else 0)


class Full:
    """A gate that lets nobody in."""

    refused_batches = 0

    def check_open(self, topic: Topic, others: int) -> None:
        raise LimitReached(f"{topic.name} has its producers: {others}")

    def check_subscribe(self, topic: Topic, subscription: Subscription | None) -> None:
        raise LimitReached(f"{topic.name} has its consumers: {subscription}")

    def admit(self, count: int, size: int, now_ns: int) -> int:
        raise AssertionError((count, size, now_ns))

    def give_back(self, count: int, size: int) -> None:
        raise AssertionError((count, size))


async def test_a_gate_is_asked_before_anyone_comes_in(bench: Any) -> None:
    topic = create(bench, TopicSpec())
    peer = bench.connect()
    subscribe = Subscribe(TOPIC, "s", SubscriptionType.SHARED, "c", AtEarliest())
    topic.gate = Full()

    for command in (OpenProducer(TOPIC, "p", TopicSpec()), subscribe):
        answer = peer.call(command)
        assert isinstance(answer, Error)
        assert answer.code == LimitReached.code
    assert not topic.attached
    assert not topic.subscriptions
