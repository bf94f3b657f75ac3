"""Atomic records on a simulated disk: what is refused, what becomes visible when, and what a failure takes back."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest

from danubius.errors import (
    DanubiusError,
    InvalidArgument,
    StorageFailed,
    TopicDeleted,
    TransactionTooLarge,
)
from danubius.model.subscription import AtEarliest, SubscriptionType
from danubius.model.topic import Dispatch, TopicSpec
from danubius.record.batch import read_header
from danubius.record.encode import encode
from danubius.shard.hosting.topics import create_topic
from danubius.shard.state import atomic as atomic_module
from danubius.shard.state.atomic import ATOMIC_RECORD, Append, Atomic, decode_atomic
from danubius.shard.state.facts import RangesAcked, TopicRemoved, TransactionCommitted

RELIABLE = TopicSpec()
PASSING = TopicSpec(dispatch=Dispatch.NON_RELIABLE)


class Topics:
    """A broker with topics, and its atomic records."""

    def __init__(self, bench: Any) -> None:
        self.bench = bench
        self.shard = bench.shard
        self.atomic = Atomic(self.shard)
        self.outcomes: list[Any] = []

    def create(self, name: str, spec: TopicSpec = RELIABLE) -> Any:
        create_topic(self.shard, name, spec, exist_ok=False, on_done=lambda _: None)
        self.bench.settle()
        return self.shard.topics[name]

    def commit(self, appends: list[Append], facts: list[Any] | None = None) -> None:
        self.atomic.commit(appends, facts or [], self.outcomes.append)

    def sequencers(self) -> list[tuple[int, int]]:
        for topic in self.shard.topics.values():
            topic.pipeline.sequencer.check()
        return [
            (t.pipeline.sequencer.next_offset, t.log.end_offset) for t in self.shard.topics.values()
        ]


@pytest.fixture
async def topics(bench: Any) -> Topics:
    return Topics(bench)


def append(topic: Any, count: int, **header: Any) -> Append:
    batch = memoryview(encode([b"m"] * count, publish_time_us=1, **header))
    return Append(topic, batch, read_header(batch))


async def test_all_batches_and_facts_are_one_record(topics: Topics) -> None:
    a, b = topics.create("/default/a"), topics.create("/default/b")
    appends = [append(a, 2), append(b, 1), append(a, 3)]
    facts = [TransactionCommitted(5)]
    topics.commit(appends, facts)
    assert topics.outcomes == []
    topics.bench.settle()
    assert topics.outcomes == [[0, 0, 2]]
    assert topics.sequencers() == [(5, 5), (1, 1)]
    record = topics.bench.recover_journal()[-1]
    assert (record.kind, record.topic_id) == (ATOMIC_RECORD, 0)
    found = decode_atomic(record.body)
    assert [(t, bytes(x)) for t, x in found.batches] == [
        (one.topic.id, bytes(one.batch)) for one in appends
    ]
    assert found.facts == facts


async def test_the_layout_of_a_record(topics: Topics) -> None:
    a = topics.create("/default/a")
    one = append(a, 1)
    topics.commit([one], [TransactionCommitted(5)])
    topics.bench.settle()
    body = bytes(topics.bench.recover_journal()[-1].body)
    head = msgspec.msgpack.encode([[[a.id, len(one.batch)]], [[19, 5]]])
    start = struct.pack("<I", len(head)) + head
    assert body == start + bytes(-len(start) % 8) + bytes(one.batch)


async def test_on_done_finds_everything_in_place_before_a_reader_is_told(topics: Topics) -> None:
    a, b = topics.create("/default/a"), topics.create("/default/b")
    subscriptions: list[Any] = []
    topics.shard.create_subscription(
        a, "s", SubscriptionType.SHARED, AtEarliest(), subscriptions.append
    )
    topics.bench.settle()
    (subscription,) = subscriptions
    seen: list[Any] = []

    def look(who: str) -> None:
        seen.append((who, a.log.end_offset, b.log.end_offset, subscription.cursor.floor))

    for topic in (a, b):
        topic.waiters.append(lambda: look("reader"))
    topics.atomic.commit(
        [append(b, 1), append(a, 2)],
        [RangesAcked(a.id, subscription.id, [(0, 1)])],
        lambda _: look("caller"),
    )
    topics.bench.settle()
    assert seen == [("caller", 2, 1, 1), ("reader", 2, 1, 1), ("reader", 2, 1, 1)]


async def test_facts_come_behind_the_batches(topics: Topics) -> None:
    a, b = topics.create("/default/a"), topics.create("/default/b")
    b_id = b.id
    topics.commit([append(a, 1), append(b, 1)], [TopicRemoved(b_id)])
    topics.bench.settle()
    assert topics.outcomes == [[0, 0]]
    assert list(topics.shard.topics) == ["/default/a"]


async def test_a_topic_that_is_being_deleted_refuses_all_of_it(topics: Topics) -> None:
    a, b = topics.create("/default/a"), topics.create("/default/b")
    b.is_deleting = True
    with pytest.raises(TopicDeleted, match="/default/b"):
        topics.commit([append(a, 1), append(b, 1)])
    topics.bench.settle()
    assert topics.outcomes == []
    assert topics.sequencers() == [(0, 0), (0, 0)]


async def test_a_topic_that_stores_nothing_refuses_all_of_it(topics: Topics) -> None:
    a, b = topics.create("/default/a"), topics.create("/default/b", PASSING)
    with pytest.raises(InvalidArgument, match="/default/b is not reliable"):
        topics.commit([append(a, 1), append(b, 1)])
    assert topics.sequencers() == [(0, 0), (0, 0)]


@pytest.mark.parametrize("bound", ["BATCHES_BYTES_MAX", "HEAD_BYTES_MAX"])
async def test_what_is_too_much_for_one_record_is_refused_whole(
    topics: Topics, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = topics.create("/default/a")
    monkeypatch.setattr(atomic_module, bound, 100)
    with pytest.raises(TransactionTooLarge, match="at most 100"):
        topics.commit([append(a, 1)], [TransactionCommitted(n) for n in range(100)])
    assert topics.sequencers() == [(0, 0)]


async def test_a_failure_takes_everything_back_also_what_was_published_around_it(
    topics: Topics,
) -> None:
    a, b = topics.create("/default/a"), topics.create("/default/b")
    a.pipeline.publish_unsequenced(append(a, 1).batch, topics.outcomes.append)
    topics.commit([append(a, 2), append(b, 1)], [TransactionCommitted(5)])
    b.pipeline.publish_unsequenced(append(b, 1).batch, topics.outcomes.append)
    topics.commit([append(b, 4)])
    topics.bench.files.fail("write", times=100)
    topics.bench.settle()
    assert len(topics.outcomes) == 4
    assert all(isinstance(outcome, StorageFailed) for outcome in topics.outcomes)
    assert topics.sequencers() == [(0, 0), (0, 0)]
    assert 5 not in topics.shard.committed_transactions
    topics.bench.files.heal()
    topics.outcomes.clear()
    topics.commit([append(a, 2), append(b, 1)], [TransactionCommitted(5)])
    topics.bench.settle()
    assert topics.outcomes == [[0, 0]]


@pytest.mark.parametrize("how", ["commit", "publish"])
async def test_nothing_may_be_appended_from_inside_a_failure(topics: Topics, how: str) -> None:
    a, b = topics.create("/default/a"), topics.create("/default/b")

    def again(outcome: list[Any] | DanubiusError) -> None:
        assert isinstance(outcome, DanubiusError)
        if how == "commit":
            topics.commit([append(b, 1)])
        else:
            b.pipeline.publish_unsequenced(append(b, 1).batch, topics.outcomes.append)

    topics.atomic.commit([append(a, 1)], [], again)
    topics.bench.files.fail("write", times=100)
    with pytest.raises(AssertionError, match="from inside on_done"):
        topics.bench.settle()


async def test_the_next_may_be_committed_from_inside_a_success(topics: Topics) -> None:
    a = topics.create("/default/a")

    def next_one(outcome: Any) -> None:
        topics.outcomes.append(outcome)
        if len(topics.outcomes) < 3:
            topics.atomic.commit([append(a, 2)], [], next_one)

    topics.atomic.commit([append(a, 2)], [], next_one)
    topics.bench.settle()
    assert topics.outcomes == [[0], [2], [4]]


def test_what_no_commit_wrote_cannot_be_read() -> None:
    head = msgspec.msgpack.encode([[[7, 16]], []])
    start = struct.pack("<I", len(head)) + head
    whole = start + bytes(-len(start) % 8) + bytes(16)
    assert decode_atomic(memoryview(whole)).batches == [(7, memoryview(bytes(16)))]
    for body in (b"", whole[:8], whole[:-8], whole + bytes(8), struct.pack("<I", 2**31)):
        with pytest.raises(ValueError, match=r".+"):
            decode_atomic(memoryview(body))
