"""Where a new subscription starts, and that an old one goes on where it was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import danubius
from e2e.traffic import collect, nothing_comes, numbered, payloads, read_all, take

if TYPE_CHECKING:
    from danubius import Client
    from e2e.broker_process import BrokerProcess


async def fill(client: Client, topic: str, count: int = 20) -> None:
    """Send one at a time, so that publish times differ."""
    async with client.producer(topic) as producer:
        for payload in numbered(count):
            await producer.send(payload)


async def test_earliest_starts_at_the_first_message(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic)
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            assert payloads(await take(consumer, 20)) == numbered(20)


async def test_latest_sees_only_what_comes_after(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic)
        async with (
            client.consumer(topic, subscription="s", start="latest") as consumer,
            client.producer(topic) as producer,
        ):
            await nothing_comes(consumer, 0.1)
            await producer.send(b"new")
            [message] = await take(consumer, 1)
    assert (message.offset, message.payload) == (20, b"new")


async def test_latest_is_the_default(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 3)
        async with (
            client.consumer(topic, subscription="s") as consumer,
            client.producer(topic) as producer,
        ):
            await producer.send(b"new")
            [message] = await take(consumer, 1)
    assert message.payload == b"new"


@pytest.mark.parametrize("offset", [0, 7, 19, 20])
async def test_offset_starts_exactly_there(broker: BrokerProcess, topic: str, offset: int) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic)
        async with (
            client.consumer(topic, subscription="s", start=offset) as consumer,
            client.producer(topic) as producer,
        ):
            await producer.send(b"end")
            messages = await take(consumer, 21 - offset)
    assert [m.offset for m in messages] == list(range(offset, 21))


async def test_offset_inside_a_batch_starts_inside_it(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        await producer.send_many(numbered(1000))
        async with client.consumer(topic, subscription="s", start=637) as consumer:
            messages = await take(consumer, 363)
    assert payloads(messages) == numbered(363, 637)


@pytest.mark.parametrize("offset", [21, 10_000_000])
async def test_offset_beyond_the_end_is_refused(
    broker: BrokerProcess, topic: str, offset: int
) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic)
        with pytest.raises(danubius.DanubiusError, match="20") as caught:
            async with client.consumer(topic, subscription="s", start=offset):
                pass
        assert caught.value.code == 203
        described = await client.describe_topic(topic)
    assert described.subscriptions == [], "a refused subscription leaves nothing behind"


async def test_negative_offset_is_refused(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 1)
        with pytest.raises(danubius.DanubiusError) as caught:
            async with client.consumer(topic, subscription="s", start=-1):
                pass
    assert caught.value.code in {102, 203}


@pytest.mark.parametrize("number", [0, 1, 11, 19])
async def test_timestamp_starts_at_the_first_message_of_that_time(
    broker: BrokerProcess, topic: str, number: int
) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic)
        everything = await read_all(client, topic)
        time = everything[number].publish_time
        expected = [m.payload for m in everything if m.publish_time >= time]
        async with client.consumer(topic, subscription="s", start=time) as consumer:
            assert payloads(await take(consumer, len(expected))) == expected


async def test_timestamp_before_everything_is_earliest(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 5)
        start = datetime(2001, 1, 1, tzinfo=UTC)
        async with client.consumer(topic, subscription="s", start=start) as consumer:
            assert payloads(await take(consumer, 5)) == numbered(5)


async def test_timestamp_in_the_future_is_latest(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 5)
        start = datetime.now(UTC) + timedelta(hours=1)
        async with (
            client.consumer(topic, subscription="s", start=start) as consumer,
            client.producer(topic) as producer,
        ):
            await producer.send(b"new")
            [message] = await take(consumer, 1)
    assert message.payload == b"new"


async def test_existing_subscription_goes_on_whatever_start_says(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic)
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            await collect([consumer], 20)
        await fill(client, topic, 1)
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            [message] = await take(consumer, 1)
            await nothing_comes(consumer, 0.1)
    assert message.offset == 20


async def test_subscription_keeps_its_place_while_no_consumer_is_there(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        async with client.consumer(topic, subscription="s", start="latest"):
            pass
        await fill(client, topic, 10)
        async with client.consumer(topic, subscription="s", start="latest") as consumer:
            assert payloads(await take(consumer, 10)) == numbered(10)


async def test_wrong_start_is_refused_before_anything_is_sent(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        with pytest.raises(danubius.DanubiusError) as caught:
            async with client.consumer(topic, subscription="s", start="yesterday"):  # pyright: ignore[reportArgumentType] - the point
                pass
    assert caught.value.code == 102
    assert "earliest" in str(caught.value)
