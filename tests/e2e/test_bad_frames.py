"""Frames that no honest peer sends: each gets a clear error, and nobody else notices."""

from __future__ import annotations

import asyncio
import random
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.wire.commands import Opcode
from e2e.raw_wire import PeerClosed, RawFrame, RawPeer, frame, record_batch
from e2e.traffic import bystander
from patience import HANG_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess

MESSAGE_TOO_LARGE = 103
UNSUPPORTED_VERSION = 104
PROTOCOL_VIOLATION = 105
HELLO = frame(Opcode.HELLO, (1, 1, "raw-peer"), 1)
PING = frame(Opcode.PING, (), 2)


@dataclass
class Bad:
    """Bytes, and the code of the error that the broker closes the connection with."""

    name: str
    data: bytes
    code: int = PROTOCOL_VIOLATION


BEFORE_HELLO = [
    Bad("zeros", bytes(64)),
    Bad("ones", b"\xff" * 64),
    Bad("http", b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl\r\n\r\n"),
    Bad("tls", bytes.fromhex("16030100c8010000c40303") + bytes(60)),
    Bad("ping first", PING),
    Bad("produce first", frame(Opcode.PRODUCE, (1,), 1, record_batch([b"x"]))),
    Bad("answer first", frame(Opcode.WELCOME, (1, "b", 1, 1, 1), 1)),
    Bad("huge hello", frame(Opcode.HELLO, (1, 1, "x" * 500_000), 1), MESSAGE_TOO_LARGE),
    Bad("wrong crc", frame(Opcode.HELLO, (1, 1, "raw"), 1, crc_xor=1)),
    Bad("hello with payload", frame(Opcode.HELLO, (1, 1, "raw"), 1, bytes(64))),
    Bad("future protocol", frame(Opcode.HELLO, (900, 901, "raw"), 1), UNSUPPORTED_VERSION),
    Bad("past protocol", frame(Opcode.HELLO, (0, 0, "raw"), 1), UNSUPPORTED_VERSION),
    Bad(
        "frame of another layout",
        frame(Opcode.HELLO, (1, 1, "raw"), 1, magic=0x02574E44),
        UNSUPPORTED_VERSION,
    ),
]

AFTER_HELLO = [
    Bad("second hello", HELLO),
    Bad("answer of a broker", frame(Opcode.PRODUCED, (0,), 7)),
    Bad("unknown opcode", frame(200, (), 7)),
    Bad("opcode zero", frame(0, (), 7)),
    Bad("flags", frame(Opcode.PING, (), 7, flags=1)),
    Bad("reserved", frame(Opcode.PING, (), 7, reserved=9)),
    Bad("wrong crc", frame(Opcode.PING, (), 7, crc_xor=0x80000000)),
    Bad("wrong magic", frame(Opcode.PING, (), 7, magic=0)),
    Bad("length below the header", frame(Opcode.PING, (), 7, length=8)),
    Bad("length zero", frame(Opcode.PING, (), 7, length=0)),
    Bad("length over the limit", frame(Opcode.PRODUCE, (1,), 7, length=2**31), MESSAGE_TOO_LARGE),
    Bad(
        "length of everything", frame(Opcode.PRODUCE, (1,), 7, length=2**32 - 1), MESSAGE_TOO_LARGE
    ),
    Bad("meta longer than the frame", frame(Opcode.PING, (), 7, meta_length=5_000)),
    Bad("meta not msgpack", frame(Opcode.LOOKUP, meta=b"\xc1\xc1\xc1", correlation=7)),
    Bad("meta empty", frame(Opcode.LOOKUP, meta=b"", correlation=7)),
    Bad("meta a map", frame(Opcode.LOOKUP, {"topic": "/a/b"}, 7)),
    Bad("meta of other types", frame(Opcode.LOOKUP, (17,), 7)),
    Bad("meta too short", frame(Opcode.OPEN_PRODUCER, ("/a/b",), 7)),
    Bad("meta with trailing bytes", frame(Opcode.PING, meta=b"\x90\x90", correlation=7)),
    Bad(
        "negative number too large", frame(Opcode.PRODUCE, (-(2**63),), 7, record_batch([b"x"])), 0
    ),
    Bad("deep nesting", frame(Opcode.LOOKUP, meta=b"\x91" * 5_000 + b"\x90", correlation=7)),
    Bad("payload where none belongs", frame(Opcode.PING, (), 7, bytes(64))),
    Bad("garbage between frames", PING + b"garbage!" + PING),
]


def assert_says(said: list[RawFrame], code: int) -> None:
    """The last words before the close are an error with that code and a sentence."""
    errors = [received for received in said if received.opcode == Opcode.ERROR]
    assert errors, f"closed without a word: {said}"
    assert errors[-1].fields[0] == code, errors[-1]
    assert len(errors[-1].fields[1]) > 10


@pytest.mark.parametrize("bad", BEFORE_HELLO, ids=lambda bad: bad.name)
async def test_bad_first_words_are_refused(broker: BrokerProcess, topic: str, bad: Bad) -> None:
    async with bystander(broker.url, topic) as other, RawPeer(broker.port) as peer:
        await peer.send(bad.data)
        assert_says(await peer.wait_closed(), bad.code)
        await other.check()


@pytest.mark.parametrize("bad", AFTER_HELLO, ids=lambda bad: bad.name)
async def test_bad_frame_ends_its_connection_alone(
    broker: BrokerProcess, topic: str, bad: Bad
) -> None:
    async with bystander(broker.url, topic) as other, RawPeer(broker.port) as peer:
        await peer.hello()
        await peer.send(bad.data)
        if bad.code:
            assert_says(await peer.wait_closed(), bad.code)
        else:
            answer = await peer.receive()
            assert answer.opcode == Opcode.ERROR
        await other.check()


async def test_frames_before_the_bad_one_are_answered(broker: BrokerProcess) -> None:
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        await peer.send(PING + PING + frame(200, (), 9))
        said = await peer.wait_closed()
    assert [received.opcode for received in said[:2]] == [Opcode.PONG, Opcode.PONG]
    assert_says(said, PROTOCOL_VIOLATION)


@pytest.mark.parametrize("cut", [1, 3, 4, 12, 23, 24, 30])
async def test_truncated_frame_holds_nobody_up(broker: BrokerProcess, topic: str, cut: int) -> None:
    """A peer that stops in the middle of a frame and hangs up is forgotten."""
    async with bystander(broker.url, topic) as other, RawPeer(broker.port) as peer:
        await peer.hello()
        await peer.send(frame(Opcode.LOOKUP, ("/default/orders",), 3)[:cut])
        await other.check(2)
        peer.writer.write_eof()
        await peer.wait_closed()
        await other.check(2)


async def test_half_a_produce_stores_nothing(broker: BrokerProcess, topic: str) -> None:
    async with RawPeer(broker.port) as peer, RawPeer(broker.port) as second:
        await peer.hello()
        producer = await peer.open_producer(topic, "writer")
        whole = frame(Opcode.PRODUCE, (producer.handle,), 5, producer.batch([bytes(200_000)], 0))
        await peer.send(whole[:100_000])
        peer.abort()
        await second.hello()
        again = await second.open_producer(topic, "writer", resume_epoch=producer.epoch)
        assert again.next_sequence == 0
        assert (await again.produce([b"whole"], 0)).fields == [0]


async def test_frame_in_single_bytes_is_understood(broker: BrokerProcess) -> None:
    async with RawPeer(broker.port) as peer:
        for byte in HELLO + PING:
            await peer.send(bytes([byte]))
        assert (await peer.receive()).opcode == Opcode.WELCOME
        assert (await peer.receive()).opcode == Opcode.PONG


async def test_pipelined_requests_are_all_answered_by_their_number(broker: BrokerProcess) -> None:
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        await peer.send(b"".join(frame(Opcode.PING, (), number) for number in range(100, 1_100)))
        answers = [await peer.receive() for _ in range(1_000)]
    assert {answer.correlation for answer in answers} == set(range(100, 1_100))


async def test_unknown_fields_of_a_newer_client_are_ignored(broker: BrokerProcess) -> None:
    """Fields are only ever appended: an older broker passes over what it does not know."""
    async with RawPeer(broker.port) as peer:
        answer = await peer.call(Opcode.HELLO, 1, 7, "newer", {"some": "thing"}, [1, 2])
        assert answer.opcode == Opcode.WELCOME
        assert answer.fields[0] == 2  # the highest of ours, whatever it offers beyond
        assert (
            await peer.call(Opcode.LIST_TOPICS, "", "", 10, "new field")
        ).opcode == Opcode.TOPICS_LISTED


@pytest.mark.parametrize(
    ("opcode", "fields"),
    [
        (Opcode.ACK, (999, [[0, 1]])),
        (Opcode.NACK, (999, [[0, 1]], 0)),
        (Opcode.LIST_TOPICS, ("", "", 0)),
        (Opcode.DESCRIBE_TOPIC, ("/default/no-such-topic",)),
        (Opcode.DELETE_TOPIC, ("/default/no-such-topic",)),
        (Opcode.FETCH, ("/default/no-such-topic", {"type": "earliest"}, 1_000, 0, False)),
        (Opcode.RESOLVE_OFFSET, ("/default/no-such-topic", {"type": "latest"})),
        (Opcode.CREATE_TOPIC, ("/default/x", {"retention": {"age_ms": -1}}, False)),
    ],
    ids=str,
)
async def test_wrong_request_gets_an_error_and_the_connection_goes_on(
    broker: BrokerProcess, opcode: Opcode, fields: tuple[object, ...]
) -> None:
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        answer = await peer.call(opcode, *fields)
        assert answer.opcode == Opcode.ERROR
        assert answer.correlation != 0
        assert len(answer.fields[1]) > 10
        assert (await peer.call(Opcode.PING)).opcode == Opcode.PONG


@pytest.mark.parametrize("ranges", [[[5, 5]], [[7, 3]], [[-1, 4]], [[0, 2**63]]], ids=str)
async def test_nonsense_ack_ranges_do_no_harm(
    broker: BrokerProcess, topic: str, ranges: list[list[int]]
) -> None:
    """Refused, or cut to what exists; never a cursor beyond the end."""
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        producer = await peer.open_producer(topic, "writer")
        await producer.produce([b"a", b"b", b"c"], 0)
        handle = await peer.subscribe(topic, "s")
        answer = await peer.call(Opcode.ACK, handle, ranges)
        assert answer.opcode in {Opcode.ERROR, Opcode.DONE}
        if answer.correlation == 0:
            return
        await producer.produce([b"d"], 3)
        described = await peer.call(Opcode.DESCRIBE_TOPIC, topic)
        [subscription] = described.fields[2]
        floor, backlog = subscription[3], subscription[4]
    assert 0 <= floor <= 3
    assert floor + backlog == 4


@pytest.mark.parametrize("credit", [(-1, 10), (10, -1), (2**62, 2**62)], ids=str)
async def test_nonsense_credit_does_no_harm(
    broker: BrokerProcess, topic: str, credit: tuple[int, int]
) -> None:
    async with bystander(broker.url, topic) as other, RawPeer(broker.port) as peer:
        await peer.hello()
        producer = await peer.open_producer(topic, "writer")
        handle = await peer.subscribe(topic, "s")
        await peer.send(frame(Opcode.FLOW, (handle, *credit)))
        await peer.send(frame(Opcode.FLOW, (handle, *credit)))
        with_data = frame(Opcode.PRODUCE, (producer.handle,), 77, producer.batch([b"x"], 0))
        try:
            await peer.send(with_data)
            await peer.receive()
        except PeerClosed:
            pass
        await other.check()


BATCHES = [
    Bad("empty", b"", 106),
    Bad("short", bytes(40), 106),
    Bad("magic", record_batch([b"x"], magic=1), 106),
    Bad("version", record_batch([b"x"], version=2), 104),
    Bad("codec", record_batch([b"x"], codec=9), 106),
    Bad("flags", record_batch([b"x"], flags=0x4000), 106),
    Bad("control", record_batch([b"x"], flags=0x8000), 106),
    Bad("sparse", record_batch([b"x"], flags=16, extra_columns=bytes(8)), 106),
    Bad("no records", record_batch([], count=0), 106),
    Bad("too many records", record_batch([b"x"], count=2**31), 103),
    Bad("length", record_batch([b"x"], length=4_096), 106),
    Bad("two batches", record_batch([b"x"]) + record_batch([b"y"]), 106),
    Bad("crc", record_batch([b"x"], crc_xor=1), 106),
    Bad("missing columns", record_batch([b"x"], flags=1), 106),
    Bad("wild offsets", record_batch([b"x"], body=struct.pack("<ii", 0, 2**30) + bytes(8)), 106),
]


@pytest.mark.parametrize("bad", BATCHES, ids=lambda bad: bad.name)
async def test_bad_batch_is_refused_and_the_producer_goes_on(
    broker: BrokerProcess, topic: str, bad: Bad
) -> None:
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        producer = await peer.open_producer(topic, "writer")
        answer = await peer.call(Opcode.PRODUCE, producer.handle, payload=bad.data)
        assert answer.opcode == Opcode.ERROR
        assert answer.correlation != 0
        assert answer.fields[0] in {bad.code, 106}, answer
        assert (await producer.produce([b"good"], 0)).fields == [0]


async def test_undecodable_batch_stops_nobody_for_good(broker: BrokerProcess, topic: str) -> None:
    """The broker does not unpack bodies: readers and consumers are told of a bad one and can go on behind it."""
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        producer = await peer.open_producer(topic, "writer")
        await producer.produce([b"before"], 0)
        poison = record_batch(
            [b"x"],
            body=b"this is not an lz4 block",
            codec=1,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=1,
        )
        answer = await peer.call(Opcode.PRODUCE, producer.handle, payload=poison)
        if answer.opcode == Opcode.ERROR:
            return  # Even better: it was never stored.
        await producer.produce([b"behind"], 2)
    async with danubius.connect(broker.url) as client:
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            assert (await consumer.receive(timeout=HANG_S)).payload == b"before"
            with pytest.raises(danubius.InvalidBatch, match="1"):
                await consumer.receive(timeout=HANG_S)
            assert (await consumer.receive(timeout=HANG_S)).payload == b"behind"
        async with client.reader(topic, start=2, stop_at_end=True) as reader:
            assert [message.payload async for message in reader] == [b"behind"]


async def test_random_bytes_from_many_peers(broker: BrokerProcess, topic: str) -> None:
    dice = random.Random(13)

    async def babble(data: bytes) -> None:
        async with RawPeer(broker.port) as peer:
            try:
                await peer.send(data)
                peer.writer.write_eof()
                await peer.wait_closed()
            except (PeerClosed, OSError):
                pass

    async with (
        bystander(broker.url, topic) as other,
        asyncio.timeout(HANG_S),
        asyncio.TaskGroup() as tasks,
    ):
        for _ in range(200):
            tasks.create_task(babble(dice.randbytes(dice.randrange(1, 3_000))))
        await other.check(10)
