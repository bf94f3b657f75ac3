"""Messages with a time to live, through the public client against a real broker: in time, or not at all."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import danubius
import danubius.blocking
from danubius import InvalidArgument
from danubius.model.policy import Policies
from danubius.model.topic import TopicSpec
from e2e.traffic import nothing_comes
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from danubius.client.options import SubscriptionTypeName
    from danubius.model.statistics import SubscriptionStatistics
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker
TTL_S = 0.05
"""Over soon."""
POLICY_TTL_MS = 500


async def figures(client: danubius.Client, topic: str) -> SubscriptionStatistics:
    return (await client.admin.describe_subscription(topic, "s")).statistics


async def until_expired(client: danubius.Client, topic: str, count: int) -> None:
    async with asyncio.timeout(HANG_S):
        while (await figures(client, topic)).expired_messages < count:  # noqa: ASYNC110  # another process
            await asyncio.sleep(LOOK_S)


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key-shared"])
async def test_what_has_expired_is_not_delivered_and_is_counted(
    broker: BrokerProcess, topic: str, kind: SubscriptionTypeName
) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        await client.admin.create_subscription(topic, "s", type=kind, start="earliest")
        await producer.send(b"kept 0", key=b"a")
        await producer.send(b"short", key=b"a", ttl=TTL_S)
        await producer.send(b"long", key=b"b", ttl=timedelta(hours=1))
        producer.send_nowait(b"short", ttl=TTL_S)
        producer.send_nowait(b"kept 1")
        await producer.flush()
        await producer.send_many([b"short"] * 3, keys=[b"a", b"b", b"c"], ttl=TTL_S)
        await producer.send(b"end", key=b"c")
        await asyncio.sleep(1.2 * TTL_S)
        async with client.consumer(topic, subscription="s", type=kind) as consumer:
            came: list[bytes] = []
            for _ in range(4):
                message = await consumer.receive(timeout=HANG_S)
                came.append(message.payload)
                await consumer.ack(message)
            assert sorted(came) == [b"end", b"kept 0", b"kept 1", b"long"]
            await until_expired(client, topic, 5)
            assert (await figures(client, topic)).expired_messages == 5


async def test_an_idle_subscription_lets_expired_messages_go(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        await client.admin.create_subscription(topic, "s", start="earliest")
        await producer.send_many([b"short"] * 1000, ttl=TTL_S)
        await producer.send(b"kept")
        await producer.send_many([b"short"] * 1000, ttl=TTL_S)
        await until_expired(client, topic, 1000)
        stats = await figures(client, topic)
        assert (stats.expired_messages, stats.backlog_messages) == (1000, 1001)
        async with client.consumer(topic, subscription="s") as consumer:
            message = await consumer.receive(timeout=HANG_S)
            assert message.payload == b"kept"
            await consumer.ack(message)
            await until_expired(client, topic, 2000)


async def test_time_to_live_of_a_partitioned_topic_and_of_large_messages(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic, partitions=2)
        await client.admin.create_subscription(topic, "s", start="earliest")
        async with client.producer(topic, chunk_bytes=4096) as producer:
            await producer.send(bytes(10_000), ttl=TTL_S)
            await producer.send_many([b"short"] * 4, ttl=TTL_S)
            await producer.send(bytes(20_000), ttl=3600)
        await asyncio.sleep(1.2 * TTL_S)
        async with client.consumer(topic, subscription="s") as consumer:
            message = await consumer.receive(timeout=HANG_S)
            assert message.payload == bytes(20_000)
            await nothing_comes(consumer)


async def test_messages_expire_across_a_kill(start_broker: StartBroker) -> None:
    broker = start_broker()
    topic = "/default/short-lived"
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        await client.admin.create_subscription(topic, "s", start="earliest")
        await producer.send_many([b"short"] * 10, ttl=TTL_S)
        await producer.send(b"kept")
        broker.kill()
        broker.start()
        async with client.consumer(topic, subscription="s") as consumer:
            assert (await consumer.receive(timeout=HANG_S)).payload == b"kept"


async def test_a_topics_time_to_live_holds_at_delivery(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        spec = TopicSpec(policies=Policies(ttl_ms=POLICY_TTL_MS))
        await client.admin.create_topic(topic, spec)
        await client.admin.create_subscription(topic, "s", start="earliest")
        async with client.producer(topic) as producer:
            await producer.send_many([b"old"] * 10)
            await asyncio.sleep(POLICY_TTL_MS / 1000)
            async with client.consumer(topic, subscription="s") as consumer:
                await until_new_comes(producer, consumer)
                await until_expired(client, topic, 10)


async def until_new_comes(producer: danubius.Producer, consumer: danubius.Consumer) -> None:
    """What is sent is received unless this machine is too slow for its time to live: then once more."""
    async with asyncio.timeout(HANG_S):
        while True:
            await producer.send(b"new")
            try:
                message = await consumer.receive(timeout=2 * POLICY_TTL_MS / 1000)
            except TimeoutError:
                continue
            assert message.payload == b"new"
            return


def test_the_blocking_client_sends_with_a_time_to_live(broker: BrokerProcess, topic: str) -> None:
    with (
        danubius.blocking.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        producer.send(b"a", ttl=60)
        producer.send_nowait(b"b", ttl=60)
        producer.flush()
        producer.send_many([b"c"], ttl=60)
        assert [consumer.receive(timeout=HANG_S).payload for _ in range(3)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("ttl", [0, -1, "1", float("nan")])
async def test_a_time_to_live_is_more_than_nothing(
    broker: BrokerProcess, topic: str, ttl: float
) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        with pytest.raises(InvalidArgument, match="ttl is"):
            await producer.send(b"a", ttl=ttl)


@pytest.mark.parametrize("partitions", [0, 2])
async def test_what_a_transaction_published_expires_like_the_rest(
    broker: BrokerProcess, topic: str, partitions: int
) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic, partitions=partitions)
        await client.admin.create_subscription(topic, "s", start="earliest")
        async with (
            client.producer(topic, chunk_bytes=4096) as producer,
            client.transaction() as transaction,
        ):
            await transaction.send(producer, b"kept 0", key=b"a")
            await transaction.send(producer, b"short", key=b"a", ttl=TTL_S)
            await transaction.send(producer, b"short", key=b"a", ttl=TTL_S)
            await transaction.send(producer, b"kept 1", key=b"a")
            await transaction.send(producer, bytes(10_000), key=b"a", ttl=TTL_S)
            await transaction.send_many(producer, [b"short"] * 4, keys=[b"a"] * 4, ttl=TTL_S)
            await transaction.send(producer, b"long", key=b"a", ttl=timedelta(hours=1))
            with pytest.raises(InvalidArgument, match="ttl is 0"):
                await transaction.send(producer, b"x", ttl=0)
        await asyncio.sleep(1.2 * TTL_S)
        async with client.consumer(topic, subscription="s") as consumer:
            for expected in (b"kept 0", b"kept 1", b"long"):
                message = await consumer.receive(timeout=HANG_S)
                assert message.payload == expected
                await consumer.ack(message)
            await nothing_comes(consumer)


async def test_an_idle_subscription_lets_go_what_a_transaction_published(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    topic = "/default/short-lived"
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        await client.admin.create_subscription(topic, "s", start="earliest")
        async with client.transaction() as transaction:
            await transaction.send_many(producer, [b"short"] * 100, ttl=TTL_S)
            await transaction.send(producer, b"long", ttl=3600)
        await until_expired(client, topic, 100)
        broker.kill()
        broker.start()
        async with client.consumer(topic, subscription="s") as consumer:
            assert (await consumer.receive(timeout=HANG_S)).payload == b"long"


def test_time_to_live_in_a_transaction_of_the_blocking_client(
    broker: BrokerProcess, topic: str
) -> None:
    with danubius.blocking.connect(broker.url) as client, client.producer(topic) as producer:
        client.admin.create_subscription(topic, "s", start="earliest")
        with client.transaction() as transaction:
            transaction.send(producer, b"short", ttl=TTL_S)
            transaction.send_many(producer, [b"short"] * 2, ttl=TTL_S)
            transaction.send(producer, b"kept")
        time.sleep(1.2 * TTL_S)
        with client.consumer(topic, subscription="s") as consumer:
            assert consumer.receive(timeout=HANG_S).payload == b"kept"
