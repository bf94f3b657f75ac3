"""The client without `async`: the same calls from ordinary threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.blocking import LoopThread, Mailbox
from danubius.record.batch import read_header
from danubius.wire.commands import Flow, Produce, Produced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from danubius.wire.frame import Frame
    from unit.client.scripted_broker import Peer, ScriptedBroker


def serve_store(broker: ScriptedBroker) -> None:
    count = 0

    def produce(peer: Peer, frame: Frame) -> None:
        nonlocal count
        peer.send(Produced(count), frame.correlation_id)
        count += read_header(frame.payload).count

    broker.on[Produce] = produce


async def test_threads_share_one_producer(broker: ScriptedBroker) -> None:
    serve_store(broker)

    def work() -> list[int]:
        with (
            danubius.blocking.connect(broker.url) as client,
            client.producer("/default/t") as producer,
            ThreadPoolExecutor(8) as pool,
        ):
            receipts = list(pool.map(producer.send, [b"%d" % i for i in range(100)]))
        return sorted(receipt.offset for receipt in receipts)

    assert await asyncio.to_thread(work) == list(range(100))


async def test_send_nowait_keeps_its_bound_and_flush_waits(broker: ScriptedBroker) -> None:
    serve_store(broker)

    def work() -> int:
        refused = 0
        with (
            danubius.blocking.connect(broker.url) as client,
            client.producer("/default/t", buffer_bytes=10_000) as producer,
        ):
            for _ in range(1000):
                try:
                    producer.send_nowait(b"x" * 100)
                except danubius.Overloaded:
                    refused += 1
                    producer.flush()
                    producer.send_nowait(b"x" * 100)
                assert producer.buffered_bytes <= 12_000
            producer.flush()
            assert producer.buffered_bytes == 0
        return refused

    assert await asyncio.to_thread(work) > 0
    sent = [read_header(f.payload).count for f in broker.received if type(f.command) is Produce]
    assert sum(sent) == 1000


async def test_a_closed_client_says_so_and_its_thread_ends(broker: ScriptedBroker) -> None:
    def work() -> None:
        client = danubius.blocking.connect(broker.url)
        producer = client.producer("/default/t")
        client.close()
        client.close()
        with pytest.raises(danubius.ClientClosed):
            producer.send(b"x")
        with pytest.raises(danubius.ClientClosed):
            client.list_topics()
        assert not any(t.name == "danubius" and t.is_alive() for t in threading.enumerate())

    await asyncio.to_thread(work)


def test_no_broker_is_an_error_and_leaves_no_thread() -> None:
    with pytest.raises(danubius.BrokerUnavailable):
        danubius.blocking.connect("danube://127.0.0.1:9")
    assert not any(t.name == "danubius" and t.is_alive() for t in threading.enumerate())


async def test_the_first_batch_after_a_reconnect_is_received_whole(broker: ScriptedBroker) -> None:
    loop = asyncio.get_running_loop()

    def lose_connection() -> None:
        broker.peers[0].drop()

    def work() -> list[int]:
        with (
            danubius.blocking.connect(broker.url) as client,
            client.consumer("/default/t", subscription="s") as consumer,
        ):
            # While the consumer waits for its first message.
            loop.call_soon_threadsafe(loop.call_later, 0.1, lose_connection)
            return [consumer.receive(timeout=5).offset for _ in range(3)]

    async with asyncio.TaskGroup() as tasks:
        receiving = tasks.create_task(asyncio.to_thread(work))
        await broker.arrived(Flow, 2)
        broker.deliver(0, [b"a", b"b", b"c"])
    assert receiving.result() == [0, 1, 2]


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.stop()


def test_a_mailbox_delivers_in_order_and_loses_nothing(loop_thread: LoopThread) -> None:
    mailbox = Mailbox(loop_thread)
    seen: list[int] = []
    for number in range(10_000):
        mailbox.put(lambda number=number: seen.append(number))
    loop_thread.run(asyncio.sleep(0))
    assert seen == list(range(10_000))
