"""Who is slow, stuck or held back is so alone: others on the same topic, connection or broker go on.

A round is a message sent, received and acknowledged. So many rounds fit into the time they are given many times over,
unless something makes them wait for the slow one: for that, one a second would be far too few.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import danubius
from danubius.model.policy import Policies
from danubius.model.topic import TopicSpec
from danubius.wire.commands import Opcode
from e2e.raw_wire import RawPeer, frame
from e2e.traffic import eventually, numbered, payloads, take
from patience import HANG_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess

ROUNDS = 100


async def go_round(producer: danubius.Producer, consumer: danubius.Consumer) -> None:
    async with asyncio.timeout(HANG_S):
        for number in range(ROUNDS):
            payload = b"round %d" % number
            await producer.send(payload)
            message = await consumer.receive()
            assert message.payload == payload
            await consumer.ack(message)


async def test_a_subscription_far_behind_holds_nobody_up_and_gets_everything(
    broker: BrokerProcess, topic: str
) -> None:
    """One has a consumer with room for one message, never acknowledged; another's granted all and reads nothing."""
    backlog = numbered(20_000)
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        RawPeer(broker.port) as slow,
        RawPeer(broker.port) as stuck,
    ):
        await slow.hello()
        handle = await slow.subscribe(topic, "slow", consumer="slow")
        await stuck.hello()
        greedy = await stuck.subscribe(topic, "stuck", consumer="stuck")
        await producer.send_many(backlog)
        await slow.send(frame(Opcode.FLOW, (handle, 1, 10**9)))
        await stuck.send(frame(Opcode.FLOW, (greedy, 10**9, 10**12)))
        stuck.stop_reading()
        async with client.consumer(topic, subscription="live", start="latest") as live:
            await go_round(producer, live)
        slow.abort()
        async with client.consumer(topic, subscription="slow", type="failover") as late:
            got = await take(late, len(backlog) + ROUNDS, within_s=HANG_S)
    assert payloads(got)[: len(backlog)] == backlog
    assert [message.offset for message in got] == list(range(len(backlog) + ROUNDS))


async def test_a_stuck_consumer_of_key_shared_keeps_only_its_own_keys(
    broker: BrokerProcess, topic: str
) -> None:
    keys, rounds = 200, 30
    total = keys * rounds
    sent = [(b"k%d" % (number % keys), b"%d" % (number // keys)) for number in range(total)]
    seen: defaultdict[bytes, list[int]] = defaultdict(list)
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        RawPeer(broker.port) as stuck,
    ):
        await stuck.hello()
        handle = await stuck.subscribe(topic, "s", "key-shared", "stuck")
        async with client.consumer(
            topic, subscription="s", type="key-shared", name="healthy"
        ) as healthy:
            await stuck.send(frame(Opcode.FLOW, (handle, 10**9, 10**12)))
            stuck.stop_reading()
            padding = bytes(2_000)
            await producer.send_many(
                [payload + b" " + padding for _, payload in sent], keys=[key for key, _ in sent]
            )

            async def consume() -> None:
                while sum(map(len, seen.values())) < total:
                    message = await healthy.receive()
                    number = int(message.payload.split(b" ", 1)[0])
                    if number not in seen[message.key or b""]:
                        seen[message.key or b""].append(number)
                    await healthy.ack(message)

            async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
                consuming = tasks.create_task(consume())
                await eventually(
                    lambda: sum(len(one) == rounds for one in seen.values()) >= keys // 8,
                    "the healthy consumer has all messages of its keys",
                )
                stuck.abort()
                await consuming
    assert all(one == list(range(rounds)) for one in seen.values())
    assert len(seen) == keys


async def test_a_producer_held_back_by_a_rate_holds_nobody_up_on_its_connection(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        slow = TopicSpec(policies=Policies(publish_messages_per_s=1))
        await client.admin.create_topic(f"{topic}-slow", slow)
        async with (
            client.producer(f"{topic}-slow", batch_records=10, send_timeout=300) as held_back,
            client.producer(topic) as producer,
            client.consumer(topic, subscription="s", start="earliest") as consumer,
            asyncio.timeout(HANG_S + 60),
            asyncio.TaskGroup() as tasks,
        ):
            sending = tasks.create_task(held_back.send_many(numbered(1_000)))
            await go_round(producer, consumer)
            assert not sending.done()
            await client.admin.update_topic(f"{topic}-slow", Policies(publish_messages_per_s=0))
            assert len(await sending) == 1_000


async def test_what_a_dispatch_rate_holds_back_holds_nobody_up(
    broker: BrokerProcess, topic: str
) -> None:
    """Neither other topics on the same connection, nor what is published to the slow one, nor other namespaces."""
    space = f"slow-{time.monotonic_ns()}"
    async with danubius.connect(broker.url) as client:
        await client.admin.create_namespace(space, Policies(dispatch_messages_per_s=1))
        async with (
            client.producer(f"/{space}/t") as held_back,
            client.producer(topic) as producer,
            client.consumer(topic, subscription="s", start="earliest") as consumer,
        ):
            await held_back.send_many(numbered(1_000))
            async with client.consumer(
                f"/{space}/t", subscription="s", start="earliest"
            ) as waiting:
                await take(waiting, 1)
                await go_round(producer, consumer)
                await held_back.send_many(numbered(1_000))
                await client.admin.update_namespace(space, Policies(dispatch_messages_per_s=0))
                rest = await take(waiting, 1_999, within_s=HANG_S)
        assert [message.offset for message in rest] == list(range(1, 2_000))
        await client.admin.delete_namespace(space, force=True)
