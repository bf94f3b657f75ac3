"""Server-sent events: order, resumption, heartbeats, slow readers, and what ends a stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import TYPE_CHECKING, Any

import httpx

from danubius.edge.rest.bounds import TAILS_MAX
from e2e.rest_client import Rest
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker


async def events(
    rest: Rest, topic: str, last_event_id: str = "", **query: object
) -> AsyncIterator[dict[str, str]]:
    """The events of a stream, each as its fields."""
    headers = {"last-event-id": last_event_id} if last_event_id else {}
    params: dict[str, Any] = {name: str(value) for name, value in query.items()}
    path = rest.path(topic, "tail")
    async with rest.http.stream("GET", path, params=params, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        fields: dict[str, str] = {}
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if line:
                fields[name] = value
            elif fields:
                yield fields
                fields = {}


async def test_a_stream_carries_what_is_there_and_what_comes(
    broker: BrokerProcess, topic: str
) -> None:
    async with Rest(broker) as rest, Rest(broker) as other:
        await rest.publish(topic, "old")
        seen: list[tuple[str, str]] = []
        async for event in events(rest, topic, start="earliest", limit=3):
            if event.get("event") == "message":
                message = json.loads(event["data"])
                assert event["id"] == str(message["offset"])
                seen.append((event["id"], message["text"]))
                if len(seen) == 1:
                    await other.publish(topic, "new", "line\nbreak")
        assert seen == [("0", "old"), ("1", "new"), ("2", "line\nbreak")]


async def test_a_reader_comes_back_where_it_was(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest:
        await rest.publish(topic, *"abcd")
        seen = [
            json.loads(event["data"])["text"]
            async for event in events(rest, topic, "1", start="earliest", limit=2)
            if event.get("event") == "message"
        ]
        assert seen == ["c", "d"]
        answer = await rest.http.get(
            rest.path(topic, "tail"), headers={"last-event-id": "not a number"}
        )
        assert answer.status_code == 400
        assert "Last-Event-ID" in answer.json()["detail"]


async def test_a_stream_says_how_it_ends(broker: BrokerProcess, topic: str) -> None:
    """By its own limit of time, with an event when its topic goes, and with a status before it began."""
    async with Rest(broker) as rest, Rest(broker) as other:
        await rest.get(rest.path(topic, "tail"), 404)
        await rest.put(rest.path(topic))
        seen = [event async for event in events(rest, topic, duration_ms=50)]
        assert seen[0] == {"retry": "1000"}
        last: dict[str, str] = {}
        async for event in events(rest, topic):
            if "retry" in event:
                await other.delete(rest.path(topic))
            last = event
        assert last["event"] == "error"
        assert json.loads(last["data"])["name"] in {"TopicDeleted", "TopicNotFound"}


async def test_a_long_history_comes_in_order(broker: BrokerProcess, topic: str) -> None:
    count = 5_000
    async with Rest(broker) as rest:
        for start in range(0, count, 1_000):
            await rest.publish(topic, *map(str, range(start, start + 1_000)))
        seen = [
            int(json.loads(event["data"])["text"])
            async for event in events(rest, topic, start=0, limit=count)
            if event.get("event") == "message"
        ]
    assert seen == list(range(count))


async def test_streams_are_bounded(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()
    async with Rest(broker) as rest:
        await rest.put(rest.path(topic))
        waiting: list[socket.socket] = []
        try:
            for _ in range(TAILS_MAX):
                one = socket.create_connection(("127.0.0.1", broker.http_port))
                waiting.append(one)
                one.sendall(
                    f"GET {rest.path(topic, 'tail')} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()
                )
                assert (await asyncio.to_thread(one.recv, 100)).startswith(b"HTTP/1.1 200")
            answer = await rest.http.get(rest.path(topic, "tail"))
            assert answer.status_code == 429
            assert answer.headers["retry-after"]
        finally:
            for one in waiting:
                one.close()
        status = 0
        async with asyncio.timeout(HANG_S):  # the places are free again
            while status != 200:
                again = await rest.http.get(rest.path(topic, "tail"), params={"duration_ms": "1"})
                status = again.status_code


async def test_streams_and_polls_end_when_the_broker_stops(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker()
    async with Rest(broker) as rest, asyncio.TaskGroup() as tasks:
        await rest.put(rest.path(topic))
        session = await rest.open_consumer(topic)
        begun = asyncio.Event()

        async def follow() -> None:
            async for _event in events(rest, topic):
                begun.set()

        following = tasks.create_task(follow())

        async def wait(request: Awaitable[httpx.Response]) -> None:
            # One that has not reached the broker yet has its connection closed.
            with contextlib.suppress(httpx.TransportError):
                assert (await request).status_code in {200, 503}

        path = rest.path(topic, "messages")
        tasks.create_task(wait(rest.http.post(session + "/receive", json={"wait_ms": 30_000})))
        tasks.create_task(wait(rest.http.get(path, params={"wait_ms": "30000"})))
        await begun.wait()
        assert await asyncio.to_thread(broker.stop) == 0
        await following
    assert "Traceback" not in broker.log()


async def test_a_request_whose_body_comes_while_the_broker_stops_hears_that(
    start_broker: StartBroker, topic: str
) -> None:
    """And not that its session is unknown, which would make it open another one elsewhere."""
    broker = start_broker()
    body = b'{"wait_ms": 10}'
    async with Rest(broker) as rest, asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        await rest.put(rest.path(topic))
        session = await rest.open_consumer(topic)
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
        head = (
            f"POST {session}/receive HTTP/1.1\r\nhost: 127.0.0.1\r\nexpect: 100-continue\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode())
        assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
        stopped: asyncio.Task[int] | None = None
        async for _event in events(rest, topic):  # ends when the broker begins to stop
            stopped = stopped or tasks.create_task(asyncio.to_thread(broker.stop))
        writer.write(body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 503")
        writer.close()
        assert stopped is not None
        assert await stopped == 0
