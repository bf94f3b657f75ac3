"""The delivery matrix for single topics: what each row promises about storage, order and repetition."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import pytest

import danubius
from e2e.traffic import collect, nothing_comes, numbered, payloads, take
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from danubius import Message
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

Kind = Literal["exclusive", "shared", "failover", "key-shared"]
ALL_KINDS: tuple[Kind, ...] = ("exclusive", "shared", "failover", "key-shared")
ORDERED: tuple[Kind, ...] = ("exclusive", "failover")
MESSAGES = 2_000


def keys_of(count: int) -> list[bytes]:
    return [b"key-%d" % (number % 37) for number in range(count)]


def assert_rising(offsets: Iterable[int]) -> None:
    for before, after in pairwise(offsets):
        assert before < after


def by_key(messages: list[Message]) -> dict[bytes | None, list[int]]:
    found: dict[bytes | None, list[int]] = defaultdict(list)
    for message in messages:
        found[message.key].append(message.offset)
    return found


@pytest.mark.parametrize("kind", ALL_KINDS)
async def test_reliable_delivers_everything_once_without_faults(
    broker: BrokerProcess, topic: str, kind: Kind
) -> None:
    """Every type delivers all; exclusive and failover in order; key-shared in order per key, to one consumer."""
    consumer_count = 1 if kind == "exclusive" else 3
    async with danubius.connect(broker.url) as client, AsyncExitStack() as stack:
        await client.create_topic(topic)
        consumers = [
            await stack.enter_async_context(
                client.consumer(
                    topic, subscription="s", type=kind, start="earliest", name=f"c{number}"
                )
            )
            for number in range(consumer_count)
        ]
        async with client.producer(topic) as producer:
            sent = numbered(MESSAGES)
            for at in range(0, MESSAGES, 100):
                await producer.send_many(sent[at : at + 100], keys=keys_of(MESSAGES)[at : at + 100])
        received = await collect(consumers, MESSAGES)

    everything = sorted((m for one in received for m in one), key=lambda m: m.offset)
    assert [m.offset for m in everything] == list(range(MESSAGES))
    assert payloads(everything) == sent
    assert all(m.redelivery_count == 0 for m in everything)
    if kind in ORDERED:
        assert [len(one) for one in received] == [MESSAGES] + [0] * (consumer_count - 1)
        assert payloads(received[0]) == sent
    if kind == "shared":
        assert all(len(one) > 0 for one in received)
    if kind == "key-shared":
        assert all(len(one) > 0 for one in received)
        owners = [set(by_key(one)) for one in received]
        assert sum(map(len, owners)) == 37
        for one in received:
            for offsets in by_key(one).values():
                assert_rising(offsets)


@pytest.mark.parametrize("kind", ALL_KINDS)
async def test_reliable_messages_outlive_the_broker(
    start_broker: StartBroker, topic: str, kind: Kind
) -> None:
    """Persisted: what was acknowledged to the producer is there after kill -9, also without any consumer."""
    broker = start_broker()
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        await producer.send_many(numbered(500), keys=keys_of(500))
    broker.kill()
    broker.start()
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(topic, subscription="s", type=kind, start="earliest") as consumer,
    ):
        [received] = await collect([consumer], 500)
    assert sorted(m.offset for m in received) == list(range(500))
    if kind in ORDERED:
        assert payloads(received) == numbered(500)


@pytest.mark.parametrize("kind", ALL_KINDS)
async def test_reliable_repeats_what_was_not_acknowledged(
    broker: BrokerProcess, topic: str, kind: Kind
) -> None:
    """At least once: a consumer that leaves without acknowledging loses nothing."""
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic) as producer:
            await producer.send_many(numbered(20), keys=keys_of(20))
        async with client.consumer(topic, subscription="s", type=kind, start="earliest") as first:
            assert len(await take(first, 20)) == 20
        async with client.consumer(topic, subscription="s", type=kind) as second:
            again = await take(second, 20)
    assert sorted(m.offset for m in again) == list(range(20))
    assert {m.redelivery_count for m in again} == {1}


@pytest.mark.parametrize("kind", ALL_KINDS)
async def test_non_reliable_reaches_the_listeners(
    broker: BrokerProcess, topic: str, kind: Kind
) -> None:
    """At most once: with listening consumers each message comes once; in order where the type has an order."""
    consumer_count = 1 if kind == "exclusive" else 2
    async with danubius.connect(broker.url) as client, AsyncExitStack() as stack:
        producer = await stack.enter_async_context(client.producer(topic, dispatch="non-reliable"))
        consumers = [
            await stack.enter_async_context(
                client.consumer(topic, subscription="s", type=kind, name=f"c{number}")
            )
            for number in range(consumer_count)
        ]
        sent = numbered(300)
        for at in range(0, 300, 30):
            await producer.send_many(sent[at : at + 30], keys=keys_of(300)[at : at + 30])
        received = await collect(consumers, 300)

    everything = [m for one in received for m in one]
    assert sorted(payloads(everything)) == sorted(sent)
    if kind in ORDERED:
        assert payloads(received[0]) == sent
    if kind in ("shared", "key-shared"):
        assert all(len(one) > 0 for one in received)
    if kind == "key-shared":
        assert not set(by_key(received[0])) & set(by_key(received[1]))
        for one in received:
            for offsets in by_key(one).values():
                assert_rising(offsets)


@pytest.mark.parametrize("kind", ALL_KINDS)
async def test_non_reliable_is_dropped_without_a_consumer(
    broker: BrokerProcess, topic: str, kind: Kind
) -> None:
    """Not persisted: what was sent while nobody listened never comes."""
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic, dispatch="non-reliable") as producer,
    ):
        async with client.consumer(topic, subscription="s", type=kind):
            pass
        await producer.send_many(numbered(50))
        async with client.consumer(
            topic, subscription="s", type=kind, start="earliest"
        ) as consumer:
            await nothing_comes(consumer)
            await producer.send(b"now somebody listens")
            [message] = await take(consumer, 1)
    assert message.payload == b"now somebody listens"


async def test_non_reliable_is_never_repeated(broker: BrokerProcess, topic: str) -> None:
    """At most once: leaving without an acknowledgement brings nothing back."""
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic, dispatch="non-reliable") as producer,
    ):
        async with client.consumer(topic, subscription="s") as first:
            await producer.send_many(numbered(10))
            await take(first, 10)
        async with client.consumer(topic, subscription="s") as second:
            await nothing_comes(second)
            await producer.send(b"next")
            [message] = await take(second, 1)
    assert message.payload == b"next"


async def test_non_reliable_does_not_outlive_the_broker(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker()
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic, dispatch="non-reliable")
        async with client.producer(topic, dispatch="non-reliable") as producer:
            await producer.send_many(numbered(10))
    assert broker.stop() == 0
    broker.start()
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        await nothing_comes(consumer)


async def test_slow_consumer_of_non_reliable_loses_the_oldest_and_it_is_counted(
    broker: BrokerProcess, topic: str
) -> None:
    """A consumer that takes little gets the newest in order; received plus dropped is what was sent."""
    total = 200
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic, dispatch="non-reliable") as producer,
        client.consumer(topic, subscription="s", prefetch_messages=10) as slow,
    ):
        payload = bytes(512 * 1024)
        for _ in range(total):
            await producer.send(payload)
        await producer.send(b"the last one")
        received: list[Message] = []
        while not received or received[-1].payload != b"the last one":
            received += await take(slow, 1)
        described = await client.describe_topic(topic)
    assert_rising(m.offset for m in received)
    assert len(received) < total, "104 MB waited in memory for a consumer that did not listen"
    [subscription] = described.subscriptions
    assert subscription.dropped == total + 1 - len(received)


async def test_subscriptions_are_independent(broker: BrokerProcess, topic: str) -> None:
    """Each of several subscriptions gets every message, whatever the others acknowledge."""
    async with danubius.connect(broker.url) as client, AsyncExitStack() as stack:
        await client.create_topic(topic)
        consumers = [
            await stack.enter_async_context(
                client.consumer(topic, subscription=f"s-{kind}", type=kind, start="earliest")
            )
            for kind in ALL_KINDS
        ]
        async with client.producer(topic) as producer:
            await producer.send_many(numbered(200), keys=keys_of(200))
        for consumer in consumers:
            [received] = await collect([consumer], 200)
            assert sorted(m.offset for m in received) == list(range(200))


async def test_subscription_type_is_fixed_while_consumers_are_connected(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        async with client.consumer(topic, subscription="s", type="shared"):
            with pytest.raises(danubius.DanubiusError, match="shared") as caught:
                async with client.consumer(topic, subscription="s", type="exclusive"):
                    pass
    assert caught.value.code == 303


async def test_window_never_throttles_a_healthy_consumer(broker: BrokerProcess, topic: str) -> None:
    """100,000 delivered and unacknowledged messages do not stop the flow."""
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        await producer.send_many([b"x" * 100] * 100_000)
        seen = 0
        async with asyncio.timeout(HANG_S):
            while seen < 100_000:
                seen += len(await consumer.receive_batch())
    assert seen == 100_000


async def test_describe_shows_backlog_and_unacked(broker: BrokerProcess, topic: str) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        await producer.send_many(numbered(10))
        messages = await take(consumer, 10)
        for message in messages[:4]:
            await consumer.ack(message)
        floors: list[int] = []

        async def poll() -> None:
            async with asyncio.timeout(HANG_S):
                while not floors or floors[-1] != 4:
                    described = await client.describe_topic(topic)
                    floors.append(described.subscriptions[0].floor)

        await poll()
        described = await client.describe_topic(topic)
    [subscription] = described.subscriptions
    assert subscription.name == "s"
    assert subscription.backlog == 6
    assert subscription.unacked == 6
    assert len(subscription.consumers) == 1
