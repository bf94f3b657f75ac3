"""Transactions through the public client against a real broker: all or nothing, seen by nobody before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.errors import TransactionAborted, TransactionConflict, TransactionTooLarge
from e2e.lossy_proxy import LossyProxy
from e2e.traffic import collect, nothing_comes, read_all
from patience import HANG_S, LOOK_S, SOON_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker


async def test_messages_of_two_topics_appear_at_the_commit(
    broker: BrokerProcess, topic: str
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as one,
        client.producer(f"{topic}-b") as other,
    ):
        await one.send(b"before")
        async with client.transaction() as transaction:
            await transaction.send(one, b"a", key=b"k", attributes={"x": "y"})
            await transaction.send_many(other, [b"b0", b"b1"], keys=[b"k", None])
            await transaction.send(one, b"c")
            await one.send(b"between")
            assert await client.resolve_offset(topic, "latest") == 2
            assert await client.resolve_offset(f"{topic}-b", "latest") == 0
        messages = await read_all(client, topic)
        assert [(m.offset, m.payload) for m in messages] == [
            (0, b"before"),
            (1, b"between"),
            (2, b"a"),
            (3, b"c"),
        ]
        assert (messages[2].key, messages[2].attributes) == (b"k", {"x": "y"})
        assert [m.payload for m in await read_all(client, f"{topic}-b")] == [b"b0", b"b1"]


async def test_an_aborted_one_leaves_no_trace(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as transaction:
                await transaction.send_many(producer, [b"x"] * 1000)
                raise ZeroDivisionError
        assert (await producer.send(b"after")).offset == 0
        assert [m.payload for m in await read_all(client, topic)] == [b"after"]


async def test_acks_inside_count_at_the_commit_and_come_again_after_an_abort(
    broker: BrokerProcess, topic: str
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        await producer.send_many([b"0", b"1", b"2"])
        transaction = await client.transaction()
        await transaction.ack(consumer, await consumer.receive(timeout=HANG_S))
        await transaction.abort()
        await transaction.abort()
        seen = [await consumer.receive(timeout=HANG_S) for _ in range(3)]
        assert sorted(m.payload for m in seen) == [b"0", b"1", b"2"]
        async with client.transaction() as transaction:
            for message in seen:
                await transaction.ack(consumer, message)
        described = await client.describe_topic(topic)
        assert described.subscriptions[0].backlog == 0
        await nothing_comes(consumer)


async def test_a_message_is_acknowledged_by_one_of_two_transactions(
    broker: BrokerProcess, topic: str
) -> None:
    """The first worker is slower than the ack time-out: the second gets the message too, and both try to commit."""
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as source,
        client.producer(f"{topic}-out") as target,
        client.consumer(
            topic, subscription="s", type="shared", start="earliest", ack_timeout=0.2, name="a"
        ) as slow,
    ):
        await source.send(b"work")
        first = await client.transaction()
        message = await slow.receive(timeout=HANG_S)
        async with client.consumer(topic, subscription="s", type="shared", name="b") as quick:
            consumers = (slow, quick)
            received = await collect(consumers, 1, is_acking=False)
            async with client.transaction() as second:
                await second.send(target, b"by the second")
                for consumer, messages in zip(consumers, received, strict=True):
                    for again in messages:
                        await second.ack(consumer, again)
            await first.send(target, b"by the first")
            await first.ack(slow, message)
            with pytest.raises(TransactionConflict, match="acknowledged by others"):
                await first.commit()
        assert [m.payload for m in await read_all(client, f"{topic}-out")] == [b"by the second"]


async def test_a_transaction_ends_when_its_time_is_over(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        transaction = await client.transaction(timeout=SOON_S)
        with pytest.raises(TransactionAborted, match="open for longer than its 50 ms"):
            async with asyncio.timeout(HANG_S):
                while True:
                    await transaction.send_many(producer, [b"late"])
                    await asyncio.sleep(LOOK_S)
        with pytest.raises(TransactionAborted, match="open for longer than its 50 ms"):
            await transaction.commit()
        with pytest.raises(TransactionAborted, match="open for longer"):
            await transaction.send(producer, b"later")
        assert await client.resolve_offset(topic, "latest") == 0


async def test_a_transaction_has_a_largest_size(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        megabyte = bytes(1024 * 1024)
        with pytest.raises(TransactionTooLarge, match="commit smaller"):
            async with client.transaction() as transaction:
                for _ in range(80):
                    await transaction.send(producer, megabyte)
        assert await client.resolve_offset(topic, "latest") == 0
        async with client.transaction() as transaction:
            await transaction.send_many(producer, [megabyte] * 40)
        assert await client.resolve_offset(topic, "latest") == 40


async def test_producers_of_another_client_are_refused(broker: BrokerProcess, topic: str) -> None:
    async with (
        danubius.connect(broker.url) as client,
        danubius.connect(broker.url) as other,
        client.producer(topic) as producer,
    ):
        transaction = await other.transaction()
        with pytest.raises(danubius.InvalidArgument, match="belongs to another client"):
            await transaction.send_many(producer, [b"x"])
        await transaction.abort()


async def test_a_lost_connection_aborts(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as watcher, watcher.producer(topic) as producer:
        client = await danubius.connect(broker.url)
        mine = await client.producer(topic)
        transaction = await client.transaction()
        await transaction.send_many(mine, [b"lost"])
        await client.close()
        with pytest.raises(danubius.DanubiusError, match="closed"):
            await transaction.commit()
        assert (await producer.send(b"kept")).offset == 0


async def test_commit_survives_a_restart(start_broker: StartBroker, topic: str) -> None:
    process = start_broker()
    async with (
        danubius.connect(process.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        await producer.send(b"in")
        message = await consumer.receive(timeout=HANG_S)
        async with client.transaction() as transaction:
            await transaction.send(producer, b"out")
            await transaction.ack(consumer, message)
        open_one = await client.transaction()
        await open_one.send_many(producer, [b"forgotten"])
        process.kill()
        process.start()
        again = await consumer.receive(timeout=HANG_S)
        assert again.payload == b"out"
        with pytest.raises(TransactionAborted, match="connection"):
            await open_one.commit()
        assert [m.payload for m in await read_all(client, topic)] == [b"in", b"out"]


def test_without_an_event_loop(broker: BrokerProcess, topic: str) -> None:
    with (
        danubius.blocking.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        producer.send(b"in")
        message = consumer.receive(timeout=HANG_S)
        with client.transaction(timeout=HANG_S) as transaction:
            assert transaction.id > 0
            transaction.send(producer, b"out", key=b"k")
            transaction.send_many(producer, [b"and", b"more"])
            transaction.ack(consumer, message)
        transaction = client.transaction()
        transaction.send(producer, b"never")
        transaction.abort()
        transaction = client.transaction()
        transaction.commit()
        with pytest.raises(danubius.InvalidArgument, match="is over: begin another"):
            transaction.send(producer, b"late")
        assert client.resolve_offset(topic, "latest") == 4
        assert [consumer.receive(timeout=HANG_S).payload for _ in range(3)] == [
            b"out",
            b"and",
            b"more",
        ]


async def test_partitioned_topics_take_part(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic, partitions=3)
        async with (
            client.producer(topic) as producer,
            client.consumer(topic, subscription="s", start="earliest") as consumer,
        ):
            async with client.transaction() as transaction:
                await transaction.send_many(producer, [b"%d" % n for n in range(30)])
                await transaction.send(producer, b"30", key=b"k")
            received = [await consumer.receive(timeout=HANG_S) for _ in range(31)]
            assert sorted(int(m.payload) for m in received) == list(range(31))
            assert len({m.topic for m in received}) == 3
            async with client.transaction() as transaction:
                for message in received:
                    await transaction.ack(consumer, message)
            for index in range(3):
                [s] = (await client.describe_topic(f"{topic}-part-{index}")).subscriptions
                assert s.backlog == 0


async def test_a_commit_whose_answer_is_lost_is_asked_for_again(
    broker: BrokerProcess, topic: str
) -> None:
    async with (
        LossyProxy(broker.port) as proxy,
        danubius.connect(proxy.url) as client,
        client.producer(topic) as producer,
    ):
        transaction = await client.transaction()
        await transaction.send_many(producer, [b"once"])
        await client.resolve_offset(topic, "latest")  # the answers before it are here too
        proxy.mute()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(transaction.commit())
            await proxy.swallowed.wait()
            proxy.cut()
        assert [m.payload for m in await read_all(client, topic)] == [b"once"]


async def test_a_cut_before_the_commit_aborts(broker: BrokerProcess, topic: str) -> None:
    async with (
        LossyProxy(broker.port) as proxy,
        danubius.connect(proxy.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        await producer.send(b"in")
        message = await consumer.receive(timeout=HANG_S)
        transaction = await client.transaction()
        await transaction.ack(consumer, message)
        await transaction.send_many(producer, [b"lost"])
        proxy.cut()
        with pytest.raises(TransactionAborted, match="the connection to the broker was lost"):
            await transaction.commit()
        again = await consumer.receive(timeout=HANG_S)
        assert (again.offset, again.redelivery_count) == (0, 1)
        async with client.transaction() as transaction:  # its producer may still be on its way back
            await transaction.send(producer, b"out")
            await transaction.ack(consumer, again)
        assert [m.payload for m in await read_all(client, topic)] == [b"in", b"out"]
