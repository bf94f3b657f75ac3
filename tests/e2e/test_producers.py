"""What a producer's receipt means: offsets, batches, no duplicates, fencing."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import pytest

import danubius
from danubius.wire.commands import Opcode
from e2e.lossy_proxy import LossyProxy
from e2e.raw_wire import RawPeer, RawProducer, record_batch
from e2e.traffic import numbered, payloads, read_all
from patience import HANG_S, LOOK_S, SOON_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

PRODUCER_FENCED = 304
OUT_OF_SEQUENCE = 305


async def stored_batches(port: int, topic: str) -> list[int]:
    """The record counts of the batches that the topic holds."""
    counts: list[int] = []
    at = 0
    async with RawPeer(port) as peer:
        await peer.hello()
        while True:
            answer = await peer.call(
                Opcode.FETCH, topic, {"type": "offset", "offset": at}, 1 << 20, 0, False
            )
            assert answer.opcode == Opcode.FETCHED, answer
            data = answer.payload
            while data:
                counts.append(int.from_bytes(data[28:32], "little"))
                data = data[int.from_bytes(data[4:8], "little") :]
            at = answer.fields[1]
            if at >= answer.fields[3]:
                return counts


async def test_receipts_carry_contiguous_offsets(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        receipts = [await producer.send(payload) for payload in numbered(50)]
    assert [receipt.offset for receipt in receipts] == list(range(50))


async def test_hundred_concurrent_sends_share_batches(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        async with asyncio.TaskGroup() as tasks:
            sends = [tasks.create_task(producer.send(payload)) for payload in numbered(100)]
        offsets = [send.result().offset for send in sends]
        messages = await read_all(client, topic)
    assert sorted(offsets) == list(range(100))
    assert [messages[offset].payload for offset in offsets] == numbered(100)
    assert len(await stored_batches(broker.port, topic)) <= 10


async def test_send_many_keeps_order_and_returns_a_receipt_each(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        first = await producer.send_many(numbered(10_000))
        second = await producer.send_many(numbered(3, 10_000))
        messages = await read_all(client, topic)
    assert len(first) == 10_000
    assert [first[0].offset, first[9_999].offset, second[0].offset] == [0, 9_999, 10_000]
    assert payloads(messages) == numbered(10_003)


async def test_send_many_of_nothing_sends_nothing(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        assert len(await producer.send_many([])) == 0
        receipt = await producer.send(b"first")
    assert receipt.offset == 0


async def test_send_nowait_and_flush(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        for payload in numbered(1_000):
            producer.send_nowait(payload)
        await producer.flush()
        assert payloads(await read_all(client, topic)) == numbered(1_000)


async def test_closing_a_producer_sends_what_is_open(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic, linger=5.0) as producer:
            producer.send_nowait(b"a")
            producer.send_nowait(b"b")
        assert payloads(await read_all(client, topic)) == [b"a", b"b"]


async def test_batches_are_cut_by_count(broker: BrokerProcess, topic: str) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic, batch_records=10) as producer,
    ):
        await producer.send_many(numbered(95))
    assert await stored_batches(broker.port, topic) == [10] * 9 + [5]


async def test_batches_are_cut_by_size(broker: BrokerProcess, topic: str) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic, batch_bytes=10_000) as producer,
    ):
        await producer.send_many([bytes(1_000)] * 100)
    counts = await stored_batches(broker.port, topic)
    assert sum(counts) == 100
    assert max(counts) <= 10


async def test_linger_gathers_single_sends_into_one_batch(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic, linger=60.0) as producer:
            for number in range(20):
                producer.send_nowait(b"%d" % number)
                await asyncio.sleep(
                    LOOK_S / 10
                )  # without linger each would go in a batch of its own
        async with client.producer(topic, linger=0.05) as producer:
            await producer.send(b"goes when its time is over")
    assert await stored_batches(broker.port, topic) == [20, 1]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
async def test_compression_shrinks_what_is_stored(
    broker: BrokerProcess, topic: str, codec: Literal["lz4", "zstd"]
) -> None:
    sent = [b"the same words again and again %06d" % number for number in range(5_000)]
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic, compression=codec) as producer:
            await producer.send_many(sent, keys=[b"k"] * 5_000)
        assert payloads(await read_all(client, topic)) == sent
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            received: list[bytes] = []
            async with asyncio.timeout(HANG_S):
                while len(received) < 5_000:
                    received += list((await consumer.receive_batch()).payloads)
        described = await client.describe_topic(topic)
    assert received == sent
    assert described.summary.stored_bytes < sum(map(len, sent)) / 2


async def test_key_attributes_and_times_travel(broker: BrokerProcess, topic: str) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic) as producer:
            await producer.send(b"a", key=b"k\x00\xff", attributes={"trace": "1", "ünï": "cødé"})
            await producer.send(b"", key=b"")
            await producer.send(b"c")
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            messages = [await consumer.receive() for _ in range(3)]
    after = datetime.now(UTC) + timedelta(milliseconds=1)
    assert [m.key for m in messages] == [b"k\x00\xff", b"", None]
    assert [dict(m.attributes) for m in messages] == [{"trace": "1", "ünï": "cødé"}, {}, {}]
    assert payloads(messages) == [b"a", b"", b"c"]
    assert {m.topic for m in messages} == {topic}
    assert all(before <= m.publish_time <= after for m in messages)


async def test_large_and_small_messages_keep_their_bytes(broker: BrokerProcess, topic: str) -> None:
    sizes = [0, 1, 7, 8, 9, 1_000, 65_535, 65_536, 65_537, 262_144, 1_000_001, 7 * 1024 * 1024]
    sent = [bytes([size % 251]) * size for size in sizes]
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic) as producer:
            for payload in sent:
                await producer.send(payload)
            await producer.send_many(sent)
        assert payloads(await read_all(client, topic)) == sent + sent


async def test_retry_after_a_lost_answer_leaves_no_duplicate(
    broker: BrokerProcess, topic: str
) -> None:
    """The batch is stored, its answer is lost, the line is cut: the client sends again and it is stored once."""
    async with (
        LossyProxy(broker.port) as proxy,
        danubius.connect(proxy.url) as client,
        client.producer(topic) as producer,
    ):
        await producer.send(b"before")
        for number in range(5):
            proxy.swallowed.clear()
            proxy.mute()
            async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
                send = tasks.create_task(producer.send(b"%d" % number))
                await proxy.swallowed.wait()
                assert not send.done()
                proxy.cut()
            assert send.result().offset == 1 + number
        messages = await read_all(client, topic)
    assert payloads(messages) == [b"before", b"0", b"1", b"2", b"3", b"4"]


async def test_pipelined_batches_survive_cuts_in_order_and_once(
    broker: BrokerProcess, topic: str
) -> None:
    async with (
        LossyProxy(broker.port) as proxy,
        danubius.connect(proxy.url) as client,
        client.producer(topic, batch_records=7) as producer,
    ):
        async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:

            async def send() -> None:
                for at in range(0, 3_000, 100):
                    for payload in numbered(100, at):
                        producer.send_nowait(payload)
                    await asyncio.sleep(SOON_S / 5)
                await producer.flush()

            sending = tasks.create_task(send())
            for _ in range(4):
                await asyncio.sleep(SOON_S)
                proxy.cut()
            await sending
        messages = await read_all(client, topic)
    assert payloads(messages) == numbered(3_000)


async def test_producer_goes_on_after_a_restart(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        await producer.send(b"0")
        broker.kill()
        async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
            send = tasks.create_task(producer.send(b"1"))
            tasks.create_task(asyncio.to_thread(broker.start))
        assert send.result().offset == 1
        assert payloads(await read_all(client, topic)) == [b"0", b"1"]


async def test_second_producer_of_a_name_fences_the_first(
    broker: BrokerProcess, topic: str
) -> None:
    async with (
        danubius.connect(broker.url) as old_client,
        danubius.connect(broker.url) as new_client,
    ):
        async with old_client.producer(topic, name="writer") as old:
            await old.send(b"old")
            async with new_client.producer(topic, name="writer") as new:
                await new.send(b"new")
                with pytest.raises(danubius.DanubiusError) as caught:
                    await old.send(b"zombie")
                await new.send(b"newer")
        messages = await read_all(new_client, topic)
    assert caught.value.code == PRODUCER_FENCED
    assert not caught.value.is_retryable
    assert payloads(messages) == [b"old", b"new", b"newer"]


async def test_fenced_epoch_stays_fenced_after_a_restart(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker()
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        old = await peer.open_producer(topic, "writer")
        new = await peer.open_producer(topic, "writer")
        assert new.epoch > old.epoch
        assert new.producer_id == old.producer_id
        answer = await new.produce([b"a", b"b"], 0)
        assert answer.opcode == Opcode.PRODUCED
    broker.kill()
    broker.start()
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        answer = await peer.call(Opcode.OPEN_PRODUCER, topic, "writer", {}, old.epoch)
        assert (answer.opcode, answer.fields[0]) == (Opcode.ERROR, PRODUCER_FENCED)
        resumed = await peer.open_producer(topic, "writer", resume_epoch=new.epoch)
        assert (resumed.epoch, resumed.next_sequence) == (new.epoch, 2)


async def test_repeated_batch_gets_the_first_answer(broker: BrokerProcess, topic: str) -> None:
    """On the wire: the same sequence again is answered with the same offset, any number of times."""
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        producer = await peer.open_producer(topic, "writer")
        answers = [await producer.produce([b"a", b"b", b"c"], 0) for _ in range(3)]
        answers += [await producer.produce([b"d"], 3) for _ in range(2)]
        answers.append(await producer.produce([b"a", b"b", b"c"], 0))
    assert [answer.opcode for answer in answers] == [Opcode.PRODUCED] * 6
    assert [answer.fields[0] for answer in answers] == [0, 0, 0, 3, 3, 0]
    async with danubius.connect(broker.url) as client:
        assert payloads(await read_all(client, topic)) == [b"a", b"b", b"c", b"d"]


async def test_repeated_batch_is_known_after_kill(start_broker: StartBroker, topic: str) -> None:
    """The window of sequences survives kill -9: a retry to the restarted broker leaves no duplicate."""
    broker = start_broker()
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        producer = await peer.open_producer(topic, "writer")
        assert (await producer.produce([b"a", b"b"], 0)).fields == [0]
        assert (await producer.produce([b"c"], 2)).fields == [2]
    broker.kill()
    broker.start()
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        again = await peer.open_producer(topic, "writer", resume_epoch=producer.epoch)
        assert (await again.produce([b"c"], 2)).fields == [2]
        assert (await again.produce([b"d"], 3)).fields == [3]
    async with danubius.connect(broker.url) as client:
        assert payloads(await read_all(client, topic)) == [b"a", b"b", b"c", b"d"]


async def test_gap_in_the_sequence_is_refused_and_stores_nothing(
    broker: BrokerProcess, topic: str
) -> None:
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        producer = await peer.open_producer(topic, "writer")
        ahead = await producer.produce([b"c"], 2)
        assert (ahead.opcode, ahead.fields[0]) == (Opcode.ERROR, OUT_OF_SEQUENCE)
        assert (await producer.produce([b"a", b"b"], 0)).fields == [0]
        assert (await producer.produce([b"c"], 2)).fields == [2]
    async with danubius.connect(broker.url) as client:
        assert payloads(await read_all(client, topic)) == [b"a", b"b", b"c"]


async def test_batch_of_another_producer_is_refused(broker: BrokerProcess, topic: str) -> None:
    """The id and epoch in the header must be those of the handle."""
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        producer = await peer.open_producer(topic, "writer")
        forged = RawProducer(peer, producer.handle, producer.producer_id + 77, producer.epoch, 0)
        answer = await forged.produce([b"x"], 0)
        assert answer.opcode == Opcode.ERROR
        stale = RawProducer(peer, producer.handle, producer.producer_id, producer.epoch + 1, 0)
        answer = await stale.produce([b"x"], 0)
        assert answer.opcode == Opcode.ERROR
        assert (await producer.produce([b"x"], 0)).fields == [0]


async def test_damaged_batch_is_refused_and_the_connection_goes_on(
    broker: BrokerProcess, topic: str
) -> None:
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        producer = await peer.open_producer(topic, "writer")
        damaged = record_batch(
            [b"abc"], producer_id=producer.producer_id, producer_epoch=producer.epoch, crc_xor=1
        )
        answer = await peer.call(Opcode.PRODUCE, producer.handle, payload=damaged)
        assert (answer.opcode, answer.fields[0]) == (Opcode.ERROR, 106)
        assert (await producer.produce([b"abc"], 0)).fields == [0]


async def test_reliable_and_non_reliable_do_not_mix(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic, dispatch="reliable")
        with pytest.raises(danubius.DanubiusError, match="reliable") as caught:
            async with client.producer(topic, dispatch="non-reliable"):
                pass
    assert caught.value.code == 301


async def test_written_durability_survives_the_brokers_death(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker()
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic, durability="written") as producer,
    ):
        await producer.send_many(numbered(100))
        described = await client.describe_topic(topic)
        assert described.summary.spec.durability == "written"
    broker.kill()
    broker.start()
    async with danubius.connect(broker.url) as client:
        assert payloads(await read_all(client, topic)) == numbered(100)


async def test_use_after_close_is_an_error(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic) as producer:
            pass
        with pytest.raises(danubius.DanubiusError) as caught:
            await producer.send(b"late")
    assert caught.value.code == 107
