"""Dispatch rates as an operator sets and changes them, live. That they are kept: tests/simulation/test_rates.py."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import danubius
from danubius.model.policy import Policies
from danubius.model.topic import TopicSpec
from e2e.broker_process import run_command
from e2e.traffic import numbered, take
from patience import HANG_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess

COUNT = 400


async def fill(client: danubius.Client, topic: str, policies: Policies, count: int = COUNT) -> None:
    await client.admin.create_topic(topic, TopicSpec(policies=policies))
    async with client.producer(topic) as producer:
        await producer.send_many(numbered(count), keys=[b"%d" % (n % 5) for n in range(count)])


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


async def test_a_namespaces_rate_goes_with_the_policy(broker: BrokerProcess) -> None:
    space = f"paced-{time.monotonic_ns()}"
    async with danubius.connect(broker.url) as client:
        await client.admin.create_namespace(space, Policies(dispatch_messages_per_s=1))
        async with client.producer(f"/{space}/t") as producer:
            await producer.send_many(numbered(1_000))
        async with client.consumer(f"/{space}/t", subscription="s", start="earliest") as consumer:
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
