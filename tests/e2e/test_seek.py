"""Moving subscriptions under live consumers, against a real broker process, also one that is killed."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import pytest

import danubius
from danubius import blocking
from danubius.errors import InvalidArgument, OffsetOutOfRange, SubscriptionBusy
from patience import HANG_S, LOOK_S
from proving import sized

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

    TypeName = Literal["exclusive", "shared", "failover", "key-shared"]

ROUNDS = sized(1, 20)
TYPES: list[TypeName] = ["exclusive", "shared", "failover", "key-shared"]


async def publish(client: danubius.Client, topic: str, count: int) -> None:
    async with client.producer(topic) as producer:
        await producer.send_many(
            [b"%d" % n for n in range(count)], keys=[b"%d" % (n % 7) for n in range(count)]
        )


@pytest.mark.parametrize("kind", TYPES)
async def test_the_first_delivery_after_a_seek_is_exactly_the_position(
    broker: BrokerProcess, topic: str, kind: TypeName
) -> None:
    async with danubius.connect(broker.url) as client:
        await publish(client, topic, 1000)
        async with client.consumer(
            topic, subscription="s", type=kind, start="earliest", prefetch_messages=50
        ) as consumer:
            for position in (0, 700, 300, 998, 0):
                held = await consumer.receive(timeout=HANG_S)
                await consumer.ack(held)
                (moved,) = await client.admin.seek(topic, "s", position)
                assert (moved.topic, moved.offset) == (topic, position)
                await consumer.ack(held)  # of another position: changes nothing
                message = await consumer.receive(timeout=HANG_S)
                while message.offset == held.offset + 1 != position:
                    message = await consumer.receive(timeout=HANG_S)  # it was on its way already
                assert message.offset == position
                assert message.redelivery_count == 0


async def test_acks_on_their_way_across_a_seek_change_nothing(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client, danubius.connect(broker.url) as operator:
        await publish(client, topic, 2000)
        async with client.consumer(
            topic, subscription="s", start="earliest", prefetch_messages=2000
        ) as consumer:
            held = [await consumer.receive(timeout=HANG_S) for _ in range(1000)]

            async def acknowledge() -> None:
                for message in held:
                    await consumer.ack(message)
                    if not message.offset % 50:
                        await asyncio.sleep(0)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(acknowledge())
                tasks.create_task(operator.admin.seek(topic, "s", "earliest"))
            seen: list[int] = []
            while len(seen) < 2000:
                message = await consumer.receive(timeout=HANG_S)
                if message.offset == 0:
                    seen.clear()  # what was before the seek
                seen.append(message.offset)
                await consumer.ack(message)
            assert seen == list(range(2000))


@pytest.mark.grows
@pytest.mark.parametrize("kind", TYPES)
async def test_a_seek_that_was_answered_survives_the_broker(
    start_broker: StartBroker, topic: str, kind: TypeName
) -> None:
    broker = start_broker()
    dice = random.Random(f"{kind}")
    async with danubius.connect(broker.url) as client:
        await publish(client, topic, 500)
        async with client.consumer(
            topic, subscription="s", type=kind, start="earliest", prefetch_messages=20
        ) as consumer:
            for _ in range(ROUNDS):
                held = [await consumer.receive(timeout=HANG_S) for _ in range(dice.randrange(1, 5))]
                position = dice.randrange(400)
                await client.admin.seek(topic, "s", position)
                broker.kill()
                for message in held:
                    await consumer.ack(message)  # received before the seek: changes nothing
                broker.start()
                # The consumer comes back by itself, and is exactly where it was sent.
                message = await consumer.receive(timeout=HANG_S)
                assert message.offset == position
                await consumer.ack(message)


async def test_seek_to_a_time_and_to_the_ends(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await publish(client, topic, 5)
        await asyncio.sleep(LOOK_S)
        between = datetime.now(UTC)
        await asyncio.sleep(LOOK_S)
        await publish(client, topic, 5)
        await client.admin.create_subscription(topic, "s")
        assert (await client.admin.seek(topic, "s", between))[0].offset == 5
        assert (await client.admin.seek(topic, "s", "earliest"))[0].offset == 0
        assert (await client.admin.seek(topic, "s", "latest"))[0].offset == 10
        with pytest.raises(OffsetOutOfRange, match="0 to 10"):
            await client.admin.seek(topic, "s", 11)


async def test_a_partitioned_topic_moves_as_one(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic, partitions=3)
        await publish(client, topic, 70)
        created = await client.admin.create_subscription(topic, "s", start="earliest")
        assert created.statistics.backlog_messages == 70
        moved = await client.admin.seek(topic, "s", "latest")
        assert [one.topic for one in moved] == [f"{topic}-part-{n}" for n in range(3)]
        assert sum(one.offset for one in moved) == 70
        with pytest.raises(InvalidArgument, match="partition"):
            await client.admin.seek(topic, "s", 0)
        await client.admin.seek(topic, "s", "earliest")
        assert await client.admin.skip(topic, "s", 30) == 30
        assert await client.admin.clear_backlog(topic, "s") == 40
        figures = (await client.admin.describe_subscription(topic, "s")).statistics
        assert figures.backlog_messages == 0


async def test_skip_peek_and_clear_under_a_consumer(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await publish(client, topic, 100)
        async with client.consumer(
            topic, subscription="s", start="earliest", prefetch_messages=10
        ) as consumer:
            first = await consumer.receive(timeout=HANG_S)
            peeked = await client.admin.peek(topic, "s", 3)
            assert [one.payload for one in peeked] == [b"0", b"1", b"2"]
            assert first.offset == 0
            assert await client.admin.skip(topic, "s", 50) == 50
            while (message := await consumer.receive(timeout=HANG_S)).offset < 50:
                pass  # they were sent before
            assert message.offset == 50
            assert await client.admin.clear_backlog(topic, "s") == 50
            assert await client.admin.peek(topic, "s", 3) == []


async def test_subscriptions_are_kept_without_a_consumer_and_deleted(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker()
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        await client.admin.create_subscription(topic, "kept", type="shared")
        await client.admin.create_subscription(topic, "gone")
        await publish(client, topic, 10)
        async with client.consumer(topic, subscription="gone"):
            with pytest.raises(SubscriptionBusy, match="force"):
                await client.admin.delete_subscription(topic, "gone")
        await client.admin.delete_subscription(topic, "gone")
        broker.kill()
        broker.start()
        (left,) = await client.admin.list_subscriptions(topic)
        assert (left.subscription, left.type, left.backlog_messages) == ("kept", "shared", 10)
        async with client.consumer(topic, subscription="kept", type="shared") as consumer:
            assert (await consumer.receive(timeout=HANG_S)).offset == 0


def test_the_blocking_client_moves_too(broker: BrokerProcess, topic: str) -> None:
    with blocking.connect(broker.url) as client:
        with client.producer(topic) as producer:
            producer.send_many([b"a", b"b", b"c"])
        client.admin.create_subscription(topic, "s", start="earliest")
        with client.consumer(topic, subscription="s") as consumer:
            assert consumer.receive(timeout=HANG_S).payload == b"a"
            client.admin.seek(topic, "s", 2)
            while consumer.receive(timeout=HANG_S).payload != b"c":
                pass
        assert [one.payload for one in client.admin.peek(topic, "s")] == [b"c"]
