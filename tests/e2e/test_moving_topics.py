"""Topics that move between brokers while they are used: nothing lost, nothing twice, nothing out of order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.client.core.address import parse_urls
from danubius.spark.connection.blocking_link import Patience
from danubius.spark.connection.fetching import FetchClient, Wanted
from e2e.faces import Faces
from e2e.traffic import numbered, payloads, read_all
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from e2e.broker_process import BrokerProcess
    from e2e.faces import Face

COUNT = 600
MOVE_EVERY = 50


@pytest.fixture
async def faces(broker: BrokerProcess) -> AsyncIterator[Faces]:
    (address,) = parse_urls(broker.url)
    async with Faces(address.port) as opened:
        yield opened


@pytest.fixture
async def known_topic(broker: BrokerProcess, topic: str) -> str:
    """A topic that every broker knows, whoever serves it."""
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
    return topic


def next_face(faces: Faces, topic: str) -> Face:
    at = faces.faces.index(faces.home_of(topic))
    return faces.faces[(at + 1) % len(faces.faces)]


async def test_a_producer_survives_moves_in_the_middle_of_its_sends(
    faces: Faces, topic: str
) -> None:
    async with (
        asyncio.timeout(HANG_S),
        danubius.connect(faces.faces[0].url) as client,
        client.producer(topic, batch_records=3) as producer,
    ):
        async with asyncio.TaskGroup() as tasks:
            for at, payload in enumerate(numbered(COUNT)):
                tasks.create_task(producer.send(payload))
                if at % MOVE_EVERY == MOVE_EVERY - 1:
                    await asyncio.sleep(0)  # some batches are on their way
                    faces.move(topic, next_face(faces, topic))
        faces.move(topic, next_face(faces, topic))
        receipts = await producer.send_many(numbered(COUNT, COUNT))
        assert [receipt.offset for receipt in receipts] == list(range(COUNT, 2 * COUNT))
        assert payloads(await read_all(client, topic)) == numbered(2 * COUNT)


async def test_delayed_messages_survive_a_move(faces: Faces, topic: str) -> None:
    async with (
        asyncio.timeout(HANG_S),
        danubius.connect(faces.faces[0].url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        for at in range(6):
            producer.send_nowait(b"%d" % at, deliver_after=0.001)
            faces.move(topic, next_face(faces, topic))
            await producer.flush()
        seen: set[bytes] = set()
        while len(seen) < 6:
            message = await consumer.receive()
            seen.add(message.payload)
            await consumer.ack(message)
        assert seen == {b"%d" % at for at in range(6)}
        assert payloads(await read_all(client, topic)) == sorted(seen)


async def test_a_consumer_gets_every_message_and_acks_count(faces: Faces, known_topic: str) -> None:
    topic = known_topic
    async with asyncio.timeout(HANG_S), danubius.connect(faces.faces[1].url) as client:
        async with client.producer(topic) as producer:
            await producer.send_many(numbered(COUNT))
        first_seen: list[bytes] = []
        async with client.consumer(
            topic, subscription="s", start="earliest", prefetch_messages=20
        ) as consumer:
            while len(first_seen) < COUNT:
                message = await consumer.receive()
                await consumer.ack(message)
                if message.payload not in first_seen:
                    first_seen.append(message.payload)
                    if len(first_seen) % MOVE_EVERY == MOVE_EVERY // 2:
                        faces.move(topic, next_face(faces, topic))
        assert first_seen == numbered(COUNT)
        async with client.consumer(topic, subscription="s") as consumer:
            described = await client.describe_topic(topic)
            assert described.subscriptions[0].backlog == 0


async def test_a_reader_sees_everything_once_and_in_order(faces: Faces, topic: str) -> None:
    async with asyncio.timeout(HANG_S), danubius.connect(faces.faces[0].url) as client:
        async with client.producer(topic, batch_records=10) as producer:
            await producer.send_many(numbered(COUNT))
        seen: list[bytes] = []
        async with client.reader(topic, stop_at_end=True, fetch_bytes=1) as reader:
            async for message in reader:
                seen.append(message.payload)
                if len(seen) % MOVE_EVERY == 0:
                    faces.move(topic, next_face(faces, topic))
        assert seen == numbered(COUNT)


async def test_the_end_of_a_broker_is_a_pause(faces: Faces, known_topic: str) -> None:
    topic = known_topic
    first, second, third = faces.faces
    faces.move(topic, second)
    async with (
        asyncio.timeout(HANG_S),
        danubius.connect(first.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        await producer.send(b"before")
        message = await consumer.receive()
        await consumer.ack(message)
        second.kill()
        faces.move(topic, third)
        await producer.send(b"after")
        while message.payload == b"before":  # again, if its ack was on the way
            message = await consumer.receive()
            await consumer.ack(message)
        assert message.payload == b"after"
        assert payloads(await read_all(client, topic)) == [b"before", b"after"]


async def test_partitions_move_by_themselves(faces: Faces, topic: str) -> None:
    async with asyncio.timeout(HANG_S), danubius.connect(faces.faces[0].url) as client:
        await client.create_topic(topic, partitions=3)
        for at, face in enumerate(faces.faces):
            faces.move(f"{topic}-part-{at}", face)
        async with client.producer(topic) as producer:
            await producer.send_many(numbered(30))
            faces.move(f"{topic}-part-1", faces.faces[2])
            await producer.send_many(numbered(30, 30))
        async with client.reader(topic, stop_at_end=True) as reader:
            assert sorted([message.payload async for message in reader]) == sorted(numbered(60))


async def test_spark_reads_through_moves(faces: Faces, topic: str) -> None:
    async with (
        danubius.connect(faces.faces[0].url) as client,
        client.producer(topic, batch_records=20) as producer,
    ):
        await producer.send_many(numbered(COUNT))
    reader = FetchClient(parse_urls(faces.faces[0].url), Patience())
    reader.may_point = False
    parts = reader.fetch(Wanted(topic, 0, COUNT, 1))
    seen = 0
    async with asyncio.timeout(HANG_S):
        while await asyncio.to_thread(next, parts, None) is not None:
            seen += 1
            faces.move(topic, next_face(faces, topic))
    assert seen == COUNT // 20
    await asyncio.to_thread(reader.close)
