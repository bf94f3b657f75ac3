"""Namespaces in the broker: who makes them, what their topics inherit, and what goes with them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from captured import snapshot_of
from danubius.admin import namespaces, topics
from danubius.errors import (
    DanubiusError,
    InvalidArgument,
    NamespaceExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    TopicExists,
    TopicNotFound,
)
from danubius.model import admin
from danubius.model.ids import TopicName
from danubius.model.policy import Policies
from danubius.model.subscription import EARLIEST, SubscriptionType
from danubius.model.topic import Retention, TopicSpec
from danubius.shard.hosting.namespaces import SLICE
from danubius.wire.commands import (
    CreateTopic,
    Done,
    Error,
    ListTopics,
    OpenProducer,
    ProducerClosed,
    ProducerOpened,
    Subscribe,
)

ACTIONS = {**namespaces.ADMIN, **topics.ADMIN}


def ask(bench: Any, request: Any) -> Any:
    """The reply or the error; None while there is none."""
    replies: list[Any] = []
    try:
        ACTIONS[type(request)](bench.node, request, replies.append)
    except DanubiusError as error:
        return error
    bench.settle()
    assert len(replies) <= 1
    return replies[0] if replies else None


def configure(bench: Any, **changes: Any) -> None:
    bench.shard.config = msgspec.structs.replace(bench.shard.config, **changes)


def listed(bench: Any) -> list[str]:
    reply = ask(bench, admin.ListNamespaces())
    return [line.namespace for line in reply.namespaces]


# ---------------------------------------------------------------- to be, or not


async def test_two_are_always_there_and_cannot_be_deleted(bench: Any) -> None:
    assert listed(bench) == ["default", "system"]
    for name in ("default", "system"):
        assert ask(bench, admin.DescribeNamespace(name)).policies == Policies()
        assert isinstance(ask(bench, admin.CreateNamespace(name)), NamespaceExists)
        refused = ask(bench, admin.DeleteNamespace(name, force=True))
        assert isinstance(refused, InvalidArgument)
    assert not bench.shard.catalog.namespaces, "nothing is written down for them"


async def test_a_namespace_is_made_changed_and_deleted(bench: Any) -> None:
    made = ask(bench, admin.CreateNamespace("shop", Policies(ttl_ms=5)))
    assert (made.policies, made.effective.ttl_ms, made.created_ms) == (
        Policies(ttl_ms=5),
        5,
        bench.clock.now_ms,
    )
    assert isinstance(
        ask(bench, admin.CreateNamespace("shop", Policies(ttl_ms=5))), NamespaceExists
    )
    again = admin.CreateNamespace("shop", Policies(ttl_ms=5), exist_ok=True)
    assert ask(bench, again) == made
    other = admin.CreateNamespace("shop", Policies(ttl_ms=6), exist_ok=True)
    assert isinstance(ask(bench, other), NamespaceExists)
    changed = ask(bench, admin.UpdateNamespace("shop", Policies(ttl_ms=None, quota_bytes=9)))
    assert changed.policies == Policies(quota_bytes=9)
    assert changed.effective.ttl_ms == 0
    assert type(ask(bench, admin.DeleteNamespace("shop"))).__name__ == "Done"
    missing = ask(bench, admin.DescribeNamespace("shop"))
    assert isinstance(missing, NamespaceNotFound)
    assert "danubius namespaces create shop" in str(missing)
    assert isinstance(ask(bench, admin.UpdateNamespace("shop", Policies())), NamespaceNotFound)
    assert isinstance(ask(bench, admin.DeleteNamespace("shop")), NamespaceNotFound)


async def test_pages_of_namespaces(bench: Any) -> None:
    for number in range(5):
        ask(bench, admin.CreateNamespace(f"n{number}"))
    first = ask(bench, admin.ListNamespaces(limit=3))
    assert [line.namespace for line in first.namespaces] == ["default", "n0", "n1"]
    rest = ask(bench, admin.ListNamespaces(after=first.next))
    assert [line.namespace for line in rest.namespaces] == ["n2", "n3", "n4", "system"]
    assert rest.next == ""


async def test_a_topic_brings_its_namespace_with_it(bench: Any) -> None:
    before = len(bench.recover_journal())
    assert bench.connect().call(CreateTopic("/shop/orders", TopicSpec())) == Done()
    assert len(bench.recover_journal()) == before + 1, "one record: both or none"
    assert "shop" in listed(bench)
    assert ask(bench, admin.DescribeNamespace("shop")).topics == 1


async def test_namespaces_that_only_operators_make(bench: Any) -> None:
    configure(bench, auto_create_namespaces=False)
    peer = bench.connect()
    for request in (
        CreateTopic("/shop/orders", TopicSpec()),
        CreateTopic("/shop/orders", TopicSpec(), partitions=2),
        OpenProducer("/shop/orders", "p", TopicSpec()),
    ):
        answer = peer.call(request)
        assert isinstance(answer, Error)
        assert answer.code == NamespaceNotFound.code
        assert "danubius namespaces create shop" in answer.message
    ask(bench, admin.CreateNamespace("shop"))
    assert peer.call(CreateTopic("/shop/orders", TopicSpec())) == Done()


async def test_who_makes_it_first_decides_what_it_says(bench: Any) -> None:
    """While the disk is busy an operator and two topics make the same namespace."""
    peer = bench.connect()
    replies: list[Any] = []
    create = admin.CreateNamespace("shop", Policies(ttl_ms=5))
    ACTIONS[admin.CreateNamespace](bench.node, create, replies.append)
    numbers = [peer.ask(CreateTopic(f"/shop/t{number}", TopicSpec())) for number in range(2)]
    late = admin.CreateNamespace("shop", Policies(ttl_ms=6))
    ACTIONS[admin.CreateNamespace](bench.node, late, replies.append)
    bench.settle()
    assert [peer.answer_to(number) for number in numbers] == [Done(), Done()]
    assert replies[0].policies == Policies(ttl_ms=5)
    assert isinstance(replies[1], NamespaceExists)
    assert ask(bench, admin.DescribeNamespace("shop")).effective.ttl_ms == 5
    assert bench.shard.topic("/shop/t1").policies.ttl_ms == 5


async def test_topics_of_older_versions_have_a_namespace(bench: Any) -> None:
    bench.connect().call(CreateTopic("/old/t", TopicSpec()))
    bench.shard.catalog.namespaces.clear()  # as a directory of format 1 is recovered
    bench.shard.catalog.adopt_namespaces()
    assert listed(bench) == ["default", "old", "system"]
    assert [state.name for state in snapshot_of(bench.shard).namespaces] == ["old"]


# ---------------------------------------------------------------- policies


async def test_a_change_reaches_the_topics_that_say_nothing_else(bench: Any) -> None:
    peer = bench.connect()
    peer.call(CreateTopic("/shop/plain", TopicSpec()))
    peer.call(CreateTopic("/shop/own", TopicSpec(policies=Policies(ttl_ms=1))))
    peer.call(CreateTopic("/shop/parts", TopicSpec(), partitions=2))
    peer.call(CreateTopic("/shopping/other", TopicSpec()))
    ask(bench, admin.UpdateNamespace("shop", Policies(ttl_ms=7, quota_bytes=8)))

    def holds(name: str) -> tuple[int, int]:
        policies = bench.shard.topic(name).policies
        return policies.ttl_ms, policies.quota_bytes

    assert holds("/shop/plain") == holds("/shop/parts-part-1") == (7, 8)
    assert holds("/shop/own") == (1, 8)
    assert holds("/shopping/other") == (0, 0)
    assert bench.shard.topic("/shop/plain").ttl_us == 7000
    ask(bench, admin.UpdateNamespace("shop", Policies(ttl_ms=None)))
    assert holds("/shop/plain") == (0, 8)


async def test_changes_add_up_while_the_disk_is_busy(bench: Any) -> None:
    replies: list[Any] = []
    for change in (Policies(ttl_ms=5), Policies(quota_bytes=6), Policies(ttl_ms=None)):
        request = admin.UpdateNamespace("default", change)
        ACTIONS[admin.UpdateNamespace](bench.node, request, replies.append)
    bench.settle()
    assert replies[2].policies == Policies(quota_bytes=6)
    assert not bench.shard.catalog.changes.planned


async def test_a_change_that_fails_changes_nothing(bench: Any) -> None:
    bench.files.fail("write", times=100)
    for request in (
        admin.UpdateNamespace("default", Policies(ttl_ms=5)),
        admin.CreateNamespace("shop"),
    ):
        assert isinstance(ask(bench, request), DanubiusError)
    bench.files.heal()
    bench.clock.now_ms += 10_000
    assert listed(bench) == ["default", "system"]
    reply = ask(bench, admin.UpdateNamespace("default", Policies(quota_bytes=6)))
    assert reply.policies == Policies(quota_bytes=6)


async def test_a_change_reaches_many_topics_in_many_turns_of_the_loop(bench: Any) -> None:
    """Others have their turn in between, and a topic that goes meanwhile does no harm."""
    count = 5 * SLICE
    peer = bench.connect()
    for first in range(0, count, 1000):
        size = min(1000, count - first)
        peer.call(CreateTopic(f"/many/t{first}", TopicSpec(), partitions=size))
    peer.call(CreateTopic("/many/zzz", TopicSpec()))
    replies: list[Any] = []
    request = admin.UpdateNamespace("many", Policies(ttl_ms=3))
    ACTIONS[admin.UpdateNamespace](bench.node, request, replies.append)
    bench.settle()
    assert not replies
    reached = [t for t in bench.shard.topics.values() if t.policies.ttl_ms == 3]
    assert len(reached) == SLICE
    topics.delete_topic(bench.shard, "/many/zzz", lambda _: None)
    bench.settle()
    turns = 0
    while not replies:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 4
    assert all(t.policies.ttl_ms == 3 for t in bench.shard.topics.values())


@pytest.mark.parametrize("change", [Policies(ttl_ms=-1), Policies(auto_partitions=1001)])
async def test_what_cannot_be_obeyed_is_refused(bench: Any, change: Policies) -> None:
    assert isinstance(ask(bench, admin.UpdateNamespace("default", change)), InvalidArgument)
    assert isinstance(ask(bench, admin.CreateNamespace("shop", change)), InvalidArgument)


# ---------------------------------------------------------------- auto-creation


async def test_producers_create_topics_unless_the_namespace_says_no(bench: Any) -> None:
    peer = bench.connect()
    assert isinstance(peer.call(OpenProducer("/default/a", "p", TopicSpec())), ProducerOpened)
    ask(bench, admin.UpdateNamespace("default", Policies(auto_create=False)))
    answer = peer.call(OpenProducer("/default/b", "p", TopicSpec()))
    assert isinstance(answer, Error)
    assert answer.code == TopicNotFound.code
    assert "auto-creation is off in namespace 'default'" in answer.message
    assert "danubius topics create /default/b" in answer.message
    # What exists, or is created on purpose, is opened as ever.
    assert isinstance(peer.call(OpenProducer("/default/a", "q", TopicSpec())), ProducerOpened)
    assert peer.call(CreateTopic("/default/b", TopicSpec())) == Done()
    assert isinstance(peer.call(OpenProducer("/default/b", "p", TopicSpec())), ProducerOpened)


async def test_a_topic_made_by_a_producer_inherits_the_retention(bench: Any) -> None:
    """Clients send the built-in retention with every producer, which cannot choose one: it is no choice."""
    ask(bench, admin.CreateNamespace("short", Policies(retention_age_ms=1000)))
    peer = bench.connect()
    for name in ("/short/t", "/default/t"):
        peer.call(OpenProducer(name, "p", TopicSpec(retention=Retention())))
    assert bench.shard.topic("/short/t").policies.retention_age_ms == 1000
    # To create it on purpose with what holds anyway is no contradiction; with anything else it is.
    same = CreateTopic("/default/t", TopicSpec(retention=Retention()), exist_ok=True)
    assert peer.call(same) == Done()
    other = peer.call(CreateTopic("/short/t", TopicSpec(retention=Retention()), exist_ok=True))
    assert isinstance(other, Error)
    assert other.code == TopicExists.code


async def test_auto_creation_can_be_off_for_all_and_on_for_one(bench: Any) -> None:
    configure(bench, policies=Policies(auto_create=False))
    ask(bench, admin.CreateNamespace("open", Policies(auto_create=True)))
    peer = bench.connect()
    answer = peer.call(OpenProducer("/default/a", "p", TopicSpec()))
    assert isinstance(answer, Error)
    assert answer.code == TopicNotFound.code
    assert isinstance(peer.call(OpenProducer("/open/a", "p", TopicSpec())), ProducerOpened)


async def test_new_topics_can_be_partitioned_by_the_namespaces_rule(bench: Any) -> None:
    ask(bench, admin.CreateNamespace("wide", Policies(auto_partitions=3)))
    peer = bench.connect()
    numbers = [peer.ask(OpenProducer("/wide/t", f"p{n}", TopicSpec())) for n in range(2)]
    bench.settle()
    await asyncio.sleep(0)
    for number in numbers:
        answer = peer.answer_to(number)
        assert isinstance(answer, Error)
        assert answer.code == TopicExists.code
        assert "/wide/t-part-0 to -part-2" in answer.message
    assert bench.shard.catalog.partitioned[TopicName("/wide/t")].partitions == 3
    assert isinstance(peer.call(OpenProducer("/wide/t-part-2", "p", TopicSpec())), ProducerOpened)


# ---------------------------------------------------------------- deletion


async def test_a_namespace_with_topics_goes_only_by_force(bench: Any) -> None:
    peer = bench.connect()
    peer.call(CreateTopic("/shop/plain", TopicSpec()))
    peer.call(CreateTopic("/shop/parts", TopicSpec(), partitions=3))
    peer.call(CreateTopic("/shopping/other", TopicSpec()))
    peer.call(OpenProducer("/shop/plain", "p", TopicSpec()))
    peer.call(Subscribe("/shop/plain", "s", SubscriptionType.SHARED, "c", EARLIEST))
    refused = ask(bench, admin.DeleteNamespace("shop"))
    assert isinstance(refused, NamespaceNotEmpty)
    assert "4 topic(s)" in str(refused)
    before = len(bench.recover_journal())
    ask(bench, admin.DeleteNamespace("shop", force=True))
    assert len(bench.recover_journal()) == before + 1, "one record: all or nothing"
    assert list(bench.shard.topics) == ["/shopping/other"]
    assert not bench.shard.catalog.partitioned
    assert len(peer.told(ProducerClosed)) == 1
    assert listed(bench) == ["default", "shopping", "system"]


async def test_nothing_is_made_in_a_namespace_that_goes(bench: Any) -> None:
    ask(bench, admin.CreateNamespace("shop"))
    peer = bench.connect()
    replies: list[Any] = []
    ACTIONS[admin.DeleteNamespace](bench.node, admin.DeleteNamespace("shop"), replies.append)
    number = peer.ask(CreateTopic("/shop/t", TopicSpec()))
    answer = peer.answer_to(number)
    assert isinstance(answer, Error)
    assert answer.code == NamespaceNotFound.code
    bench.settle()
    assert len(replies) == 1
    # The other way round: what is being made keeps its namespace.
    number = peer.ask(CreateTopic("/shop/t", TopicSpec()))
    bench.settle()
    number = peer.ask(CreateTopic("/shop/u", TopicSpec()))
    assert isinstance(ask(bench, admin.DeleteNamespace("shop", force=True)), NamespaceNotEmpty)
    bench.settle()
    assert peer.answer_to(number) == Done()


# ---------------------------------------------------------------- lists


async def test_topics_are_listed_in_the_order_of_their_whole_names(bench: Any) -> None:
    peer = bench.connect()
    made = [f"/{space}/{name}" for space in ("a", "a-b", "ab") for name in ("foo", "foobar", "z")]
    for name in made:
        peer.call(CreateTopic(name, TopicSpec()))
    found: list[str] = []
    while True:
        page = peer.call(ListTopics("", found[-1] if found else "", 2))
        found += [line.topic for line in page.topics]
        if not page.more:
            break
    assert found == sorted(made)
    one = peer.call(ListTopics("a", "/a/foo", 10))
    assert ([line.topic for line in one.topics], one.more) == (["/a/foobar", "/a/z"], False)
