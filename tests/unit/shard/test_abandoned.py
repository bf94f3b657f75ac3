"""A subscription that nobody uses, and that keeps what retention would delete, gets a word."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from danubius.admin.statistics import measure_subscription
from danubius.admin.targets import Member
from danubius.ledger.managed import ManagedLedger
from danubius.model.policy import Policies
from danubius.model.subscription import EARLIEST, SubscriptionType
from danubius.model.topic import TopicSpec
from danubius.shard.hosting.abandoned import IDLE_MS
from danubius.wire.commands import Ack, CreateTopic, Done, Subscribe

if TYPE_CHECKING:
    import pytest

    from danubius.model.statistics import SubscriptionStatistics
    from danubius.shard.hosting.topic import Topic
    from unit.shard.conftest import BrokerBench, RecordingPeer

NAME = "/default/orders"
KEPT_MS = 60_000


def make(bench: BrokerBench, peer: RecordingPeer) -> tuple[Topic, int]:
    """A topic whose messages go after a minute, with one subscription and ten messages."""
    spec = TopicSpec(policies=Policies(retention_age_ms=KEPT_MS))
    assert isinstance(peer.call(CreateTopic(NAME, spec)), Done)
    handle = peer.call(Subscribe(NAME, "look", SubscriptionType.EXCLUSIVE, "c", EARLIEST)).handle
    peer.publish(NAME, [b"%d" % i for i in range(10)])
    return bench.shard.topic(NAME), handle


def a_round(bench: BrokerBench, later_ms: int) -> None:
    bench.clock.now_ms += later_ms
    for _ in range(11):
        bench.node.retention.trim_some()
        bench.settle()


def figures(bench: BrokerBench, topic: Topic) -> SubscriptionStatistics:
    return measure_subscription(bench.node, Member(topic, topic.subscriptions["look"]))


async def test_an_abandoned_subscription_is_said_once_and_counted(
    bench: BrokerBench, caplog: pytest.LogCaptureFixture
) -> None:
    peer = bench.connect()
    topic, _ = make(bench, peer)
    bench.node.rates.begin_round()
    peer.session.close()
    caplog.set_level(logging.WARNING)
    a_round(bench, 2 * KEPT_MS)  # the open ledger is sealed by its age
    a_round(bench, 2 * KEPT_MS)
    assert figures(bench, topic).held_back_bytes > 0
    assert bench.node.retention.abandoned.count == 0  # not for long enough
    a_round(bench, IDLE_MS)
    a_round(bench, 1000)
    said = [record for record in caplog.records if "without a consumer" in record.message]
    assert len(said) == 1
    assert bench.node.retention.abandoned.count == 1
    assert figures(bench, topic).idle_s >= IDLE_MS / 1000


async def test_one_with_a_consumer_is_not_abandoned(bench: BrokerBench) -> None:
    topic, _ = make(bench, bench.connect())
    a_round(bench, 2 * KEPT_MS)
    a_round(bench, 2 * IDLE_MS)
    assert figures(bench, topic).held_back_bytes > 0
    assert figures(bench, topic).idle_s == 0
    assert bench.node.retention.abandoned.count == 0


async def test_one_that_has_acknowledged_all_holds_nothing_back(bench: BrokerBench) -> None:
    peer = bench.connect()
    topic, handle = make(bench, peer)
    peer.call(Ack(handle, [(0, 10)]))
    peer.session.close()
    a_round(bench, 2 * KEPT_MS)
    a_round(bench, 2 * IDLE_MS)
    assert figures(bench, topic).held_back_bytes == 0
    assert bench.node.retention.abandoned.count == 0
    assert isinstance(topic.log, ManagedLedger)
    assert topic.log.start_offset == 10


async def test_one_that_is_deleted_is_forgotten(bench: BrokerBench) -> None:
    peer = bench.connect()
    topic, _ = make(bench, peer)
    peer.session.close()
    a_round(bench, 2 * KEPT_MS)
    a_round(bench, 2 * IDLE_MS)
    assert bench.node.retention.abandoned.count == 1
    del topic.subscriptions["look"]
    a_round(bench, 1000)
    assert bench.node.retention.abandoned.count == 0
