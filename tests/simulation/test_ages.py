"""Messages that expire and messages that are due later, in virtual time: at their time, not before, hardly behind."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest

import danubius
from danubius.model.policy import Policies
from danubius.model.topic import TopicSpec
from danubius.runtime import ambient
from simulation.calm import Calm
from simulation.world import URL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TOPIC: Final = "/default/t"
TTL_S: Final = 30.0
LOOK_S: Final = 0.25
SECOND_S: Final = 1.0
SWEEP_S: Final = 15.0
"""Who expires without a consumer is found by a sweep, every ten seconds."""
QUIET_S: Final = 120.0
"""In virtual time: what has not come by then never comes."""
LATE_S: Final = 0.1
"""What is due comes within this, for delays of some seconds."""


async def _expired(client: danubius.Client, backlog: int) -> None:
    """Until no more than this is left, which is soon after its time."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + TTL_S + SWEEP_S
    while (await client.describe_topic(TOPIC)).subscriptions[0].backlog > backlog:
        assert loop.time() < until_s
        await asyncio.sleep(LOOK_S)


async def _nothing_comes(consumer: danubius.Consumer) -> None:
    with pytest.raises(danubius.ReceiveTimeout):
        await consumer.receive(timeout=QUIET_S)


async def _arrivals(
    consumer: danubius.Consumer, count: int
) -> AsyncIterator[tuple[bytes, datetime]]:
    for _ in range(count):
        message = await consumer.receive()
        await consumer.ack(message)
        yield message.payload, _now()


def _now() -> datetime:
    return datetime.fromtimestamp(ambient.wall_ns() / 1e9, UTC)


def test_old_messages_are_not_delivered_and_delayed_ones_age_from_when_they_are_due() -> None:
    async def main(_calm: Calm) -> None:
        async with danubius.connect(URL) as client:
            policies = Policies(ttl_ms=int(TTL_S * 1000))
            await client.admin.create_topic(TOPIC, TopicSpec(policies=policies))
            await client.admin.create_subscription(TOPIC, "s", start="earliest")
            async with client.producer(TOPIC) as producer:
                await producer.send_many([b"old"] * 10)
                await asyncio.sleep(TTL_S / 2)
                assert (await client.describe_topic(TOPIC)).subscriptions[0].backlog == 10
                await _expired(client, 0)
                async with client.consumer(TOPIC, subscription="s") as consumer:
                    await producer.send(b"young", deliver_after=1.5 * TTL_S)
                    message = await consumer.receive()
                    assert message.payload == b"young"
                    await consumer.ack(message)
                    await _nothing_comes(consumer)

    Calm().run(main)


@pytest.mark.parametrize("is_power_lost", [False, True], ids=["kill", "power loss"])
def test_what_expired_stays_so_in_the_next_life(*, is_power_lost: bool) -> None:
    async def main(calm: Calm) -> None:
        async with danubius.connect(URL) as client:
            policies = Policies(ttl_ms=int(TTL_S * 1000))
            await client.admin.create_topic(TOPIC, TopicSpec(policies=policies))
            await client.admin.create_subscription(TOPIC, "s", start="earliest")
            async with client.producer(TOPIC) as producer:
                await producer.send_many([b"old"] * 10)
            await _expired(client, 0)
        await asyncio.sleep(SECOND_S)  # what a power loss may take back is synced
        if is_power_lost:
            calm.world.power_off(LOOK_S)
        else:
            calm.world.kill_broker(LOOK_S)
        await asyncio.sleep(SECOND_S)
        async with danubius.connect(URL) as client:
            await client.admin.update_topic(TOPIC, Policies(ttl_ms=None))
            async with (
                client.producer(TOPIC) as producer,
                client.consumer(TOPIC, subscription="s") as consumer,
            ):
                await producer.send(b"new")
                assert (await consumer.receive()).payload == b"new"

    Calm().run(main)


def test_a_message_is_not_delivered_again_after_its_time() -> None:
    async def main(_calm: Calm) -> None:
        async with (
            danubius.connect(URL) as client,
            client.producer(TOPIC) as producer,
            client.consumer(TOPIC, subscription="s", start="earliest") as consumer,
        ):
            await producer.send(b"twice", ttl=TTL_S)
            await producer.send(b"other")
            first = await consumer.receive()
            await consumer.nack(first, delay=TTL_S / 2)
            await consumer.ack(await consumer.receive())
            again = await consumer.receive()
            assert (first.payload, again.payload) == (b"twice", b"twice")
            await consumer.nack(again, delay=TTL_S)
            await _expired(client, 0)
            await _nothing_comes(consumer)

    Calm().run(main)


def test_delayed_messages_come_when_they_are_due() -> None:
    async def main(_calm: Calm) -> None:
        async with (
            danubius.connect(URL) as client,
            client.producer(TOPIC) as producer,
            client.consumer(TOPIC, subscription="s", start="earliest") as consumer,
        ):
            began = _now()
            due = {b"%d" % s: began + timedelta(seconds=s) for s in (9, 7, 5)}
            receipt = await producer.send(
                b"9", key=b"k", attributes={"a": "b"}, deliver_at=due[b"9"]
            )
            assert (receipt.is_scheduled, receipt.offset) == (True, -1)
            producer.send_nowait(b"7", deliver_at=due[b"7"])
            await producer.send_many([b"5", b"0"], deliver_at=[due[b"5"], began])
            assert not (await producer.send(b"now")).is_scheduled
            came = dict([one async for one in _arrivals(consumer, 4)])
            last = await consumer.receive()
            came[last.payload] = _now()
            assert (last.key, last.attributes) == (b"k", {"a": "b"})
            assert last.publish_time <= _now()
        assert {*list(came)[:2]} == {b"0", b"now"}
        assert list(came)[2:] == [b"5", b"7", b"9"]
        for payload, due_at in due.items():
            assert due_at <= came[payload] <= due_at + timedelta(seconds=LATE_S)

    Calm().run(main)


def test_a_delayed_message_lives_from_when_it_is_due() -> None:
    async def main(_calm: Calm) -> None:
        async with danubius.connect(URL) as client, client.producer(TOPIC) as producer:
            await client.admin.create_subscription(TOPIC, "s", start="earliest")
            await producer.send(b"short", deliver_after=TTL_S, ttl=TTL_S)
            await producer.send_many([b"long"] * 2, deliver_after=2 * TTL_S, ttl=10 * TTL_S)
            await asyncio.sleep(1.9 * TTL_S)
            assert (await client.describe_topic(TOPIC)).subscriptions[0].backlog == 1
            await asyncio.sleep(TTL_S / 2)
            await _expired(client, 2)
            async with client.consumer(TOPIC, subscription="s") as consumer:
                assert [one async for one, _ in _arrivals(consumer, 2)] == [b"long"] * 2

    Calm().run(main)
