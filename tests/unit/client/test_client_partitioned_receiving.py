"""Consumers and readers of partitioned topics: the merge, and what goes back to which partition."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.client.consuming.merge import LaneGate, Merge
from danubius.model.ids import TopicName
from danubius.model.partitions import partition_name
from danubius.model.subscription import EARLIEST, LATEST, AtOffset
from danubius.wire.commands import (
    Ack,
    CloseConsumer,
    ConsumerClosed,
    Fetch,
    Fetched,
    Flow,
    Nack,
    OffsetResolved,
    ResolveOffset,
    Subscribe,
    TopicChanged,
)
from patience import HANG_S
from unit.client.scripted_broker import stored_batch

if TYPE_CHECKING:
    from danubius.wire.frame import Frame
    from unit.client.scripted_broker import Peer, ScriptedBroker

TOPIC = TopicName("/default/t")


@pytest.fixture
def four(broker: ScriptedBroker) -> list[TopicName]:
    broker.version = 2
    broker.partitions[TOPIC] = 4
    return [partition_name(TOPIC, index) for index in range(4)]


# ---------------------------------------------------------------- consumers


async def test_partitions_take_turns_message_by_message(
    broker: ScriptedBroker, four: list[TopicName]
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        broker.deliver(0, [b"a"] * 50, four[0])
        for topic in four[1:]:
            broker.deliver(0, [b"b"] * 5, topic)
        first = await consumer.receive(timeout=HANG_S)
        assert first.topic == four[0]
        got = [first]
        async for message in consumer:
            got.append(message)
            if len(got) == 65:
                break
    places = [index for index, message in enumerate(got) if message.payload == b"b"]
    assert len(places) == 15
    assert places[-1] <= 20, "the long delivery held up the short ones"
    for topic in four:
        offsets = [message.offset for message in got if message.topic == topic]
        assert offsets == sorted(offsets)


async def test_batches_are_whole_deliveries_in_turn(
    broker: ScriptedBroker, four: list[TopicName]
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        for first in (0, 3):
            for topic in four[:2]:
                broker.deliver(first, [b"x"] * 3, topic)
        batches = [await consumer.receive_batch(timeout=HANG_S) for _ in range(4)]
        assert [(batch.topic, batch.first_offset, len(batch)) for batch in batches] == [
            (four[0], 0, 3),
            (four[1], 0, 3),
            (four[0], 3, 3),
            (four[1], 3, 3),
        ]
        broker.deliver(6, [b"x"] * 3, four[0])
        parts = [await consumer.receive_batch(timeout=HANG_S, max_messages=2) for _ in range(2)]
        assert [part.offsets for part in parts] == [[6, 7], [8]]
        with pytest.raises(danubius.ReceiveTimeout, match=TOPIC):
            await consumer.receive_batch(timeout=0)


async def test_acknowledgements_go_to_the_partition_of_the_message(
    broker: ScriptedBroker, four: list[TopicName]
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        got: dict[str, danubius.Message] = {}
        for topic in four[:3]:
            broker.deliver(7, [b"x"], topic)
            got[topic] = await consumer.receive(timeout=HANG_S)
        await consumer.ack(got[four[0]])
        await consumer.ack_cumulative(got[four[1]])
        await consumer.nack(got[four[2]], delay=1.0)
        stranger = danubius.Message("/default/t-part-9", 0, b"", None, {}, 0, 0)
        with pytest.raises(danubius.InvalidArgument, match="t-part-9"):
            await consumer.ack(stranger)
        with pytest.raises(danubius.InvalidArgument, match="neither"):
            await consumer.ack(b"x")  # pyright: ignore[reportArgumentType]
    assert sorted(broker.commands(Ack), key=lambda ack: ack.handle) == [
        Ack(broker.handle_of(four[0]), [(7, 8)]),
        Ack(broker.handle_of(four[1]), [(0, 8)]),
    ]
    (nack,) = broker.commands(Nack)
    assert (nack.handle, nack.ranges, nack.delay_ms) == (broker.handle_of(four[2]), [(7, 8)], 1000)
    assert len(broker.commands(CloseConsumer)) == 4


async def test_lanes_share_the_prefetch_and_have_names_of_their_own(
    broker: ScriptedBroker, four: list[TopicName]
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(
            TOPIC, subscription="s", name="c", prefetch_messages=10, prefetch_bytes=400
        ) as consumer,
    ):
        assert (consumer.topic, consumer.name, consumer.subscription) == (TOPIC, "c", "s")
        assert consumer.is_active
        await broker.arrived(Flow, 4)
    assert {(grant.messages, grant.bytes) for grant in broker.commands(Flow)} == {(2, 100)}
    assert {(command.topic, command.consumer) for command in broker.commands(Subscribe)} == {
        (topic, f"c-{index}") for index, topic in enumerate(four)
    }


async def test_a_partition_that_is_added_is_read_from_its_start(
    broker: ScriptedBroker, four: list[TopicName]
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s", start="latest") as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        waiting = tasks.create_task(consumer.receive(timeout=HANG_S))
        await asyncio.sleep(0)
        broker.partitions[TOPIC] = 5
        broker.peers[-1].send(TopicChanged("/default/another", 9))
        broker.peers[-1].send(TopicChanged(TOPIC, 5))
        await broker.arrived(Subscribe, 5)
        broker.deliver(0, [b"new"], partition_name(TOPIC, 4))
        message = await waiting
        assert message.topic == partition_name(TOPIC, 4)
        await consumer.ack(message)
    starts = [command.start for command in broker.commands(Subscribe)]
    assert starts == [LATEST] * len(four) + [EARLIEST]


async def test_after_a_reconnect_the_partitions_are_counted_again(
    broker: ScriptedBroker, four: list[TopicName]
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        broker.deliver(0, [b"held"], four[0])
        await consumer.receive(timeout=HANG_S)
        broker.deliver(1, [b"dropped"], four[0])
        broker.partitions[TOPIC] = 5
        broker.peers[-1].drop()
        await broker.arrived(Subscribe, 9)
        broker.deliver(0, [b"new"], partition_name(TOPIC, 4))
        assert (await consumer.receive(timeout=HANG_S)).payload == b"new"
        broker.deliver(1, [b"again"], four[0])
        assert (await consumer.receive(timeout=HANG_S)).payload == b"again"


async def test_the_end_of_one_partition_ends_the_consumer(
    broker: ScriptedBroker, four: list[TopicName]
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        broker.deliver(0, [b"a", b"b"], four[1])
        handle = broker.handle_of(four[1])
        gone = ConsumerClosed(handle, danubius.TopicDeleted.code, "gone")
        broker.peers[-1].send(gone)
        assert (await consumer.receive(timeout=HANG_S)).payload == b"a"
        assert (await consumer.receive(timeout=HANG_S)).payload == b"b"
        for _ in range(2):
            with pytest.raises(danubius.TopicDeleted):
                await consumer.receive(timeout=HANG_S)
        with pytest.raises(danubius.TopicDeleted):
            await consumer.receive_batch(timeout=HANG_S)


async def test_a_closed_consumer_wakes_who_waits(
    broker: ScriptedBroker, four: list[TopicName]
) -> None:
    del four
    async with danubius.connect(broker.url) as client:
        consumer = await client.consumer(TOPIC, subscription="s")

        async def wait() -> None:
            with pytest.raises(danubius.ClientClosed):
                await consumer.receive(timeout=HANG_S)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait())
            await asyncio.sleep(0)
            await consumer.close()
        await consumer.close()


async def test_an_offset_is_no_place_in_a_partitioned_topic(
    broker: ScriptedBroker, four: list[TopicName]
) -> None:
    del four
    async with danubius.connect(broker.url) as client:
        with pytest.raises(danubius.InvalidArgument, match="partitioned"):
            await client.consumer(TOPIC, subscription="s", start=7)
        with pytest.raises(danubius.InvalidArgument, match="partitioned"):
            await client.reader(TOPIC, start=7)
    assert broker.commands(Subscribe) == []


def test_lanes_in_the_merge_take_turns_once_adopted() -> None:
    merge: Merge[str] = Merge()
    gates = [LaneGate(merge), LaneGate(merge)]
    gates[0].open()  # not adopted: nothing is known of it
    assert merge.take(str) is None
    gates[1].adopt("b")
    gates[0].adopt("a")
    assert [merge.take(str) for _ in range(4)] == ["b", "a", "b", "a"]


# ---------------------------------------------------------------- readers


class Logs:
    """Answers fetches from each partition's list of payloads."""

    def __init__(self, broker: ScriptedBroker, logs: dict[str, list[bytes]]) -> None:
        self.logs = logs
        self.held: dict[str, tuple[Peer, Frame]] = {}
        broker.on[ResolveOffset] = self._resolve
        broker.on[Fetch] = self.fetch

    def _resolve(self, peer: Peer, frame: Frame) -> None:
        assert isinstance(frame.command, ResolveOffset)
        end = len(self.logs.get(frame.command.topic, []))
        found = 0 if frame.command.position == EARLIEST else end
        peer.send(OffsetResolved(found, 0, end), frame.correlation_id)

    def fetch(self, peer: Peer, frame: Frame) -> None:
        command = frame.command
        assert isinstance(command, Fetch)
        assert isinstance(command.start, AtOffset)
        log, first = self.logs.get(command.topic, []), command.start.offset
        payloads = log[first : first + 2]
        if not payloads:
            self.held[command.topic] = peer, frame
            return
        end = first + len(payloads)
        fetched = Fetched(first, end, 0, len(log))
        peer.send(fetched, frame.correlation_id, stored_batch(first, payloads))

    def append(self, topic: str, payload: bytes) -> None:
        self.logs.setdefault(topic, []).append(payload)
        if topic in self.held:
            self.fetch(*self.held.pop(topic))


async def test_a_reader_reads_all_partitions_to_their_ends(
    broker: ScriptedBroker, four: list[TopicName]
) -> None:
    logs = {str(topic): [b"%d" % i for i in range(5)] for topic in four[1:]}
    Logs(broker, logs)
    async with danubius.connect(broker.url) as client:
        async with client.reader(TOPIC, stop_at_end=True) as reader:
            got = [(message.topic, message.payload) async for message in reader]
            assert reader.positions == {four[0]: 0, four[1]: 5, four[2]: 5, four[3]: 5}
            with pytest.raises(danubius.InvalidArgument, match="positions"):
                _ = reader.position
        for topic in four:
            assert [payload for name, payload in got if name == topic] == logs.get(topic, [])
        async with client.reader(TOPIC, start="earliest", stop_at_end=True) as reader:
            sizes: list[int] = []
            while (batch := await reader.read_batch(timeout=HANG_S)) is not None:
                sizes.append(len(batch))
            assert sum(sizes) == 15


async def test_a_reader_waits_for_any_partition_and_follows_growth(
    broker: ScriptedBroker, four: list[TopicName]
) -> None:
    logs = Logs(broker, {})
    async with (
        danubius.connect(broker.url) as client,
        client.reader(TOPIC, start="latest") as reader,
        asyncio.TaskGroup() as tasks,
    ):
        with pytest.raises(danubius.ReceiveTimeout):
            await reader.read_batch(timeout=0)
        await broker.arrived(Fetch, 4)
        logs.append(four[2], b"a")
        assert (await anext(reader)).topic == four[2]
        fifth = partition_name(TOPIC, 4)
        logs.append(fifth, b"b")
        waiting = tasks.create_task(reader.read_batch(timeout=HANG_S))
        await asyncio.sleep(0)
        broker.partitions[TOPIC] = 5
        broker.peers[-1].send(TopicChanged(TOPIC, 5))
        batch = await waiting
        assert batch is not None
        assert (batch.topic, batch.payloads) == (fifth, [b"b"])


async def test_a_reader_goes_on_after_a_reconnect(
    broker: ScriptedBroker, four: list[TopicName]
) -> None:
    logs = Logs(broker, {})
    async with (
        danubius.connect(broker.url) as client,
        client.reader(TOPIC, start="latest") as reader,
        asyncio.TaskGroup() as tasks,
    ):
        waiting = tasks.create_task(reader.read_batch(timeout=HANG_S))
        await broker.arrived(Fetch, 4)
        logs.held.clear()
        broker.peers[-1].drop()
        await broker.arrived(Fetch, 8)
        logs.append(four[3], b"x")
        batch = await waiting
        assert batch is not None
        assert batch.payloads == [b"x"]


# ---------------------------------------------------------------- without asyncio


async def test_a_blocking_consumer_drops_only_what_its_own_partition_takes_back(
    broker: ScriptedBroker, four: list[TopicName]
) -> None:
    """One lane is detached by the broker while messages of another are held: those are still to be handed out."""
    loop = asyncio.get_running_loop()

    def move(topic: str) -> None:
        closed = ConsumerClosed(broker.handle_of(topic), danubius.Overloaded.code, "come again")
        broker.peers[-1].send(closed)

    def work() -> list[bytes]:
        with (
            danubius.blocking.connect(broker.url) as client,
            client.consumer(TOPIC, subscription="s") as consumer,
        ):
            loop.call_soon_threadsafe(broker.deliver, 0, [b"a", b"b", b"c"], four[0])
            got = [consumer.receive(timeout=HANG_S)]
            loop.call_soon_threadsafe(move, four[1])
            asyncio.run_coroutine_threadsafe(broker.arrived(Subscribe, 5), loop).result(HANG_S)
            got += [consumer.receive(timeout=HANG_S), consumer.receive(timeout=HANG_S)]
            for message in got:
                consumer.ack(message)
        return [message.payload for message in got]

    assert await asyncio.to_thread(work) == [b"a", b"b", b"c"]
    acks = broker.commands(Ack)
    assert {ack.handle for ack in acks} == {broker.handle_of(four[0])}
    assert {at for ack in acks for first, end in ack.ranges for at in range(first, end)} == {
        0,
        1,
        2,
    }
