"""Publishing and reading over HTTP, beside clients of the native protocol."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.model.partitions import route
from danubius.record.scan import iter_batches
from e2e.rest_client import Rest
from e2e.test_full_disk import failing_writes
from e2e.traffic import numbered, payloads, read_all, take
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker


async def test_what_is_published_over_http_reaches_a_client(
    broker: BrokerProcess, topic: str
) -> None:
    async with Rest(broker) as rest, danubius.connect(broker.url) as client:
        body = {
            "messages": [
                {"text": "żółw", "key": "k", "attributes": {"a": "b"}},
                {"json": {"n": [1, 2.5, None]}},
                {"base64": base64.b64encode(b"\xff\x00").decode(), "key_base64": "/w=="},
            ]
        }
        answer = await rest.post(rest.path(topic, "messages"), body, 201)
        assert answer["places"] == [{"topic": topic, "offset": n} for n in range(3)]
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            first, second, third = await take(consumer, 3)
    assert (first.payload.decode(), first.key, first.attributes) == ("żółw", b"k", {"a": "b"})
    assert (second.payload, second.key) == (b'{"n":[1,2.5,null]}', None)
    assert (third.payload, third.key) == (b"\xff\x00", b"\xff")


async def test_a_binary_body_is_one_message(broker: BrokerProcess, topic: str) -> None:
    payload = bytes(range(256)) * 4_000
    headers = {
        "content-type": "application/octet-stream",
        "x-danubius-key": "k1",
        "x-danubius-attributes": '{"Colour": "blue", "\\u017c": "x"}',
    }

    async def chunked() -> AsyncIterator[bytes]:  # no content-length: the body comes in chunks
        for start in range(0, len(payload), 100_000):
            yield payload[start : start + 100_000]

    async with Rest(broker) as rest, danubius.connect(broker.url) as client:
        path = rest.path(topic, "messages")
        for content in (payload, chunked()):
            answer = await rest.http.post(path, content=content, headers=headers)
            assert answer.status_code == 201, answer.text
        messages = await read_all(client, topic)
    assert payloads(messages) == [payload, payload]
    assert messages[0].key == b"k1"
    assert messages[0].attributes == {"Colour": "blue", "ż": "x"}


async def test_messages_of_clients_are_fetched_page_by_page(
    broker: BrokerProcess, topic: str
) -> None:
    sent = numbered(1_234)
    async with Rest(broker) as rest, danubius.connect(broker.url) as client:
        async with client.producer(topic) as producer:
            await producer.send_many(sent)
        seen: list[str] = []
        following: object = "earliest"
        while len(seen) < len(sent):
            page = await rest.get(rest.path(topic, "messages"), start=following, limit=100)
            assert 0 < len(page["messages"]) <= 100
            assert [m["offset"] for m in page["messages"]] == list(
                range(len(seen), len(seen) + len(page["messages"]))
            )
            seen += [m["text"] for m in page["messages"]]
            following = page["next"]
        end = await rest.get(rest.path(topic, "messages"), start=following)
    assert seen == [payload.decode() for payload in sent]
    assert (end["messages"], end["next"], end["end_offset"]) == ([], 1_234, 1_234)


async def test_compressed_messages_larger_than_an_answer_come_one_by_one(
    broker: BrokerProcess, topic: str
) -> None:
    """The bytes of an answer are bounded, but the first message always comes."""
    large = "x" * 2_000_000
    async with Rest(broker) as rest, danubius.connect(broker.url) as client:
        async with client.producer(topic, compression="lz4") as producer:
            await producer.send_many([large.encode()] * 3)
        following: object = 0
        for number in range(3):
            page = await rest.get(rest.path(topic, "messages"), start=following)
            assert [m["offset"] for m in page["messages"]] == [number]
            assert page["messages"][0]["text"] == large
            following = page["next"]


async def test_record_batches_are_fetched_as_they_are(broker: BrokerProcess, topic: str) -> None:
    sent = numbered(500)
    async with Rest(broker) as rest, danubius.connect(broker.url) as client:
        async with client.producer(topic) as producer:
            await producer.send_many(sent)
        answer = await rest.http.get(
            rest.path(topic, "messages"),
            params={"start": "100"},
            headers={"accept": "application/vnd.danubius.batches"},
        )
    assert answer.headers["content-type"] == "application/vnd.danubius.batches"
    first, following = (
        int(answer.headers["x-danubius-first"]),
        int(answer.headers["x-danubius-next"]),
    )
    seen = {
        offset: payload
        for batch in iter_batches(answer.content)
        for offset, payload in zip(batch.offsets(), batch.payloads(), strict=True)
        if offset >= first
    }
    assert first == 100
    assert seen == dict(enumerate(sent[100:following], start=100))


async def test_a_fetch_waits_for_what_comes(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest, asyncio.TaskGroup() as tasks:
        await rest.publish(topic, "first")
        waiting = tasks.create_task(rest.get(rest.path(topic, "messages"), start=1, wait_ms=30_000))
        await rest.publish(topic, "second")
        assert [m["text"] for m in (await waiting)["messages"]] == ["second"]


async def test_fetch_by_time(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest:
        await rest.publish(topic, "now")
        after = await rest.get(rest.path(topic, "messages"), start="2001-01-01T00:00:00Z")
        assert [m["text"] for m in after["messages"]] == ["now"]
        future = await rest.get(rest.path(topic, "offset"), at="2100-01-01T00:00:00+02:00")
        assert future["offset"] == 1


async def test_a_repeated_request_is_stored_once(start_broker: StartBroker, topic: str) -> None:
    """With a producer's name and a sequence: at once, after the producer left, and after a kill -9."""
    broker = start_broker()
    async with Rest(broker) as rest:
        first = await rest.publish(topic, "a", "b", producer="till-7", sequence=0)
        assert first["next_sequence"] == 2
        second = await rest.publish(topic, "c", producer="till-7", sequence=2)
        again = await rest.publish(topic, "a", "b", producer="till-7", sequence=0)
        assert again["places"] == first["places"]
        gap = await rest.publish(topic, "x", producer="till-7", sequence=9, status=409)
        assert gap["name"] == "OutOfSequence"
        assert "3 comes next" in gap["detail"]
    broker.kill()
    broker.start()
    async with Rest(broker) as rest:
        again = await rest.publish(topic, "c", producer="till-7", sequence=2)
        assert again["places"] == second["places"]
        await rest.publish(topic, "d", producer="till-7", sequence=3)
        page = await rest.get(rest.path(topic, "messages"))
        assert [m["text"] for m in page["messages"]] == ["a", "b", "c", "d"]


async def test_many_requests_at_once_to_one_topic(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest:
        async with asyncio.TaskGroup() as tasks:
            under_way = [
                tasks.create_task(rest.publish(topic, f"{number}a", f"{number}b"))
                for number in range(50)
            ]
        answered = {
            place["offset"]: f"{number}{'ab'[index]}"
            for number, task in enumerate(under_way)
            for index, place in enumerate(task.result()["places"])
        }
        page = await rest.get(rest.path(topic, "messages"), limit=1_000)
    assert {m["offset"]: m["text"] for m in page["messages"]} == answered
    assert len(answered) == 100


async def test_partitioned_topic_is_routed_by_key(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest:
        await rest.put(rest.path(topic), {"partitions": 4})
        keys = [f"key-{number}" for number in range(40)]
        body = {"messages": [{"text": key, "key": key} for key in keys]}
        answer = await rest.post(rest.path(topic, "messages"), body, 201)
        assert [place["topic"] for place in answer["places"]] == [
            f"{topic}-part-{route(key.encode(), 4)}" for key in keys
        ]
        for key, place in zip(keys, answer["places"], strict=True):
            page = await rest.get(
                rest.path(place["topic"], "messages"), start=place["offset"], limit=1
            )
            assert page["messages"][0]["text"] == key
        await rest.get(rest.path(topic, "messages"), 409)


async def test_a_delayed_message_has_no_offset_yet_and_comes(
    broker: BrokerProcess, topic: str
) -> None:
    async with Rest(broker) as rest:
        answer = await rest.publish(topic, "later", delay_ms=500)
        assert answer["places"] == [{"topic": topic, "offset": -1}]
        page = await rest.get(rest.path(topic, "messages"), wait_ms=30_000)
        assert [m["text"] for m in page["messages"]] == ["later"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"messages": []}', "length >= 1"),
        ('{"messages": [{}]}', "exactly one of text, base64 and json"),
        ('{"messages": [{"text": "a", "json": 1}]}', "exactly one of text, base64 and json"),
        ('{"messages": [{"base64": "?"}]}', "base64"),
        ('{"messages": [{"text": "a", "colour": 1}]}', "colour"),
        ('{"messages": [{"text": "a"}], "sequence": 1}', "give producer too"),
        ('{"messages": [{"text": "a"}], "producer": "no/good"}', "not allowed"),
        ('{"messages": [{"text": "a"}], "delay_ms": -1}', ">= 0"),
        ("[]", "object"),
        ("", "JSON object"),
    ],
)
async def test_a_wrong_message_is_refused_with_what_is_right(
    broker: BrokerProcess, topic: str, body: str, says: str
) -> None:
    async with Rest(broker) as rest:
        path = rest.path(topic, "messages")
        headers = {"content-type": "application/json"}
        answer = await rest.http.post(path, content=body, headers=headers)
        assert answer.status_code == 400
        assert says in answer.json()["detail"]
        await rest.get(rest.path(topic), 404)  # nothing was created on the way


async def test_an_exclusive_producer_keeps_http_out(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest, danubius.connect(broker.url) as client:
        async with client.producer(topic, access="exclusive") as producer:
            await producer.send(b"mine")
            problem = await rest.publish(topic, "no", status=409)
            assert problem["name"] == "ProducerBusy"
        await rest.publish(topic, "now")


async def test_the_producer_of_http_makes_way_for_an_exclusive_one(
    broker: BrokerProcess, topic: str
) -> None:
    async with Rest(broker) as rest, danubius.connect(broker.url) as client:
        await rest.publish(topic, "first")
        async with (
            asyncio.timeout(HANG_S),
            client.producer(topic, access="wait-for-exclusive") as producer,
        ):
            await producer.send(b"mine")


async def test_a_disk_that_fails_is_503_and_nothing_is_stored(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker()
    async with Rest(broker) as rest:
        await rest.publish(topic, "before")
        with failing_writes(broker):
            answer = await rest.http.post(
                rest.path(topic, "messages"), json={"messages": [{"text": "x" * 10_000}]}
            )
            assert answer.status_code == 503, answer.text
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["retry"] == "after-wait"
            page = await rest.get(rest.path(topic, "messages"))
            assert [m["text"] for m in page["messages"]] == ["before"]
        status = 0
        async with asyncio.timeout(HANG_S):
            while status != 201:
                again = await rest.http.post(
                    rest.path(topic, "messages"), json={"messages": [{"text": "after"}]}
                )
                status = again.status_code
        page = await rest.get(rest.path(topic, "messages"))
        assert [m["text"] for m in page["messages"]] == ["before", "after"]


async def test_rates_and_sizes_of_a_topic_hold_for_http(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest:
        policies = {"message_bytes_max": 1_000}
        await rest.put(rest.path(topic), {"spec": {"policies": policies}})
        problem = await rest.publish(topic, "x" * 5_000, status=413)
        assert problem["name"] == "MessageTooLarge"
        await rest.publish(topic, "x" * 500)


async def test_non_reliable_topic(broker: BrokerProcess, topic: str) -> None:
    async with Rest(broker) as rest, danubius.connect(broker.url) as client:
        await rest.put(rest.path(topic), {"spec": {"dispatch": "non-reliable"}})
        async with client.consumer(topic, subscription="s") as consumer:
            await rest.publish(topic, "hello")
            [message] = await take(consumer, 1)
            assert message.payload == b"hello"
        await rest.publish(topic, "later", delay_ms=10, status=400)


async def test_deleted_topic_begins_anew(broker: BrokerProcess, topic: str) -> None:
    """The producer that HTTP keeps open ends with the topic, and the next request opens another."""
    async with Rest(broker) as rest:
        await rest.publish(topic, "old", "older")
        await rest.delete(rest.path(topic))
        answer = await rest.publish(topic, "new")
        assert answer["places"] == [{"topic": topic, "offset": 0}]
