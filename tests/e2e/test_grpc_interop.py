"""Danube's client and ours on one topic: what one sends the other receives, with all of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import danubius
from e2e.danube_process import danube_client
from patience import HANG_S, SOON_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess


async def test_from_danube_to_native(grpc_broker: BrokerProcess, topic: str) -> None:
    with danube_client(grpc_broker.grpc_url) as theirs:
        theirs.do("open_producer", name="p", topic=topic)
        async with (
            danubius.connect(grpc_broker.url) as client,
            client.consumer(topic, subscription="s", start="earliest") as consumer,
        ):
            theirs.send("p", b"one", key="k", attributes={"a": "b"})
            theirs.do("send_many", name="p", first=0, count=100, width=32)
            first = await consumer.receive(timeout=HANG_S)
            rest = [await consumer.receive(timeout=HANG_S) for _ in range(100)]
    assert (first.payload, first.key, first.attributes) == (b"one", b"k", {"a": "b"})
    assert sorted(int(message.payload) for message in rest) == list(range(100))
    assert [message.offset for message in rest] == list(range(1, 101))


async def test_from_native_to_danube(grpc_broker: BrokerProcess, topic: str) -> None:
    async with (
        danubius.connect(grpc_broker.url) as client,
        client.producer(topic, name="native") as producer,
    ):
        with danube_client(grpc_broker.grpc_url) as theirs:
            theirs.do("subscribe", name="c", topic=topic, subscription="s")
            await producer.send(b"one", key=b"k", attributes={"a": "b"})
            await producer.send_many([str(number).encode() for number in range(300)])
            await producer.send(b"odd", key=b"\xff")
            taken = theirs.take("c", 302)
    first, rest, odd = taken[0], taken[1:-1], taken[-1]
    assert (first.payload, first.key, first.attributes) == (b"one", "k", {"a": "b"})
    assert first.producer == "native"
    assert [int(one.payload) for one in rest] == list(range(300))
    assert (odd.payload, odd.key) == (b"odd", "\\xff")  # a key that is no text is written as one


async def test_both_consume_one_subscription(grpc_broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(grpc_broker.url) as client:
        with danube_client(grpc_broker.grpc_url) as theirs:
            theirs.do("open_producer", name="p", topic=topic)
            theirs.do("subscribe", name="c", topic=topic, subscription="s")
            async with client.consumer(topic, subscription="s", type="shared") as ours:
                theirs.do("begin_taking", names=["c"])
                theirs.do("send_many", name="p", first=0, count=50, width=8)
                wanted = {str(number) for number in range(50)}
                async with asyncio.timeout(HANG_S):
                    while wanted:
                        left = theirs.do(
                            "await_taken", names=["c"], payloads=list(wanted), within=SOON_S
                        )
                        wanted = set(left["missing"])
                        if wanted and (message := await _receive(ours)) is not None:
                            wanted.discard(message.payload.decode())
                            await ours.ack(message)


async def _receive(consumer: danubius.Consumer) -> danubius.Message | None:
    """What comes within a moment."""
    try:
        return await consumer.receive(timeout=SOON_S)
    except danubius.DanubiusError:
        return None


async def test_partitions_are_the_same_for_both(grpc_broker: BrokerProcess, topic: str) -> None:
    with danube_client(grpc_broker.grpc_url) as theirs:
        theirs.do("open_producer", name="p", topic=topic, partitions=4)
        theirs.do("subscribe", name="c", topic=topic, subscription="s")
        for number in range(8):
            theirs.send("p", b"theirs", key=f"key-{number}")
        async with (
            danubius.connect(grpc_broker.url) as client,
            client.producer(topic, name="native") as producer,
        ):
            for number in range(8):
                await producer.send(b"ours", key=f"key-{number}".encode())
        places = {(one.key, one.topic) for one in theirs.take("c", 16)}
    assert len(places) == 8
