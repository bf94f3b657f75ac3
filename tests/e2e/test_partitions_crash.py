"""kill -9 around the making, growing and deleting of partitioned topics: all partitions, or none."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.errors import DanubiusError, TopicNotFound
from danubius.model.policy import Policies
from e2e.traffic import numbered, take
from proving import sized

if TYPE_CHECKING:
    from e2e.conftest import StartBroker

ROUNDS = sized(3, 60)
PARTITIONS = 50


async def shape(client: danubius.Client, topic: str) -> tuple[int, list[str]]:
    """How many partitions the broker says there are, and the topics that are there."""
    names = [t.topic for t in await client.list_topics() if t.topic.startswith(f"{topic}-part-")]
    try:
        described = await client.admin.describe_topic(topic)
    except TopicNotFound:
        return 0, names
    return described.partitions, names


@pytest.mark.grows
async def test_a_kill_leaves_all_partitions_or_none(start_broker: StartBroker, topic: str) -> None:
    """Killed at a random moment of create, grow and delete; what was answered is true afterwards."""
    dice = random.Random(7)
    broker = start_broker()
    for number in range(ROUNDS):
        name = f"{topic}-{number}"
        answered: list[int] = [0]

        async with danubius.connect(
            broker.url, connect_timeout=30, reconnect_timeout=0.1, request_timeout=30
        ) as client:

            async def change(
                client: danubius.Client = client, name: str = name, answered: list[int] = answered
            ) -> None:
                with suppress(DanubiusError):
                    await client.create_topic(name, partitions=PARTITIONS)
                    answered.append(PARTITIONS)
                    await client.admin.update_topic(name, partitions=2 * PARTITIONS)
                    answered.append(2 * PARTITIONS)
                    await client.delete_topic(name)
                    answered.append(0)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(change())
                await asyncio.sleep(dice.uniform(0.0, 0.04))
                broker.kill()
            broker.start()
            steps = [0, PARTITIONS, 2 * PARTITIONS, 0]
            async with danubius.connect(broker.url) as other:
                count, names = await shape(other, name)
                # The last step that was answered, or the one that was under way.
                at = len(answered) - 1
                assert count in steps[at : at + 2], (answered, count)
                assert len(names) == count
                if count:
                    async with other.producer(name) as producer:
                        receipts = await producer.send_many([b"x"] * count)
                        assert len({receipt.topic for receipt in receipts}) == count
                    await other.delete_topic(name)
                assert await shape(other, name) == (0, [])


async def test_what_was_answered_is_there_after_a_kill(
    start_broker: StartBroker, topic: str
) -> None:
    """Growth with its subscriptions, policies of namespaces and topics, and the messages."""
    broker = start_broker()
    async with danubius.connect(broker.url) as client:
        await client.admin.create_namespace("shop", Policies(ttl_ms=86_400_000))
        await client.admin.update_namespace("default", Policies(auto_create=False))
        await client.create_topic(topic, partitions=2)
        async with client.consumer(topic, subscription="s"):
            pass
        await client.admin.update_topic(topic, Policies(quota_bytes=10**9), partitions=5)
        async with client.producer(topic) as producer:
            await producer.send_many(numbered(100))
    for _ in range(2):  # from the journal alone, then from whatever the first restart has written
        broker.kill()
        broker.start()
    async with danubius.connect(broker.url) as client:
        assert (await client.admin.describe_namespace("shop")).effective.ttl_ms == 86_400_000
        assert not (await client.admin.describe_namespace("default")).effective.auto_create
        described = await client.admin.describe_topic(topic)
        assert (described.partitions, described.effective.quota_bytes) == (5, 10**9)
        async with client.consumer(topic, subscription="s") as consumer:
            seen = await take(consumer, 100)
        assert sorted(m.payload for m in seen) == sorted(numbered(100))
        assert len({m.topic for m in seen}) == 5
    assert broker.stop() == 0
    broker.start()  # from a snapshot
    async with danubius.connect(broker.url) as client:
        described = await client.admin.describe_topic(topic)
        assert (described.partitions, described.effective.quota_bytes) == (5, 10**9)
