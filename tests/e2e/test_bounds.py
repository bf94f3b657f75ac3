"""What may not grow with the backlog: memory, and the time of a restart."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

import pytest

import danubius
from e2e.traffic import numbered, payloads, read_all
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

MIB: Final = 1024 * 1024
BACKLOG_BYTES: Final = 600 * MIB
MESSAGE_BYTES: Final = 10_000
CHUNK: Final = 500


def replayed_bytes(broker: BrokerProcess) -> int:
    """What the last start read of the journal."""
    return int(re.findall(r"recovered .*journal_bytes=(\d+)", broker.log())[-1])


async def test_backlog_far_beyond_the_cache(start_broker: StartBroker, topic: str) -> None:
    """600 MiB behind a 32 MiB cache: written, read back whole and in order, and found again after kill -9.

    Memory stays under 320 MiB all the time, and a restart reads a part of the journal whatever the history is.
    """
    broker = start_broker("--cache-bytes", "32MiB")
    total = BACKLOG_BYTES // MESSAGE_BYTES // CHUNK * CHUNK
    filler = bytes(MESSAGE_BYTES - 8)
    async with danubius.connect(broker.url) as client:
        async with (
            client.producer(topic, durability="written") as producer,
            asyncio.timeout(HANG_S),
        ):
            for at in range(0, total, CHUNK):
                await producer.send_many(
                    [number.to_bytes(8, "little") + filler for number in range(at, at + CHUNK)]
                )
        seen = 0
        async with (
            asyncio.timeout(HANG_S),
            client.consumer(topic, subscription="s", start="earliest") as consumer,
        ):
            while seen < total:
                batch = await consumer.receive_batch()
                for payload in batch.payloads:
                    assert payload[:8] == seen.to_bytes(8, "little")
                    seen += 1
                await consumer.ack(batch)
    assert broker.rss_peak_bytes() < 320 * MIB, (
        f"{broker.rss_peak_bytes() / MIB:.0f} MiB at the most"
    )

    broker.kill()
    await asyncio.to_thread(broker.start)
    assert replayed_bytes(broker) < BACKLOG_BYTES / 2
    assert broker.stop() == 0
    await asyncio.to_thread(broker.start)
    assert replayed_bytes(broker) == 0, "after a clean stop there is nothing to replay"
    async with danubius.connect(broker.url) as client:
        described = await client.describe_topic(topic)
        assert described.summary.end_offset == total
        tail = await read_all(client, topic, total - 10)
    assert [message.payload[:8] for message in tail] == [
        number.to_bytes(8, "little") for number in range(total - 10, total)
    ]
    assert broker.rss_peak_bytes() < 200 * MIB


async def test_retention_by_size_frees_what_was_acknowledged(
    start_broker: StartBroker, topic: str
) -> None:
    """Unacknowledged messages are never dropped, whatever the retention says."""
    broker = start_broker()
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic, retention_bytes=0)
        async with client.consumer(topic, subscription="s", start="earliest"):
            pass
        async with client.producer(topic) as producer:
            await producer.send_many(numbered(1_000))
    assert broker.stop() == 0
    broker.start()
    async with danubius.connect(broker.url) as client:
        assert payloads(await read_all(client, topic)) == numbered(1_000)


@pytest.mark.parametrize("bound", ["retention_age", "retention_bytes"])
async def test_ledgers_that_every_cursor_passed_are_deleted(
    start_broker: StartBroker, topic: str, bound: str
) -> None:
    """With no retention, what all subscriptions acknowledged goes; offsets go on and old ones are out of range."""
    broker = start_broker()
    async with danubius.connect(broker.url) as client:
        if bound == "retention_age":
            await client.create_topic(topic, retention_age=0)
        else:
            await client.create_topic(topic, retention_bytes=0)
        async with client.producer(topic) as producer:
            await producer.send_many(numbered(1_000))
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            seen = 0
            while seen < 1_000:
                batch = await consumer.receive_batch()
                await consumer.ack(batch)
                seen += len(batch)
    assert broker.stop() == 0
    broker.start()
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic) as producer:
            receipt = await producer.send(b"next")
        assert receipt.offset == 1_000
        start = 0
        async with asyncio.timeout(HANG_S):
            while start == 0:
                start = (await client.describe_topic(topic)).summary.start_offset
                await asyncio.sleep(LOOK_S)
        assert start == 1_000
        assert payloads(await read_all(client, topic, start)) == [b"next"]
        with pytest.raises(danubius.DanubiusError, match="1000") as caught:
            await read_all(client, topic, 5)
        assert caught.value.code == 203
