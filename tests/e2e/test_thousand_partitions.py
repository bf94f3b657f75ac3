"""A topic of a thousand partitions: made, used, grown and deleted like any other, within bounds of memory and files."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

import danubius
from danubius.errors import InvalidArgument
from e2e.storage_files import size_of
from e2e.traffic import collect, eventually, numbered
from patience import HANG_S
from proving import sized

if TYPE_CHECKING:
    from e2e.conftest import StartBroker

MIB: Final = 1024 * 1024
MOST: Final = 1_000
"""Partitions that a topic may have."""
PARTITIONS, GROWN = sized((90, 100), (900, MOST))


async def test_as_many_partitions_as_there_may_be(start_broker: StartBroker, topic: str) -> None:
    """Made, grown, found again after kill -9 and deleted, without anybody who uses them."""
    broker = start_broker()
    async with danubius.connect(broker.url, request_timeout=120) as client:
        base_bytes = broker.rss_bytes()
        await client.create_topic(topic, partitions=MOST - 100)
        await client.admin.update_topic(topic, partitions=MOST)
        assert broker.rss_bytes() - base_bytes < 64 * MIB
        with pytest.raises(InvalidArgument, match=f"0 to {MOST}"):
            await client.admin.update_topic(topic, partitions=MOST + 1)
    broker.kill()
    await asyncio.to_thread(broker.start)
    async with danubius.connect(broker.url, request_timeout=120) as client:
        assert (await client.admin.describe_topic(topic)).partitions == MOST
        assert len(await client.list_topics()) == MOST
        await client.delete_topic(topic)
        assert await client.list_topics() == []


@pytest.mark.grows
async def test_many_partitions_are_used_and_grow(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()
    async with danubius.connect(broker.url, request_timeout=120) as client, asyncio.timeout(HANG_S):
        await client.create_topic(topic, partitions=PARTITIONS)
        base_bytes = broker.rss_bytes()
        sent = numbered(3 * PARTITIONS)
        async with (
            client.consumer(topic, subscription="s", type="shared", start="earliest") as consumer,
            client.producer(topic) as producer,
        ):
            receipts = await producer.send_many(sent)
            assert len({receipt.topic for receipt in receipts}) == PARTITIONS
            [received] = await collect([consumer], len(sent), within_s=HANG_S)
            assert sorted(message.payload for message in received) == sorted(sent)
            await client.admin.update_topic(topic, partitions=GROWN)
            described = await client.admin.describe_topic(topic)
            assert described.partitions == GROWN
            used: set[str] = set()
            more: list[bytes] = []
            while len(used) < GROWN:  # until the producer has heard of them all
                batch = numbered(GROWN, len(sent) + len(more))
                more += batch
                used |= {receipt.topic for receipt in await producer.send_many(batch)}
            [received] = await collect([consumer], len(more), within_s=HANG_S)
            assert sorted(message.payload for message in received) == sorted(more)
        grown_bytes = broker.rss_bytes() - base_bytes
        assert grown_bytes < 256 * MIB, f"{grown_bytes / MIB:.0f} MiB for {GROWN} partitions"
    broker.kill()
    await asyncio.to_thread(broker.start)
    async with danubius.connect(broker.url, request_timeout=120) as client, asyncio.timeout(HANG_S):
        figures = (await client.admin.describe_subscription(topic, "s")).statistics
        assert figures.backlog_messages == 0
        await client.delete_topic(topic)
        assert await client.list_topics() == []
        ledgers = broker.data_dir / "ledgers"
        await eventually(
            lambda: not sum(size_of(path) for path in ledgers.rglob("*")),
            "the files are gone",
            within_s=HANG_S,
        )
    assert broker.stop() == 0
