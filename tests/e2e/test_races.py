"""Things that happen at the same time: cancelled waits, deletion under load, cold reads at any place."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING

import danubius
from e2e.traffic import collect, numbered, payloads, read_all, take
from patience import HANG_S, LOOK_S, SOON_S

if TYPE_CHECKING:
    from danubius import Client
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker


async def test_cancelled_receives_lose_nothing(broker: BrokerProcess, topic: str) -> None:
    """A receive that is cut off by its deadline takes no message with it."""
    received: list[bytes] = []
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):

        async def send() -> None:
            for payload in numbered(500):
                await producer.send(payload)

        async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            while len(received) < 500:
                try:
                    async with asyncio.timeout(SOON_S / 100):
                        message = await consumer.receive()
                except TimeoutError:
                    continue
                received.append(message.payload)
                await consumer.ack(message)
    assert received == numbered(500)


async def test_cancelled_send_leaves_the_producer_in_order(
    broker: BrokerProcess, topic: str
) -> None:
    """Whoever gives up waiting may or may not find it stored, but never twice, and others are not held up."""
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        for number in range(0, 200, 2):
            try:
                async with asyncio.timeout(0):
                    await producer.send(b"message %d" % number)
            except TimeoutError:
                pass
            await producer.send(b"message %d" % (number + 1))
        stored = payloads(await read_all(client, topic))
    numbers = [int(payload.split()[1]) for payload in stored]
    assert numbers == sorted(set(numbers))
    assert set(range(1, 200, 2)) <= set(numbers)


async def test_message_larger_than_the_prefetch_comes_through(
    broker: BrokerProcess, topic: str
) -> None:
    sent = [bytes([number]) * 3_000_000 for number in range(4)]
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        for payload in sent:
            await producer.send(payload)
        async with client.consumer(
            topic, subscription="s", start="earliest", prefetch_bytes=1_000, prefetch_messages=1
        ) as consumer:
            assert payloads(await take(consumer, 4)) == sent


async def test_tiny_prefetch_delivers_everything(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        await producer.send_many(numbered(300))
        async with client.consumer(
            topic, subscription="s", start="earliest", prefetch_messages=1
        ) as consumer:
            [received] = await collect([consumer], 300)
    assert payloads(received) == numbered(300)


async def produce_again_and_again(client: Client, topic: str) -> None:
    while True:
        try:
            async with client.producer(topic) as producer:
                while True:
                    await producer.send_many(numbered(20))
        except danubius.DanubiusError as error:
            assert error.code in {201, 306}, error  # noqa: PT017 - which errors are fine is the point
            await asyncio.sleep(0)


async def consume_again_and_again(client: Client, topic: str, number: int) -> None:
    while True:
        try:
            async with client.consumer(
                topic, subscription=f"s{number}", start="earliest"
            ) as consumer:
                while True:
                    await consumer.ack(await consumer.receive_batch())
        except danubius.DanubiusError as error:
            assert error.code in {201, 306}, error  # noqa: PT017 - which errors are fine is the point
            await asyncio.sleep(LOOK_S)


async def test_topic_deleted_under_load_comes_back_clean(
    start_broker: StartBroker, topic: str
) -> None:
    """Delete and create again while producers and consumers work on it: no hang, no crash, no old message."""
    broker = start_broker()

    async with danubius.connect(broker.url) as client, danubius.connect(broker.url) as admin:
        async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(produce_again_and_again(client, topic))]
            running += [
                tasks.create_task(consume_again_and_again(client, topic, number))
                for number in range(3)
            ]
            for _ in range(20):
                await asyncio.sleep(SOON_S)
                with suppress(danubius.TopicNotFound):
                    await admin.delete_topic(topic)
            for task in running:
                task.cancel()
        await admin.create_topic(topic, exist_ok=True)
        await admin.delete_topic(topic)
    broker.kill()
    broker.start()
    async with danubius.connect(broker.url) as client:
        assert [summary.topic for summary in await client.list_topics()] == []
        async with client.producer(topic) as producer:
            assert (await producer.send(b"fresh")).offset == 0
    assert broker.stop() == 0
    assert "Traceback" not in broker.log()


async def test_cold_topic_is_read_from_any_place(start_broker: StartBroker, topic: str) -> None:
    """After a restart everything comes from ledger files: at any offset and any time, whole and in order."""
    broker = start_broker()
    dice = random.Random(3)
    sent: list[bytes] = []
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        while len(sent) < 20_000:
            size = dice.choice([0, 10, 100, 1_000, 20_000])
            chunk = [b"%d %s" % (len(sent) + n, b"." * size) for n in range(dice.randrange(1, 200))]
            await producer.send_many(chunk)
            sent += chunk
        times = [message.publish_time for message in await read_all(client, topic)]
    assert broker.stop() == 0
    broker.start()
    async with danubius.connect(broker.url) as client:
        for _ in range(15):
            start = dice.randrange(len(sent))
            async with client.reader(topic, start=start) as reader:
                for offset in range(start, min(start + 300, len(sent))):
                    message = await anext(reader)
                    assert (message.offset, message.payload) == (offset, sent[offset])
            time = times[start]
            expected = next(offset for offset, other in enumerate(times) if other >= time)
            assert await client.resolve_offset(topic, time) == expected
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            [received] = await collect([consumer], len(sent), within_s=HANG_S)
    assert payloads(received) == sent
