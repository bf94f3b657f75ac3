"""What topics let go of by their policies: work queues, retention of topics and namespaces, small ledgers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.ledger.managed import ManagedLedger
from danubius.model.limits import MIB
from danubius.model.policy import Policies
from danubius.model.subscription import EARLIEST, SubscriptionType
from danubius.model.topic import TopicSpec
from danubius.shard.state.facts import NamespaceCreated
from danubius.wire.commands import Ack, CreateTopic, Done, Subscribe

if TYPE_CHECKING:
    from danubius.shard.hosting.topic import Topic
    from unit.shard.conftest import BrokerBench, RecordingPeer

NAME = "/default/jobs"
QUEUE = Policies(delete_after_ack=True)


def make_topic(bench: BrokerBench, peer: RecordingPeer, policies: Policies) -> Topic:
    assert isinstance(peer.call(CreateTopic(NAME, TopicSpec(policies=policies))), Done)
    return bench.shard.topic(NAME)


def ledger_of(topic: Topic) -> ManagedLedger:
    assert isinstance(topic.log, ManagedLedger)
    return topic.log


def trim(bench: BrokerBench) -> None:
    bench.node.retention.trim_some()
    bench.settle()


def subscribe(peer: RecordingPeer) -> int:
    handle: int = peer.call(Subscribe(NAME, "s", SubscriptionType.EXCLUSIVE, "c", EARLIEST)).handle
    return handle


async def test_a_work_queue_starts_at_the_first_message_that_is_not_done(
    bench: BrokerBench,
) -> None:
    peer = bench.connect()
    topic = make_topic(bench, peer, QUEUE)
    handle = subscribe(peer)
    peer.publish(NAME, [b"%d" % i for i in range(10)])
    trim(bench)
    assert ledger_of(topic).start_offset == 0
    peer.call(Ack(handle, [(0, 4), (6, 8)]))
    trim(bench)
    assert ledger_of(topic).start_offset == 4


async def test_a_work_queue_keeps_all_for_its_first_subscription(bench: BrokerBench) -> None:
    peer = bench.connect()
    topic = make_topic(bench, peer, QUEUE)
    peer.publish(NAME, [b"job"] * 3)
    trim(bench)
    assert ledger_of(topic).start_offset == 0


async def test_a_work_queue_that_is_done_frees_its_disk(bench: BrokerBench) -> None:
    peer = bench.connect()
    topic = make_topic(bench, peer, QUEUE)
    handle = subscribe(peer)
    for _ in range(3):
        peer.publish(NAME, [bytes(MIB)])
    peer.call(Ack(handle, [(0, 3)]))
    trim(bench)
    assert ledger_of(topic).start_offset == 3
    assert ledger_of(topic).ledgers == []


async def test_a_quiet_work_queue_frees_its_disk_too(bench: BrokerBench) -> None:
    peer = bench.connect()
    topic = make_topic(bench, peer, QUEUE)
    handle = subscribe(peer)
    peer.publish(NAME, [b"small"])
    peer.call(Ack(handle, [(0, 1)]))
    trim(bench)
    assert len(ledger_of(topic).ledgers) == 1
    bench.clock.now_ms += 60_000
    trim(bench)
    assert ledger_of(topic).ledgers == []


async def test_a_namespace_says_it_for_all_its_topics(bench: BrokerBench) -> None:
    peer = bench.connect()
    topic = make_topic(bench, peer, Policies())
    handle = subscribe(peer)
    peer.publish(NAME, [b"job"] * 3)
    peer.call(Ack(handle, [(0, 2)]))
    trim(bench)
    assert ledger_of(topic).start_offset == 0
    bench.shard.apply(NamespaceCreated("default", QUEUE, 0))
    bench.shard.apply_policies(topic)
    trim(bench)
    assert ledger_of(topic).start_offset == 2


async def test_a_small_bound_makes_small_ledgers_and_is_kept(bench: BrokerBench) -> None:
    peer = bench.connect()
    topic = make_topic(bench, peer, Policies(retention_bytes=8 * MIB))
    trim(bench)
    assert ledger_of(topic).ledger_bytes_max == MIB
    for _ in range(20):
        peer.publish(NAME, [bytes(MIB // 2)] * 2)
        trim(bench)
    assert ledger_of(topic).stored_bytes < 10 * MIB
    topic.own_policies = Policies()
    bench.shard.apply_policies(topic)
    trim(bench)
    assert ledger_of(topic).ledger_bytes_max == 256 * MIB
