"""Connections of the HTTP port: how many, for how long, and what they may say. A small application, a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from danubius.edge.core.hosts import AllowedHosts
from danubius.edge.http import make_server
from danubius.edge.http_connection import ConnectionBounds
from danubius.edge.rest.host_check import HostCheck
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.responses import Response

GET = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
FOREVER = ConnectionBounds(connections_max=3, header_s=3600.0)
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Port:
    """A served application, and connections to it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_held = asyncio.Event()
        self.go_on = asyncio.Event()
        self.number = 0
        self._lines: list[Line] = []

    async def answer(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        if request.url.path == "/held":
            self.is_held.set()
            await self.go_on.wait()
        try:
            return PlainTextResponse(await request.body() or b"fine")
        except ClientDisconnect:
            return PlainTextResponse("to nobody")

    async def connect(self, said: bytes = b"") -> Line:
        line = await asyncio.open_connection("127.0.0.1", self.number)
        self._lines.append(line)
        line[1].write(said)
        return line

    async def close(self) -> None:
        self.go_on.set()
        for _, writer in self._lines:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def served(bounds: ConnectionBounds) -> AsyncGenerator[Port]:
    port = Port()
    app = Starlette(
        routes=[Route("/{rest:path}", port.answer, methods=["GET", "POST", "DELETE"])],
        middleware=[Middleware(HostCheck, AllowedHosts(["me.example"]), ["/health"])],
    )
    server = make_server(app, "127.0.0.1", 0, bounds)
    port.number = await server.open()
    try:
        async with asyncio.timeout(HANG_S):
            yield port
    finally:
        await port.close()
        await server.shutdown()


async def head_of(line: Line) -> bytes:
    return await line[0].readuntil(b"\r\n\r\n")


async def hears_the_end(line: Line) -> bytes:
    """What is said until the connection ends."""
    try:
        return await line[0].read()
    except ConnectionResetError:
        return b""


async def test_connections_that_say_nothing_keep_nobody_out() -> None:
    async with served(FOREVER) as port:
        idle = [await port.connect() for _ in range(20)]
        newcomer = await port.connect(GET)
        assert b" 200 " in await head_of(newcomer)
        for line in idle[:17]:
            assert await hears_the_end(line) == b""


async def test_the_one_without_a_request_for_longest_goes() -> None:
    async with served(FOREVER) as port:
        first = await port.connect(GET)
        assert b" 200 " in await head_of(first)
        half = await port.connect(b"GET / HTTP/1.1\r\nhost:")
        busy = await port.connect(b"GET /held HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        await port.is_held.wait()
        third = await port.connect(GET)
        assert b" 200 " in await head_of(third)
        assert await hears_the_end(first) == b"fine"
        fourth = await port.connect(GET)
        assert b" 200 " in await head_of(fourth)
        assert await hears_the_end(half) == b""
        port.go_on.set()
        assert b" 200 " in await head_of(busy)


async def test_while_all_have_requests_the_newcomer_goes() -> None:
    async with served(FOREVER._replace(connections_max=1)) as port:
        busy = await port.connect(b"GET /held HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        await port.is_held.wait()
        assert await hears_the_end(await port.connect(GET)) == b""
        port.go_on.set()
        assert b" 200 " in await head_of(busy)


async def test_a_head_that_does_not_come_in_time_ends_the_connection() -> None:
    async with served(FOREVER._replace(header_s=0.0)) as port:
        assert await hears_the_end(await port.connect()) == b""
        assert port.asked == []


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"GET / HTTP/1.1\nhost: 127.0.0.1\n\n", "line feed"),
        (
            b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            "beside transfer-encoding",
        ),
        (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\na: b\r\n c\r\n\r\n", "folded"),
        (b"\x16\x03\x01", "no HTTP/1.1 request"),
    ],
)
async def test_an_ambiguous_request_is_told_why_and_the_connection_ends(
    said: bytes, words: str
) -> None:
    async with served(FOREVER) as port:
        line = await port.connect(said + GET)
        head, _, body = (await hears_the_end(line)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"connection: close" in head.lower()
        assert words in json.loads(body)["detail"]
        assert port.asked == []


async def test_garbage_behind_a_request_that_is_being_answered_ends_both() -> None:
    """Its answer must not be written behind the refusal, nor the refusal into the answer."""
    async with served(FOREVER) as port:
        line = await port.connect(
            b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        line[1].write(b"zz\r\n")
        answer = await hears_the_end(line)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1 ") == 2  # the status line, and the sentence


async def test_another_sites_name_is_refused_and_health_is_not() -> None:
    async with served(FOREVER) as port:
        for method, path, host, status in (
            ("GET", "/", "evil.example", 421),
            ("DELETE", "/topic", "evil.example:6652", 421),
            ("GET", "/health", "evil.example", 200),
            ("DELETE", "/topic", "me.example:6652", 200),
            ("GET", "/", "10.0.0.9", 200),
        ):
            line = await port.connect(f"{method} {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
            head = await head_of(line)
            assert head.startswith(f"HTTP/1.1 {status} ".encode()), (method, path, host)
            if status == 421:
                assert b"connection: close" in head
                assert b"--allowed-host" in await line[0].read()
        assert port.asked == ["/health", "/topic", "/"]


async def test_a_program_that_says_no_host_is_answered() -> None:
    async with served(FOREVER) as port:
        assert b" 200 " in await head_of(await port.connect(b"GET / HTTP/1.0\r\n\r\n"))
