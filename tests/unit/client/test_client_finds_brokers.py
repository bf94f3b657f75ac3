"""The client and several brokers: which it dials, for what, and what it says when none of them is the one."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.client.connection import connections as connections_module
from danubius.errors import TopicMoved
from danubius.model.ids import TopicName
from danubius.model.partitions import partition_name
from danubius.model.subscription import AtOffset
from danubius.wire.commands import (
    DescribeTopic,
    Fetch,
    Fetched,
    Hello,
    Lookup,
    OffsetResolved,
    OpenProducer,
    Produce,
    ProducerClosed,
    ResolveOffset,
    Subscribe,
)
from patience import HANG_S
from unit.client.scripted_broker import ScriptedBroker, serve, stored_batch
from unit.client.scripted_cluster import Cluster, move_store, refuse_as_moved, serve_cluster
from unit.client.scripted_store import Store

if TYPE_CHECKING:
    from danubius.wire.frame import Frame
    from unit.client.scripted_broker import Peer

TOPIC = TopicName("/default/t")
OTHER = TopicName("/default/other")
NOBODY = "danube://127.0.0.1:9"


# ---------------------------------------------------------------- several hosts in a URL


async def test_the_first_host_that_answers_is_used(broker: ScriptedBroker) -> None:
    async with danubius.connect(f"{NOBODY},{broker.url}") as client:
        assert client.url == broker.url
        await client.delete_topic(TOPIC)


async def test_when_no_host_answers_all_are_named() -> None:
    with pytest.raises(danubius.BrokerUnavailable, match="none of 2 brokers answers") as caught:
        await danubius.connect("danube://127.0.0.1:9,127.0.0.1:10")
    assert "danube://127.0.0.1:9" in str(caught.value)
    assert "danube://127.0.0.1:10" in str(caught.value)


async def test_after_a_loss_the_next_host_takes_over() -> None:
    async with serve() as second:
        async with AsyncExitStack() as first_life:
            first = await first_life.enter_async_context(serve())
            client = await danubius.connect(f"{first.url},{second.url}")
            assert client.url == first.url
            producer = await client.producer(TOPIC)
            await first_life.aclose()
        async with asyncio.timeout(HANG_S):
            await second.arrived(OpenProducer)
        Store(second)
        await producer.close()
        assert client.url == second.url
        await client.close()


# ---------------------------------------------------------------- which broker is meant


@pytest.mark.parametrize(
    ("name", "located"),
    [
        ("", "danube://elsewhere.example:6651"),
        ("danube://known-inside.example:6651", "danube://known-inside.example:6651"),
        ("danube://me.example:6651", "danube://0.0.0.0:6651"),
        ("danube://me.example:6651", "danube://127.0.0.1:0"),
        ("danube://me.example:6651", ""),
        ("danube://me.example:6651", "nonsense"),
    ],
)
async def test_a_name_that_says_nothing_else_means_the_connection_at_hand(
    broker: ScriptedBroker, name: str, located: str
) -> None:
    broker.version, broker.name = 2, name
    broker.places[TOPIC] = located
    Store(broker)
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:
        await producer.send(b"here")
        assert len(client._connections) == 1
    assert [type(frame.command) for frame in broker.received[:4]] == [
        Hello,
        Lookup,
        OpenProducer,
        Produce,
    ]


async def test_a_topic_is_attached_where_the_lookup_says(cluster: Cluster) -> None:
    first, second, _ = cluster.brokers
    cluster.place(TOPIC, second)
    store = Store(second)
    async with (
        danubius.connect(first.url) as client,
        client.producer(TOPIC) as producer,
        client.consumer(TOPIC, subscription="s"),
        asyncio.timeout(HANG_S),
    ):
        await producer.send(b"there")
    assert store.stored == [b"there"]
    assert len(second.commands(Hello)) == 1, "one link for both"
    assert not first.commands(OpenProducer)
    assert not first.commands(Subscribe)


async def test_a_broker_that_is_connected_to_by_another_address_is_known_by_its_name(
    cluster: Cluster,
) -> None:
    first, second, _ = cluster.brokers
    first.name = "danube://first.example:6651"
    second.places[TOPIC] = first.name
    cluster.place(OTHER, second)
    Store(second)
    async with danubius.connect(first.url) as client, client.producer(OTHER):
        second.places[TOPIC] = first.name
        link = client._connections.link_for(
            first.name, client._connections.link_for(second.url, client._connections.home)
        )
        assert link is client._connections.home


async def test_partitions_go_to_their_brokers(cluster: Cluster) -> None:
    first, second, third = cluster.brokers
    for broker in cluster.brokers:
        broker.partitions[TOPIC] = 3
    homes = dict(zip((partition_name(TOPIC, at) for at in range(3)), cluster.brokers, strict=True))
    for name, home in homes.items():
        cluster.place(name, home)
    async with (
        asyncio.timeout(HANG_S),
        danubius.connect(first.url) as client,
        client.producer(TOPIC),
        client.consumer(TOPIC, subscription="s"),
    ):
        pass
    for name, home in homes.items():
        assert name in {opened.topic for opened in home.commands(OpenProducer)}
        assert name in {opened.topic for opened in home.commands(Subscribe)}
    assert len(third.commands(Hello)) == len(second.commands(Hello)) == 1


async def test_questions_about_a_topic_go_to_its_broker(cluster: Cluster) -> None:
    first, second, _ = cluster.brokers
    cluster.place(TOPIC, second)

    def resolve(peer: Peer, frame: Frame) -> None:
        peer.send(OffsetResolved(5, 0, 9), frame.correlation_id)

    second.on[ResolveOffset] = resolve
    async with asyncio.timeout(HANG_S), danubius.connect(first.url) as client:
        assert await client.resolve_offset(TOPIC, "latest") == 5
        await client.delete_topic(TOPIC)
    assert not second.commands(DescribeTopic)


# ---------------------------------------------------------------- moves


async def test_a_producer_is_sent_on_in_the_middle_of_its_batches(cluster: Cluster) -> None:
    first, second, _ = cluster.brokers
    store = Store(first)
    async with (
        asyncio.timeout(HANG_S),
        danubius.connect(first.url) as client,
        client.producer(TOPIC, batch_records=1) as producer,
    ):
        await producer.send_many([b"0", b"1"])
        moved = move_store(store, first, second)
        cluster.place(TOPIC, second)
        first.on[Produce] = refuse_as_moved
        receipts = await producer.send_many([b"%d" % at for at in range(2, 8)])
    assert moved.stored == [b"%d" % at for at in range(8)]
    assert [receipt.offset for receipt in receipts] == list(range(2, 8))
    assert second.commands(OpenProducer)[0].resume_epoch == 1


async def test_a_producer_that_is_told_of_the_move_resumes_there(cluster: Cluster) -> None:
    first, second, _ = cluster.brokers
    store = Store(first)
    async with (
        asyncio.timeout(HANG_S),
        danubius.connect(first.url) as client,
        client.producer(TOPIC) as producer,
    ):
        await producer.send(b"0")
        moved = move_store(store, first, second)
        cluster.place(TOPIC, second)
        first.peers[0].send(ProducerClosed(first.handle_of(TOPIC), TopicMoved.code, "moved"))
        await second.arrived(OpenProducer)
        await producer.send(b"1")
    assert moved.stored == [b"0", b"1"]


async def test_a_reader_goes_on_where_it_was(cluster: Cluster) -> None:
    first, second, _ = cluster.brokers

    def resolve(peer: Peer, frame: Frame) -> None:
        peer.send(OffsetResolved(0, 0, 4), frame.correlation_id)

    def serve_two(peer: Peer, frame: Frame) -> None:
        assert isinstance(frame.command, Fetch)
        assert isinstance(frame.command.start, AtOffset)
        at = frame.command.start.offset
        data = stored_batch(at, [b"%d" % at, b"%d" % (at + 1)])
        peer.send(Fetched(at, at + 2, 0, 4), frame.correlation_id, data)

    first.on[ResolveOffset], first.on[Fetch], second.on[Fetch] = resolve, serve_two, serve_two
    seen: list[bytes] = []
    async with (
        asyncio.timeout(HANG_S),
        danubius.connect(first.url) as client,
        client.reader(TOPIC, stop_at_end=True) as reader,
    ):
        async for message in reader:
            seen.append(message.payload)
            if len(seen) == 1:
                cluster.place(TOPIC, second)
                first.on.pop(Fetch)
    assert seen == [b"0", b"1", b"2", b"3"]


async def test_a_topic_whose_broker_is_gone_is_found_at_another() -> None:
    async with serve_cluster(2) as cluster, AsyncExitStack() as third_life:
        first, second = cluster.brokers
        third = await third_life.enter_async_context(serve())
        cluster = Cluster([first, second, third])
        cluster.place(TOPIC, third)
        store = Store(third)
        async with (
            asyncio.timeout(HANG_S),
            danubius.connect(first.url) as client,
            client.producer(TOPIC) as producer,
        ):
            await producer.send(b"0")
            moved = move_store(store, third, second)
            cluster.place(TOPIC, second)
            await third_life.aclose()
            await producer.send(b"1")
        assert moved.stored == [b"0", b"1"]


async def test_one_url_is_enough_when_its_broker_is_gone() -> None:
    async with serve() as second, AsyncExitStack() as first_life:
        first = await first_life.enter_async_context(serve())
        cluster = Cluster([first, second])
        cluster.place(OTHER, second)
        async with asyncio.timeout(HANG_S), danubius.connect(first.url) as client:
            Store(second)
            async with client.producer(OTHER), client.producer(TOPIC) as producer:
                await first_life.aclose()
                await producer.send(b"at the second")


async def test_brokers_that_name_each_other_are_named_in_the_error(cluster: Cluster) -> None:
    first, second, _ = cluster.brokers
    first.places[TOPIC], second.places[TOPIC] = second.url, first.url
    async with danubius.connect(first.url, request_timeout=3.0) as client:
        with pytest.raises(
            TopicMoved, match="no broker that serves /default/t was found"
        ) as caught:
            await client.producer(TOPIC)
        with pytest.raises(TopicMoved, match="no broker that serves /default/t was found"):
            await client.reader(TOPIC)
    assert f"{first.url} says {second.url}" in str(caught.value)
    assert f"{second.url} says {first.url}" in str(caught.value)
    # Waits grow: it is no storm.
    assert len(first.commands(OpenProducer)) + len(second.commands(OpenProducer)) < 40


async def test_a_producer_that_nobody_serves_any_more_ends_with_the_reason(
    cluster: Cluster,
) -> None:
    first, second, _ = cluster.brokers
    Store(first)
    async with (
        asyncio.timeout(HANG_S),
        danubius.connect(first.url, reconnect_timeout=3.0) as client,
    ):
        producer = await client.producer(TOPIC)
        await producer.send(b"0")
        first.places[TOPIC], second.places[TOPIC] = second.url, first.url
        first.on[Produce] = refuse_as_moved
        with pytest.raises(TopicMoved, match="was found within"):
            await producer.send(b"1")


# ---------------------------------------------------------------- links


async def test_links_that_nobody_uses_are_closed(cluster: Cluster) -> None:
    first, second, _ = cluster.brokers
    cluster.place(TOPIC, second)
    Store(second)
    async with asyncio.timeout(HANG_S), danubius.connect(first.url) as client:
        connections = client._connections
        producer = await client.producer(TOPIC)
        for _ in range(3):
            connections._sweep()
        assert len(connections) == 2
        await producer.close()
        connections._sweep()
        assert len(connections) == 2, "it may be used again in a moment"
        connections._sweep()
        assert len(connections) == 1
        await second.deserted()
        async with client.producer(TOPIC) as producer:
            await producer.send(b"again")


async def test_the_number_of_links_is_bounded(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "LINKS_MAX", 1)
    first, second, third = cluster.brokers
    cluster.place(TOPIC, second)
    cluster.place(OTHER, third)
    Store(second)
    async with asyncio.timeout(HANG_S), danubius.connect(first.url) as client:
        async with client.producer(TOPIC):
            with pytest.raises(danubius.LimitReached, match="as many as it may"):
                await client.producer(OTHER)
        async with client.producer(OTHER):
            assert len(client._connections) == 2


async def test_nothing_is_left_of_searches_when_the_client_is_closed(cluster: Cluster) -> None:
    first, second, _ = cluster.brokers
    Store(first)
    client = await danubius.connect(first.url)
    producer = await client.producer(TOPIC)
    first.places[TOPIC], second.places[TOPIC] = second.url, first.url
    first.peers[0].send(ProducerClosed(first.handle_of(TOPIC), TopicMoved.code, "moved"))
    async with asyncio.timeout(HANG_S):
        await second.arrived(OpenProducer)
        await client.close()
    assert not client._connections._tasks
    with pytest.raises(danubius.ClientClosed):
        await producer.send(b"late")
