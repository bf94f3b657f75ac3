"""Reading without a subscription."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import danubius
from e2e.traffic import numbered, payloads, read_all
from patience import HANG_S

if TYPE_CHECKING:
    from danubius import Client
    from e2e.broker_process import BrokerProcess


async def fill(client: Client, topic: str, count: int) -> None:
    async with client.producer(topic) as producer:
        await producer.send_many(numbered(count))


async def test_reader_sees_everything_in_order_and_leaves_no_trace(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 1_000)
        messages = await read_all(client, topic)
        described = await client.describe_topic(topic)
    assert payloads(messages) == numbered(1_000)
    assert [m.offset for m in messages] == list(range(1_000))
    assert described.subscriptions == []


@pytest.mark.parametrize("start", [0, 1, 999, 1_000])
async def test_reader_starts_at_an_offset(broker: BrokerProcess, topic: str, start: int) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 1_000)
        assert payloads(await read_all(client, topic, start)) == numbered(1_000 - start, start)


async def test_reader_follows_the_tail(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        await producer.send(b"old")
        async with client.reader(topic, start="latest") as reader:
            received: list[bytes] = []

            async def read() -> None:
                async for message in reader:
                    received.append(message.payload)
                    if len(received) == 20:
                        return

            sent: list[bytes] = []
            async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(read())
                # The position of "latest" is fixed by the reader's first fetch, so send until all has come.
                while not reading.done():
                    sent.append(b"new %d" % len(sent))
                    await producer.send(sent[-1])
    first = sent.index(received[0])
    assert received == sent[first : first + 20]


async def test_reader_starts_at_a_time(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic) as producer:
            for payload in numbered(30):
                await producer.send(payload)
        everything = await read_all(client, topic)
        time = everything[17].publish_time
        async with client.reader(topic, start=time, stop_at_end=True) as reader:
            got = [message async for message in reader]
    assert payloads(got) == [m.payload for m in everything if m.publish_time >= time]


async def test_readers_are_independent(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 500)
        async with asyncio.TaskGroup() as tasks:
            reads = [
                tasks.create_task(read_all(client, topic, start)) for start in range(0, 500, 100)
            ]
    for start, read in zip(range(0, 500, 100), reads, strict=True):
        assert payloads(read.result()) == numbered(500 - start, start)


async def test_read_batch_is_columnar(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 300)
        received: list[bytes] = []
        async with client.reader(topic, start=100) as reader, asyncio.timeout(HANG_S):
            while len(received) < 200:
                batch = await reader.read_batch()
                assert batch is not None
                received += list(batch.payloads)
    assert received == numbered(200, 100)


async def test_reader_of_an_empty_topic_ends_at_once(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        assert await read_all(client, topic) == []


async def test_reader_of_a_missing_topic_is_refused(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        with pytest.raises(danubius.DanubiusError, match=topic) as caught:
            await read_all(client, topic)
    assert caught.value.code == 201


@pytest.mark.parametrize("start", [11, 2**40])
async def test_reader_beyond_the_end_is_refused_with_the_range(
    broker: BrokerProcess, topic: str, start: int
) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 10)
        with pytest.raises(danubius.DanubiusError, match="10") as caught:
            await read_all(client, topic, start)
    assert caught.value.code == 203


async def test_reader_before_the_start_is_refused(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 10)
        with pytest.raises(danubius.DanubiusError) as caught:
            await read_all(client, topic, -1)
    assert caught.value.code in {102, 203}
