"""Failure policies through the public client, against a real broker process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import danubius
from danubius import FailurePolicy

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess

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
                message = await consumer.receive(timeout=10)
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
                "x-poison-policy": "dead-letter",
            }
            assert (await client.describe_topic(topic)).subscriptions[0].backlog == 0
            lines = await client.admin.list_dead_letters(topic, SUBSCRIPTION)
            assert [(one.original_offset, one.attempts, one.reason) for one in lines] == [
                (1, 3, "it is bad")
            ]
            assert await client.admin.redrive(topic, SUBSCRIPTION) == 1
            again = await consumer.receive(timeout=10)
            assert (again.payload, again.key) == (b"bad", b"k")
            assert again.attributes == {"tint": "green", "x-redriven": "1"}
            await consumer.ack(again)
            assert await client.admin.list_dead_letters(topic, SUBSCRIPTION) == []


async def _letters(client: danubius.Client, topic: str, count: int) -> list[danubius.Message]:
    await client.create_topic(topic, exist_ok=True)  # it may be about to appear
    async with client.reader(topic, start="earliest") as reader:
        async with asyncio.timeout(20):
            return [await anext(reader) for _ in range(count)]
