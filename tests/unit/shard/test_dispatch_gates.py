"""Gates of subscriptions: made from policies, shared by a namespace, changed live, gone with what they belong to."""

from __future__ import annotations

from typing import Any

from danubius.model.policy import Policies
from danubius.model.subscription import AtEarliest, SubscriptionType
from danubius.model.topic import TopicSpec
from danubius.shard.state.facts import NamespaceChanged, TopicChanged
from danubius.wire.commands import CreateTopic, DeleteTopic, Deliver, Flow, Subscribe

ONE, TWO = "/default/one", "/default/two"


def subscribe(bench: Any, topic: str, name: str = "s") -> Any:
    """A consumer that takes everything; returns its peer."""
    peer = bench.connect()
    subscribed = peer.call(Subscribe(topic, name, SubscriptionType.EXCLUSIVE, "c", AtEarliest()))
    peer.ask(Flow(subscribed.handle, 1_000_000, 1 << 40))
    return peer


def received(peer: Any) -> int:
    return sum(command.messages for command in peer.told(Deliver))


def gate(bench: Any, topic: str, name: str = "s") -> Any:
    return bench.shard.topic(topic).subscriptions[name].pump.gate


def create(bench: Any, topic: str, policies: Policies, messages: int = 100) -> Any:
    peer = bench.connect()
    peer.call(CreateTopic(topic, TopicSpec(policies=policies)))
    peer.publish(topic, [b"x"] * messages)
    return bench.shard.topic(topic)


def change_namespace(bench: Any, policies: Policies) -> None:
    bench.shard.apply(NamespaceChanged("default", policies))
    for topic in list(bench.shard.topics.values()):
        bench.shard.apply_policies(topic)


async def test_a_subscription_has_a_gate_only_while_its_topic_has_a_rate(bench: Any) -> None:
    topic = create(bench, ONE, Policies())
    peer = subscribe(bench, ONE)
    assert gate(bench, ONE) is None
    assert topic.gate is None, "publishing is not limited"
    assert received(peer) == 100

    bench.shard.apply(TopicChanged(topic.id, Policies(dispatch_messages_per_s=10)))
    assert gate(bench, ONE) is not None
    assert topic.gate is None
    bench.shard.apply(TopicChanged(topic.id, Policies()))
    assert gate(bench, ONE) is None


async def test_what_may_not_go_waits_and_goes_when_the_rate_is_lifted(bench: Any) -> None:
    topic = create(bench, ONE, Policies(dispatch_messages_per_s=1))
    peer = subscribe(bench, ONE)
    assert received(peer) == 1, "time stands still"
    assert gate(bench, ONE).paces[0].waiting == 1

    bench.shard.apply(TopicChanged(topic.id, Policies(dispatch_messages_per_s=0)))
    assert received(peer) == 100


async def test_each_subscription_has_a_pace_of_its_own_and_keeps_it_with_its_debts(
    bench: Any,
) -> None:
    topic = create(bench, ONE, Policies(dispatch_bytes_per_s=1))
    peers = [subscribe(bench, ONE, name) for name in ("s", "t")]
    assert [received(peer) for peer in peers] == [1, 1]
    (pace,) = gate(bench, ONE).paces
    assert gate(bench, ONE, "t").paces != (pace,)
    owed_ns = pace.rates.debt_ns(bench.clock.monotonic_ns())

    bench.shard.apply(TopicChanged(topic.id, Policies(dispatch_bytes_per_s=2)))

    assert gate(bench, ONE).paces == (pace,)
    assert pace.rates.debt_ns(bench.clock.monotonic_ns()) == owed_ns // 2
    assert [received(peer) for peer in peers] == [1, 1]


async def test_a_namespace_has_one_pace_for_all_and_a_topics_own_holds_beside_it(
    bench: Any,
) -> None:
    create(bench, ONE, Policies())
    create(bench, TWO, Policies(dispatch_messages_per_s=5))
    peers = [subscribe(bench, ONE)]
    change_namespace(bench, Policies(dispatch_messages_per_s=7))
    peers.append(subscribe(bench, TWO))

    (shared,) = gate(bench, ONE).paces
    own, same = gate(bench, TWO).paces
    assert same is shared is not own
    assert received(peers[1]) == 1
    bench.connect().publish(ONE, [b"y"] * 10)
    assert received(peers[0]) == 100, "the other one has used the namespace up"

    change_namespace(bench, Policies())
    assert gate(bench, ONE) is None
    assert gate(bench, TWO).paces == (own,)
    assert received(peers[0]) == 110
    assert shared.waiting == 0


async def test_a_deleted_topic_waits_for_nothing(bench: Any) -> None:
    create(bench, ONE, Policies())
    change_namespace(bench, Policies(dispatch_messages_per_s=1))
    peer = subscribe(bench, ONE)
    (shared,) = gate(bench, ONE).paces
    assert shared.waiting == 1

    peer.call(DeleteTopic(ONE))

    assert shared.waiting == 0
