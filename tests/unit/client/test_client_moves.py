"""Transactions, stages, delayed messages and last acknowledgements, when topics are at several brokers, or move."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.errors import TopicMoved
from danubius.model.ids import TopicName
from danubius.wire.commands import (
    AbortTransaction,
    Ack,
    BeginTransaction,
    CommitStages,
    CommitTransaction,
    ConsumerClosed,
    OpenProducer,
    OpenStage,
    Produced,
    ProducerClosed,
    Schedule,
    Stage,
    StageOpened,
    Subscribe,
    TransactionBegun,
    Upload,
)
from patience import HANG_S
from unit.client.scripted_cluster import Cluster, refuse_as_moved

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.wire.frame import Frame
    from unit.client.scripted_broker import Peer

TOPIC = TopicName("/default/t")
OTHER = TopicName("/default/other")
NOBODY = "danube://127.0.0.1:9"


# ---------------------------------------------------------------- transactions and stages


def serve_transactions(cluster: Cluster) -> None:
    def begin(number: int) -> Callable[[Peer, Frame], None]:
        return lambda peer, frame: peer.send(TransactionBegun(number), frame.correlation_id)

    for number, broker in enumerate(cluster.brokers):
        broker.on[BeginTransaction] = begin(number)


async def test_a_transaction_is_where_its_first_topic_is(cluster: Cluster) -> None:
    first, second, _ = cluster.brokers
    cluster.place(TOPIC, second)
    serve_transactions(cluster)
    async with (
        asyncio.timeout(HANG_S),
        danubius.connect(first.url) as client,
        client.producer(TOPIC) as producer,
        client.transaction() as transaction,
    ):
        await transaction.send(producer, b"x")
    assert len(second.commands(Stage)) == len(second.commands(CommitTransaction)) == 1
    assert len(first.commands(AbortTransaction)) == 1


async def test_a_transaction_over_two_brokers_is_refused(cluster: Cluster) -> None:
    first, second, _ = cluster.brokers
    cluster.place(TOPIC, first)
    cluster.place(OTHER, second)
    serve_transactions(cluster)
    async with (
        asyncio.timeout(HANG_S),
        danubius.connect(first.url) as client,
        client.producer(TOPIC) as here,
        client.producer(OTHER) as there,
    ):
        transaction = await client.transaction()
        await transaction.send(here, b"x")
        with pytest.raises(danubius.InvalidArgument, match="served by one broker"):
            await transaction.send(there, b"y")
        await transaction.abort()
        async with client.transaction() as transaction:
            await transaction.send(there, b"y")
    assert len(second.commands(CommitTransaction)) == 1


async def test_a_move_aborts_a_transaction(cluster: Cluster) -> None:
    first, second, _ = cluster.brokers
    serve_transactions(cluster)
    async with (
        asyncio.timeout(HANG_S),
        danubius.connect(first.url) as client,
        client.producer(TOPIC, batch_records=1) as producer,
    ):
        transaction = await client.transaction()
        await transaction.send(producer, b"x")
        cluster.place(TOPIC, second)
        first.peers[0].send(ProducerClosed(first.handle_of(TOPIC), TopicMoved.code, "moved"))
        await second.arrived(OpenProducer)
        with pytest.raises(danubius.TransactionAborted, match="moved to"):
            await transaction.send(producer, b"y")


async def test_a_stage_is_where_its_first_topic_is(cluster: Cluster) -> None:
    first, second, third = cluster.brokers
    cluster.place(TOPIC, second)
    cluster.place(OTHER, third)

    def open_stage(peer: Peer, frame: Frame) -> None:
        peer.send(StageOpened(7, 0), frame.correlation_id)

    for broker in cluster.brokers:
        broker.on[OpenStage] = open_stage
    async with asyncio.timeout(HANG_S), danubius.connect(first.url) as client:
        stage = await client.stage("job", 0, task="task")
        await stage.send_many(TOPIC, [b"a", b"b"])
        receipt = await stage.finish()
        assert receipt == (7, 1, 2, TOPIC)
        await client.commit_stages("job", 0, [receipt])
        with pytest.raises(danubius.InvalidArgument, match="served by one broker"):
            await client.commit_stages("job", 1, [receipt, receipt._replace(topic=OTHER)])
    assert len(second.commands(Upload)) == len(second.commands(CommitStages)) == 1
    assert not first.commands(CommitStages)


async def test_a_stage_moves_with_its_topic(cluster: Cluster) -> None:
    first, second, _ = cluster.brokers
    cluster.place(TOPIC, first)

    def open_stage(peer: Peer, frame: Frame) -> None:
        peer.send(StageOpened(7, 0), frame.correlation_id)

    first.on[OpenStage] = open_stage
    async with asyncio.timeout(HANG_S), danubius.connect(first.url) as client:
        stage = await client.stage("job", 0, task="task")
        await stage.send_many(TOPIC, [b"a"])
        assert await stage.finish() == (7, 1, 1, TOPIC)
        cluster.place(TOPIC, second)
        await stage.send_many(TOPIC, [b"b"])
        receipt = await stage.finish()
        await client.commit_stages("job", 0, [receipt])
    assert [(one.stage, one.index) for one in second.commands(Upload)] == [(7, 1)]
    assert not second.commands(OpenStage), "what is staged moved, too"
    assert len(second.commands(CommitStages)) == 1


async def test_delayed_messages_follow_their_topic(cluster: Cluster) -> None:
    first, second, _ = cluster.brokers

    def store(peer: Peer, frame: Frame) -> None:
        peer.send(Produced(0), frame.correlation_id)

    first.on[Schedule] = refuse_as_moved
    second.on[Schedule] = store
    async with (
        asyncio.timeout(HANG_S),
        danubius.connect(first.url) as client,
        client.producer(TOPIC) as producer,
    ):
        cluster.place(TOPIC, second)
        assert (await producer.send(b"later", deliver_after=60)).is_scheduled
    assert len(second.commands(Schedule)) == 1


async def test_a_consumer_that_is_closed_during_a_move_sends_its_acks_first(
    cluster: Cluster,
) -> None:
    first, second, _ = cluster.brokers
    async with asyncio.timeout(HANG_S), danubius.connect(first.url) as client:
        consumer = await client.consumer(TOPIC, subscription="s")
        first.deliver(0, [b"a", b"b"])
        await consumer.ack(await consumer.receive())
        await first.arrived(Ack)
        message = await consumer.receive()
        first.places[TOPIC], second.places[TOPIC] = second.url, first.url
        handle = first.handle_of(TOPIC)
        first.peers[0].send(ConsumerClosed(handle, TopicMoved.code, "moved"))
        await second.arrived(Subscribe)
        await consumer.ack(message)
        async with asyncio.TaskGroup() as tasks:
            closing = tasks.create_task(consumer.close())
            await second.arrived(Subscribe, 2)
            assert not closing.done()
            cluster.place(TOPIC, second)
        assert second.commands(Ack)[-1].ranges == [(1, 2)]
