"""Partitioned topics in the broker: all partitions or none, names that cannot clash, growth that misses nothing."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from danubius.admin.topics import ADMIN
from danubius.errors import (
    DanubiusError,
    InvalidArgument,
    InvalidName,
    TopicExists,
    TopicNotFound,
)
from danubius.model import admin
from danubius.model.ids import TopicName
from danubius.model.partitions import base_of, fnv1a64, partition_names, route
from danubius.model.policy import Policies
from danubius.model.subscription import EARLIEST, LATEST, AtOffset, SubscriptionType
from danubius.model.topic import Dispatch, TopicSpec
from danubius.wire.commands import (
    ConsumerClosed,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    Done,
    Error,
    Hello,
    ListTopics,
    Located,
    Lookup,
    OffsetResolved,
    OpenProducer,
    ProducerClosed,
    ProducerOpened,
    ResolveOffset,
    Subscribe,
    Subscribed,
    TopicChanged,
    TopicDescribed,
    TopicsListed,
)

BASE = "/default/orders"
PARTS = [f"{BASE}-part-{index}" for index in range(4)]
NON_RELIABLE = TopicSpec(Dispatch.NON_RELIABLE)


def code_of(answer: Any) -> int:
    assert isinstance(answer, Error), answer
    return answer.code


def modern(bench: Any) -> Any:
    peer = bench.connect()
    peer.call(Hello(1, 2, "danubius-test"))
    assert peer.session.version == 2
    return peer


def partitioned(bench: Any, count: int = 4, spec: TopicSpec | None = None) -> Any:
    peer = modern(bench)
    answer = peer.call(CreateTopic(BASE, spec or TopicSpec(), partitions=count))
    assert isinstance(answer, Done), answer
    return peer


def administer(bench: Any, request: Any) -> Any:
    """The reply or the error; None while there is none."""
    replies: list[Any] = []
    try:
        ADMIN[type(request)](bench.node, request, replies.append)
    except DanubiusError as error:
        return error
    bench.settle()
    assert len(replies) <= 1
    return replies[0] if replies else None


def names(bench: Any) -> list[str]:
    return sorted(bench.shard.topics)


# ---------------------------------------------------------------- names and routes


def test_keys_go_where_fnv_1a_says() -> None:
    assert fnv1a64(b"") == 0xCBF29CE484222325
    assert fnv1a64(b"a") == 0xAF63DC4C8601EC8C
    assert fnv1a64(b"foobar") == 0x85944171F73967E8
    assert {route(b"%d" % number, 4) for number in range(64)} == {0, 1, 2, 3}


def test_a_partition_names_its_topic_and_number() -> None:
    for index, name in enumerate(partition_names(TopicName(BASE), 12)):
        assert base_of(name) == (BASE, index)


# ---------------------------------------------------------------- create


async def test_partitions_are_topics_and_the_whole_is_none(bench: Any) -> None:
    peer = partitioned(bench)
    assert names(bench) == PARTS
    located = peer.call(Lookup(BASE))
    assert located == Located(BASE, "danube://test", 4)
    assert peer.call(Lookup(PARTS[2])) == Located(PARTS[2], "danube://test", 0)
    listed = peer.call(ListTopics())
    assert isinstance(listed, TopicsListed)
    assert [line.topic for line in listed.topics] == PARTS


async def test_creation_is_one_record(bench: Any) -> None:
    before = len(bench.recover_journal())
    partitioned(bench, 100)
    assert len(bench.recover_journal()) == before + 1
    assert len(bench.shard.topics) == 100


@pytest.mark.parametrize("count", [-1, 1001, 10**9])
async def test_the_number_of_partitions_has_bounds(bench: Any, count: int) -> None:
    answer = modern(bench).call(CreateTopic(BASE, TopicSpec(), partitions=count))
    assert code_of(answer) == InvalidArgument.code
    assert "1 to 1000" in answer.message


async def test_the_names_of_partitions_must_fit(bench: Any) -> None:
    peer = modern(bench)
    longest = "/default/" + "x" * 200
    assert isinstance(peer.call(CreateTopic(longest, TopicSpec())), Done)
    answer = peer.call(CreateTopic("/default/" + "y" * 200, TopicSpec(), partitions=2))
    assert code_of(answer) == InvalidName.code
    assert len(bench.shard.topics) == 1


async def test_names_that_would_clash_are_refused_with_both_names(bench: Any) -> None:
    peer = partitioned(bench)

    def refused(topic: str, partitions: int, other: str) -> None:
        answer = peer.call(CreateTopic(topic, TopicSpec(), partitions=partitions))
        assert code_of(answer) == TopicExists.code
        assert topic in answer.message
        assert other in answer.message

    refused(BASE, 0, "-part-3")
    refused(f"{BASE}-part-9", 0, BASE)
    refused(f"{BASE}-part-9", 2, BASE)
    for taken in ("/default/plain", "/default/far-part-7", "/default/both-part-1-part-0"):
        assert isinstance(peer.call(CreateTopic(taken, TopicSpec())), Done)
    refused("/default/plain", 3, "/default/plain")
    refused("/default/far", 2, "/default/far-part-7")
    refused("/default/both-part-1", 2, "/default/both-part-1-part-0")
    # What only looks alike does not clash.
    assert isinstance(peer.call(CreateTopic("/default/fa", TopicSpec(), partitions=2)), Done)
    assert isinstance(peer.call(CreateTopic("/default/far-part-07", TopicSpec())), Done)


async def test_what_is_being_made_counts_as_made(bench: Any) -> None:
    """Before the disk has answered: a clash is found either way round, and never both come true."""
    peer = modern(bench)
    first = peer.ask(CreateTopic("/default/a-part-1", TopicSpec()))
    clash = peer.ask(CreateTopic("/default/a", TopicSpec(), partitions=2))
    whole = peer.ask(CreateTopic("/default/b", TopicSpec(), partitions=2))
    part = peer.ask(CreateTopic("/default/b-part-1", TopicSpec()))
    bench.settle()
    await asyncio.sleep(0)
    assert isinstance(peer.answer_to(first), Done)
    assert code_of(peer.answer_to(clash)) == TopicExists.code
    assert isinstance(peer.answer_to(whole), Done)
    assert code_of(peer.answer_to(part)) == TopicExists.code


async def test_creating_it_again_is_accepted_if_nothing_else_was_asked_for(
    bench: Any,
) -> None:
    peer = partitioned(bench)

    def again(count: int, spec: TopicSpec, *, exist_ok: bool) -> Any:
        return peer.call(CreateTopic(BASE, spec, exist_ok, count))

    assert isinstance(again(4, TopicSpec(), exist_ok=True), Done)
    assert code_of(again(4, TopicSpec(), exist_ok=False)) == TopicExists.code
    assert code_of(again(4, NON_RELIABLE, exist_ok=True)) == TopicExists.code
    more = again(5, TopicSpec(), exist_ok=True)
    assert code_of(more) == TopicExists.code
    assert "--partitions 5" in more.message
    # A program that made it with four starts again after an operator has added some and changed a policy.
    administer(bench, admin.UpdateTopic(BASE, Policies(ttl_ms=9), 6))
    assert isinstance(again(4, TopicSpec(), exist_ok=True), Done)


async def test_two_who_create_it_at_once_share_one(bench: Any) -> None:
    peer = modern(bench)
    numbers = [peer.ask(CreateTopic(BASE, TopicSpec(), True, 4)) for _ in range(3)]
    bench.settle()
    await asyncio.sleep(0)
    bench.settle()
    assert all(isinstance(peer.answer_to(number), Done) for number in numbers)
    assert names(bench) == PARTS


# ---------------------------------------------------------------- clients that know no partitions


async def test_the_whole_cannot_be_opened_as_a_plain_topic(bench: Any) -> None:
    peer = partitioned(bench)
    for command in (
        OpenProducer(BASE, "p", TopicSpec()),
        Subscribe(BASE, "s", SubscriptionType.SHARED, "c", EARLIEST),
    ):
        answer = peer.call(command)
        assert code_of(answer) == TopicExists.code
        assert f"{BASE}-part-0 to -part-3" in answer.message
    old = bench.connect()
    assert code_of(old.call(Lookup(BASE))) == TopicExists.code


# ---------------------------------------------------------------- growth


async def test_growth_brings_the_subscriptions_along(bench: Any) -> None:
    peer = partitioned(bench, 2)
    for part in PARTS[:2]:
        opened = peer.call(Subscribe(part, "s", SubscriptionType.SHARED, f"c{part[-1]}", LATEST))
        assert isinstance(opened, Subscribed)
    # One that somebody has on a single partition: it is a subscription of the topic as well.
    assert isinstance(
        peer.call(Subscribe(PARTS[1], "only", SubscriptionType.EXCLUSIVE, "c", LATEST)), Subscribed
    )
    before = len(bench.recover_journal())
    reply = administer(bench, admin.UpdateTopic(BASE, partitions=4))
    assert reply.partitions == 4
    assert len(bench.recover_journal()) == before + 1
    for part in PARTS[2:]:
        topic = bench.shard.topic(part)
        assert sorted(topic.subscriptions) == ["only", "s"]
        assert topic.subscriptions["s"].type is SubscriptionType.SHARED
        assert topic.subscriptions["s"].cursor.floor == 0


async def test_non_reliable_partitions_are_made_without_subscriptions(bench: Any) -> None:
    peer = partitioned(bench, 1, NON_RELIABLE)
    peer.call(Subscribe(PARTS[0], "s", SubscriptionType.SHARED, "c", LATEST))
    administer(bench, admin.UpdateTopic(BASE, partitions=2))
    assert not bench.shard.topic(PARTS[1]).subscriptions


async def test_those_who_watch_hear_of_growth_and_of_the_end(bench: Any) -> None:
    watcher = partitioned(bench)
    bystander = modern(bench)
    assert watcher.call(Lookup(BASE, watch=True)).partitions == 4
    assert watcher.call(Lookup(BASE, watch=True)).partitions == 4
    assert bystander.call(Lookup(BASE)).partitions == 4
    number = watcher.ask(Lookup(BASE))
    assert watcher.answer_to(number).partitions == 4
    administer(bench, admin.UpdateTopic(BASE, partitions=6))
    assert watcher.told(TopicChanged) == [TopicChanged(BASE, 6)]
    assert isinstance(bystander.call(DeleteTopic(BASE)), Done)
    assert watcher.told(TopicChanged)[1:] == [TopicChanged(BASE, 0)]
    assert not bystander.told(TopicChanged)
    assert not watcher.session.on_closed


async def test_a_watcher_that_is_gone_is_forgotten(bench: Any) -> None:
    watcher = partitioned(bench)
    watcher.call(Lookup(BASE, watch=True))
    watcher.session.close()
    administer(bench, admin.UpdateTopic(BASE, partitions=6))
    assert not watcher.told(TopicChanged)
    assert not bench.shard.catalog.watchers.is_watched(TopicName(BASE), watcher.session)


async def test_partitions_are_not_taken_away(bench: Any) -> None:
    partitioned(bench)
    error = administer(bench, admin.UpdateTopic(BASE, partitions=3))
    assert isinstance(error, InvalidArgument)
    assert "has 4 partitions" in str(error)
    assert names(bench) == PARTS


async def test_a_plain_topic_does_not_become_partitioned(bench: Any) -> None:
    modern(bench).call(CreateTopic(BASE, TopicSpec()))
    error = administer(bench, admin.UpdateTopic(BASE, partitions=3))
    assert isinstance(error, InvalidArgument)
    assert "not partitioned" in str(error)
    missing = administer(bench, admin.UpdateTopic("/default/none", partitions=3))
    assert isinstance(missing, TopicNotFound)


async def test_changes_of_one_topic_come_one_after_another(bench: Any) -> None:
    partitioned(bench, 2)
    replies: list[Any] = []
    for request in (
        admin.UpdateTopic(BASE, partitions=5),
        admin.UpdateTopic(BASE, Policies(ttl_ms=7)),
        admin.UpdateTopic(BASE, partitions=3),
        admin.DeleteTopic(BASE),
        admin.UpdateTopic(BASE, partitions=9),
        admin.CreateTopic(BASE, partitions=1),
    ):
        ADMIN[type(request)](bench.node, request, replies.append)
    while len(replies) < 6:
        bench.settle()
        await asyncio.sleep(0)
    assert [type(reply).__name__ for reply in replies] == [
        "TopicDescribed",
        "TopicDescribed",
        "InvalidArgument",
        "Done",
        "TopicNotFound",
        "TopicDescribed",
    ]
    assert (replies[1].partitions, replies[1].effective.ttl_ms) == (5, 7)
    assert names(bench) == PARTS[:1]


async def test_a_change_that_fails_leaves_all_as_it_was(bench: Any) -> None:
    peer = partitioned(bench, 2)
    peer.call(Lookup(BASE, watch=True))
    bench.files.fail("write", times=100)
    for refused in (
        administer(bench, admin.UpdateTopic(BASE, Policies(ttl_ms=3), 4)),
        administer(bench, admin.DeleteTopic(BASE)),
        administer(bench, admin.CreateTopic("/new/other", partitions=3)),
    ):
        assert isinstance(refused, DanubiusError)
    bench.files.heal()
    bench.clock.now_ms += 10_000
    assert names(bench) == PARTS[:2]
    assert not peer.told(TopicChanged)
    assert "new" not in bench.shard.catalog.namespaces
    peer.publish(PARTS[1], [b"it takes messages as before"])
    reply = administer(bench, admin.UpdateTopic(BASE, partitions=4))
    assert (reply.partitions, reply.effective.ttl_ms) == (4, 0)


# ---------------------------------------------------------------- policies


async def test_policies_are_those_of_the_whole(bench: Any) -> None:
    partitioned(bench, 2)
    reply = administer(bench, admin.UpdateTopic(BASE, Policies(ttl_ms=5, quota_bytes=100)))
    assert (reply.effective.ttl_ms, reply.policies.quota_bytes) == (5, 100)
    administer(bench, admin.UpdateTopic(BASE, Policies(ttl_ms=None), 4))
    for part in PARTS:
        policies = bench.shard.topic(part).policies
        assert (policies.ttl_ms, policies.quota_bytes) == (0, 100)
    error = administer(bench, admin.UpdateTopic(PARTS[1], Policies(ttl_ms=5)))
    assert isinstance(error, InvalidArgument)
    assert f"change {BASE} as a whole" in str(error)


async def test_changes_of_a_plain_topic_add_up_while_the_disk_is_busy(bench: Any) -> None:
    modern(bench).call(CreateTopic(BASE, TopicSpec()))
    replies: list[Any] = []
    for change in (Policies(ttl_ms=5), Policies(quota_bytes=6), Policies(ttl_ms=None)):
        request = admin.UpdateTopic(BASE, change)
        ADMIN[admin.UpdateTopic](bench.node, request, replies.append)
    bench.settle()
    assert len(replies) == 3
    assert replies[2].policies == Policies(quota_bytes=6)
    assert not bench.shard.catalog.changes.planned


# ---------------------------------------------------------------- by the name of the whole


async def test_the_whole_is_described_as_a_sum(bench: Any) -> None:
    peer = partitioned(bench)
    for part, count in zip(PARTS, (3, 0, 2, 1), strict=True):
        peer.call(Subscribe(part, "s", SubscriptionType.SHARED, f"c{part[-1]}", EARLIEST))
        if count:
            peer.publish(part, [b"x"] * count)
    described = peer.call(DescribeTopic(BASE))
    assert isinstance(described, TopicDescribed)
    assert (described.summary.topic, described.summary.end_offset) == (BASE, 6)
    [line] = described.subscriptions
    assert (line.name, line.backlog, line.consumers) == ("s", 6, ["c0", "c1", "c2", "c3"])
    assert peer.call(ResolveOffset(BASE, LATEST)) == OffsetResolved(6, 0, 6)
    assert peer.call(ResolveOffset(BASE, EARLIEST)) == OffsetResolved(0, 0, 6)
    assert peer.call(ResolveOffset(BASE, AtOffset(0))) == OffsetResolved(0, 0, 6)
    refused = peer.call(ResolveOffset(BASE, AtOffset(3)))
    assert code_of(refused) == InvalidArgument.code
    assert f"{BASE}-part-0" in refused.message


async def test_deleting_the_whole_ends_everyone_on_it(bench: Any) -> None:
    peer = partitioned(bench)
    for part in PARTS:
        assert isinstance(peer.call(OpenProducer(part, "p", TopicSpec())), ProducerOpened)
        peer.call(Subscribe(part, "s", SubscriptionType.SHARED, "c", EARLIEST))
    before = len(bench.recover_journal())
    assert isinstance(peer.call(DeleteTopic(BASE)), Done)
    assert len(bench.recover_journal()) == before + 1
    assert len(peer.told(ProducerClosed)) == len(peer.told(ConsumerClosed)) == 4
    assert not bench.shard.topics
    assert not bench.shard.catalog.partitioned
    assert code_of(peer.call(Lookup(BASE))) == TopicNotFound.code


async def test_a_single_partition_cannot_be_deleted(bench: Any) -> None:
    peer = partitioned(bench)
    answer = peer.call(DeleteTopic(PARTS[1]))
    assert code_of(answer) == InvalidArgument.code
    assert f"delete {BASE} as a whole" in answer.message
    assert names(bench) == PARTS


async def test_a_partition_does_not_come_back_by_itself(bench: Any) -> None:
    """A producer that was away when the topic was deleted opens its partition again: that makes no topic."""
    peer = partitioned(bench)
    peer.call(DeleteTopic(BASE))
    answer = peer.call(OpenProducer(PARTS[1], "p", TopicSpec()))
    assert code_of(answer) == TopicNotFound.code
    assert not bench.shard.topics


async def test_deletion_frees_everything(bench: Any) -> None:
    """Made, used and deleted again and again on one connection: no object is left of it."""
    peer = modern(bench)

    def use() -> None:
        assert isinstance(peer.call(CreateTopic(BASE, TopicSpec(), partitions=3)), Done)
        peer.call(Lookup(BASE, watch=True))
        for part in PARTS[:3]:
            peer.call(OpenProducer(part, "p", TopicSpec()))
            peer.call(Subscribe(part, "s", SubscriptionType.KEY_SHARED, "c", EARLIEST))
            peer.publish(part, [b"x"] * 3)
        administer(bench, admin.UpdateTopic(BASE, Policies(publish_messages_per_s=10**6), 4))
        assert isinstance(peer.call(DeleteTopic(BASE)), Done)
        peer.sent.clear()

    counts: list[int] = []
    for _ in range(5):
        for _ in range(10):
            use()
            await asyncio.sleep(0)
        gc.collect()
        counts.append(len(gc.get_objects()))
    assert counts[-1] - counts[1] < 30, counts  # three rounds of ten, of hundreds of objects each
