"""Peers of the HTTP port that take their time: each is cut off, costs little until then, and slows nobody down."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from danubius.edge.rest.bounds import (
    BINARY_BODY_BYTES_MAX,
    CONNECTIONS_MAX,
    REQUESTS_MAX,
)
from e2e.rest_client import Rest
from e2e.traffic import bystander, eventually
from patience import HANG_S, SOON_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

SEND_BUFFER_MAX: Final = int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2])
ANSWERS: Final = 8
STREAMS: Final = 4


def ask(broker: BrokerProcess, path: str, accept: str) -> socket.socket:
    """Send a request and never read."""
    lazy = socket.create_connection(("127.0.0.1", broker.http_port))
    lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    lazy.sendall(
        f"GET {path}?start=0 HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: {accept}\r\n\r\n".encode()
    )
    return lazy


@pytest.mark.skipif(SEND_BUFFER_MAX > 6 << 20, reason="the kernel would take a whole answer")
async def test_who_does_not_read_is_cut_off(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()
    async with Rest(broker) as rest, bystander(broker.url, topic) as other:
        for _ in range(16):
            await rest.publish(topic, *["x" * 50_000] * 40)
        before = broker.rss_bytes()
        lazy = [
            ask(broker, rest.path(topic, "messages"), "application/vnd.danubius.batches")
            for _ in range(ANSWERS)
        ]
        lazy += [ask(broker, rest.path(topic, "tail"), "text/event-stream") for _ in range(STREAMS)]
        try:
            await other.check(20)
            await eventually(
                lambda: broker.log().count("slow reader cut off") == ANSWERS + STREAMS,
                "all are cut off",
                within_s=HANG_S,
            )
            assert broker.rss_bytes() - before < 200 << 20
            assert "ERROR" not in broker.log()
        finally:
            for one in lazy:
                one.close()


async def test_who_never_gets_to_a_request_is_cut_off(broker: BrokerProcess) -> None:
    """One says nothing, one says half, one comes to it by and by; all hear the end."""

    async def drip(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(10 * SOON_S)

    async def hear_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        for begin in (b"", b"GET /api HTTP/1.1\r\nhost:", b"GET /api HTTP/1.1\r\nx: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
            writer.write(begin)
            if begin.endswith(b"x: "):
                tasks.create_task(drip(writer))
            tasks.create_task(hear_the_end(reader, writer))


async def test_bodies_that_do_not_come_stop_nobody(start_broker: StartBroker, topic: str) -> None:
    """As many as would fill the room for bodies, and as many as there may be requests, if what is announced counted."""
    broker = start_broker()
    length = BINARY_BODY_BYTES_MAX
    head = f"POST /api/v1/topics{topic}/messages HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    head += f"content-type: application/octet-stream\r\ncontent-length: {length}\r\n\r\n"
    async with Rest(broker) as rest, contextlib.AsyncExitStack() as stack:
        for number in range(REQUESTS_MAX + 10):
            _, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
            stack.callback(writer.close)
            writer.write(head.encode())
            await writer.drain()
            if number % 100 == 7:
                await rest.publish(topic, "in time")
                await rest.get(rest.path(topic))
        large = await rest.http.post(
            rest.path(topic, "messages"),
            content=bytes(length - 1024),
            headers={"content-type": "application/octet-stream"},
        )
        assert large.status_code == 201


async def test_connections_that_say_nothing_do_not_hide_health(start_broker: StartBroker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8_192)), hard))
    broker = start_broker()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(CONNECTIONS_MAX + 100):
            _, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
            stack.callback(writer.close)
        for _ in range(5):
            health = await asyncio.to_thread(broker.health)
            assert health["status"] == "ok"
