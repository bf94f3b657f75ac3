"""Delayed messages through the public client against a real broker: never early, each once, also across kill -9."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest

import danubius
import danubius.blocking
from danubius import InvalidArgument, TopicDeleted
from e2e.traffic import collect, nothing_comes, read_all
from patience import HANG_S
from proving import sized

if TYPE_CHECKING:
    from danubius import Client, Producer
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

COUNT: Final = sized(50_000, 1_000_000)
FIRST_S, LAST_S = sized((3.0, 7.0), (20.0, 80.0))
GROWTH_BYTES_MAX: Final = 128 * 1024 * 1024
SEED: Final = 20_264


def now_ms() -> float:
    return time.time_ns() / 1e6


async def test_what_is_due_in_the_past_comes_at_once(broker: BrokerProcess, topic: str) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        for number in range(20):
            await producer.send(b"%d" % number, deliver_at=datetime(2001, 1, 1, tzinfo=UTC))
        [messages] = await collect([consumer], 20)
        assert [int(m.payload) for m in messages] == list(range(20))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"deliver_after": 1, "deliver_at": datetime.now(UTC)}, "give one of them"),
        ({"deliver_at": datetime(2030, 1, 1)}, "without a time zone"),  # noqa: DTZ001
        ({"deliver_at": 12.5}, "must be a datetime"),
        ({"deliver_after": -1}, "0 or more"),
        ({"deliver_after": timedelta(days=10_000)}, "days are allowed"),
    ],
)
async def test_times_that_cannot_be(
    broker: BrokerProcess, topic: str, arguments: dict[str, object], words: str
) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        with pytest.raises(InvalidArgument, match=words):
            await producer.send(b"x", **arguments)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="give one for each"):
            await producer.send_many([b"x"], deliver_after=[1.0, 2.0])


async def test_a_topic_that_stores_nothing_cannot_delay(broker: BrokerProcess, topic: str) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic, dispatch="non-reliable") as producer,
    ):
        with pytest.raises(InvalidArgument, match="nothing can be delivered later"):
            await producer.send(b"x", deliver_after=1)


async def test_partitions_delay_too(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic, partitions=3)
        async with (
            client.producer(topic) as producer,
            client.consumer(topic, subscription="s", start="earliest") as consumer,
        ):
            receipts = await producer.send_many(
                [b"%d" % i for i in range(30)],
                keys=[b"%d" % (i % 7) for i in range(30)],
                deliver_after=[0.3 + 0.01 * i for i in range(30)],
            )
            assert len(receipts) == 30
            assert all(one.is_scheduled for one in receipts)
            producer.send_nowait(b"30", deliver_after=0.2)
            await producer.flush()
            [messages] = await collect([consumer], 31)
            assert sorted(int(m.payload) for m in messages) == list(range(31))


def test_blocking_client_delays(broker: BrokerProcess, topic: str) -> None:
    with danubius.blocking.connect(broker.url) as client, client.producer(topic) as producer:
        producer.send(b"1", deliver_after=0.3)
        producer.send_nowait(b"2", deliver_after=0.1)
        producer.send_many([b"3"], deliver_at=datetime.now(UTC))
        producer.flush()
        with client.consumer(topic, subscription="s", start="earliest") as consumer:
            came = [consumer.receive(timeout=HANG_S).payload for _ in range(3)]
            assert sorted(came) == [b"1", b"2", b"3"]


async def test_a_deleted_topic_takes_what_waits_with_it(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        await producer.send(b"old", deliver_after=0.5)
        await client.delete_topic(topic)
        with pytest.raises(TopicDeleted):
            await producer.send(b"older", deliver_after=0.5)
        async with (
            client.producer(topic) as again,
            client.consumer(topic, subscription="s", start="earliest") as consumer,
        ):
            await again.send(b"new", deliver_after=0.6)
            [[message]] = await collect([consumer], 1)
            assert message.payload == b"new"
            await nothing_comes(consumer)


@pytest.mark.grows
async def test_a_million_delayed_across_kill_9(start_broker: StartBroker, topic: str) -> None:
    """Each is published once, none before its time, and the broker's memory keeps its bound."""
    process = start_broker()
    dice = random.Random(SEED)
    early: list[str] = []
    async with danubius.connect(process.url) as client:
        async with client.producer(topic) as producer:
            await producer.send(b"0 0")
            base_bytes = process.rss_bytes()
            await schedule_all(producer, dice)
        async with asyncio.timeout(LAST_S + 60), asyncio.TaskGroup() as tasks:
            tasks.create_task(watch_times(client, topic, early))
            # The moment is drawn: before, while and after the most of them are due.
            await asyncio.sleep(dice.uniform(0, LAST_S - 1))
            assert process.rss_peak_bytes() - base_bytes < GROWTH_BYTES_MAX
            process.kill()
            process.start()
        assert early == []
        assert process.rss_peak_bytes() - base_bytes < GROWTH_BYTES_MAX
        numbers = [int(m.payload.split()[0]) for m in await read_all(client, topic)]
        assert len(numbers) == COUNT + 1
        assert set(numbers) == set(range(COUNT + 1))


async def schedule_all(producer: Producer, dice: random.Random) -> None:
    """One half as lists, one half one by one."""
    half = COUNT // 2
    start_ms = now_ms()
    delays = [dice.uniform(FIRST_S, LAST_S) for _ in range(half)]
    payloads = [b"%d %d" % (n + 1, start_ms + 1000 * delay) for n, delay in enumerate(delays)]
    await producer.send_many(payloads, deliver_after=delays)
    for number in range(half + 1, COUNT + 1):
        delay = dice.uniform(FIRST_S, LAST_S)
        payload = b"%d %d" % (number, now_ms() + 1000 * delay)
        producer.send_nowait(payload, deliver_after=delay)
        if number % 5000 == 0:
            await asyncio.sleep(0)
    await producer.flush()


async def watch_times(client: Client, topic: str, early: list[str]) -> None:
    """Read along until all have come; note whatever came before its time."""
    async with client.reader(topic, start=0) as reader:
        seen = 0
        while seen < COUNT + 1:
            batch = await reader.read_batch()
            assert batch is not None
            came_ms = now_ms()
            for payload in batch.payloads:
                number, due_ms = payload.split()
                if came_ms < int(due_ms):
                    early.append(f"{number!r} came {int(due_ms) - came_ms} ms early")
            seen += len(batch)
