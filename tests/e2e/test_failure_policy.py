"""Failure policies through the public client, against a real broker process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius import Exhausted, FailurePolicy
from patience import HANG_S, SOON_S
from proving import sized

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

SUBSCRIPTION = "work"


async def test_poison_ends_in_the_dead_letter_topic_and_comes_back(
    broker: BrokerProcess, topic: str
) -> None:
    policy = FailurePolicy(redeliveries_max=2)
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic) as producer:
            await producer.send(b"good")
            await producer.send(b"bad", key=b"k", attributes={"tint": "green"})
            await producer.send(b"fine")
        async with client.consumer(
            topic, subscription=SUBSCRIPTION, start="earliest", failure=policy
        ) as consumer:
            deliveries: list[bytes] = []
            while len(deliveries) < 5:
                message = await consumer.receive(timeout=HANG_S)
                deliveries.append(message.payload)
                if message.payload == b"bad":
                    await consumer.nack(message, reason="it is bad")
                else:
                    await consumer.ack(message)
            assert sorted(deliveries) == [b"bad", b"bad", b"bad", b"fine", b"good"]
            (letter,) = await _letters(client, f"{topic}-{SUBSCRIPTION}-dlq", 1)
            assert (letter.payload, letter.key) == (b"bad", b"k")
            assert letter.attributes == {
                "tint": "green",
                "x-original-topic": topic,
                "x-original-topic-offset": "1",
                "x-original-subscription": SUBSCRIPTION,
                "x-original-producer-id": letter.attributes["x-original-producer-id"],
                "x-delivery-attempt": "3",
                "x-failure-reason": "it is bad",
                "x-original-broker-addr": broker.url,
                "x-poison-policy": "dead_letter",
            }
            assert (await client.describe_topic(topic)).subscriptions[0].backlog == 0
            lines = await client.admin.list_dead_letters(topic, SUBSCRIPTION)
            assert [(one.original_offset, one.attempts, one.reason) for one in lines] == [
                (1, 3, "it is bad")
            ]
            assert await client.admin.redrive(topic, SUBSCRIPTION) == 1
            again = await consumer.receive(timeout=HANG_S)
            assert (again.payload, again.key) == (b"bad", b"k")
            assert again.attributes == {"tint": "green", "x-redriven": "1"}
            await consumer.ack(again)
            assert await client.admin.list_dead_letters(topic, SUBSCRIPTION) == []


async def test_the_policy_is_changed_live_from_block_to_drop(
    broker: BrokerProcess, topic: str
) -> None:
    block = FailurePolicy(redeliveries_max=0, then=Exhausted.BLOCK)
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic) as producer:
            await producer.send(b"bad")
        async with (
            client.consumer(
                topic, subscription=SUBSCRIPTION, start="earliest", failure=block
            ) as consumer,
            client.producer(topic) as producer,
        ):
            await consumer.nack(await consumer.receive(timeout=HANG_S))
            async with asyncio.timeout(HANG_S):
                while not await _is_blocked(client, topic):
                    pass
            await producer.send(b"next")
            with pytest.raises(danubius.ReceiveTimeout):
                await consumer.receive(timeout=SOON_S)
            assert await client.admin.unblock(topic, SUBSCRIPTION) == 1
            again = await consumer.receive(timeout=HANG_S)
            assert (again.payload, again.redelivery_count) == (b"bad", 0)
            assert (await consumer.receive(timeout=HANG_S)).payload == b"next"
            await consumer.nack(again)
            await producer.send(b"last")
            drop = FailurePolicy(redeliveries_max=0, then=Exhausted.DROP)
            described = await client.admin.update_subscription(topic, SUBSCRIPTION, drop)
            assert described.effective_failure == drop
            assert (await consumer.receive(timeout=HANG_S)).payload == b"last"


async def test_an_ack_time_out_of_the_policy_brings_a_message_again(
    broker: BrokerProcess, topic: str
) -> None:
    policy = FailurePolicy(ack_timeout_ms=100)
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic) as producer:
            await producer.send(b"slow")
        async with client.consumer(
            topic, subscription=SUBSCRIPTION, start="earliest", failure=policy
        ) as consumer:
            counts = [(await consumer.receive(timeout=HANG_S)).redelivery_count for _ in range(3)]
        assert counts == [0, 1, 2]


async def test_poison_stops_only_its_key(broker: BrokerProcess, topic: str) -> None:
    policy = FailurePolicy(redeliveries_max=0, then=Exhausted.BLOCK)
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        async with client.consumer(
            topic, subscription=SUBSCRIPTION, type="key-shared", failure=policy
        ) as consumer:
            async with client.producer(topic) as producer:
                for number in range(4):
                    await producer.send(b"%d" % number, key=b"sick" if number % 2 else b"sound")
            seen: list[bytes] = []
            while len(seen) < 3:
                message = await consumer.receive(timeout=HANG_S)
                seen.append(message.payload)
                if message.key == b"sick":
                    await consumer.nack(message)
                else:
                    await consumer.ack(message)


async def test_counts_survive_a_kill(start_broker: StartBroker, topic: str) -> None:
    policy = FailurePolicy(redeliveries_max=100)
    process = start_broker()
    async with danubius.connect(process.url) as client:
        async with client.producer(topic) as producer:
            await producer.send(b"bad")
        async with client.consumer(
            topic, subscription=SUBSCRIPTION, start="earliest", failure=policy
        ) as consumer:
            for _ in range(3):
                await consumer.nack(await consumer.receive(timeout=HANG_S))
            message = await consumer.receive(timeout=HANG_S)
            assert message.redelivery_count == 3
            # Counts are written with the acknowledgements that come next, and closing waits for these.
            async with client.consumer(topic, subscription="other", start="earliest") as other:
                await other.ack(await other.receive(timeout=HANG_S))
            process.kill()
            process.start()
            again = await consumer.receive(timeout=HANG_S)
            assert again.redelivery_count == 3


@pytest.mark.grows
async def test_dead_letters_move_once_through_kills(start_broker: StartBroker, topic: str) -> None:
    count = sized(500, 10_000)
    policy = FailurePolicy(redeliveries_max=1)
    process = start_broker()
    async with danubius.connect(process.url) as client:
        async with client.producer(topic) as producer:
            await producer.send_many([b"%d" % number for number in range(count)])
        async with client.consumer(
            topic, subscription=SUBSCRIPTION, type="shared", start="earliest", failure=policy
        ) as consumer:
            kills = 0
            while True:
                try:
                    message = await consumer.receive(timeout=SOON_S)
                except danubius.ReceiveTimeout:
                    backlog = (await client.describe_topic(topic)).subscriptions[0].backlog
                    if not backlog:
                        break
                    continue
                if int(message.payload) % 10:
                    await consumer.ack(message)
                    continue
                await consumer.nack(message, reason="a tenth is bad")
                if message.redelivery_count and kills < 2:
                    kills += 1
                    process.kill()
                    process.start()
        letters = await _letters(client, f"{topic}-{SUBSCRIPTION}-dlq", count // 10)
        assert sorted(int(one.payload) for one in letters) == list(range(0, count, 10))
        lines = await client.admin.list_dead_letters(topic, SUBSCRIPTION)
        assert len(lines) == count // 10
        assert await client.admin.purge_dead_letters(topic, SUBSCRIPTION) == count // 10
        assert await client.admin.list_dead_letters(topic, SUBSCRIPTION) == []


async def _is_blocked(client: danubius.Client, topic: str) -> bool:
    return (await client.admin.describe_subscription(topic, SUBSCRIPTION)).statistics.is_blocked


async def _letters(client: danubius.Client, topic: str, count: int) -> list[danubius.Message]:
    await client.create_topic(topic, exist_ok=True)  # it may be about to appear
    async with client.reader(topic, start="earliest") as reader:
        async with asyncio.timeout(HANG_S):
            return [await anext(reader) for _ in range(count)]
