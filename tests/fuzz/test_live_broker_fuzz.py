"""Ten thousand malformed inputs against one live broker on loopback, from a seed.

The broker must stay up, keep answering an honest client, and lose or change nothing: what it held before, what an
honest producer writes meanwhile, and whatever it chose to accept are all read back, also after a restart.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

import danubius
from danubius.wire.commands import Opcode
from e2e.raw_wire import PeerClosed, RawPeer, RawProducer, frame, record_batch
from e2e.traffic import bystander, numbered, payloads, read_all
from patience import HANG_S, LOOK_S
from proving import sized

if TYPE_CHECKING:
    from collections.abc import Callable

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

INPUTS: Final = sized(5_000, 20_000)
WORKERS: Final = 8
SEED: Final = 99

ODD_NUMBERS: Final = [
    0,
    1,
    -1,
    2,
    7,
    255,
    2**15,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**63 - 1,
    2**64 - 1,
    -(2**63),
]
ODD_TEXTS: Final = [
    "",
    "/",
    "/fuzz/a",
    "/fuzz/b",
    "/fuzz/" + "x" * 300,
    "s",
    "ü",
    "\x00",
    "shared",
    "exclusive",
]
FUZZ_TOPICS: Final = ["/fuzz/a", "/fuzz/b", "/fuzz/c"]


class Mutator:
    """Makes malformed inputs, every one from the dice."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.kinds: list[Callable[[RawProducer], bytes]] = [
            self.random_bytes,
            self.flipped_frame,
            self.cut_frame,
            self.random_meta,
            self.typed_nonsense,
            self.typed_nonsense,
            self.broken_batch,
            self.broken_batch_with_good_crc,
            self.wrong_header,
        ]

    def make(self, producer: RawProducer) -> bytes:
        return self.dice.choice(self.kinds)(producer)

    def value(self, depth: int = 0) -> Any:  # noqa: PLR0911 - any msgpack value at all
        kind = self.dice.randrange(8 if depth < 3 else 5)
        if kind == 0:
            return self.dice.choice(ODD_NUMBERS)
        if kind == 1:
            return self.dice.choice(ODD_TEXTS)
        if kind == 2:
            return self.dice.choice([None, True, False, 1.5, float("nan")])
        if kind == 3:
            return self.dice.randbytes(self.dice.randrange(20))
        if kind == 4:
            return self.dice.randrange(-5, 50)
        if kind == 5:
            return {
                "type": self.dice.choice(["offset", "time", "earliest", "latest", "never"]),
                "offset": self.value(3),
            }
        return [self.value(depth + 1) for _ in range(self.dice.randrange(4))]

    def random_bytes(self, producer: RawProducer) -> bytes:
        return self.dice.randbytes(self.dice.randrange(1, 400))

    def good_frame(self, producer: RawProducer) -> bytes:
        """Something that an honest peer could have said."""
        topic = self.dice.choice(FUZZ_TOPICS)
        number = self.dice.randrange(1, 1000)
        return self.dice.choice([
            frame(Opcode.PING, (), number),
            frame(Opcode.LOOKUP, (topic,), number),
            frame(Opcode.LIST_TOPICS, ("", "", 10), number),
            frame(Opcode.DESCRIBE_TOPIC, (topic,), number),
            frame(Opcode.SUBSCRIBE, (topic, "s", "shared", "c", {"type": "earliest"}, 0, False), number),
            frame(Opcode.FLOW, (number % 5, 10, 10_000)),
            frame(Opcode.ACK, (number % 5, [[0, number]]), number),
            frame(Opcode.FETCH, (topic, {"type": "earliest"}, 1000, 0, False), number),
            frame(Opcode.PRODUCE, (producer.handle,), number, self.good_batch(producer)),
        ])  # fmt: skip

    def good_batch(self, producer: RawProducer) -> bytes:
        return producer.batch(
            [self.dice.randbytes(self.dice.randrange(60))], producer.next_sequence
        )

    def flipped_frame(self, producer: RawProducer) -> bytes:
        data = bytearray(self.good_frame(producer))
        for _ in range(self.dice.randrange(1, 4)):
            data[self.dice.randrange(len(data))] ^= 1 << self.dice.randrange(8)
        return bytes(data)

    def cut_frame(self, producer: RawProducer) -> bytes:
        data = self.good_frame(producer)
        return data[: self.dice.randrange(1, len(data))] + self.good_frame(producer)

    def random_meta(self, producer: RawProducer) -> bytes:
        meta = self.dice.randbytes(self.dice.randrange(40))
        return frame(
            self.dice.choice(list(Opcode)), meta=meta, correlation=self.dice.randrange(2**32)
        )

    def typed_nonsense(self, producer: RawProducer) -> bytes:
        """Valid frames and valid MessagePack that mean nothing."""
        fields = [self.value() for _ in range(self.dice.randrange(8))]
        payload = (
            self.dice.randbytes(8 * self.dice.randrange(20)) if self.dice.random() < 0.2 else b""
        )
        return frame(self.dice.choice(list(Opcode)), fields, self.dice.randrange(2**32), payload)

    def broken_batch(self, producer: RawProducer) -> bytes:
        data = bytearray(self.good_batch(producer))
        for _ in range(self.dice.randrange(1, 6)):
            data[self.dice.randrange(len(data))] = self.dice.randrange(256)
        return frame(Opcode.PRODUCE, (producer.handle,), 5, bytes(data))

    def broken_batch_with_good_crc(self, producer: RawProducer) -> bytes:
        """The checksum is right: only the checks of the content stand between this and the consumers."""
        body = self.dice.randbytes(8 * self.dice.randrange(1, 12))
        batch = record_batch(
            [b""],
            body=body,
            count=self.dice.choice([1, 2, 3, 1000, 2**31]),
            flags=self.dice.choice([0, 0, 0, 1, 3, 4, 8, 15, self.dice.randrange(2**16)]),
            codec=self.dice.choice([0, 0, 1, 2, 3]),
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=self.dice.choice([0, producer.next_sequence, 2**64 - 1]),
            time_us=self.dice.choice([0, -1, 2**63 - 1]),
        )
        return frame(Opcode.PRODUCE, (producer.handle,), 6, batch)

    def wrong_header(self, producer: RawProducer) -> bytes:
        meta = msgspec.msgpack.encode(())
        return frame(
            self.dice.randrange(256),
            meta=meta,
            flags=self.dice.randrange(256),
            reserved=self.dice.randrange(2**16),
            length=self.dice.choice([None, 0, 19, 20, 21, 2**16, 2**24 * 17, 2**31, 2**32 - 1]),
            meta_length=self.dice.choice([None, 0, 1, 2**20 + 1, 2**31]),
            correlation=self.dice.randrange(2**32),
        )


class Attack:
    """Some workers that share a count of inputs to send."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.left = INPUTS
        self.sent = 0
        self.closed = 0

    async def work(self, number: int) -> None:
        mutator = Mutator(random.Random(SEED * 1000 + number))
        while self.left > 0:
            async with RawPeer(self.port) as peer:
                if mutator.dice.random() < 0.1:
                    await self.say(peer, mutator.random_bytes(RawProducer(peer, 1, 1, 1, 0)))
                    continue
                await peer.hello()
                topic = mutator.dice.choice(FUZZ_TOPICS)
                producer = await peer.open_producer(topic, f"fuzz-{number}")
                await self.converse(peer, producer, mutator)

    async def converse(self, peer: RawPeer, producer: RawProducer, mutator: Mutator) -> None:
        """Inputs on one connection until the broker hangs up; answers are thrown away as they come."""
        try:
            while self.left > 0:
                await self.say(peer, mutator.make(producer))
                if mutator.dice.random() < 0.2:
                    peer.writer.write_eof()
                    break
                await asyncio.sleep(0)
                if peer.reader.at_eof():
                    break
            async with asyncio.timeout(HANG_S):
                while await peer.reader.read(65_536):
                    pass
        except (PeerClosed, OSError):
            pass
        self.closed += 1

    async def say(self, peer: RawPeer, data: bytes) -> None:
        self.left -= 1
        self.sent += 1
        await peer.send(data, within_s=HANG_S)


async def stored_bytes(port: int, topic: str) -> bytes:
    """Everything that the topic holds, as it is stored: the content of a compressed body is its readers' business."""
    found: list[bytes] = []
    at = 0
    async with RawPeer(port) as peer:
        await peer.hello()
        while True:
            position = {"type": "offset", "offset": at}
            answer = await peer.call(Opcode.FETCH, topic, position, 1 << 20, 0, False)
            assert answer.opcode == Opcode.FETCHED, answer
            found.append(answer.payload)
            at = answer.fields[1]
            if at >= answer.fields[3]:
                return b"".join(found)


async def contents(broker: BrokerProcess, topics: list[str]) -> dict[str, bytes]:
    return {topic: await stored_bytes(broker.port, topic) for topic in topics}


async def readable(broker: BrokerProcess, topic: str) -> list[bytes]:
    async with danubius.connect(broker.url) as client:
        return payloads(await read_all(client, topic))


@pytest.mark.grows
async def test_malformed_inputs_by_the_thousand(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker("--log-level", "warning")
    control = f"{topic}-control"
    async with danubius.connect(broker.url) as client:
        for name in FUZZ_TOPICS:
            await client.create_topic(name)
        async with client.producer(control) as producer:
            await producer.send_many(numbered(500))
    pid = broker.pid
    attack = Attack(broker.port)
    async with bystander(broker.url, topic) as other, asyncio.timeout(HANG_S):
        async with asyncio.TaskGroup() as tasks:
            working = [tasks.create_task(attack.work(number)) for number in range(WORKERS)]
            while not all(task.done() for task in working):
                await other.check(1)
                await asyncio.sleep(LOOK_S)
        await other.check(10)
    assert attack.sent >= INPUTS // 2
    assert attack.closed > 100
    assert broker.is_running
    assert broker.pid == pid
    assert "Traceback" not in broker.log()
    assert broker.rss_bytes() < 400 * 1024 * 1024
    before = await contents(broker, FUZZ_TOPICS)
    assert any(before.values()), "some inputs were good enough to be stored"
    assert await readable(broker, control) == numbered(500)
    broker.kill()
    broker.start()
    assert await contents(broker, FUZZ_TOPICS) == before
    assert await readable(broker, control) == numbered(500)
    assert broker.stop() == 0
