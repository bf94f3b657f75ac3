"""The client without `async`: the same calls from ordinary threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

import pytest

import danubius
from danubius.client.blocking.loop_thread import LoopThread, Mailbox
from danubius.record.batch import read_header
from danubius.wire.commands import Ack, Flow, Nack, OffsetResolved, Produce, Produced, ResolveOffset
from patience import HANG_S

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
            return [consumer.receive(timeout=HANG_S).offset for _ in range(3)]

    async with asyncio.TaskGroup() as tasks:
        receiving = tasks.create_task(asyncio.to_thread(work))
        await broker.arrived(Flow, 2)
        broker.deliver(0, [b"a", b"b", b"c"])
    assert receiving.result() == [0, 1, 2]


async def test_a_call_under_way_when_the_client_closes_ends(broker: ScriptedBroker) -> None:
    def work() -> None:
        client = danubius.blocking.connect(broker.url)
        consumer = client.consumer("/default/t", subscription="s")
        with ThreadPoolExecutor(20) as pool:
            calls = [pool.submit(consumer.receive) for _ in range(10)]
            client.close()
            calls += [pool.submit(consumer.receive) for _ in range(10)]
            for call in calls:
                with pytest.raises(danubius.ClientClosed):
                    call.result(timeout=HANG_S)

    await asyncio.to_thread(work)


async def test_closing_what_the_client_has_closed_does_nothing(broker: ScriptedBroker) -> None:
    serve_store(broker)
    broker.on[ResolveOffset] = lambda peer, frame: peer.send(
        OffsetResolved(0, 0, 0), frame.correlation_id
    )

    def work() -> None:
        client = danubius.blocking.connect(broker.url)
        with (
            client.producer("/default/t") as producer,
            client.consumer("/default/t", subscription="s") as consumer,
            client.reader("/default/t") as reader,
        ):
            client.close()
            producer.close()
            consumer.close()
            reader.close()

    await asyncio.to_thread(work)


async def test_a_nack_with_a_wrong_delay_is_refused_and_acks_go_on(broker: ScriptedBroker) -> None:
    def work() -> None:
        with (
            danubius.blocking.connect(broker.url) as client,
            client.consumer("/default/t", subscription="s") as consumer,
        ):
            message = consumer.receive(timeout=HANG_S)
            for delay in (-1.0, float("nan"), "soon"):
                with pytest.raises(danubius.InvalidArgument, match="delay"):
                    consumer.nack(message, delay=cast("float", delay))
            consumer.ack(message)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.to_thread(work))
        await broker.arrived(Flow)
        broker.deliver(0, [b"x"])
    assert broker.commands(Ack) == [Ack(1, [(0, 1)])]
    assert broker.commands(Nack) == []


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


def test_a_call_that_fails_strands_none_behind_it(loop_thread: LoopThread) -> None:
    mailbox = Mailbox(loop_thread)
    seen: list[int] = []
    is_full = threading.Event()

    def fail(error: Exception) -> None:
        is_full.wait(HANG_S)
        raise error

    mailbox.put(lambda: fail(danubius.ClientClosed("too late")))
    mailbox.put(lambda: fail(RuntimeError("a bug")))
    mailbox.put(lambda: seen.append(1))
    is_full.set()
    loop_thread.run(asyncio.sleep(0))
    assert seen == [1]


def test_stopping_a_loop_ends_what_runs_on_it_and_refuses_more() -> None:
    loop = LoopThread()
    is_running = threading.Event()

    async def last_forever() -> None:
        is_running.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(loop.run, last_forever())
        assert is_running.wait(HANG_S)
        loop.stop()
        with pytest.raises(danubius.ClientClosed):
            call.result(timeout=HANG_S)
    with pytest.raises(danubius.ClientClosed):
        loop.run(asyncio.sleep(0))
    with pytest.raises(danubius.ClientClosed):
        loop.post(is_running.clear)
    loop.stop()


def test_a_mailbox_of_a_stopped_loop_refuses_every_call(loop_thread: LoopThread) -> None:
    mailbox = Mailbox(loop_thread)
    loop_thread.stop()
    for _ in range(3):
        with pytest.raises(danubius.ClientClosed):
            mailbox.put(lambda: None)
