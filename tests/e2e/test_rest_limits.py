"""Bounds of the HTTP port: sizes, times and numbers, and that nobody else notices when one is reached."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from danubius.edge.rest.bounds import BINARY_BODY_BYTES_MAX, MESSAGES_BODY_BYTES_MAX, SESSIONS_MAX
from e2e.rest_client import Rest
from e2e.traffic import bystander
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "concepts" / "http.md"
JSON = {"content-type": "application/json"}
OCTETS = {"content-type": "application/octet-stream"}


async def stream(size: int) -> AsyncIterator[bytes]:
    """A body whose length nobody says before."""
    for _ in range(size // 65_536 + 1):
        yield bytes(65_536)


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_bodies_are_bounded(broker: BrokerProcess, topic: str, is_chunked: bool) -> None:
    async with Rest(broker) as rest, bystander(broker.url, topic) as other:
        for headers, most in ((JSON, MESSAGES_BODY_BYTES_MAX), (OCTETS, BINARY_BODY_BYTES_MAX)):
            content = stream(most) if is_chunked else bytes(most + 1)
            path = rest.path(topic, "messages")
            answer = await rest.http.post(path, content=content, headers=headers)
            assert answer.status_code == 413
            assert f"{most:,}" in answer.json()["detail"]
        await other.check()


async def test_an_endless_body_is_not_read_for_ever(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest:
        head = f"POST {rest.path(topic, 'messages')} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        head += "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"

        def send_for_ever() -> int:
            sent = 0
            with socket.create_connection(("127.0.0.1", broker.http_port), timeout=HANG_S) as line:
                line.sendall(head.encode())
                with contextlib.suppress(OSError):
                    while sent < 1 << 30:
                        line.sendall(b"10000\r\n" + bytes(65_536) + b"\r\n")
                        sent += 65_536
            return sent

        assert await asyncio.to_thread(send_for_ever) < 1 << 30


async def test_a_page_of_another_site_changes_nothing(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest:
        headers = {"origin": "https://example.com"}
        answer = await rest.http.put(rest.path(topic), json={}, headers=headers)
        assert answer.status_code == 403
        await rest.get(rest.path(topic), 404)
        own = {"origin": broker.http_url}
        assert (await rest.http.put(rest.path(topic), json={}, headers=own)).status_code == 201


@pytest.mark.parametrize("host", ["evil.example", "evil.example:6652", "localhost.evil.example"])
async def test_a_name_that_another_site_had_resolved_to_us_reads_and_deletes_nothing(
    broker: BrokerProcess, topic: str, host: str
) -> None:
    """DNS rebinding: for the browser, the page and the request are of one site."""
    async with Rest(broker) as rest:
        await rest.publish(topic, "secret")
        headers = {"host": host, "origin": f"http://{host}"}
        for method, path in (
            ("GET", rest.path(topic, "messages")),
            ("DELETE", rest.path(topic)),
            ("GET", "/metrics"),
            ("GET", "/api"),
        ):
            answer = await rest.http.request(method, path, headers=headers)
            assert answer.status_code == 421, (method, path)
            assert "secret" not in answer.text
            assert "--allowed-host" in answer.json()["detail"]
        assert (await rest.http.get("/health", headers=headers)).status_code == 200
        await rest.get(rest.path(topic))


async def test_a_name_that_the_operator_allows_is_answered(start_broker: StartBroker) -> None:
    broker = start_broker("--allowed-host", "broker.example", "--allowed-host", "*.cluster.local")
    async with Rest(broker) as rest:
        for host, status in (
            ("broker.example:6652", 200),
            ("a.cluster.local", 200),
            ("localhost:1", 200),
            ("other.example", 421),
        ):
            answer = await rest.http.get("/api/v1/broker", headers={"host": host})
            assert answer.status_code == status, host


async def test_headers_are_bounded(broker: BrokerProcess) -> None:
    async with Rest(broker) as rest:
        # The connection may be closed before the last of it is sent.
        with contextlib.suppress(httpx.TransportError):
            answer = await rest.http.get("/api/v1/broker", headers={"x-long": "x" * 4_000_000})
            assert answer.status_code == 400
        await rest.get("/api/v1/broker")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff" * 100,
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"GET /health HTTP/1.1\nhost: localhost\n\n",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\na: b\r\n c\r\n\r\n",
        b"POST /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_refused(broker: BrokerProcess, garbage: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
    writer.write(garbage)
    async with asyncio.timeout(HANG_S):
        said = await reader.read()  # to the end: the connection is closed
    assert said.startswith(b"HTTP/1.1 400 ")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["detail"]
    writer.close()
    await writer.wait_closed()
    async with Rest(broker) as rest:
        await rest.get("/api/v1/broker")


def test_sessions_are_bounded(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()
    body = {"type": "shared", "idle_timeout_ms": 600_000}
    with httpx.Client(base_url=broker.http_url, timeout=HANG_S) as http:
        assert http.put(Rest.path(topic), json={}).status_code == 201
        path = Rest.path(topic, "subscriptions", "s", "consumers")
        opened = [http.post(path, json=body) for _ in range(SESSIONS_MAX)]
        assert {answer.status_code for answer in opened} == {201}
        refused = http.post(path, json=body)
        assert (refused.status_code, refused.json()["name"]) == (429, "Overloaded")
        session = opened[0].json()["session"]
        assert http.delete(f"/api/v1/sessions/{session}").status_code == 204
        assert http.post(path, json=body).status_code == 201


async def test_a_rate_is_429_and_says_when_to_come_back(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest:
        await rest.put(rest.path(topic), {"spec": {"policies": {"publish_messages_per_s": 1}}})
        statuses: set[int] = set()
        async with asyncio.timeout(HANG_S):
            while 429 not in statuses:
                messages = [{"text": "x"}] * 50
                answer = await rest.http.post(
                    rest.path(topic, "messages"), json={"messages": messages}
                )
                statuses.add(answer.status_code)
                if answer.status_code == 429:
                    assert int(answer.headers["retry-after"]) >= 1
                    assert answer.json()["name"] == "Throttled"
                    assert answer.json()["wait_ms"] > 0
        assert statuses <= {201, 429}


def test_every_curl_line_of_the_page_works(broker: BrokerProcess) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        script = block.replace("http://127.0.0.1:6652", broker.http_url)
        script = script.replace("curl ", "curl --silent --show-error --fail-with-body ")
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
