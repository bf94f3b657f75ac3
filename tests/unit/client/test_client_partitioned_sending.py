"""Producers of partitioned topics: where messages go, and what comes back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.errors import ProducerFenced
from danubius.model.ids import TopicName
from danubius.model.partitions import partition_name, partition_names, route
from danubius.wire.commands import (
    CloseProducer,
    CreateTopic,
    Error,
    Lookup,
    OpenProducer,
    Produce,
    Produced,
    ProducerClosed,
    TopicChanged,
)
from patience import HANG_S
from unit.client.scripted_store import payloads_of

if TYPE_CHECKING:
    from danubius.wire.frame import Frame
    from unit.client.scripted_broker import Peer, ScriptedBroker

TOPIC = TopicName("/default/t")


class Partitions:
    """Stores what is sent to each partition, and answers with its offset there."""

    def __init__(self, broker: ScriptedBroker, count: int) -> None:
        self.broker = broker
        self.stored: dict[str, list[bytes]] = {}
        self.refused: set[str] = set()
        self.is_silent = False
        broker.version = 2
        broker.partitions[TOPIC] = count
        broker.on[Produce] = self._produce

    def _produce(self, peer: Peer, frame: Frame) -> None:
        command = frame.command
        assert isinstance(command, Produce)
        topic = self.broker.topics[command.handle]
        if topic in self.refused:
            peer.send(Error(danubius.InvalidBatch.code, "no", 0), frame.correlation_id)
            return
        log = self.stored.setdefault(topic, [])
        offset = len(log)
        log += payloads_of(frame)
        if not self.is_silent:
            peer.send(Produced(offset), frame.correlation_id)

    def at(self, receipt: danubius.Receipt) -> bytes:
        return self.stored[receipt.topic][receipt.offset]


async def test_one_key_goes_to_one_partition_as_other_clients_have_it(
    broker: ScriptedBroker,
) -> None:
    store = Partitions(broker, 4)
    keys = [b"key %d" % i for i in range(20)]
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:
        for key in keys * 2:
            receipt = await producer.send(key, key=key)
            assert receipt.topic == partition_name(TOPIC, route(key, 4))
            assert store.at(receipt) == key
    assert len(store.stored) == 4


async def test_messages_without_a_key_go_to_each_partition_in_turn(broker: ScriptedBroker) -> None:
    store = Partitions(broker, 3)
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:
        for number in range(5):
            await producer.send(b"%d" % number)
        for number in range(4):
            producer.send_nowait(b"n%d" % number)
        await producer.send_many([b"m"] * 6)
    assert {topic: len(log) for topic, log in store.stored.items()} == dict.fromkeys(
        partition_names(TOPIC, 3), 5
    )


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 1000])
async def test_receipts_come_in_the_order_of_the_payloads(
    broker: ScriptedBroker, count: int
) -> None:
    store = Partitions(broker, 4)
    payloads = [b"%d" % i for i in range(count)]
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:
        await producer.send(b"before")
        receipts = await producer.send_many(payloads, attributes=[{"a": "b"}] * count)
        assert [store.at(receipt) for receipt in receipts] == payloads
        assert [store.at(receipts[i]) for i in range(count)] == payloads
        assert [store.at(receipt) for receipt in receipts[1:3]] == payloads[1:3]
        sizes = [len(part) for part in receipts.parts.values()]
        assert sum(sizes) == len(receipts) == count
        assert not sizes or max(sizes) - min(sizes) <= 1
        assert receipts.topic == TOPIC


async def test_receipts_of_keyed_messages_too(broker: ScriptedBroker) -> None:
    store = Partitions(broker, 4)
    keys = [None if i % 5 == 0 else b"k%d" % (i % 7) for i in range(200)]
    payloads = [b"%d" % i for i in range(200)]
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:
        receipts = await producer.send_many(payloads, keys=keys)
    assert [store.at(receipt) for receipt in receipts] == payloads
    assert [store.at(receipts[-1 - i]) for i in range(200)] == payloads[::-1]
    for key, receipt in zip(keys, receipts, strict=True):
        assert key is None or receipt.topic == partition_name(TOPIC, route(key, 4))
    with pytest.raises(danubius.InvalidArgument, match="parts"):
        _ = receipts.first_offset
    for topic, part in receipts.parts.items():
        assert part.topic == topic
        assert part.last_offset == len(store.stored[topic]) - 1


@pytest.mark.parametrize("key", ["text", 7, bytearray(b"x"), ["x"]])
async def test_a_key_that_is_not_bytes_is_refused_before_anything_is_sent(
    broker: ScriptedBroker, key: object
) -> None:
    store = Partitions(broker, 4)
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:
        with pytest.raises(danubius.InvalidArgument, match="must be bytes"):
            await producer.send(b"x", key=key)  # pyright: ignore[reportArgumentType]
        with pytest.raises(danubius.InvalidArgument, match="must be bytes"):
            await producer.send_many([b"x", b"y"], keys=[b"a", key])  # pyright: ignore[reportArgumentType]
    assert store.stored == {}


async def test_a_message_too_large_stops_the_whole_send_many(broker: ScriptedBroker) -> None:
    store = Partitions(broker, 4)
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:
        with pytest.raises(danubius.MessageTooLarge, match="message 6 has"):
            await producer.send_many([b"x"] * 6 + [bytes(2 << 20)])
    assert store.stored == {}


async def test_a_refusal_by_one_partition_says_how_much_the_others_stored(
    broker: ScriptedBroker,
) -> None:
    store = Partitions(broker, 4)
    store.refused.add(partition_name(TOPIC, 2))
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:
        with pytest.raises(danubius.InvalidBatch) as caught:
            await producer.send_many([b"x"] * 40)
        assert caught.value.__notes__ == ["30 of the 40 messages were stored"]
        for _ in range(4):
            producer.send_nowait(b"y")
        with pytest.raises(danubius.InvalidBatch):
            await producer.flush()
    assert sum(map(len, store.stored.values())) == 33


async def test_flush_and_close_wait_for_every_partition(broker: ScriptedBroker) -> None:
    store = Partitions(broker, 4)
    async with danubius.connect(broker.url) as client:
        producer = await client.producer(TOPIC)
        for number in range(8):
            producer.send_nowait(b"%d" % number)
        await producer.flush()
        assert sum(map(len, store.stored.values())) == 8
        assert producer.buffered_bytes == 0
        for number in range(8):
            producer.send_nowait(b"%d" % number)
        await producer.close()
        await producer.close()
        assert sum(map(len, store.stored.values())) == 16
        assert len(broker.commands(CloseProducer)) == 4
        with pytest.raises(danubius.ClientClosed):
            await producer.send(b"late")
        with pytest.raises(danubius.ClientClosed):
            await producer.send_many([b"late"])


async def test_lanes_share_the_buffer_and_have_names_of_their_own(broker: ScriptedBroker) -> None:
    store = Partitions(broker, 2)
    store.is_silent = True
    async with danubius.connect(broker.url) as client:
        producer = await client.producer(TOPIC, name="p", buffer_bytes=1000, send_timeout=1.0)
        assert producer.name == "p"
        assert producer.buffer_bytes == 1000
        opened = broker.commands(OpenProducer)
        assert {(command.topic, command.name) for command in opened} == {
            ("/default/t-part-0", "p-0"),
            ("/default/t-part-1", "p-1"),
        }
        with pytest.raises(danubius.Overloaded):
            for _ in range(11):
                producer.send_nowait(bytes(100))
        assert producer.buffered_bytes == 1000
        with pytest.raises(danubius.DeadlineExceeded):
            await producer.close()


async def test_if_one_partition_cannot_be_opened_none_stays_open(broker: ScriptedBroker) -> None:
    Partitions(broker, 3)

    def open_producer(peer: Peer, frame: Frame) -> None:
        assert isinstance(frame.command, OpenProducer)
        if frame.command.topic.endswith("1"):
            error = danubius.ProducerFenced
            peer.send(Error(error.code, "taken", 0), frame.correlation_id)
        else:
            broker.answer(peer, frame)

    broker.on[OpenProducer] = open_producer
    async with danubius.connect(broker.url) as client:
        with pytest.raises(ProducerFenced):
            await client.producer(TOPIC)
        assert len(broker.commands(CloseProducer)) == 2


async def test_a_topic_that_turns_out_partitioned_when_it_is_made(broker: ScriptedBroker) -> None:
    """Its namespace makes new topics partitioned: the first look finds none, the opening is refused."""
    store = Partitions(broker, 4)
    del broker.partitions[TOPIC]

    def open_producer(peer: Peer, frame: Frame) -> None:
        assert isinstance(frame.command, OpenProducer)
        if frame.command.topic == TOPIC:
            broker.partitions[TOPIC] = 4
            text = "it is partitioned into 4"
            peer.send(Error(danubius.TopicExists.code, text, 0), frame.correlation_id)
        else:
            broker.answer(peer, frame)

    broker.on[OpenProducer] = open_producer
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:
        await producer.send_many([b"x"] * 4)
    assert len(store.stored) == 4


async def test_partitions_are_added_while_messages_are_sent(broker: ScriptedBroker) -> None:
    store = Partitions(broker, 2)
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:
        assert broker.commands(Lookup) == [Lookup(TOPIC, watch=True)]
        await producer.send_many([b"x"] * 10)
        broker.partitions[TOPIC] = 4
        broker.peers[-1].send(TopicChanged(TOPIC, 4))
        async with asyncio.timeout(HANG_S):
            while len(store.stored) < 4:
                await producer.send(b"y")
        receipt = await producer.send(b"z", key=b"some key")
        assert receipt.topic == partition_name(TOPIC, route(b"some key", 4))
        await producer.send_many([b"w"] * 8)
    assert len(broker.commands(CloseProducer)) == 4


async def test_a_partition_that_cannot_be_opened_yet_harms_nobody(broker: ScriptedBroker) -> None:
    store = Partitions(broker, 2)
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:

        def refuse(peer: Peer, frame: Frame) -> None:
            text = "not yet"
            peer.send(Error(danubius.TopicNotFound.code, text, 0), frame.correlation_id)

        broker.on[OpenProducer] = refuse
        broker.partitions[TOPIC] = 3
        broker.peers[-1].send(TopicChanged(TOPIC, 3))
        await broker.arrived(OpenProducer, 3)
        await producer.send_many([b"x"] * 10)
        del broker.on[OpenProducer]
        broker.peers[-1].send(TopicChanged(TOPIC, 3))
        await broker.arrived(OpenProducer, 4)
        async with asyncio.timeout(HANG_S):
            while len(store.stored) < 3:
                await producer.send(b"y")


async def test_a_deleted_topic_ends_every_lane(broker: ScriptedBroker) -> None:
    Partitions(broker, 2)
    async with danubius.connect(broker.url) as client:
        producer = await client.producer(TOPIC)
        for handle in list(broker.topics):
            closed = ProducerClosed(handle, danubius.TopicDeleted.code, "gone")
            broker.peers[-1].send(closed)
        with pytest.raises(danubius.TopicDeleted):
            async with asyncio.timeout(HANG_S):
                while True:
                    await producer.send(b"x")
        with pytest.raises(danubius.TopicDeleted):
            await producer.send_many([b"x"])
        await producer.close()


async def test_an_old_broker_is_not_asked(broker: ScriptedBroker) -> None:
    async with danubius.connect(broker.url) as client, client.producer(TOPIC):
        assert broker.commands(Lookup) == []


async def test_a_topic_is_created_with_partitions(broker: ScriptedBroker) -> None:
    broker.version = 2
    async with danubius.connect(broker.url) as client:
        await client.create_topic(TOPIC, partitions=4)
        for wrong in (-1, 1001, 2.0, True):
            with pytest.raises(danubius.InvalidArgument, match="partitions"):
                await client.create_topic(TOPIC, partitions=wrong)  # pyright: ignore[reportArgumentType]
    assert [command.partitions for command in broker.commands(CreateTopic)] == [4]


async def test_an_old_broker_would_make_a_plain_topic_so_it_is_not_asked_to(
    broker: ScriptedBroker,
) -> None:
    async with danubius.connect(broker.url) as client:
        with pytest.raises(danubius.UnsupportedVersion, match="partitioned"):
            await client.create_topic(TOPIC, partitions=4)
        await client.create_topic(TOPIC)
    assert [command.partitions for command in broker.commands(CreateTopic)] == [0]
