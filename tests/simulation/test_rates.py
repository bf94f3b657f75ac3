"""Rates in virtual time: kept to the message, neither faster nor slower, whoever is slowed down gets everything.

With real clocks only one half can be shown: a slow machine makes it slower.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

import danubius
from danubius.model.policy import Policies
from danubius.model.topic import TopicSpec
from simulation.calm import Calm
from simulation.world import URL

if TYPE_CHECKING:
    from danubius.client.options import SubscriptionTypeName

TOPIC: Final = "/default/t"
RATE: Final = 50
COUNT: Final = 500
FLOW_S: Final = COUNT / RATE
NUMBERED: Final = [b"%d" % number for number in range(COUNT)]
BURST: Final = 0.1
"""Of the whole: what goes at once, and what the last portion is ahead or behind."""


async def _fill(client: danubius.Client, topic: str, policies: Policies) -> None:
    await client.admin.create_topic(topic, TopicSpec(policies=policies))
    async with client.producer(topic) as producer:
        await producer.send_many(NUMBERED, keys=[b"%d" % (n % 5) for n in range(COUNT)])


async def _received(
    topic: str, kind: SubscriptionTypeName = "exclusive", name: str = "s"
) -> list[bytes]:
    async with (
        danubius.connect(URL) as client,
        client.consumer(topic, subscription=name, type=kind, start="earliest") as consumer,
    ):
        got: list[bytes] = []
        while len(got) < COUNT:
            batch = await consumer.receive_batch()
            await consumer.ack(batch)
            got += batch.payloads
        return got


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key-shared"])
def test_every_type_gets_everything_in_order_and_at_the_rate(kind: SubscriptionTypeName) -> None:
    async def main(calm: Calm) -> None:
        async with danubius.connect(URL) as client:
            await _fill(client, TOPIC, Policies(dispatch_messages_per_s=RATE))
        before_s = calm.now_s
        assert await _received(TOPIC, kind) == NUMBERED
        assert calm.now_s - before_s == pytest.approx(FLOW_S, rel=BURST)

    Calm().run(main)


def test_a_subscription_is_slowed_down_by_none_but_its_own_rate() -> None:
    async def main(calm: Calm) -> None:
        async with danubius.connect(URL) as client:
            await _fill(client, TOPIC, Policies(dispatch_messages_per_s=RATE))
        before_s = calm.now_s
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_received(TOPIC, name=f"s{n}")) for n in range(4)]
        assert all(task.result() == NUMBERED for task in tasks)
        assert calm.now_s - before_s == pytest.approx(FLOW_S, rel=BURST)

    Calm().run(main)


def test_a_rate_in_bytes_is_kept_and_loses_nothing() -> None:
    payloads = [number.ljust(1_000, b".") for number in NUMBERED]

    async def main(calm: Calm) -> None:
        async with danubius.connect(URL) as client:
            policies = Policies(dispatch_bytes_per_s=100_000)
            await client.admin.create_topic(TOPIC, TopicSpec(policies=policies))
            async with client.producer(TOPIC) as producer:
                await producer.send_many(payloads)
        before_s = calm.now_s
        assert await _received(TOPIC) == payloads
        assert calm.now_s - before_s == pytest.approx(1_000 * COUNT / 100_000, rel=BURST)

    Calm().run(main)


def test_a_namespaces_rate_is_shared_by_its_topics() -> None:
    topics = [f"/paced/t{number}" for number in range(3)]

    async def main(calm: Calm) -> None:
        async with danubius.connect(URL) as client:
            await client.admin.create_namespace("paced", Policies(dispatch_messages_per_s=3 * RATE))
            for topic in topics:
                await _fill(client, topic, Policies())
        before_s = calm.now_s
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_received(topic)) for topic in topics]
        assert all(task.result() == NUMBERED for task in tasks)
        assert calm.now_s - before_s == pytest.approx(FLOW_S, rel=BURST)

    Calm().run(main)


def test_a_producer_is_held_to_the_rate_and_nobody_else() -> None:
    async def main(calm: Calm) -> None:
        async with danubius.connect(URL) as client:
            await client.admin.create_topic(
                TOPIC, TopicSpec(policies=Policies(publish_messages_per_s=RATE))
            )
            async with (
                client.producer(TOPIC, batch_records=10) as slowed,
                client.producer("/default/free") as free,
            ):
                before_s = calm.now_s
                sending = asyncio.get_running_loop().create_task(slowed.send_many(NUMBERED))
                for number in range(100):
                    await free.send(b"%d" % number)
                assert calm.now_s - before_s < FLOW_S * BURST
                receipts = await sending
                assert [receipt.offset for receipt in receipts] == list(range(COUNT))
                # A burst of up to a second goes at once.
                assert calm.now_s - before_s + FLOW_S * BURST >= FLOW_S - 1
                assert calm.now_s - before_s <= FLOW_S * (1 + BURST)

    Calm().run(main)
