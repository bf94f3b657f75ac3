"""Clients of Danube's API that vanish, stall or ask for too much: memory is bounded, others notice nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import grpc
import pytest

import danubius
from danubius.edge.grpc.front.requests import READ_PER_CONNECTION_MAX
from danubius.edge.grpc.front.serving import REQUEST_BYTES_MAX
from e2e.danube_calls import calling
from e2e.danube_peers import SHARED, DanubeConsumer, DanubeProducer, payloads
from e2e.raw_http2 import SEND_MESSAGE, Http2Peer
from e2e.traffic import bystander, eventually, numbered, read_all
from proving import sized

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

Code = grpc.StatusCode
MIB: Final = 1024 * 1024
VANISHING: Final = 10_000
CONNECTIONS: Final = 50


@pytest.fixture
def broker(grpc_broker: BrokerProcess) -> BrokerProcess:
    return grpc_broker


async def test_ten_thousand_producers_that_vanish_cost_little(start_broker: StartBroker) -> None:
    broker = start_broker(grpc=True)
    topics = [f"/default/crowd-{number}" for number in range(10)]

    async def crowd(at: int) -> None:
        """They say that they are there, some send something, and their connection is gone."""
        async with calling(broker.grpc_port) as calls:
            for number in range(at, VANISHING, CONNECTIONS):
                topic = topics[number % len(topics)]
                producer = await DanubeProducer.open(calls, topic, f"p{number}")
                if number % 10 == 0:
                    await producer.send(b"%d" % number)

    async with bystander(broker.url, "/honest/t") as other:
        before, front_before = broker.rss_bytes(), broker.front_rss_bytes()
        async with asyncio.TaskGroup() as tasks:
            for at in range(CONNECTIONS):
                tasks.create_task(crowd(at))
        await other.check()
        grown = broker.rss_bytes() - before
        assert grown < 150 * MIB, f"{grown / VANISHING:.0f} bytes a producer"
        assert broker.front_rss_bytes() - front_before < 100 * MIB
        async with danubius.connect(broker.url) as client:
            found = [one.payload for one in await read_all(client, topics[0])]
        assert sorted(found) == sorted(b"%d" % number for number in range(0, VANISHING, 10))
    assert broker.stop() == 0


async def test_a_stream_that_is_not_read_bounds_its_own_memory(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker("--cache-bytes", "32MiB", grpc=True)
    total = 100_000
    filler = bytes(1000)
    async with calling(broker.grpc_port) as calls, danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        stalled = await DanubeConsumer.open(calls, topic, "stalled")
        healthy = await DanubeConsumer.open(calls, topic, "healthy", kind=SHARED)
        before, front_before = broker.rss_bytes(), broker.front_rss_bytes()
        async with client.producer(topic, durability="written") as producer:
            for at in range(0, total, 1000):
                await producer.send_many(
                    [at_.to_bytes(4, "little") + filler for at_ in range(at, at + 1000)]
                )
        assert await distinct_offsets(healthy, 1000) == list(range(1000))
        grown = broker.rss_bytes() - before
        assert grown < 150 * MIB, f"{grown / MIB:.0f} MiB for a backlog of {total / 1000:.0f} MB"
        assert broker.front_rss_bytes() - front_before < 50 * MIB
        assert await distinct_offsets(stalled, 1000) == list(range(1000)), (
            "it goes on where it stopped"
        )


async def distinct_offsets(consumer: DanubeConsumer, count: int) -> list[int]:
    """In the order in which they came first: what is not acknowledged in time comes again."""
    seen: dict[int, None] = {}
    while len(seen) < count:
        (message,) = await consumer.take(1, is_acking=True)
        seen[message.msg_id.topic_offset] = None
    return list(seen)


async def test_a_stalled_consumer_of_a_shared_subscription_leaves_the_rest_to_others(
    broker: BrokerProcess, topic: str
) -> None:
    total = 2000
    filler = b"." * 8000  # more than connections buffer, all together
    sent = [payload + filler for payload in numbered(total)]
    async with calling(broker.grpc_port) as calls, danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        healthy = await DanubeConsumer.open(calls, topic, name="healthy", kind=SHARED)
        async with calling(broker.grpc_port) as others:
            await DanubeConsumer.open(others, topic, name="stalled", kind=SHARED)
            async with client.producer(topic) as producer:
                await producer.send_many(sent)
            found: set[bytes] = set()
            # Some are with the one that stalls, but not most of them.
            while len(found) < total // 2:
                (message,) = await healthy.take(1, is_acking=True)
                found.add(message.payload)
        while len(found) < total:
            (message,) = await healthy.take(1, is_acking=True)
            found.add(message.payload)
    assert found == set(sent)


async def test_a_message_that_clients_could_not_take_is_refused_at_once(
    broker: BrokerProcess, topic: str
) -> None:
    async with calling(broker.grpc_port) as calls:
        producer = await DanubeProducer.open(calls, topic)
        consumer = await DanubeConsumer.open(calls, topic)
        for size in (4 * MIB, 5 * MIB, 10 * MIB):
            with pytest.raises(grpc.aio.AioRpcError, match="bytes") as refused:
                await producer.send(bytes(size))
            assert refused.value.code() is Code.INVALID_ARGUMENT, size
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max") as refused:
            await producer.send(bytes(15 * MIB))
        assert refused.value.code() is Code.RESOURCE_EXHAUSTED
        large = bytes(4 * MIB - 2048)
        await producer.send(large)
        await producer.send(b"small")
        assert payloads(await consumer.take(2)) == [large, b"small"]


UNFINISHED_BYTES_MAX: Final = 2 * READ_PER_CONNECTION_MAX * REQUEST_BYTES_MAX
"""Of one connection: those that are read, and as many that have given way, whose memory is not given back yet."""
UNFINISHED: Final = sized(2 * READ_PER_CONNECTION_MAX + 1, 64)
"""So many are cut off three times at least, each time after ten seconds."""


@pytest.mark.grows
@pytest.mark.parametrize(
    ("path", "streams", "size"),
    [
        (SEND_MESSAGE, 64, 16 * MIB),
        (SEND_MESSAGE, UNFINISHED, 10 * MIB),
        ("/grpc.health.v1.Health/Check", UNFINISHED, 10 * MIB),
    ],
)
async def test_unfinished_messages_hold_little_and_give_it_back(
    start_broker: StartBroker, path: str, streams: int, size: int
) -> None:
    """All but the last byte of each is sent, as far as gRPC asks for it."""
    broker = start_broker(grpc=True)
    async with bystander(broker.url, "/honest/native") as other, calling(broker.grpc_port) as calls:
        producer = await DanubeProducer.open(calls, "/honest/t")
        before = broker.front_rss_bytes()
        async with Http2Peer(broker.grpc_port) as peer:
            await peer.leave_unfinished(path, streams, size)
            peak = broker.front_rss_peak_bytes() - before
            assert peak < UNFINISHED_BYTES_MAX, f"{peak / MIB:.0f} MiB"
            await producer.send(b"in time")
            await other.check()
        await eventually(
            lambda: broker.front_rss_bytes() - before < 50 * MIB, "memory is given back"
        )
        await producer.send(b"as ever")
