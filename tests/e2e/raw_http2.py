"""HTTP/2 as a peer speaks it that wants to do what gRPC's own clients never do: begin messages and not end them."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import Final

SEND_MESSAGE: Final = "/danube.ProducerService/SendMessage"
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK: Final = 1
_END_STREAM: Final = 1
_END_HEADERS: Final = 4
_INITIAL_WINDOW_SIZE: Final = 4
_WINDOW: Final = 65_535
_FRAME_BYTES: Final = 16_384


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return struct.pack("!I", len(body))[1:] + struct.pack("!BBI", kind, flags, stream) + body


def _literal(name: str, value: str) -> bytes:
    """A header that is not kept and not compressed."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


class Http2Peer:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._window = _WINDOW
        self._initial = _WINDOW
        self._windows: dict[int, int] = {}
        self._left: dict[int, int] = {}
        """Of each stream that is open, what is still to be sent."""
        self._next = 1
        self._moved = asyncio.Event()
        self.is_over = False

    async def __aenter__(self) -> Http2Peer:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(_PREFACE + frame(_SETTINGS, 0, 0))
        self._hearing = asyncio.get_running_loop().create_task(self._hear())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._hearing.cancel()
        await asyncio.wait([self._hearing])
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def leave_unfinished(
        self, path: str, streams: int, size: int, *, deadline: str = ""
    ) -> None:
        """Begin so many messages, and send all but the last byte of each; back when each is sent or was refused."""
        headers = b"".join(
            _literal(name, value)
            for name, value in (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", "127.0.0.1"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                *([("grpc-timeout", deadline)] if deadline else []),
            )
        )
        for _ in range(streams):
            stream, self._next = self._next, self._next + 2
            self._writer.write(frame(_HEADERS, _END_HEADERS, stream, headers))
            self._windows.setdefault(stream, self._initial)
            self._left[stream] = size - 1
            self._send(stream, struct.pack("!BI", 0, size))
        await self._writer.drain()
        while any(self._left.values()) and not self.is_over:
            self._moved.clear()
            if not await self._pour():
                await self._moved.wait()

    async def _pour(self) -> bool:
        """Send what the windows allow; whether that was anything."""
        has_sent = False
        for stream in list(self._left):
            count = min(
                self._left.get(stream, 0),
                self._windows.get(stream, 0),
                self._window,
                _FRAME_BYTES,
            )
            if count > 0:
                self._left[stream] -= count
                self._send(stream, bytes(count))
                has_sent = True
                with contextlib.suppress(OSError):
                    await self._writer.drain()
        return has_sent

    def _send(self, stream: int, data: bytes) -> None:
        self._window -= len(data)
        self._windows[stream] -= len(data)
        self._writer.write(frame(_DATA, 0, stream, data))

    async def _hear(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                size = int.from_bytes(head[:3])
                kind, flags, stream = struct.unpack("!BBI", head[3:])
                self._heard(kind, flags, stream, await self._reader.readexactly(size))
                self._moved.set()
        except (asyncio.IncompleteReadError, OSError):
            self.is_over = True
            self._moved.set()

    def _heard(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for at in range(0, len(body), 6):
                name, value = struct.unpack_from("!HI", body, at)
                if name == _INITIAL_WINDOW_SIZE:
                    for known in self._windows:
                        self._windows[known] += value - self._initial
                    self._initial = value
            self._writer.write(frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._writer.write(frame(_PING, _ACK, 0, body))
        elif kind == _WINDOW_UPDATE:
            (more,) = struct.unpack("!I", body)
            if stream:
                self._windows[stream] = self._windows.get(stream, self._initial) + more
            else:
                self._window += more
        elif kind == _RST_STREAM or (kind == _HEADERS and flags & _END_STREAM):
            self._left.pop(stream, None)
        elif kind == _GOAWAY:
            self.is_over = True
