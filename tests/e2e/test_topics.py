"""Topics: create, list, describe, delete, and what may be written on the door."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.wire.commands import Opcode
from e2e.raw_wire import RawPeer
from e2e.traffic import numbered, payloads, read_all, take
from patience import HANG_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

INVALID_NAME = 101
TOPIC_NOT_FOUND = 201
TOPIC_EXISTS = 301
TOPIC_DELETED = 306

BAD_NAMES = [
    "",
    "/",
    "//",
    "orders",
    "default/orders",
    "/default",
    "/default/",
    "//orders",
    "/default/orders/eu",
    "/default/or ders",
    "/default/orders\n",
    "/default/örders",
    "/default/orders.eu",
    "/default/../etc",
    "/default/" + "x" * 201,
    "/default/\x00",
    "/default/orders?",
]


async def test_create_describe_delete(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic, durability="written", retention_bytes=1_000_000)
        described = await client.describe_topic(topic)
        assert described.summary.topic == topic
        assert described.summary.spec.durability == "written"
        assert described.summary.spec.layer().retention_bytes == 1_000_000
        assert (described.summary.start_offset, described.summary.end_offset) == (0, 0)
        await client.delete_topic(topic)
        with pytest.raises(danubius.DanubiusError, match=topic) as caught:
            await client.describe_topic(topic)
    assert caught.value.code == TOPIC_NOT_FOUND


async def test_create_twice(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        with pytest.raises(danubius.DanubiusError, match=topic) as caught:
            await client.create_topic(topic)
        assert caught.value.code == TOPIC_EXISTS
        await client.create_topic(topic, exist_ok=True)
        with pytest.raises(danubius.DanubiusError) as caught:
            await client.create_topic(topic, dispatch="non-reliable", exist_ok=True)
        assert caught.value.code == TOPIC_EXISTS


async def test_describe_counts_messages_producers_and_subscriptions(
    broker: BrokerProcess, topic: str
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic, name="writer") as producer,
        client.consumer(topic, subscription="s1", name="reader-1"),
    ):
        await producer.send_many(numbered(10))
        described = await client.describe_topic(topic)
    assert described.summary.end_offset == 10
    assert described.summary.stored_bytes > 100
    assert list(described.producers) == ["writer"]
    assert [(s.name, list(s.consumers), s.backlog) for s in described.subscriptions] == [
        ("s1", ["reader-1"], 10)
    ]


async def test_list_is_sorted_filtered_and_complete_over_pages(start_broker: StartBroker) -> None:
    broker = start_broker()
    expected = sorted(f"/ns{number % 2}/t-{number:04}" for number in range(2_500))
    async with danubius.connect(
        broker.url, request_timeout=120
    ) as client:  # the last waits for all
        async with asyncio.TaskGroup() as tasks:
            for name in expected:
                tasks.create_task(client.create_topic(name))
        everything = [summary.topic for summary in await client.list_topics()]
        half = [summary.topic for summary in await client.list_topics(namespace="ns1")]
    assert everything == expected
    assert half == [name for name in expected if name.startswith("/ns1/")]


async def test_topics_and_their_settings_outlive_the_broker(start_broker: StartBroker) -> None:
    broker = start_broker()
    async with danubius.connect(broker.url) as client:
        await client.create_topic("/a/kept", durability="written")
        await client.create_topic("/a/fleeting", dispatch="non-reliable")
        await client.create_topic("/a/deleted")
        await client.delete_topic("/a/deleted")
    for is_killed in (True, False):
        if is_killed:
            broker.kill()
        else:
            broker.stop()
        broker.start()
        async with danubius.connect(broker.url) as client:
            specs = {summary.topic: summary.spec for summary in await client.list_topics()}
        assert set(specs) == {"/a/kept", "/a/fleeting"}
        assert specs["/a/kept"].durability == "written"
        assert specs["/a/fleeting"].dispatch == "non-reliable"


async def test_delete_ends_producers_and_consumers_with_the_reason(
    broker: BrokerProcess, topic: str
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        await producer.send(b"x")
        await take(consumer, 1)
        await client.delete_topic(topic)
        with pytest.raises(danubius.DanubiusError) as from_consumer:
            async with asyncio.timeout(HANG_S):
                await consumer.receive()
        with pytest.raises(danubius.DanubiusError) as from_producer:
            await producer.send(b"y")
    assert from_consumer.value.code == TOPIC_DELETED
    assert from_producer.value.code == TOPIC_DELETED


async def test_deleted_topic_comes_back_empty(start_broker: StartBroker, topic: str) -> None:
    """A new topic of an old name has nothing of the old one, also after a crash."""
    broker = start_broker()
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic, name="writer") as producer:
            await producer.send_many(numbered(100))
        async with client.consumer(topic, subscription="s", start="earliest"):
            pass
        await client.delete_topic(topic)
        async with client.producer(topic, name="writer") as producer:
            receipt = await producer.send(b"fresh")
        assert receipt.offset == 0
    broker.kill()
    broker.start()
    async with danubius.connect(broker.url) as client:
        assert payloads(await read_all(client, topic)) == [b"fresh"]
        assert (await client.describe_topic(topic)).subscriptions == []


async def test_delete_of_a_missing_topic(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        with pytest.raises(danubius.DanubiusError) as caught:
            await client.delete_topic(topic)
    assert caught.value.code == TOPIC_NOT_FOUND


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
async def test_bad_topic_name_is_refused_by_the_client_with_an_example(
    broker: BrokerProcess, name: str
) -> None:
    async with danubius.connect(broker.url) as client:
        with pytest.raises(danubius.DanubiusError) as caught:
            await client.create_topic(name)
        assert caught.value.code == INVALID_NAME
        with pytest.raises(danubius.DanubiusError) as caught:
            async with client.producer(name):
                pass
        assert caught.value.code == INVALID_NAME


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
async def test_bad_topic_name_is_refused_by_the_broker(broker: BrokerProcess, name: str) -> None:
    """A client that does not check is told the same, and its connection lives on."""
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        requests: list[tuple[Opcode, list[object]]] = [
            (Opcode.CREATE_TOPIC, [name, {}, False]),
            (Opcode.OPEN_PRODUCER, [name, "p", {}, 0]),
            (Opcode.SUBSCRIBE, [name, "s", "exclusive", "c"]),
        ]
        for opcode, fields in requests:
            answer = await peer.call(opcode, *fields)
            assert (answer.opcode, answer.fields[0]) == (Opcode.ERROR, INVALID_NAME), opcode
        answer = await peer.call(Opcode.PING)
        assert answer.opcode == Opcode.PONG


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ü", "x" * 201, "a\n"], ids=repr)
async def test_bad_subscription_consumer_and_producer_names_are_refused(
    broker: BrokerProcess, topic: str, name: str
) -> None:
    async with danubius.connect(broker.url) as client, RawPeer(broker.port) as peer:
        await client.create_topic(topic)
        await peer.hello()
        requests: list[tuple[Opcode, list[object]]] = [
            (Opcode.OPEN_PRODUCER, [topic, name, {}, 0]),
            (Opcode.SUBSCRIBE, [topic, name, "exclusive", "c"]),
            (Opcode.SUBSCRIBE, [topic, "s", "exclusive", name]),
        ]
        for opcode, fields in requests:
            answer = await peer.call(opcode, *fields)
            assert (answer.opcode, answer.fields[0]) == (Opcode.ERROR, INVALID_NAME), opcode
        with pytest.raises(danubius.DanubiusError) as caught:
            async with client.consumer(topic, subscription=name):
                pass
        assert caught.value.code == INVALID_NAME


async def test_resolve_offset(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic) as producer:
            for payload in numbered(10):
                await producer.send(payload)
        everything = await read_all(client, topic)
        assert await client.resolve_offset(topic, "earliest") == 0
        assert await client.resolve_offset(topic, "latest") == 10
        time = everything[6].publish_time
        expected = next(m.offset for m in everything if m.publish_time >= time)
        assert await client.resolve_offset(topic, time) == expected


async def test_lookup_names_this_broker(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client, RawPeer(broker.port) as peer:
        await client.create_topic(topic)
        await peer.hello()
        answer = await peer.call(Opcode.LOOKUP, topic)
    assert answer.opcode == Opcode.LOCATED
    assert answer.fields[0] == topic
    assert answer.fields[1].endswith(f":{broker.port}")
