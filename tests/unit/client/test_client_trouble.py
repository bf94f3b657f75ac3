"""The client against a broker that refuses, forgets, falls silent and drops connections."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.errors import OutOfSequence, StorageFull
from danubius.model.subscription import AtOffset
from danubius.record.batch import RecordBatch, read_header, stamp
from danubius.record.encode import encode
from danubius.wire.commands import (
    Ack,
    CloseConsumer,
    ConsumerClosed,
    CreateTopic,
    Deliver,
    Done,
    Error,
    Fetch,
    Fetched,
    Flow,
    Goodbye,
    Hello,
    Nack,
    OffsetResolved,
    OpenProducer,
    Ping,
    Pong,
    Produce,
    Produced,
    ProducerClosed,
    ResolveOffset,
    Subscribe,
)

if TYPE_CHECKING:
    from danubius.wire.frame import Frame
    from unit.client.scripted_broker import Peer, ScriptedBroker

TOPIC = "/default/t"


def payloads_of(frame: Frame) -> list[bytes]:
    return RecordBatch.parse(frame.payload).payloads()


class Store:
    """Stores batches as the real broker does: in sequence, each once, with the first answer for a repeat."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.stored: list[bytes] = []
        self.answers: dict[tuple[int, int], int] = {}
        self.refusals: list[danubius.DanubiusError] = []
        self.poison: bytes | None = None
        self.is_silent = False
        broker.on[Produce] = self.produce

    def produce(self, peer: Peer, frame: Frame) -> None:
        header = read_header(frame.payload)
        key = header.producer_epoch, header.base_sequence
        error = self._refusal(frame)
        if error is not None:
            peer.send(Error(error.code, str(error), int(error.retry)), frame.correlation_id)
            return
        if key not in self.answers:
            self.answers[key] = len(self.stored)
            self.stored += payloads_of(frame)
            self.broker.next_sequence += header.count
        if not self.is_silent:
            peer.send(Produced(self.answers[key]), frame.correlation_id)

    def _refusal(self, frame: Frame) -> danubius.DanubiusError | None:
        header = read_header(frame.payload)
        assert header.producer_epoch == self.broker.epoch
        if (header.producer_epoch, header.base_sequence) in self.answers:
            return None
        if self.refusals:
            return self.refusals.pop(0)
        if header.base_sequence != self.broker.next_sequence:
            return OutOfSequence("not yet")
        if self.poison is not None and self.poison in payloads_of(frame):
            return danubius.InvalidBatch("poison")
        return None


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


async def test_send_gives_up_after_its_timeout_and_says_why(broker: ScriptedBroker) -> None:
    store = Store(broker)
    store.refusals = [StorageFull("the disk is full")] * 1000
    async with danubius.connect(broker.url) as client:
        producer = await client.producer(TOPIC, send_timeout=0.2)
        with pytest.raises(danubius.DeadlineExceeded, match="the disk is full"):
            await producer.send(b"x")
        store.refusals = []
        assert (await producer.send(b"y")).offset == 0
    assert store.stored == [b"y"]


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


# ---------------------------------------------------------------- consumers


def delivery(first: int, payloads: list[bytes]) -> bytes:
    batch = encode(payloads, publish_time_us=1)
    stamp(batch, first, 1)
    return bytes(batch)


def deliver(broker: ScriptedBroker, first: int, payloads: list[bytes]) -> None:
    end = first + len(payloads)
    broker.peers[0].send(
        Deliver(broker.handle, first, end, len(payloads)), 0, delivery(first, payloads)
    )


async def test_acks_of_single_messages_travel_as_one_range(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        deliver(broker, 10, [b"%d" % i for i in range(50)])
        for _ in range(50):
            await consumer.ack(await consumer.receive(timeout=5))
        await broker.arrived(Ack)
    assert broker.commands(Ack)[0] == Ack(1, [(10, 60)])


async def test_close_confirms_the_last_acks(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        deliver(broker, 0, [b"a", b"b"])
        await consumer.ack_cumulative(await consumer.receive_batch(timeout=5))
    acks = [frame for frame in broker.received if type(frame.command) is Ack]
    assert acks[-1].correlation_id != 0
    assert acks[-1].command == Ack(1, [(0, 2)])
    kinds = [type(frame.command) for frame in broker.received]
    assert kinds.index(CloseConsumer) > max(i for i, kind in enumerate(kinds) if kind is Ack)


async def test_credit_is_returned_in_half_windows(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s", prefetch_messages=10) as consumer,
    ):
        await broker.arrived(Flow)
        deliver(broker, 0, [b"x"] * 4)
        deliver(broker, 4, [b"x"] * 1)
        await consumer.receive_batch(timeout=5)
        await consumer.receive_batch(timeout=5)
        await broker.arrived(Flow, 2)
    flows = broker.commands(Flow)
    assert [flow.messages for flow in flows] == [10, 5]


async def test_after_a_loss_the_queue_is_dropped_and_late_acks_go_first(
    broker: ScriptedBroker,
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s", name="me") as consumer,
    ):
        deliver(broker, 0, [b"a", b"b", b"c"])
        message = await consumer.receive(timeout=5)
        seen = len(broker.received)
        broker.peers[0].drop()
        await consumer.ack(message)
        await broker.arrived(Subscribe, 2)
        await broker.arrived(Flow, 2)
        after = [type(frame.command) for frame in broker.received[seen:]]
        assert after == [Hello, Subscribe, Ack, Flow]
        assert broker.commands(Ack)[-1] == Ack(2, [(0, 1)])
        deliver(broker, 1, [b"b", b"c"])
        assert (await consumer.receive(timeout=5)).payload == b"b"
    subscribes = broker.commands(Subscribe)
    assert {subscribe.consumer for subscribe in subscribes} == {"me"}


async def test_records_outside_the_delivered_range_are_passed_over(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        data = delivery(0, [b"0", b"1", b"2"]) + delivery(3, [b"3", b"4", b"5"])
        broker.peers[0].send(Deliver(1, 2, 5, 3, 4), 0, data)
        batch = await consumer.receive_batch(timeout=5)
        assert batch.payloads == [b"2", b"3", b"4"]
        assert batch.offsets == [2, 3, 4]
        assert [message.redelivery_count for message in batch] == [4, 4, 4]


async def test_single_and_batch_receives_take_turns(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        deliver(broker, 0, [b"%d" % i for i in range(10)])
        assert (await consumer.receive(timeout=5)).offset == 0
        assert (await consumer.receive_batch(max_messages=3)).offsets == [1, 2, 3]
        assert (await anext(consumer)).offset == 4
        assert (await consumer.receive_batch()).offsets == [5, 6, 7, 8, 9]


async def test_nacks_are_gathered_by_delay(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        deliver(broker, 0, [b"%d" % i for i in range(4)])
        messages = (await consumer.receive_batch(timeout=5)).messages()
        await consumer.nack(messages[0])
        await consumer.nack(messages[1])
        await consumer.nack(messages[3], delay=1.5)
        await broker.arrived(Nack, 2)
    assert broker.commands(Nack) == [Nack(1, [(0, 2)], 0), Nack(1, [(3, 4)], 1500)]


async def test_an_ended_consumer_hands_out_what_it_has_then_raises(broker: ScriptedBroker) -> None:
    async with danubius.connect(broker.url) as client:
        consumer = await client.consumer(TOPIC, subscription="s")
        deliver(broker, 0, [b"good"])
        broker.peers[0].send(ConsumerClosed(1, danubius.LedgerDamaged.code, "damaged: [1, 5)"))
        assert (await consumer.receive(timeout=5)).payload == b"good"
        with pytest.raises(danubius.LedgerDamaged, match="damaged"):
            await consumer.receive(timeout=5)


async def test_a_timeout_is_both_kinds_of_error_and_loses_nothing(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        with pytest.raises(TimeoutError) as caught:
            await consumer.receive(timeout=0.01)
        assert isinstance(caught.value, danubius.DeadlineExceeded)
        deliver(broker, 0, [b"late"])
        assert (await consumer.receive(timeout=5)).payload == b"late"


async def test_a_message_of_another_topic_cannot_be_acknowledged(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        stranger = danubius.Message("/default/other", 0, b"", None, {}, 0, 0)
        with pytest.raises(danubius.InvalidArgument, match="/default/other"):
            await consumer.ack(stranger)


# ---------------------------------------------------------------- readers


async def test_a_reader_goes_on_where_it_was_after_a_loss(broker: ScriptedBroker) -> None:
    broker.on[ResolveOffset] = lambda peer, frame: peer.send(
        OffsetResolved(0, 0, 4), frame.correlation_id
    )

    def fetch(peer: Peer, frame: Frame) -> None:
        assert isinstance(frame.command, Fetch)
        assert isinstance(frame.command.start, AtOffset)
        at = frame.command.start.offset
        if at == 2 and len(broker.commands(Fetch)) == 2:
            peer.drop()
            return
        data = delivery(at, [b"%d" % at, b"%d" % (at + 1)])
        peer.send(Fetched(at, at + 2, 0, 4), frame.correlation_id, data)

    broker.on[Fetch] = fetch
    async with (
        danubius.connect(broker.url) as client,
        client.reader(TOPIC, start="earliest", stop_at_end=True) as reader,
    ):
        assert [message.payload async for message in reader] == [b"0", b"1", b"2", b"3"]
        assert await reader.read_batch() is None
        assert reader.position == 4


# ---------------------------------------------------------------- the connection


async def test_a_silent_broker_is_given_up_and_dialled_again(broker: ScriptedBroker) -> None:
    broker.keepalive_ms = 40
    broker.on[Ping] = lambda _peer, _frame: None
    async with danubius.connect(broker.url):
        await broker.arrived(Hello, 2)
    assert broker.commands(Ping)


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
    with pytest.raises(danubius.DeadlineExceeded, match=r"within 0\.05 s"):
        await danubius.connect(broker.url, connect_timeout=0.05)


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
            await consumer.receive(timeout=5)
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
