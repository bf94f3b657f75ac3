"""Pieces that are not where they should be, that nobody completes, or that another consumer holds."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius import InvalidBatch
from danubius.client.core.chunks import Slicer, plan, write_offsets
from danubius.client.producing.producer_lane import ProducerLane
from e2e.traffic import nothing_comes
from patience import HANG_S, LOOK_S, SOON_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess

PAYLOAD = bytes(range(256)) * 40
HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Sender:
    """Sends single pieces of a message, as a producer does that may die between them."""

    def __init__(self, producer: danubius.Producer, number: int = 1) -> None:
        assert isinstance(producer, ProducerLane)
        self.lane = producer
        self.slicer = Slicer(f"{number:032x}", PAYLOAD, None, plan(len(PAYLOAD), 4096, 0, 0))
        self.offsets: list[int] = []

    async def send(self, index: int, patience_ms: int = 0) -> None:
        payload, told = self.slicer.piece(index, now_ms() + patience_ms)
        self.offsets.append(await (await self.lane.put_piece(payload, None, told, 0)))

    async def send_first(self, patience_ms: int = 0) -> None:
        """All but the last."""
        for index in range(len(self.slicer) - 1):
            await self.send(index, patience_ms)

    async def send_last(self, offsets: str | None = None) -> None:
        told_offsets = write_offsets(self.offsets) if offsets is None else offsets
        payload, told = self.slicer.last(now_ms(), told_offsets)
        await (await self.lane.put_piece(payload, None, told, 0))


async def backlog(client: danubius.Client, topic: str) -> int:
    described = await client.admin.describe_subscription(topic, "s")
    return described.statistics.backlog_messages


async def until_backlog(client: danubius.Client, topic: str, count: int) -> None:
    async with asyncio.timeout(HANG_S):
        while await backlog(client, topic) != count:  # noqa: ASYNC110  # it is in another process
            await asyncio.sleep(LOOK_S)


async def test_pieces_that_are_not_there_are_an_error_once(
    broker: BrokerProcess, topic: str
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        await producer.send_many([b"before"] * 3)
        await Sender(producer).send_last("0-1")
        await producer.send(b"behind")
        for _ in range(3):
            assert (await consumer.receive(timeout=HANG_S)).payload == b"before"
        with pytest.raises(InvalidBatch, match="cannot be put together: there is no piece 0"):
            await consumer.receive(timeout=HANG_S)
        assert (await consumer.receive(timeout=HANG_S)).payload == b"behind"
        async with client.reader(topic, start="earliest", stop_at_end=True) as reader:
            came: list[bytes] = []
            with pytest.raises(InvalidBatch, match="there is no piece 0"):
                while (batch := await reader.read_batch(timeout=HANG_S)) is not None:
                    came += batch.payloads
            came += [message.payload async for message in reader]
            assert came == [*[b"before"] * 3, b"behind"]


async def test_offsets_beyond_the_topic_are_an_error_once(
    broker: BrokerProcess, topic: str
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        await Sender(producer).send_last("1000000-1000001")
        await producer.send(b"behind")
        with pytest.raises(InvalidBatch, match="cannot be put together"):
            await consumer.receive(timeout=HANG_S)
        assert (await consumer.receive(timeout=HANG_S)).payload == b"behind"


async def test_pieces_that_nobody_completes_are_acknowledged_and_others_wait(
    broker: BrokerProcess, topic: str
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest", chunk_patience=0.1) as consumer,
    ):
        dead, alive = Sender(producer, 1), Sender(producer, 2)
        await dead.send_first()
        await alive.send_first(HOUR_MS)
        await producer.send(b"behind")
        message = await consumer.receive(timeout=HANG_S)
        assert message.payload == b"behind"
        await consumer.ack(message)
        await until_backlog(client, topic, len(alive.offsets))
        await alive.send_last()
        message = await consumer.receive(timeout=HANG_S)
        assert message.payload == PAYLOAD
        await consumer.ack(message)
        await until_backlog(client, topic, 0)


async def receive_any(
    consumers: list[danubius.Consumer],
) -> tuple[danubius.Consumer, danubius.Message]:
    async with asyncio.timeout(HANG_S):
        while True:
            for consumer in consumers:
                try:
                    return consumer, await consumer.receive(timeout=SOON_S)
                except TimeoutError:
                    continue


async def test_pieces_of_a_message_that_another_has_are_left_to_it(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        await client.admin.create_subscription(topic, "s", type="shared", start="earliest")
        sender = Sender(producer)
        await sender.send_first()
        await sender.send_last()
        consumers = [
            await client.consumer(topic, subscription="s", type="shared", chunk_patience=0.05)
            for _ in range(3)
        ]
        owner, message = await receive_any(consumers)
        for consumer in consumers:
            await nothing_comes(consumer)
        assert await backlog(client, topic) == len(sender.slicer), "it was not acknowledged"
        await owner.nack(message)
        owner, message = await receive_any(consumers)
        assert message.payload == PAYLOAD
        await owner.ack(message)
        await until_backlog(client, topic, 0)
