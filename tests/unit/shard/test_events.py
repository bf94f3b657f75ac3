"""Facts as they are stored: what was written once is read for ever."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from danubius.model.policy import FailurePolicy, Policies
from danubius.model.subscription import SubscriptionType
from danubius.model.topic import TopicSpec
from danubius.shard.state import facts as events
from danubius.shard.state.facts import Event, decode_event, encode_event
from danubius.shard.state.snapshot import BrokerSnapshot, decode_snapshot, encode_snapshot

POLICIES = Policies(ttl_ms=5, retention_age_ms=-1)
FAILURE = FailurePolicy(redeliveries_max=3)
FACTS: dict[int, Event] = {
    1: events.TopicCreated(7, "/default/t", TopicSpec(), 5, POLICIES, 3),
    2: events.TopicRemoved(7),
    3: events.ProducerStarted(7, 8, "p", 2, False, 40),
    4: events.SubscriptionCreated(7, 9, "s", SubscriptionType.SHARED, 4, FAILURE, 5),
    5: events.SubscriptionRetyped(7, 9, SubscriptionType.FAILOVER),
    6: events.SubscriptionRemoved(7, 9),
    7: events.RangesAcked(7, 9, [(1, 2)]),
    8: events.LogTrimmed(7, 100),
    9: events.NamespaceCreated("n", POLICIES, 5),
    10: events.NamespaceChanged("n", POLICIES),
    11: events.NamespaceRemoved("n"),
    12: events.TopicChanged(7, POLICIES),
    13: events.PartitionsSet("/default/p", 4, TopicSpec(), 5),
    14: events.PartitionsRemoved("/default/p"),
    15: events.SubscriptionChanged(7, 9, None),
    16: events.SubscriptionMoved(7, 9, 50),
    17: events.AttemptsCounted(7, 9, [(1, 3, 2)]),
    18: events.DelayAdvanced(7, 1000, 6),
    19: events.TransactionCommitted(2**41 + 5),
    20: events.StageOpened(7, 11, 3, "task-1", 40),
    21: events.StagesDropped(7, [11, 12]),
    22: events.BatchDecided("query", 3, [11], 40, 44),
    23: events.BatchAdvanced("query", 3, 44, is_done=True),
    24: events.LedgerOffloaded(7, 5, 2, "s/t/l", 4096, 2**31 + 1, 3),
    25: events.LedgersReclaimed(7, [5, 6]),
    26: events.RecordsGivenUp([(7, 5, 9)], b"padding"),
}
OLD: dict[int, list[Any]] = {
    1: [1, 7, "/default/t", {}, 5],
    3: [3, 7, 8, "p", 2, True],
    4: [4, 7, 9, "s", "shared", 4],
}
"""As they were written before fields were appended."""


@pytest.mark.parametrize("tag", FACTS)
def test_a_fact_is_an_array_that_starts_with_its_tag_and_reads_back_as_it_was(tag: int) -> None:
    data = encode_event(FACTS[tag])
    assert msgspec.msgpack.decode(data)[0] == tag
    assert decode_event(data) == FACTS[tag]


def test_every_fact_is_covered_here() -> None:
    assert {type(fact) for fact in FACTS.values()} == set(get_args(Event))


def test_facts_from_before_a_field_was_appended_mean_what_they_meant() -> None:
    created, started, subscribed = (
        decode_event(msgspec.msgpack.encode(fact)) for fact in OLD.values()
    )
    assert created == events.TopicCreated(7, "/default/t", TopicSpec(), 5, None, 0)
    assert started == events.ProducerStarted(7, 8, "p", 2, True, 0)
    assert subscribed == events.SubscriptionCreated(7, 9, "s", SubscriptionType.SHARED, 4, None, 0)


def test_a_snapshot_from_before_fields_were_appended_is_read() -> None:
    old: list[Any] = [
        12,
        [[7, "/default/t", {}, 5, 0, 3, [], [], [[9, "s", "shared", b"\x01\x00\x00"]]]],
    ]
    snapshot = decode_snapshot(msgspec.msgpack.encode(old))
    assert (snapshot.namespaces, snapshot.partitioned, snapshot.committed) == ([], [], [])
    (topic,) = snapshot.topics
    assert (topic.policies, topic.parent, topic.watermark, topic.has_expiring) == (
        None,
        0,
        (0, 0),
        False,
    )
    (subscription,) = topic.subscriptions
    assert (subscription.failure, subscription.attempts, subscription.created_ms) == (None, [], 0)


def test_a_snapshot_reads_back_as_it_was() -> None:
    snapshot = BrokerSnapshot(3, [], committed=[(1, 2)])
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot
