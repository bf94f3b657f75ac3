"""The client against a broker that refuses, forgets, falls silent and drops connections."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import danubius
from danubius.client.producing.producer_lane import ProducerLane
from danubius.errors import StorageFull
from danubius.wire.commands import (
    CloseProducer,
    CreateTopic,
    Done,
    Error,
    Goodbye,
    Hello,
    OpenProducer,
    Ping,
    Pong,
    Produce,
    ProducerClosed,
)
from patience import HANG_S, SOON_S
from unit.client.scripted_store import Store

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from danubius.wire.frame import Frame
    from unit.client.scripted_broker import Peer, ScriptedBroker

TOPIC = "/default/t"


# ---------------------------------------------------------------- producers


async def test_concurrent_sends_share_one_batch(broker: ScriptedBroker) -> None:
    store = Store(broker)
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:
        async with asyncio.TaskGroup() as tasks:
            sends = [tasks.create_task(producer.send(b"%d" % i)) for i in range(100)]
        assert [send.result().offset for send in sends] == list(range(100))
    assert len(broker.commands(Produce)) == 1
    assert store.stored == [b"%d" % i for i in range(100)]


async def test_a_cancelled_send_leaves_the_others_alone(broker: ScriptedBroker) -> None:
    store = Store(broker)
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(producer.send(b"first"))
            second = tasks.create_task(producer.send(b"second"))
            await asyncio.sleep(0)
            first.cancel()
        assert second.result().offset == 1
    assert store.stored == [b"first", b"second"]


async def test_a_retryable_refusal_is_sent_again_in_order(broker: ScriptedBroker) -> None:
    store = Store(broker)
    store.refusals = [StorageFull("full"), StorageFull("full")]
    async with (
        danubius.connect(broker.url) as client,
        client.producer(TOPIC, batch_records=1) as producer,
    ):
        receipts = await producer.send_many([b"%d" % i for i in range(10)])
    assert store.stored == [b"%d" % i for i in range(10)]
    assert [receipt.offset for receipt in receipts] == list(range(10))


async def test_after_a_lost_connection_unanswered_batches_are_stored_once(
    broker: ScriptedBroker,
) -> None:
    store = Store(broker)
    store.is_silent = True
    async with (
        danubius.connect(broker.url) as client,
        client.producer(TOPIC, batch_records=2) as producer,
        asyncio.TaskGroup() as tasks,
    ):
        send = tasks.create_task(producer.send_many([b"%d" % i for i in range(6)]))
        await broker.arrived(Produce, 3)
        store.is_silent = False
        broker.peers[0].drop()
        receipts = await send
    assert [receipt.offset for receipt in receipts] == list(range(6))
    assert store.stored == [b"%d" % i for i in range(6)]
    assert broker.epoch == 1


async def test_past_a_poisoned_batch_the_others_are_stored_in_a_new_epoch(
    broker: ScriptedBroker,
) -> None:
    store = Store(broker)
    store.poison = b"3"
    async with (
        danubius.connect(broker.url) as client,
        client.producer(TOPIC, batch_records=1) as producer,
    ):
        with pytest.raises(danubius.InvalidBatch, match="poison") as caught:
            await producer.send_many([b"%d" % i for i in range(8)])
        assert caught.value.__notes__ == ["7 of the 8 messages were stored"]
        assert (await producer.send(b"after")).offset == 7
    assert store.stored == [b"0", b"1", b"2", b"4", b"5", b"6", b"7", b"after"]
    assert broker.epoch == 2


async def test_a_fenced_producer_fails_everything(broker: ScriptedBroker) -> None:
    fenced = danubius.ProducerFenced.code
    broker.on[Produce] = lambda peer, _frame: peer.send(
        ProducerClosed(broker.handle, fenced, "taken over")
    )
    async with danubius.connect(broker.url) as client:
        producer = await client.producer(TOPIC)
        with pytest.raises(danubius.ProducerFenced, match="taken over"):
            await producer.send(b"x")
        with pytest.raises(danubius.ProducerFenced):
            await producer.send(b"y")


@pytest.mark.parametrize("kind", [StorageFull, danubius.StorageFailed, danubius.Overloaded])
async def test_send_gives_up_with_what_the_broker_kept_saying(
    broker: ScriptedBroker, kind: type[danubius.DanubiusError]
) -> None:
    store = Store(broker)
    store.refusals = [kind("the disk is full")] * 1000
    async with danubius.connect(broker.url) as client:
        producer = await client.producer(TOPIC, send_timeout=1.0)
        with pytest.raises(kind, match=r"gave up after 1 s.* the disk is full"):
            await producer.send(b"x")
        store.refusals = []
        # The wait that the refusals brought about may be longer than this short patience.
        async with asyncio.timeout(HANG_S):
            while not store.stored:
                with suppress(kind):
                    assert (await producer.send(b"y")).offset == 0
    assert store.stored == [b"y"]


async def test_a_send_that_is_not_answered_is_in_doubt_whatever_was_said_before(
    broker: ScriptedBroker,
) -> None:
    store = Store(broker)
    store.refusals = [StorageFull("the disk is full")]
    store.is_silent = True
    async with danubius.connect(broker.url) as client:
        producer = await client.producer(TOPIC, send_timeout=1.0)
        with pytest.raises(danubius.DeadlineExceeded, match="the disk is full"):
            await producer.send(b"x")
        assert store.stored == [b"x"]


async def test_every_send_ends_in_time_though_the_broker_takes_no_new_epoch_either(
    broker: ScriptedBroker,
) -> None:
    """A full disk: the first send leaves a gap, and the new epoch that leads past it is refused as well."""
    store = Store(broker)
    async with danubius.connect(broker.url) as client:
        producer = await client.producer(TOPIC, send_timeout=1.0)
        await producer.send(b"before")

        def refuse(peer: Peer, frame: Frame) -> None:
            full = StorageFull("the disk is full")
            peer.send(Error(full.code, str(full), int(full.retry)), frame.correlation_id)

        def refuse_new_lives(peer: Peer, frame: Frame) -> None:
            assert isinstance(frame.command, OpenProducer)
            (broker.answer if frame.command.resume_epoch else refuse)(peer, frame)

        store.refusals = [StorageFull("the disk is full")] * 1000
        broker.on[OpenProducer] = refuse_new_lives
        with pytest.raises(StorageFull, match="the disk is full"):
            await producer.send(b"refused")
        store.refusals = []
        for _ in range(3):
            with pytest.raises(danubius.DeadlineExceeded, match="the disk is full"):
                async with asyncio.timeout(HANG_S):
                    await producer.send(b"refused too")
        del broker.on[OpenProducer]
        async with asyncio.timeout(HANG_S):
            while len(store.stored) < 2:
                with suppress(danubius.DeadlineExceeded):
                    await producer.send(b"after")
    assert store.stored == [b"before", b"after"]


async def test_the_send_timeout_counts_from_the_send_not_from_the_linger(
    broker: ScriptedBroker,
) -> None:
    store = Store(broker)
    store.is_silent = True
    async with danubius.connect(broker.url) as client:
        producer = await client.producer(TOPIC, linger=0.05, send_timeout=HANG_S)
        producer.send_nowait(b"x")
        accepted_ns = time.monotonic_ns()
        await broker.arrived(Produce)
        assert isinstance(producer, ProducerLane)
        parcel = producer._shipper.outbox.oldest
        assert parcel is not None
        assert parcel.deadline_ns <= accepted_ns + HANG_S * 1e9
        store.is_silent = False
        broker.peers[0].drop()
        await producer.flush()


async def test_flush_tells_what_a_cancelled_send_many_cannot(broker: ScriptedBroker) -> None:
    store = Store(broker)
    store.is_silent = True
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(producer.send_many([b"bad", b"worse"]))
            await broker.arrived(Produce)
            sending.cancel()
        store.answers.clear()
        store.poison = b"bad"
        broker.next_sequence = 0
        broker.peers[0].drop()
        with pytest.raises(danubius.InvalidBatch, match="poison"):
            await producer.flush()


async def test_a_second_close_waits_for_the_first(broker: ScriptedBroker) -> None:
    store = Store(broker)
    store.is_silent = True
    async with danubius.connect(broker.url) as client, asyncio.TaskGroup() as tasks:
        producer = await client.producer(TOPIC)
        producer.send_nowait(b"x")
        first = tasks.create_task(producer.close())
        await broker.arrived(Produce)
        second = tasks.create_task(producer.close())
        await asyncio.wait([second], timeout=SOON_S)
        assert not second.done()
        store.is_silent = False
        broker.peers[0].drop()
        await second
        assert broker.commands(CloseProducer)
        await first
    await producer.close()


async def test_everybody_gets_an_error_of_their_own(broker: ScriptedBroker) -> None:
    Store(broker).poison = b"0"
    async with danubius.connect(broker.url) as client:
        producer = await client.producer(TOPIC)
        consumer = await client.consumer(TOPIC, subscription="s")
        errors: list[BaseException] = []

        async def expect_error(work: Coroutine[Any, Any, object]) -> None:
            with pytest.raises(danubius.DanubiusError) as caught:
                await work
            errors.append(caught.value)

        async with asyncio.TaskGroup() as tasks:
            for number in range(3):
                tasks.create_task(expect_error(producer.send(b"%d" % number)))
        await client.close()
        for _ in range(2):
            await expect_error(producer.send(b"x"))
            await expect_error(consumer.receive())
            await expect_error(client.list_topics())
    assert len({id(error) for error in errors}) == 9


async def test_what_is_not_open_says_how_to_open_it(broker: ScriptedBroker) -> None:
    async with danubius.connect(broker.url) as client:
        opening: Any = client.producer(TOPIC)
        with pytest.raises(AttributeError, match=r"'send' of what is not open yet: .*await"):
            opening.send(b"x")


async def test_flush_raises_what_send_nowait_could_not(broker: ScriptedBroker) -> None:
    Store(broker).poison = b"bad"
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:
        producer.send_nowait(b"bad")
        with pytest.raises(danubius.InvalidBatch):
            await producer.flush()
        producer.send_nowait(b"good")
        await producer.flush()


async def test_send_nowait_is_refused_at_the_bound_and_send_waits(broker: ScriptedBroker) -> None:
    store = Store(broker)
    store.is_silent = True
    async with (
        danubius.connect(broker.url) as client,
        client.producer(TOPIC, buffer_bytes=1000) as producer,
    ):
        producer.send_nowait(b"x" * 600)
        with pytest.raises(danubius.Overloaded, match="flush"):
            producer.send_nowait(b"y" * 600)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(producer.send(b"z" * 600))
            await broker.arrived(Produce)
            assert not waiting.done()
            store.is_silent = False
            broker.peers[0].drop()
        assert waiting.result().offset == 1


async def test_a_new_producer_is_told_the_first_refusal(broker: ScriptedBroker) -> None:
    broker.on[OpenProducer] = lambda peer, frame: peer.send(
        Error(StorageFull.code, "full", 2), frame.correlation_id
    )
    async with danubius.connect(broker.url) as client:
        with pytest.raises(StorageFull):
            async with client.producer(TOPIC):
                pass


# ---------------------------------------------------------------- the connection


async def test_a_silent_broker_is_given_up_and_dialled_again(broker: ScriptedBroker) -> None:
    broker.keepalive_ms = 40
    broker.on[Ping] = lambda _peer, _frame: None
    async with danubius.connect(broker.url):
        await broker.arrived(Hello, 2)
    assert broker.commands(Ping)


async def test_a_client_that_did_not_run_asks_before_it_gives_up_its_broker(
    broker: ScriptedBroker,
) -> None:
    broker.keepalive_ms = 400
    async with danubius.connect(broker.url):
        time.sleep(4 * broker.keepalive_ms / 1000)  # noqa: ASYNC251  # nothing runs meanwhile
        await broker.arrived(Ping)
        assert len(broker.commands(Hello)) == 1


async def test_the_brokers_ping_is_answered_with_its_number(broker: ScriptedBroker) -> None:
    async with danubius.connect(broker.url):
        broker.peers[0].send(Ping(), 77)
        await broker.arrived(Pong)
    [pong] = [frame for frame in broker.received if type(frame.command) is Pong]
    assert pong.correlation_id == 77


async def test_a_ping_with_the_number_of_a_call_does_not_answer_it(broker: ScriptedBroker) -> None:
    def probe_first(peer: Peer, frame: Frame) -> None:
        peer.send(Ping(), frame.correlation_id)
        broker.answer(peer, frame)

    broker.on[OpenProducer] = probe_first
    Store(broker)
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:
        assert (await producer.send(b"x")).offset == 0


async def test_a_broker_that_refuses_at_once_is_quoted(broker: ScriptedBroker) -> None:
    broker.on[Hello] = lambda peer, _frame: peer.send(
        Error(danubius.TooManyConnections.code, "1000 connections are open", 2)
    )
    with pytest.raises(danubius.TooManyConnections, match="1000"):
        await danubius.connect(broker.url)


async def test_a_broker_that_says_nothing_is_given_up(broker: ScriptedBroker) -> None:
    broker.on[Hello] = lambda _peer, _frame: None
    with pytest.raises(danubius.DeadlineExceeded, match=r"within 0\.5 s"):
        await danubius.connect(broker.url, connect_timeout=0.5)


async def test_nobody_there_is_a_clear_error() -> None:
    with pytest.raises(danubius.BrokerUnavailable, match=r"127\.0\.0\.1:9"):
        await danubius.connect("danube://127.0.0.1:9")


async def test_a_goodbye_leads_to_a_new_connection(broker: ScriptedBroker) -> None:
    store = Store(broker)
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:
        await producer.send(b"before")
        broker.peers[0].send(Goodbye("restart"))
        broker.peers[0].protocol.close()
        await broker.arrived(Hello, 2)
        assert (await producer.send(b"after")).offset == 1
    assert store.stored == [b"before", b"after"]


async def test_without_a_broker_for_too_long_everything_fails(broker: ScriptedBroker) -> None:
    broker.on[Hello] = lambda peer, frame: (
        peer.drop() if len(broker.commands(Hello)) > 1 else broker.answer(peer, frame)
    )
    async with danubius.connect(broker.url, reconnect_timeout=0.1) as client:
        producer = await client.producer(TOPIC)
        consumer = await client.consumer(TOPIC, subscription="s")
        broker.peers[0].drop()
        with pytest.raises(danubius.BrokerUnavailable, match=r"for 0\.1 s"):
            await consumer.receive(timeout=HANG_S)
        with pytest.raises(danubius.BrokerUnavailable):
            await producer.send(b"x")
        with pytest.raises(danubius.BrokerUnavailable):
            await client.describe_topic(TOPIC)


async def test_a_closed_client_says_so(broker: ScriptedBroker) -> None:
    client = await danubius.connect(broker.url)
    producer = await client.producer(TOPIC)
    consumer = await client.consumer(TOPIC, subscription="s")
    await client.close()
    await client.close()
    with pytest.raises(danubius.ClientClosed):
        await producer.send(b"x")
    with pytest.raises(danubius.ClientClosed):
        await consumer.receive()
    with pytest.raises(danubius.ClientClosed):
        await client.list_topics()


async def test_a_close_that_is_cancelled_still_closes_the_connection(
    broker: ScriptedBroker,
) -> None:
    Store(broker).is_silent = True
    client = await danubius.connect(broker.url)
    producer = await client.producer(TOPIC)
    producer.send_nowait(b"never acknowledged")
    async with asyncio.timeout(HANG_S):
        async with asyncio.TaskGroup() as tasks:
            closing = tasks.create_task(client.close())
            await broker.arrived(Produce)
            closing.cancel()
        await broker.deserted()
    with pytest.raises(danubius.ClientClosed):
        await client.list_topics()


async def test_a_request_under_way_when_the_client_closes_says_so(broker: ScriptedBroker) -> None:
    broker.on[CreateTopic] = lambda _peer, _frame: None
    client = await danubius.connect(broker.url)

    async def ask(*, exist_ok: bool) -> None:
        with pytest.raises(danubius.ClientClosed):
            await client.create_topic(TOPIC, exist_ok=exist_ok)

    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(ask(exist_ok=True))
        tasks.create_task(ask(exist_ok=False))
        await broker.arrived(CreateTopic, 2)
        await client.close()


async def test_a_request_is_not_repeated_if_that_could_do_harm(broker: ScriptedBroker) -> None:
    broker.on[CreateTopic] = lambda peer, _frame: peer.drop()
    async with danubius.connect(broker.url) as client:
        with pytest.raises(danubius.BrokerUnavailable):
            await client.create_topic(TOPIC)
        assert len(broker.commands(CreateTopic)) == 1
        broker.on[CreateTopic] = lambda peer, frame: (
            peer.drop()
            if len(broker.commands(CreateTopic)) == 2
            else peer.send(Done(), frame.correlation_id)
        )
        await client.create_topic(TOPIC, exist_ok=True)
        assert len(broker.commands(CreateTopic)) == 3


async def test_a_broker_that_hangs_up_after_each_handshake_is_dialled_ever_more_seldom(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "danubius.client.connection.link")

    def greet_and_hang_up(peer: Peer, frame: Frame) -> None:
        broker.answer(peer, frame)
        peer.protocol.close()

    async with danubius.connect(broker.url) as client, client.producer(TOPIC):
        broker.on[Hello] = greet_and_hang_up
        broker.peers[-1].drop()
        await broker.arrived(Hello, 5)
        del broker.on[Hello]
        await broker.arrived(OpenProducer, 2)
        await client.delete_topic(TOPIC)
    attempts = [
        vars(record)["attempts"] for record in caplog.records if record.message == "connected again"
    ]
    assert attempts == list(range(1, len(attempts) + 1))
    assert len(attempts) >= 5
