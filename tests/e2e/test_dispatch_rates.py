"""Dispatch rates as an operator sets them: subscriptions are slowed down, nothing is lost, and they change live."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.model.policy import Policies
from danubius.model.topic import TopicSpec
from e2e.broker_process import run_command
from e2e.traffic import numbered, take
from patience import HANG_S

if TYPE_CHECKING:
    from danubius.client.options import SubscriptionTypeName
    from e2e.broker_process import BrokerProcess

RATE = 200
COUNT = 400


async def fill(client: danubius.Client, topic: str, policies: Policies, count: int = COUNT) -> None:
    await client.admin.create_topic(topic, TopicSpec(policies=policies))
    async with client.producer(topic) as producer:
        await producer.send_many(numbered(count), keys=[b"%d" % (n % 5) for n in range(count)])


async def received(
    client: danubius.Client, topic: str, count: int, kind: SubscriptionTypeName = "exclusive"
) -> list[bytes]:
    async with client.consumer(topic, subscription="s", type=kind, start="earliest") as consumer:
        messages = await take(consumer, count, within_s=HANG_S)
        for message in messages:
            await consumer.ack(message)
        return [message.payload for message in messages]


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key-shared"])
async def test_all_types_get_everything_in_order_and_never_faster_than_the_rate(
    broker: BrokerProcess, topic: str, kind: SubscriptionTypeName
) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, Policies(dispatch_messages_per_s=RATE))
        began = time.monotonic()
        got = await received(client, topic, COUNT, kind)
        seconds = time.monotonic() - began

    assert got == numbered(COUNT)
    # A slow machine makes it slower, nothing makes it faster: a burst of a twentieth, and the last portion on credit.
    assert RATE * seconds + RATE / 20 + RATE / 100 + 1 >= COUNT


async def test_a_subscription_is_slowed_down_by_none_but_its_own_rate(
    broker: BrokerProcess, topic: str
) -> None:
    """The rate is each subscription's own: four get four times as much as one."""
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, Policies(dispatch_messages_per_s=RATE))

        async def one(name: str) -> list[bytes]:
            async with client.consumer(topic, subscription=name, start="earliest") as consumer:
                return [message.payload for message in await take(consumer, COUNT, within_s=HANG_S)]

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(f"s{number}")) for number in range(4)]
    assert all(task.result() == numbered(COUNT) for task in tasks)


async def test_a_byte_rate_loses_nothing(broker: BrokerProcess, topic: str) -> None:
    payloads = [number.ljust(1_000, b".") for number in numbered(100)]
    async with danubius.connect(broker.url) as client:
        policies = Policies(dispatch_bytes_per_s=100_000)
        await client.admin.create_topic(topic, TopicSpec(policies=policies))
        async with client.producer(topic) as producer:
            await producer.send_many(payloads)
        began = time.monotonic()
        got = await received(client, topic, 100)
        seconds = time.monotonic() - began
    assert got == payloads
    assert 100_000 * seconds + 5_000 + 1_000 + 1_200 >= 100_000


async def test_a_rate_that_would_take_for_ever_is_lifted_live(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, Policies(dispatch_messages_per_s=1))
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            first = await take(consumer, 1)
            await client.admin.update_topic(topic, Policies(dispatch_messages_per_s=0))
            rest = await take(consumer, COUNT - 1, within_s=HANG_S)
    assert [message.payload for message in first + rest] == numbered(COUNT)


async def test_a_namespace_has_one_rate_for_all_its_topics_and_it_goes_with_the_policy(
    broker: BrokerProcess, topic: str
) -> None:
    space = f"paced-{time.monotonic_ns()}"
    topics = [f"/{space}/t{number}" for number in range(3)]
    count = 60
    async with danubius.connect(broker.url) as client:
        await client.admin.create_namespace(space, Policies(dispatch_messages_per_s=90))
        for name in topics:
            await fill(client, name, Policies(), count)
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(received(client, name, count)) for name in topics]
        seconds = time.monotonic() - began
        assert all(task.result() == numbered(count) for task in tasks)
        assert 3 * count <= 90 * seconds + 5 + 3 * 2

        await client.admin.update_namespace(space, Policies(dispatch_messages_per_s=1))
        async with client.producer(topics[0]) as producer:
            await producer.send_many(numbered(1_000))
        async with client.consumer(topics[0], subscription="s") as consumer:
            await take(consumer, 1)
            await client.admin.update_namespace(space, Policies(dispatch_messages_per_s=None))
            rest = await take(consumer, 999, within_s=HANG_S)
        assert [message.payload for message in rest] == numbered(1_000)[1:]
        await client.admin.delete_namespace(space, force=True)


def danubius_command(broker: BrokerProcess, *arguments: str) -> str:
    done = run_command(*arguments, "--url", broker.url)
    assert done.code == 0, done
    return done.stdout


def test_the_command_line_sets_shows_and_takes_rates_away(
    broker: BrokerProcess, topic: str
) -> None:
    danubius_command(broker, "topics", "create", topic, "--dispatch-rate", "10k")
    danubius_command(broker, "topics", "update", topic, "--dispatch-bytes-rate", "2MiB")
    described = danubius_command(broker, "topics", "describe", topic)
    assert "10,000" in described
    assert "2.0 MiB" in described
    danubius_command(broker, "topics", "update", topic, "--dispatch-rate", "none")
    assert "10,000" not in danubius_command(broker, "topics", "describe", topic)
