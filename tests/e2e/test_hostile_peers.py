"""Peers that speak well and behave badly: silent, greedy, stuck or too many."""

from __future__ import annotations

import asyncio
import resource
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import pytest

import danubius
from danubius.wire.commands import Opcode
from e2e.raw_wire import PeerClosed, RawPeer, frame
from e2e.traffic import bystander, collect, eventually, numbered, payloads, read_all
from patience import HANG_S, SOON_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

MIB: Final = 1024 * 1024
MESSAGE_TOO_LARGE = 103
OVERLOADED = 401


async def test_peer_that_stops_reading_bounds_its_own_memory(
    start_broker: StartBroker, topic: str
) -> None:
    """It granted endless credit and reads nothing: the broker holds little for it, others get everything."""
    broker = start_broker()
    total = 60_000
    async with (
        bystander(broker.url, topic) as other,
        danubius.connect(broker.url) as client,
        client.producer(topic, durability="written") as producer,
        RawPeer(broker.port) as stuck,
        client.consumer(topic, subscription="healthy", start="earliest") as healthy,
    ):
        await stuck.hello()
        handle = await stuck.subscribe(topic, "stuck")
        await stuck.send(frame(Opcode.FLOW, (handle, 10**9, 10**12)))
        stuck.stop_reading()
        await producer.send_many([bytes(1_000)] * total)
        seen = 0
        async with asyncio.timeout(HANG_S):
            while seen < total:
                batch = await healthy.receive_batch()
                await healthy.ack(batch)
                seen += len(batch)
        await other.check()
        assert broker.rss_bytes() < 400 * MIB
    assert seen == total


async def test_peer_that_stops_reading_gives_its_messages_back(
    broker: BrokerProcess, topic: str
) -> None:
    """Shared with a stuck peer: the healthy one goes on, and gets the rest once the stuck one is gone."""
    total = 20_000
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        RawPeer(broker.port) as stuck,
    ):
        await stuck.hello()
        handle = await stuck.subscribe(topic, "s", "shared", "stuck")
        await stuck.send(frame(Opcode.FLOW, (handle, 10**9, 10**12)))
        stuck.stop_reading()
        async with client.consumer(
            topic, subscription="s", type="shared", name="healthy"
        ) as healthy:
            await producer.send_many([bytes(1_000)] * total)
            offsets: set[int] = set()

            async def consume() -> None:
                while len(offsets) < total:
                    batch = await healthy.receive_batch()
                    await healthy.ack(batch)
                    offsets.update(batch.offsets)

            async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
                consuming = tasks.create_task(consume())
                await eventually(
                    lambda: len(offsets) > total // 4, "the healthy consumer gets its share"
                )
                stuck.abort()
                await consuming
    assert offsets == set(range(total))


async def test_producer_that_never_waits_is_slowed_not_stored_in_memory(
    start_broker: StartBroker, topic: str
) -> None:
    """It pipelines without end and reads no answer: the broker stops reading from it; nobody else feels it."""
    broker = start_broker()
    async with bystander(broker.url, topic) as other, RawPeer(broker.port) as greedy:
        await greedy.hello()
        producer = await greedy.open_producer(topic, "greedy")
        greedy.stop_reading()
        before = broker.rss_bytes()
        sent = 0

        async def pour() -> None:
            nonlocal sent
            payload = bytes(64 * 1024)
            while sent < 3_000:
                data = frame(
                    Opcode.PRODUCE, (producer.handle,), 10 + sent, producer.batch([payload], sent)
                )
                await greedy.send(data, within_s=HANG_S)
                sent += 1

        async with asyncio.TaskGroup() as tasks:
            pouring = tasks.create_task(pour())
            async with asyncio.timeout(HANG_S):
                while not pouring.done():
                    await other.check(1)
        assert broker.rss_bytes() - before < 300 * MIB
        greedy.resume_reading()
        answers = [await greedy.receive() for _ in range(sent)]
    assert [answer.opcode for answer in answers] == [Opcode.PRODUCED] * sent
    assert [answer.fields[0] for answer in answers] == list(range(sent))


async def test_peer_that_never_reads_its_answers_is_bounded(
    broker: BrokerProcess, topic: str
) -> None:
    """Requests whose answers nobody takes: the broker stops reading them instead of piling answers up."""
    async with bystander(broker.url, topic) as other, RawPeer(broker.port) as mute:
        await mute.hello()
        before = broker.rss_bytes()
        mute.stop_reading()
        flood = b"".join(
            frame(Opcode.LIST_TOPICS, ("", "", 1000), 5 + number) for number in range(200)
        )
        try:
            for _ in range(200):
                await mute.send(flood, within_s=10 * SOON_S)
        except (TimeoutError, PeerClosed):
            pass
        await other.check()
        assert broker.rss_bytes() - before < 100 * MIB


async def test_client_that_never_waits_is_told(broker: BrokerProcess, topic: str) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic, buffer_bytes=1_000_000) as producer,
    ):
        accepted = 0
        with pytest.raises(danubius.DanubiusError) as caught:
            for _ in range(5_000):
                producer.send_nowait(bytes(1_000))
                accepted += 1
        assert caught.value.code == OVERLOADED
        assert caught.value.is_retryable
        await producer.flush()
        producer.send_nowait(b"there is room again")
        await producer.flush()
        messages = await read_all(client, topic)
    assert len(messages) == accepted + 1
    assert 500 <= accepted <= 1_000


async def test_thousand_idle_connections(start_broker: StartBroker, topic: str) -> None:
    """They cost little, hold nobody up, and leave nothing behind."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4_096)), hard))
    broker = start_broker()
    files_before = broker.open_files()
    rss_before = broker.rss_bytes()
    async with bystander(broker.url, topic) as other:
        async with AsyncExitStack() as stack:
            for _ in range(1_000):
                peer = await stack.enter_async_context(RawPeer(broker.port))
                await peer.hello()
            assert broker.open_files() >= files_before + 1_000
            assert broker.rss_bytes() - rss_before < 100 * MIB
            await other.check(50)
            async with danubius.connect(broker.url) as newcomer:
                await newcomer.create_topic(topic)
        await eventually(
            lambda: broker.open_files() < files_before + 50, "the connections are forgotten"
        )


@pytest.mark.parametrize("size", [8 * MIB + 1, 12 * MIB])
async def test_message_over_the_limit_is_refused_by_the_client(
    broker: BrokerProcess, topic: str, size: int
) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        with pytest.raises(danubius.DanubiusError) as caught:
            await producer.send(bytes(size))
        assert caught.value.code == MESSAGE_TOO_LARGE
        assert str(8 * MIB) in str(caught.value) or "8 MiB" in str(caught.value)
        with pytest.raises(danubius.DanubiusError) as caught:
            await producer.send_many([b"small", bytes(size)])
        assert caught.value.code == MESSAGE_TOO_LARGE
        receipt = await producer.send(b"small")
        assert receipt.offset in {0, 1}


async def test_message_over_the_limit_is_refused_by_the_broker(
    broker: BrokerProcess, topic: str
) -> None:
    """One message of 9 MiB fits a frame but not the limit: refused, connection and sequence go on."""
    async with bystander(broker.url, topic) as other, RawPeer(broker.port) as peer:
        await peer.hello()
        producer = await peer.open_producer(topic, "writer")
        answer = await producer.produce([bytes(9 * MIB)], 0)
        assert (answer.opcode, answer.fields[0]) == (Opcode.ERROR, MESSAGE_TOO_LARGE)
        assert (await producer.produce([b"small"], 0)).fields == [0]
        await other.check()


async def test_frame_over_the_limit_is_refused_before_it_is_held(
    broker: BrokerProcess, topic: str
) -> None:
    async with bystander(broker.url, topic) as other, RawPeer(broker.port) as peer:
        await peer.hello()
        producer = await peer.open_producer(topic, "writer")
        data = frame(Opcode.PRODUCE, (producer.handle,), 9, producer.batch([bytes(20 * MIB)], 0))
        try:
            await peer.send(data)
        except PeerClosed:
            pass
        else:
            said = await peer.wait_closed()
            assert [received.fields[0] for received in said] == [MESSAGE_TOO_LARGE]
        await other.check()


async def test_many_consumers_on_one_connection(broker: BrokerProcess, topic: str) -> None:
    """A hundred subscriptions of one client each get everything."""
    async with danubius.connect(broker.url) as client, AsyncExitStack() as stack:
        await client.create_topic(topic)
        consumers = [
            await stack.enter_async_context(client.consumer(topic, subscription=f"s{number}"))
            for number in range(100)
        ]
        async with client.producer(topic) as producer:
            await producer.send_many(numbered(50))
        for consumer in consumers:
            [received] = await collect([consumer], 50)
            assert payloads(received) == numbered(50)
