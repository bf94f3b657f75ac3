"""Acknowledgements of every kind, and what comes again without one."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

import danubius
from e2e.traffic import collect, nothing_comes, numbered, payloads, take
from patience import HANG_S, LOOK_S, SOON_S

if TYPE_CHECKING:
    from danubius import Client, Message
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker


async def fill(client: Client, topic: str, count: int) -> None:
    async with client.producer(topic) as producer:
        await producer.send_many(numbered(count))


async def left_over(client: Client, topic: str, count: int) -> list[Message]:
    """What a new consumer of subscription `s` gets: exactly this many."""
    async with client.consumer(topic, subscription="s", type="shared") as consumer:
        messages = await take(consumer, count)
        await nothing_comes(consumer, 0.15)
    return sorted(messages, key=lambda m: m.offset)


async def test_individual_acks_in_any_order_leave_only_the_others(
    broker: BrokerProcess, topic: str
) -> None:
    acked = {7, 2, 9, 3, 0}
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 10)
        async with client.consumer(
            topic, subscription="s", type="shared", start="earliest"
        ) as consumer:
            messages = {m.offset: m for m in await take(consumer, 10)}
            for offset in (7, 2, 9, 3, 0):
                await consumer.ack(messages[offset])
        again = await left_over(client, topic, 5)
    assert [m.offset for m in again] == sorted(set(range(10)) - acked)


async def test_cumulative_ack_covers_everything_up_to_and_with_it(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 100)
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            messages = await take(consumer, 100)
            await consumer.ack_cumulative(messages[59])
        again = await left_over(client, topic, 40)
    assert [m.offset for m in again] == list(range(60, 100))


async def test_batch_ack_covers_the_batch(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic) as producer:
            await producer.send_many(numbered(50))
            await producer.send_many(numbered(30, 50))
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            batch = await consumer.receive_batch()
            rest = 80 - len(batch)
            assert list(batch.payloads) == numbered(len(batch))
            await consumer.ack(batch)
        again = await left_over(client, topic, rest)
    assert [m.offset for m in again] == list(range(80 - rest, 80))


async def test_ack_is_idempotent_and_below_the_floor_is_ignored(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 10)
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            messages = await take(consumer, 10)
            await consumer.ack_cumulative(messages[6])
            await consumer.ack(messages[2])
            await consumer.ack(messages[2])
            await consumer.ack_cumulative(messages[4])
        again = await left_over(client, topic, 3)
    assert [m.offset for m in again] == [7, 8, 9]


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
async def test_acks_outlive_the_broker(
    start_broker: StartBroker, topic: str, is_killed: bool
) -> None:
    """Close confirms the acks, so neither a stop nor kill -9 brings one of them back."""
    broker = start_broker()
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 100)
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            messages = await take(consumer, 100)
            await consumer.ack_cumulative(messages[49])
            for message in messages[60:80:2]:
                await consumer.ack(message)
    if is_killed:
        broker.kill()
    else:
        assert broker.stop() == 0
    broker.start()
    async with danubius.connect(broker.url) as client:
        again = await left_over(client, topic, 40)
    assert [m.offset for m in again] == [*range(50, 60), *range(61, 80, 2), *range(80, 100)]


async def test_nack_brings_it_again_with_a_count(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 1)
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            counts: list[int] = []
            for _ in range(4):
                [message] = await take(consumer, 1)
                counts.append(message.redelivery_count)
                await consumer.nack(message)
    assert counts == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["exclusive", "shared", "failover", "key-shared"])
async def test_nack_with_delay_waits_and_others_go_on(
    broker: BrokerProcess, topic: str, kind: str
) -> None:
    delay = 0.3
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", type=kind, start="earliest") as consumer,  # pyright: ignore[reportArgumentType] - a str of the four
    ):
        await producer.send(b"in an hour", key=b"a")
        await producer.send(b"soon", key=b"b")
        hour, soon = await take(consumer, 2)
        began = time.monotonic()
        await consumer.nack(hour, delay=3600)
        await consumer.nack(soon, delay=delay)
        await producer.send(b"other", key=b"c")
        came: dict[bytes, tuple[int, float]] = {}
        for _ in range(2):
            [message] = await take(consumer, 1)
            came[message.payload] = message.redelivery_count, time.monotonic() - began
            await consumer.ack(message)
        await nothing_comes(consumer, 0.05)
    assert came.keys() == {b"other", b"soon"}, "neither waits for the one that comes in an hour"
    assert (came[b"other"][0], came[b"soon"][0]) == (0, 1)
    assert came[b"soon"][1] >= delay - 0.05


async def test_nack_of_a_batch_brings_all_of_it_again(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 40)
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            batch = await consumer.receive_batch()
            assert len(batch) == 40
            await consumer.nack(batch)
            again = await consumer.receive_batch()
    assert list(again.payloads) == numbered(40)
    assert again.redelivery_count == 1


async def test_ack_timeout_brings_it_again(broker: BrokerProcess, topic: str) -> None:
    """What is not acknowledged in time comes again with a count; what was acknowledged does not."""
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 10)
        async with client.consumer(
            topic, subscription="s", type="shared", start="earliest", ack_timeout=0.5
        ) as consumer:
            began = time.monotonic()
            for message in await take(consumer, 10):
                if message.offset % 2 == 0:
                    await consumer.ack(message)
            # On a slow machine an acknowledgement may come too late, and its message again.
            again: dict[int, int] = {}
            while not again.keys() >= {1, 3, 5, 7, 9}:
                [message] = await take(consumer, 1)
                again.setdefault(message.offset, message.redelivery_count)
                await consumer.ack(message)
            waited = time.monotonic() - began
        assert await left_over(client, topic, 0) == []
    assert set(again.values()) == {1}
    assert waited >= 0.45


async def test_ack_timeout_hands_over_to_another_consumer(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        async with client.consumer(
            topic, subscription="s", type="shared", start="earliest", ack_timeout=0.4, name="stuck",
            prefetch_messages=4,
        ) as stuck:  # fmt: skip
            await fill(client, topic, 4)
            await take(stuck, 4)
            async with client.consumer(
                topic, subscription="s", type="shared", name="fresh"
            ) as fresh:
                offsets: set[int] = set()
                async with asyncio.timeout(HANG_S):
                    while offsets != {0, 1, 2, 3}:
                        message = await fresh.receive()
                        offsets.add(message.offset)
                        await fresh.ack(message)
    assert offsets == {0, 1, 2, 3}


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
async def test_redelivery_after_disconnect_comes_first_and_in_order(
    broker: BrokerProcess, topic: str, kind: str
) -> None:
    """Old before new, each with its count, and only what was not acknowledged."""
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 30)
        async with client.consumer(
            topic,
            subscription="s",
            type=kind,  # pyright: ignore[reportArgumentType] - a str of the four
            start="earliest",
        ) as first:
            messages = await take(first, 30)
            await first.ack_cumulative(messages[9])
            await first.ack(messages[20])
        await fill(client, topic, 5)
        async with client.consumer(topic, subscription="s", type=kind) as second:  # pyright: ignore[reportArgumentType] - a str of the four
            again = await take(second, 24)
    assert [m.offset for m in again] == [*range(10, 20), *range(21, 35)]
    assert [m.redelivery_count for m in again] == [1] * 19 + [0] * 5


async def test_shared_redelivers_a_lost_consumers_messages_to_the_others(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        async with client.consumer(
            topic, subscription="s", type="shared", start="earliest"
        ) as stays:
            async with (
                danubius.connect(broker.url) as lost_client,
                lost_client.consumer(topic, subscription="s", type="shared", name="lost") as lost,
            ):
                await fill(client, topic, 100)
                held = await take(lost, 1)
            [received] = await collect([stays], 100)
    assert sorted(m.offset for m in received) == list(range(100))
    assert held[0].offset in {m.offset for m in received if m.redelivery_count == 1}


async def test_receive_with_timeout_says_so(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        async with client.consumer(topic, subscription="s") as consumer:
            with pytest.raises(danubius.DanubiusError) as caught:
                await consumer.receive(timeout=SOON_S)
    assert caught.value.code == 504


async def test_receive_batch_is_bounded_by_max_messages(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 100)
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            sizes: list[int] = []
            received: list[bytes] = []
            while len(received) < 100:
                batch = await consumer.receive_batch(max_messages=30)
                sizes.append(len(batch))
                received += list(batch.payloads)
                await consumer.ack(batch)
        async with client.consumer(topic, subscription="s") as consumer:
            await nothing_comes(consumer, 0.1)
    assert max(sizes) <= 30
    assert received == numbered(100)


async def test_received_batch_is_columnar(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic) as producer:
            await producer.send_many(
                [b"a", b"", b"c"],
                keys=[b"k", None, b""],
                attributes=[{"x": "1"}, None, {"y": "2", "z": "ü"}],
            )
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            batch = await consumer.receive_batch()
            columns = cast(
                "dict[str, list[Any]]", batch.to_arrow().to_pydict()
            )  # pyarrow has no types
    assert list(batch.payloads) == [b"a", b"", b"c"]
    assert list(batch.keys) == [b"k", None, b""]
    assert list(batch.offsets) == [0, 1, 2]
    assert columns["payload"] == [b"a", b"", b"c"]
    assert columns["key"] == [b"k", None, b""]
    assert columns["offset"] == [0, 1, 2]
    assert set(columns["topic"]) == {topic}
    assert [dict(pairs or []) for pairs in columns["attributes"]] == [
        {"x": "1"},
        {},
        {"y": "2", "z": "ü"},
    ]
    assert payloads(list(batch.messages())) == [b"a", b"", b"c"]


async def test_tasks_that_share_a_consumer_leave_nothing_behind(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 500)
        seen: list[int] = []
        async with (
            client.consumer(topic, subscription="s", type="shared", start="earliest") as consumer,
            asyncio.timeout(HANG_S),
        ):

            async def work() -> None:
                while len(seen) < 500:
                    try:
                        message = await consumer.receive(timeout=SOON_S)
                    except TimeoutError:
                        continue
                    seen.append(message.offset)
                    await consumer.ack(message)
                    await asyncio.sleep(0)

            async with asyncio.TaskGroup() as tasks:
                for _ in range(4):
                    tasks.create_task(work())
        assert sorted(seen) == list(range(500))
        assert await left_over(client, topic, 0) == []


async def test_a_cancelled_subscribe_does_not_keep_the_subscription_busy(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await fill(client, topic, 3)

        async def subscribe() -> danubius.Consumer:
            return await client.consumer(topic, subscription="s", start="earliest")

        for turns in range(8):
            async with asyncio.TaskGroup() as tasks:
                opening = tasks.create_task(subscribe())
                for _ in range(turns):
                    await asyncio.sleep(0)
                opening.cancel()
            if not opening.cancelled():
                await opening.result().close()
        # The last answer may still be under way, and with it what gives its consumer back.
        async with asyncio.timeout(HANG_S):
            while any(  # noqa: ASYNC110  # another process: there is no event to wait for
                s.consumers for s in (await client.describe_topic(topic)).subscriptions
            ):
                await asyncio.sleep(LOOK_S)
        # Perhaps none of them came as far as the broker: then this one makes the subscription.
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            assert len(await take(consumer, 3)) == 3
