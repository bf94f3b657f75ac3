"""A transaction waits for a producer that is on its way back to its topic, and not for one that never comes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.client.producing.producer_lane import ProducerLane
from e2e.traffic import take

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess


def lane_of(producer: danubius.Producer) -> ProducerLane:
    assert isinstance(producer, ProducerLane)
    return producer


async def test_a_producer_that_is_on_its_way_back_is_waited_for(
    broker: BrokerProcess, topic: str
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        lane = lane_of(producer)
        async with client.transaction() as transaction:
            before = lane.attachment.held
            lane._shipper._reopen()  # as when the broker ends it with advice to come again
            assert lane.attachment.held is None
            await transaction.send_many(producer, [b"a", b"b"])
            after = lane.attachment.held
        assert before is not None
        assert after is not None
        assert after.reply.handle != before.reply.handle
        assert [message.payload for message in await take(consumer, 2)] == [b"a", b"b"]


async def test_the_wait_ends_with_the_producer(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        lane = lane_of(producer)
        transaction = await client.transaction()
        lane.attachment._hold(None)
        async with asyncio.TaskGroup() as tasks:
            deleting = tasks.create_task(client.admin.delete_topic(topic))
            with pytest.raises(danubius.TopicDeleted):
                await transaction.send_many(producer, [b"a"])
            await deleting
        await transaction.abort()


async def test_a_consumer_acknowledges_under_the_handle_it_came_back_with(
    broker: BrokerProcess, topic: str
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        await producer.send(b"a")
        message = await consumer.receive(30.0)
        transaction = await client.transaction()
        await client.admin.seek(topic, "s", "earliest")
        again = await consumer.receive(30.0)  # it is back, under another handle
        await transaction.ack(consumer, again)
        await transaction.commit()
        assert again.offset == message.offset
