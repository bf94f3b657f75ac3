"""Limits as an operator sets them: they hold, they say what would help, they can be raised, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.errors import LimitReached, MessageTooLarge, QuotaExceeded, Throttled
from danubius.model.policy import Policies, QuotaAction
from danubius.model.topic import TopicSpec
from e2e.traffic import numbered
from patience import HANG_S
from proving import IS_PROOF, sized

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

SECONDS = sized(2, 5)
KIB = 1024
PATIENCE_S = 4.0
"""A client tries until its time is over, and then says what it was told: a busy broker must have told it by then."""


async def limit(client: danubius.Client, topic: str, policies: Policies) -> None:
    await client.admin.create_topic(topic, TopicSpec(policies=policies))


async def take(consumer: danubius.Consumer, count: int) -> list[bytes]:
    payloads: list[bytes] = []
    while len(payloads) < count:
        message = await consumer.receive()
        payloads.append(message.payload)
        await consumer.ack(message)
    return payloads


@pytest.mark.grows
async def test_a_rate_is_kept_loses_nothing_and_holds_nobody_else_up(
    broker: BrokerProcess, topic: str
) -> None:
    rate = 1_000
    sent: list[bytes] = []
    beside = 0
    async with (
        danubius.connect(broker.url) as client,
        client.producer(f"{topic}-beside") as free,
    ):
        await limit(client, topic, Policies(publish_messages_per_s=rate))
        async with client.producer(topic) as producer:
            began = time.monotonic()
            end = began + SECONDS

            async def send(worker: int) -> None:
                number = 0
                while time.monotonic() < end:
                    payload = f"{worker}-{number}".encode()
                    await producer.send(payload)
                    sent.append(payload)
                    number += 1

            async def send_beside() -> None:
                nonlocal beside
                while time.monotonic() < end:
                    await free.send_many([b"x"] * 1_000)
                    beside += 1_000

            async with asyncio.TaskGroup() as tasks:
                for worker in range(50):
                    tasks.create_task(send(worker))
                tasks.create_task(send_beside())
            allowed = rate * (time.monotonic() - began)
            stored = (await client.describe_topic(topic)).summary.end_offset
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            received = await take(consumer, len(sent))

    ahead = 0 if IS_PROOF else rate // 4  # what may be stored early weighs more in a short run
    assert stored <= 1.1 * allowed + ahead
    assert stored == len(sent)
    assert sorted(received) == sorted(sent)
    assert beside > 0
    if IS_PROOF:  # on a machine that has nothing else to do
        assert stored >= 0.9 * rate * SECONDS
        assert beside > 5 * rate * SECONDS


async def test_batches_far_over_the_rate_are_refused_and_come_when_it_is_their_time(
    broker: BrokerProcess, topic: str
) -> None:
    payloads = numbered(1_000)
    async with danubius.connect(broker.url) as client:
        await limit(client, topic, Policies(publish_messages_per_s=500))
        began = time.monotonic()
        async with client.producer(topic, batch_records=100) as producer:
            await producer.send_many(payloads)
        seconds = time.monotonic() - began
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            assert await take(consumer, 1_000) == payloads
    assert seconds >= 1.4  # the last batch is in before it is paid for, and a few before it


async def test_who_gives_up_hears_that_it_was_throttled_and_nothing_was_stored(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await limit(client, topic, Policies(publish_messages_per_s=1))
        async with (
            client.producer(topic) as patient,
            client.producer(topic, send_timeout=PATIENCE_S) as producer,
        ):
            await patient.send_many([b"x"] * 1_000)
            with pytest.raises(Throttled, match="1 messages/s"):
                await producer.send(b"too much")
            stored = (await client.describe_topic(topic)).summary.end_offset
    assert stored == 1_000


async def test_a_rate_in_bytes_and_one_raised_while_a_producer_waits(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await limit(client, topic, Policies(publish_bytes_per_s=1_000))
        async with client.producer(topic) as producer:
            await producer.send(bytes(600_000))  # paid for after ten minutes
            async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
                tasks.create_task(producer.send(b"y"))
                await asyncio.sleep(0)
                await client.admin.update_topic(topic, Policies(publish_bytes_per_s=10**9))


async def test_one_producer_too_many(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client, danubius.connect(broker.url) as other:
        await limit(client, topic, Policies(producers_max=2))
        async with client.producer(topic), client.producer(topic, name="a"):
            with pytest.raises(LimitReached, match="2 producers; raise producers_max"):
                await other.producer(topic)
            async with other.producer(topic, name="a"):
                pass  # it takes the place of its namesake
        refused = 0

        async def open_one() -> None:
            nonlocal refused
            try:
                await other.producer(topic)
            except LimitReached:
                refused += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(5):
                tasks.create_task(open_one())
        assert refused == 3


async def test_one_subscription_and_one_consumer_too_many(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await limit(
            client,
            topic,
            Policies(subscriptions_max=2, consumers_max=3, subscription_consumers_max=2),
        )
        async with (
            client.consumer(topic, subscription="a", type="shared"),
            client.consumer(topic, subscription="a", type="shared"),
        ):
            with pytest.raises(LimitReached, match="subscription_consumers_max"):
                await client.consumer(topic, subscription="a", type="shared")
            async with client.consumer(topic, subscription="b", type="shared"):
                with pytest.raises(LimitReached, match="raise consumers_max"):
                    await client.consumer(topic, subscription="b", type="shared")
                with pytest.raises(LimitReached, match="raise subscriptions_max"):
                    await client.consumer(topic, subscription="c", type="shared")
                await client.admin.update_topic(topic, Policies(consumers_max=4))
                async with client.consumer(topic, subscription="b", type="shared"):
                    pass


async def test_a_topic_with_smaller_messages(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await limit(client, topic, Policies(message_bytes_max=1_000))
        async with client.producer(topic) as producer:
            await producer.send(bytes(1_000))
            with pytest.raises(MessageTooLarge, match="at most 1,000"):
                await producer.send(bytes(2_000))
            await producer.send(b"and on it goes")


async def test_a_namespaces_rate_is_for_all_its_topics_together(broker: BrokerProcess) -> None:
    namespace = f"together{os.getpid()}"
    async with danubius.connect(broker.url) as client:
        await client.admin.create_namespace(namespace, Policies(publish_messages_per_s=200))
        async with (
            client.producer(f"/{namespace}/a", batch_records=20) as one,
            client.producer(f"/{namespace}/b", batch_records=20) as two,
        ):
            began = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(one.send_many([b"x"] * 200))
                tasks.create_task(two.send_many([b"x"] * 200))
            seconds = time.monotonic() - began
    assert seconds >= 1.4  # each alone would have needed less than 1 s


async def test_a_full_topic_refuses_and_takes_again_when_it_may(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await limit(client, topic, Policies(quota_bytes=100 * KIB))
        async with client.producer(
            topic, send_timeout=PATIENCE_S, batch_bytes=10 * KIB
        ) as producer:
            with pytest.raises(
                QuotaExceeded, match=r"of 100\.0 KiB, so .* more do not fit; raise quota_bytes"
            ):
                for _ in range(200):
                    await producer.send(bytes(KIB))
            summary = (await client.describe_topic(topic)).summary
            assert 80 <= summary.end_offset <= 100
            await client.admin.update_topic(topic, Policies(quota_bytes=KIB * KIB))
            await producer.send(b"again")
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            assert len(await take(consumer, summary.end_offset + 1)) == summary.end_offset + 1


@pytest.mark.parametrize("is_attached", [True, False])
async def test_a_full_topic_drops_its_oldest_and_tells_those_who_missed_it(
    broker: BrokerProcess, topic: str, is_attached: bool
) -> None:
    quota = 512 * KIB
    async with danubius.connect(broker.url) as client:
        await limit(
            client, topic, Policies(quota_bytes=quota, quota_action=QuotaAction.DROP_OLDEST)
        )
        consumer = await client.consumer(topic, subscription="s", prefetch_messages=10)
        if not is_attached:
            await consumer.close()
        async with client.producer(topic, batch_bytes=16 * KIB) as producer:
            for number in range(3_000):
                await producer.send(b"%d" % number + bytes(KIB))
        async with asyncio.timeout(HANG_S):
            while (summary := (await client.describe_topic(topic)).summary).stored_bytes > quota:
                pass
        assert summary.end_offset == 3_000
        assert summary.start_offset > 2_000
        if not is_attached:
            consumer = await client.consumer(topic, subscription="s", prefetch_messages=10)
        last = -1
        while last < 2_999:
            message = await consumer.receive()
            assert message.offset > last
            last = message.offset
            await consumer.ack(message)
        figures = (await client.admin.describe_subscription(topic, "s")).statistics
        await consumer.close()
    assert figures.dropped_quota_messages >= 2_000 - 10


async def test_what_was_dropped_stays_dropped_after_a_crash(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker()
    policies = Policies(quota_bytes=512 * KIB, quota_action=QuotaAction.DROP_OLDEST)
    async with danubius.connect(broker.url) as client:
        await limit(client, topic, policies)
        await (await client.consumer(topic, subscription="s")).close()
        async with client.producer(topic, batch_bytes=16 * KIB) as producer:
            for _ in range(10):
                await producer.send_many([bytes(KIB)] * 200)
        before = (await client.describe_topic(topic)).summary
    broker.kill()
    broker.start()
    async with danubius.connect(broker.url) as client:
        after = (await client.describe_topic(topic)).summary
        assert before.start_offset <= after.start_offset
        assert after.end_offset == 2_000
        async with client.consumer(topic, subscription="s") as consumer:
            first = await consumer.receive()
            assert first.offset >= after.start_offset > 0
            assert len(await take(consumer, 1_999 - first.offset)) == 1_999 - first.offset


async def test_a_namespaces_quota_is_for_all_its_topics_together(broker: BrokerProcess) -> None:
    namespace = f"full{os.getpid()}"
    async with danubius.connect(broker.url) as client:
        await client.admin.create_namespace(namespace, Policies(quota_bytes=100 * KIB))
        async with (
            client.producer(f"/{namespace}/a") as one,
            client.producer(f"/{namespace}/b", send_timeout=PATIENCE_S) as two,
        ):
            await one.send(bytes(70 * KIB))
            with pytest.raises(QuotaExceeded, match=f"namespace '{namespace}' holds"):
                await two.send(bytes(70 * KIB))
