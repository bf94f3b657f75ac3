"""The native protocol by hand, from docs/internals alone: for frames that no honest client would send.

It shares no code with the product but the numbers of the opcodes, so it is also a second reading of the pages that
specify the frame and the record batch.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import google_crc32c
import msgspec

from danubius.wire.commands import Opcode
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

FRAME_HEADER: Final = struct.Struct("<IBBHIIII")
BATCH_HEADER: Final = struct.Struct("<IIQIIBBHIQIIQqqQII")
FRAME_MAGIC: Final = int.from_bytes(b"DNW\x01", "little")
BATCH_MAGIC: Final = 0x42524E44

assert FRAME_HEADER.size == 24
assert BATCH_HEADER.size == 88


def pad8(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def crc32c(data: bytes) -> int:
    return cast("int", google_crc32c.value(data))  # the package has no types


def frame(
    opcode: int,
    fields: object = (),
    correlation: int = 0,
    payload: bytes = b"",
    *,
    meta: bytes | None = None,
    flags: int = 0,
    reserved: int = 0,
    magic: int = FRAME_MAGIC,
    crc_xor: int = 0,
    length: int | None = None,
    meta_length: int | None = None,
) -> bytes:
    """One frame; every field can be made wrong."""
    meta = msgspec.msgpack.encode(fields) if meta is None else meta
    body = pad8(meta) + payload
    length = FRAME_HEADER.size + len(body) - 4 if length is None else length
    meta_length = len(meta) if meta_length is None else meta_length
    head = struct.pack("<IBBHII", length, opcode, flags, reserved, correlation, meta_length)
    crc = crc32c(head + meta) ^ crc_xor
    return head + struct.pack("<II", crc, magic) + body


def record_batch(
    payloads: Sequence[bytes],
    *,
    producer_id: int = 0,
    producer_epoch: int = 0,
    base_sequence: int = 0,
    time_us: int = 1_700_000_000_000_000,
    flags: int = 0,
    extra_columns: bytes = b"",
    version: int = 1,
    codec: int = 0,
    count: int | None = None,
    magic: int = BATCH_MAGIC,
    length: int | None = None,
    crc_xor: int = 0,
    body: bytes | None = None,
) -> bytes:
    """One record batch of payloads alone; every field can be made wrong."""
    if body is None:
        ends = [0]
        for one in payloads:
            ends.append(ends[-1] + len(one))
        body = pad8(struct.pack(f"<{len(ends)}i", *ends)) + pad8(b"".join(payloads)) + extra_columns
    total = BATCH_HEADER.size + len(body)
    count = len(payloads) if count is None else count
    head = BATCH_HEADER.pack(
        magic, total if length is None else length, 0, 0, 0, version, codec, flags, count,
        producer_id, producer_epoch, 0, base_sequence, time_us, time_us, 0, len(body), len(body),
    )  # fmt: skip
    crc = crc32c(head[24:] + body) ^ crc_xor
    return head[:20] + struct.pack("<I", crc) + head[24:] + body


@dataclass
class RawFrame:
    """A frame as it came."""

    opcode: int
    correlation: int
    fields: list[Any]
    payload: bytes


class PeerClosed(Exception):
    """The broker closed the connection."""


class RawPeer:
    """One connection to a broker, with no manners of its own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._next_correlation = 1

    async def __aenter__(self) -> RawPeer:
        async with asyncio.timeout(HANG_S):
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()
        try:
            async with asyncio.timeout(HANG_S):
                await self.writer.wait_closed()
        except OSError:
            pass  # A peer that was cut off is what many tests are about.

    def abort(self) -> None:
        """End the connection at once, with a reset if anything was unread."""
        self.writer.transport.abort()

    def stop_reading(self) -> None:
        """Take nothing more off the socket, so that the broker's writes run full."""
        transport = self.writer.transport
        assert isinstance(transport, asyncio.ReadTransport)
        transport.pause_reading()

    def resume_reading(self) -> None:
        transport = self.writer.transport
        assert isinstance(transport, asyncio.ReadTransport)
        transport.resume_reading()

    async def send(self, data: bytes, *, within_s: float = HANG_S) -> None:
        try:
            self.writer.write(data)
            async with asyncio.timeout(within_s):
                await self.writer.drain()
        except (ConnectionError, BrokenPipeError) as error:
            raise PeerClosed(str(error)) from error

    async def receive(self, *, within_s: float = HANG_S) -> RawFrame:
        """The next frame that is not a ping; pings are answered."""
        while True:
            received = await self._receive_any(within_s)
            if received.opcode != Opcode.PING:
                return received
            await self.send(frame(Opcode.PONG, (), received.correlation))

    async def _receive_any(self, within_s: float) -> RawFrame:
        try:
            async with asyncio.timeout(within_s):
                head = await self.reader.readexactly(FRAME_HEADER.size)
                length, opcode, _, _, correlation, meta_length, crc, _ = FRAME_HEADER.unpack(head)
                body = await self.reader.readexactly(length + 4 - FRAME_HEADER.size)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise PeerClosed(str(error)) from error
        meta = body[:meta_length]
        assert crc32c(head[:16] + meta) == crc
        return RawFrame(opcode, correlation, msgspec.msgpack.decode(meta), body[len(pad8(meta)) :])

    async def call(self, opcode: int, *fields: object, payload: bytes = b"") -> RawFrame:
        """Send a request and return the frame that answers it."""
        correlation = self._next_correlation
        self._next_correlation += 1
        await self.send(frame(opcode, fields, correlation, payload))
        while True:
            answer = await self.receive()
            if answer.correlation == correlation:
                return answer
            if answer.opcode == Opcode.ERROR and answer.correlation == 0:
                return answer

    async def hello(self, low: int = 1, high: int = 1) -> RawFrame:
        return await self.call(Opcode.HELLO, low, high, "raw-peer")

    async def open_producer(self, topic: str, name: str, *, resume_epoch: int = 0) -> RawProducer:
        answer = await self.call(Opcode.OPEN_PRODUCER, topic, name, {}, resume_epoch)
        assert answer.opcode == Opcode.PRODUCER_OPENED, answer
        return RawProducer(self, *answer.fields[:4])

    async def subscribe(
        self, topic: str, subscription: str, kind: str = "exclusive", consumer: str = "raw"
    ) -> int:
        answer = await self.call(
            Opcode.SUBSCRIBE, topic, subscription, kind, consumer, {"type": "earliest"}, 0, False
        )
        assert answer.opcode == Opcode.SUBSCRIBED, answer
        return int(answer.fields[0])

    async def wait_closed(self, *, within_s: float = HANG_S) -> list[RawFrame]:
        """Everything the broker still said until it closed the connection."""
        said: list[RawFrame] = []
        try:
            while True:
                said.append(await self.receive(within_s=within_s))
        except PeerClosed:
            return said


@dataclass
class RawProducer:
    """A producer handle of a raw peer."""

    peer: RawPeer
    handle: int
    producer_id: int
    epoch: int
    next_sequence: int

    def batch(self, payloads: Sequence[bytes], sequence: int) -> bytes:
        return record_batch(
            payloads,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
        )

    async def produce(self, payloads: Sequence[bytes], sequence: int) -> RawFrame:
        return await self.peer.call(
            Opcode.PRODUCE, self.handle, payload=self.batch(payloads, sequence)
        )
