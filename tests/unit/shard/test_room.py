"""Bounds of the whole broker: so many topics, so many of a namespace, so many subscriptions of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from danubius.errors import LimitReached
from danubius.model.subscription import EARLIEST, SubscriptionType
from danubius.model.topic import Dispatch, TopicSpec
from danubius.wire.commands import CreateTopic, Done, OpenProducer, ProducerOpened, Subscribe

if TYPE_CHECKING:
    from unit.shard.conftest import BrokerBench


def limit(bench: BrokerBench, **limits: int) -> None:
    bench.shard.config = msgspec.structs.replace(bench.shard.config, **limits)


def create(name: str, partitions: int = 0) -> CreateTopic:
    return CreateTopic(name, TopicSpec(), partitions=partitions)


def assert_refused(answer: Any, setting: str) -> None:
    assert answer.code == LimitReached.code
    assert f"broker.{setting}" in answer.message


@pytest.mark.parametrize("setting", ["topics_max", "namespace_topics_max"])
async def test_one_topic_too_many_is_refused_by_every_way_to_make_one(
    bench: BrokerBench, setting: str
) -> None:
    limit(bench, **{setting: 3})
    peer = bench.connect()
    assert peer.call(create("/default/a")) == Done()
    assert peer.call(create("/default/b", partitions=2)) == Done()
    assert_refused(peer.call(create("/default/c")), setting)
    assert_refused(peer.call(create("/default/d", partitions=1)), setting)
    assert_refused(peer.call(OpenProducer("/default/e", "p", TopicSpec())), setting)
    # Those that are there are served.
    assert isinstance(peer.call(OpenProducer("/default/a", "p", TopicSpec())), ProducerOpened)
    assert len(bench.shard.topics) == 3


async def test_another_namespace_has_room_when_one_is_full(bench: BrokerBench) -> None:
    limit(bench, namespace_topics_max=1)
    peer = bench.connect()
    assert peer.call(create("/default/a")) == Done()
    assert peer.call(create("/other/a")) == Done()
    assert_refused(peer.call(create("/other/b")), "namespace_topics_max")


async def test_topics_on_their_way_to_the_disk_count(bench: BrokerBench) -> None:
    limit(bench, topics_max=2)
    peer = bench.connect()
    asked = [peer.ask(create(f"/default/t{n}")) for n in range(4)]
    bench.settle()
    answers = [peer.answer_to(number) for number in asked]
    assert answers[:2] == [Done(), Done()]
    for answer in answers[2:]:
        assert_refused(answer, "topics_max")


@pytest.mark.parametrize("dispatch", list(Dispatch))
async def test_one_subscription_too_many_is_refused(bench: BrokerBench, dispatch: Dispatch) -> None:
    limit(bench, topic_subscriptions_max=2)
    peer = bench.connect()
    assert peer.call(CreateTopic("/default/t", TopicSpec(dispatch=dispatch))) == Done()
    kind = SubscriptionType.SHARED
    asked = [peer.ask(Subscribe("/default/t", f"s{n}", kind, "c", EARLIEST)) for n in range(4)]
    bench.settle()
    for number in asked[2:]:
        assert_refused(peer.answer_to(number), "topic_subscriptions_max")
    assert list(bench.shard.topic("/default/t").subscriptions) == ["s0", "s1"]
    assert bench.shard.topic("/default/t").coming_subscriptions == 0
