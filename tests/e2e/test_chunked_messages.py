"""Messages larger than one batch, through the public client against a real broker: in pieces, and whole again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

import pytest

import danubius
import danubius.blocking
from danubius import ClientClosed, InvalidArgument, MessageTooLarge
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from danubius.client.options import CompressionName, SubscriptionTypeName
    from e2e.broker_process import BrokerProcess

KIB = 1024
PIECE = 4 * KIB


def large(seed: int, size: int = 10 * PIECE + 7) -> bytes:
    return random.Random(seed).randbytes(size)


async def backlog(client: danubius.Client, topic: str, subscription: str = "s") -> int:
    described = await client.admin.describe_subscription(topic, subscription)
    return described.statistics.backlog_messages


async def until_backlog(client: danubius.Client, topic: str, count: int) -> None:
    async with asyncio.timeout(HANG_S):
        while await backlog(client, topic) != count:  # noqa: ASYNC110  # it is in another process
            await asyncio.sleep(LOOK_S)


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key-shared"])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
async def test_a_large_message_comes_whole(
    broker: BrokerProcess,
    topic: str,
    kind: SubscriptionTypeName,
    compression: CompressionName | None,
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic, chunk_bytes=PIECE, compression=compression) as producer,
        client.consumer(topic, subscription="s", type=kind, start="earliest") as consumer,
    ):
        await producer.send(b"before")
        sent = large(1)
        receipt = await producer.send(sent, key=b"k", attributes={"kind": "photo"})
        await producer.send(b"behind")
        assert (await consumer.receive(timeout=HANG_S)).payload == b"before"
        message = await consumer.receive(timeout=HANG_S)
        assert message.payload == sent
        assert (message.key, dict(message.attributes)) == (b"k", {"kind": "photo"})
        assert message.offset == receipt.offset
        behind = await consumer.receive(timeout=HANG_S)
        assert behind.payload == b"behind"
        await consumer.ack(message)
        await until_backlog(client, topic, 2)
        await consumer.ack_cumulative(behind)
        await until_backlog(client, topic, 0)


async def test_pieces_that_went_to_others_are_fetched_and_acknowledged_by_whoever_has_the_last(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        consumers = [
            await client.consumer(topic, subscription="s", type="shared", prefetch_messages=1)
            for _ in range(4)
        ]
        sent = [large(seed) for seed in range(5)]
        came: list[bytes] = []

        async def receive(consumer: danubius.Consumer) -> None:
            async for message in consumer:
                came.append(message.payload)
                await consumer.ack(message)
                if len(came) == len(sent):
                    async with asyncio.TaskGroup() as others:
                        for one in consumers:
                            others.create_task(one.close())

        async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
            for consumer in consumers:
                tasks.create_task(_until_closed(receive(consumer)))
            async with (
                client.producer(topic, chunk_bytes=PIECE) as producer,
                asyncio.TaskGroup() as sends,
            ):
                for payload in sent:
                    sends.create_task(producer.send(payload))
        assert sorted(came) == sorted(sent)
        await until_backlog(client, topic, 0)


async def _until_closed(work: Awaitable[None]) -> None:
    with contextlib.suppress(ClientClosed):
        await work


async def test_what_was_not_acknowledged_comes_whole_again(
    broker: BrokerProcess, topic: str
) -> None:
    sent = large(3)
    async with danubius.connect(broker.url) as client:
        async with (
            client.producer(topic, chunk_bytes=PIECE) as producer,
            client.consumer(topic, subscription="s", start="earliest") as consumer,
        ):
            await producer.send(sent)
            message = await consumer.receive(timeout=HANG_S)
            await consumer.nack(message, reason="not now")
            again = await consumer.receive(timeout=HANG_S)
            assert (again.payload, again.redelivery_count) == (sent, 1)
        async with client.consumer(topic, subscription="s") as consumer:
            batch = await consumer.receive_batch(timeout=HANG_S)
            assert batch.payloads == [sent]
            assert batch.to_arrow().column("payload").to_pylist() == [sent]
            await consumer.ack(batch)
            await until_backlog(client, topic, 0)


async def test_readers_see_whole_messages_also_when_they_start_inside_one(
    broker: BrokerProcess, topic: str
) -> None:
    sent = large(4)
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic, chunk_bytes=PIECE) as producer,
    ):
        receipt = await producer.send(sent)
        await producer.send(b"end")
        for start in ("earliest", receipt.offset - 3, receipt.offset):
            async with client.reader(topic, start=start, stop_at_end=True) as reader:
                assert [message.payload async for message in reader] == [sent, b"end"]
        async with client.reader(topic, start=receipt.offset + 1, stop_at_end=True) as reader:
            assert [message.payload async for message in reader] == [b"end"]


async def test_a_partitioned_topic_keeps_the_pieces_of_a_message_together(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic, partitions=3)
        async with (
            client.producer(topic, chunk_bytes=PIECE) as producer,
            client.consumer(topic, subscription="s", start="earliest") as consumer,
        ):
            sent = {large(seed) for seed in range(6)}
            for payload in sent:
                await producer.send(payload)
            came: set[bytes] = set()
            for _ in sent:
                message = await consumer.receive(timeout=HANG_S)
                came.add(message.payload)
                await consumer.ack(message)
            assert came == sent
            async with client.reader(topic, start="earliest", stop_at_end=True) as reader:
                assert {message.payload async for message in reader} == sent


def test_the_blocking_client_sends_and_receives_large_messages(
    broker: BrokerProcess, topic: str
) -> None:
    sent = large(5)
    with (
        danubius.blocking.connect(broker.url) as client,
        client.producer(topic, chunk_bytes=PIECE) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        producer.send(sent)
        message = consumer.receive(timeout=HANG_S)
        assert message.payload == sent
        consumer.ack(message)


async def test_what_cannot_be_sent_in_pieces_is_refused_in_words(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic, chunk_bytes=KIB) as producer:
            with pytest.raises(MessageTooLarge, match="chunk_bytes"):
                await producer.send(bytes(2000 * KIB))
            with pytest.raises(InvalidArgument, match="delivered later"):
                await producer.send(bytes(2 * KIB), deliver_after=1)
        async with client.producer(topic) as producer:
            with pytest.raises(MessageTooLarge, match="opened with chunk_bytes"):
                await producer.send(bytes(9 * KIB * KIB))
        with pytest.raises(InvalidArgument, match="reliable"):
            await client.producer(topic, dispatch="non-reliable", chunk_bytes=KIB)
        with pytest.raises(InvalidArgument, match="resume"):
            await client.producer(topic, name="a", resume=True, chunk_bytes=KIB)
        with pytest.raises(InvalidArgument, match="chunk_bytes is 10"):
            await client.producer(topic, chunk_bytes=10)


async def test_a_message_larger_than_the_broker_accepts(broker: BrokerProcess, topic: str) -> None:
    sent = large(6, 20 * KIB * KIB)
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic, chunk_bytes=8 * KIB * KIB) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        await producer.send(sent)
        message = await consumer.receive(timeout=HANG_S)
        assert message.payload == sent
        assert message.ranges == ((0, 3),)


async def test_pieces_in_a_transaction_are_there_together_or_not_at_all(
    broker: BrokerProcess, topic: str
) -> None:
    sent = large(7)
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic, chunk_bytes=PIECE) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        aborted = await client.transaction()
        await aborted.send(producer, large(8), key=b"k")
        await aborted.abort()
        async with client.transaction() as transaction:
            await transaction.send(producer, b"before")
            await transaction.send(producer, sent, key=b"k", attributes={"a": "b"})
            await transaction.send(producer, b"behind")
        messages = [await consumer.receive(timeout=HANG_S) for _ in range(3)]
        assert [message.payload for message in messages] == [b"before", sent, b"behind"]
        assert (messages[1].key, dict(messages[1].attributes)) == (b"k", {"a": "b"})
        async with client.transaction() as transaction:
            for message in messages:
                await transaction.ack(consumer, message)
        await until_backlog(client, topic, 0)


async def test_a_large_message_that_fails_too_often_is_one_dead_letter(
    broker: BrokerProcess, topic: str
) -> None:
    sent = large(9)
    failure = danubius.FailurePolicy(redeliveries_max=1, dead_letter_topic=f"{topic}-dead")
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic, chunk_bytes=PIECE) as producer,
        client.consumer(topic, subscription="s", start="earliest", failure=failure) as consumer,
    ):
        await producer.send(sent, attributes={"a": "b"})
        for _ in range(2):
            message = await consumer.receive(timeout=HANG_S)
            assert message.payload == sent
            await consumer.nack(message, reason="cannot read it")
        await until_backlog(client, topic, 0)
        async with client.consumer(f"{topic}-dead", subscription="s", start="earliest") as dead:
            letter = await dead.receive(timeout=HANG_S)
            assert letter.payload == sent
            assert letter.attributes["x-failure-reason"] == "cannot read it"
            assert letter.attributes["a"] == "b"
            await dead.ack(letter)
            await until_backlog(client, f"{topic}-dead", 0)
