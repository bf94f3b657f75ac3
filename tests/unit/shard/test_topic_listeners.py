"""Parts hear of every topic: those there were when the shard began, and each that comes or goes, whichever way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from danubius.model.topic import TopicSpec
from danubius.shard.state.facts import TopicCreated, TopicRemoved

if TYPE_CHECKING:
    from danubius.shard.hosting.topic import Topic

PARENT, LOG = 101, 102


async def turns(bench: Any) -> None:
    for _ in range(3):
        await asyncio.sleep(0)
        bench.settle()


class Heard:
    """A part that writes down what it hears."""

    def __init__(self) -> None:
        self.said: list[tuple[str, int]] = []

    def topic_opened(self, topic: Topic) -> None:
        self.said.append(("opened", topic.id))

    def topic_closed(self, topic: Topic) -> None:
        self.said.append(("closed", topic.id))


def created(topic_id: int, parent: int = 0) -> TopicCreated:
    return TopicCreated(topic_id, "/default/t", TopicSpec(), 0, None, parent)


async def test_topics_of_before_are_told_first_and_each_once(bench: Any) -> None:
    bench.shard.apply(created(PARENT))
    bench.shard._listeners = None  # as it is until the state is recovered
    heard = Heard()
    bench.shard.begin([heard])
    bench.shard.apply(created(LOG, PARENT))
    bench.shard.apply(TopicRemoved(LOG))
    bench.shard.apply(TopicRemoved(PARENT))
    assert heard.said == [("opened", PARENT), ("opened", LOG), ("closed", LOG), ("closed", PARENT)]


async def test_a_delay_log_that_appears_by_its_fact_alone_is_adopted(bench: Any) -> None:
    bench.shard.apply(created(PARENT))
    bench.shard.apply(created(LOG, PARENT))
    delays = bench.node.delays
    parent = bench.shard.topic("/default/t")
    assert delays.log_of(parent).id == LOG
    bench.shard.apply(TopicRemoved(LOG))
    assert delays.log_of(parent) is None


@pytest.mark.parametrize("first", [PARENT, LOG])
async def test_with_its_topic_a_delay_log_goes_whichever_comes_first(
    bench: Any, first: int
) -> None:
    bench.shard.apply(created(PARENT))
    bench.shard.apply(created(LOG, PARENT))
    bench.shard.apply(TopicRemoved(first))
    await turns(bench)
    bench.shard.apply(TopicRemoved(PARENT))
    await turns(bench)
    assert not bench.shard.topics_by_id
