"""Waits that end early leave nothing behind, and trouble is met with patience."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import pytest

import danubius
from danubius.client.consuming.consumer_lane import ConsumerLane
from danubius.client.consuming.reader_lane import ReaderLane
from danubius.client.producing.producer_lane import ProducerLane
from danubius.errors import StorageFull
from danubius.wire.commands import Ack, Error, Fetch, Hello, OffsetResolved, Produce, ResolveOffset
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from danubius.wire.frame import Frame
    from unit.client.scripted_broker import Peer, ScriptedBroker

TOPIC = "/default/t"


async def give_up(*waits: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Start each, let it get as far as it can, and cancel it."""
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(wait()) for wait in waits]
        for _ in range(5):
            await asyncio.sleep(0)
        for task in started:
            assert not task.done()
            task.cancel()


async def test_a_receive_that_was_given_up_is_forgotten(broker: ScriptedBroker) -> None:
    broker.on[ResolveOffset] = lambda peer, frame: peer.send(
        OffsetResolved(0, 0, 0), frame.correlation_id
    )
    broker.on[Fetch] = lambda _peer, _frame: None
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
        client.reader(TOPIC) as reader,
    ):
        await give_up(consumer.receive, consumer.receive_batch, reader.read_batch)
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=0)
        with pytest.raises(TimeoutError):
            await reader.read_batch(timeout=0)
        assert isinstance(consumer, ConsumerLane)
        assert isinstance(reader, ReaderLane)
        assert len(consumer._arrivals) == 0
        assert len(reader._arrivals) == 0


async def test_a_flush_and_a_send_that_were_given_up_are_forgotten(broker: ScriptedBroker) -> None:
    broker.on[Produce] = lambda _peer, _frame: None
    async with danubius.connect(broker.url) as client:
        producer = await client.producer(TOPIC, buffer_bytes=100, send_timeout=2.0)
        producer.send_nowait(b"x" * 90)
        await give_up(producer.flush, lambda: producer.send(b"x" * 90))
        assert isinstance(producer, ProducerLane)
        assert not producer._flushes
        assert len(producer._room) == 0
        with pytest.raises(danubius.DeadlineExceeded):
            await producer.close()


async def test_a_request_given_up_without_a_connection_is_forgotten(broker: ScriptedBroker) -> None:
    async with danubius.connect(broker.url) as client:
        broker.on[Hello] = lambda _peer, _frame: None
        broker.peers[0].drop()
        await broker.arrived(Hello, 2)
        await give_up(client.list_topics)
        assert len(client._connections.home._changes) == 0


async def test_acks_that_the_broker_cannot_take_now_are_sent_again_with_growing_waits(
    broker: ScriptedBroker,
) -> None:
    loop = asyncio.get_running_loop()
    times: list[float] = []

    def refuse(peer: Peer, frame: Frame) -> None:
        times.append(loop.time())
        if len(times) < 5:
            peer.send(Error(StorageFull.code, "full", 2), frame.correlation_id)
        else:
            broker.answer(peer, frame)

    broker.on[Ack] = refuse
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
        asyncio.timeout(HANG_S),
    ):
        broker.deliver(0, [b"a", b"b"])
        await consumer.ack(await consumer.receive())
        await broker.arrived(Ack, 2)
        await consumer.ack(await consumer.receive())
        await broker.arrived(Ack, 5)
    waits = [later - earlier for earlier, later in pairwise(times[:5])]
    # Each is between half and all of 50, 100, 200, 400 ms.
    assert all(wait >= 0.02 * 2**n for n, wait in enumerate(waits)), waits
    assert broker.commands(Ack)[4] == Ack(1, [(0, 2)])


@pytest.mark.parametrize("send_timeout", [None, math.inf, math.nan, -1, "5", True])
async def test_a_send_timeout_that_never_comes_is_refused(
    broker: ScriptedBroker, send_timeout: object
) -> None:
    async with danubius.connect(broker.url) as client:
        with pytest.raises(danubius.InvalidArgument, match=r"send_timeout is .*number"):
            client.producer(TOPIC, send_timeout=cast("float", send_timeout))


class Moody(dict[str, str]):
    """Attributes that are fine when they are looked at first."""

    def values(self) -> Any:
        raise RuntimeError("not in the mood")


async def test_whatever_goes_wrong_while_encoding_is_told(broker: ScriptedBroker) -> None:
    attributes = Moody(a="b")
    many: Sequence[Moody] = [attributes]
    async with danubius.connect(broker.url) as client, asyncio.timeout(HANG_S):
        producer = await client.producer(TOPIC)
        with pytest.raises(danubius.InvalidArgument, match="not in the mood"):
            await producer.send(b"x", attributes=attributes)
        with pytest.raises(danubius.InvalidArgument, match="not in the mood"):
            await producer.send_many([b"x"], attributes=many)
        producer.send_nowait(b"x", attributes=attributes)
        with pytest.raises(danubius.InvalidArgument, match="not in the mood"):
            await producer.close()
