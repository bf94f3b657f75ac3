"""Key-Shared through the client, against a real broker: filters, and keys that wait without stopping others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import danubius
from danubius import blocking
from danubius.errors import InvalidArgument
from e2e.broker_process import run_command
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess


async def publish(client: danubius.Client, topic: str, keys: list[str]) -> None:
    async with client.producer(topic) as producer:
        await producer.send_many(
            [b"%d" % n for n in range(len(keys))], keys=[key.encode() for key in keys]
        )


async def take(consumer: danubius.Consumer, count: int) -> list[danubius.Message]:
    """So many messages, acknowledged one by one."""
    messages = [await consumer.receive(timeout=HANG_S) for _ in range(count)]
    for one in messages:
        await consumer.ack(one)
    return messages


def names(messages: list[danubius.Message]) -> list[bytes | None]:
    return [one.key for one in messages]


@pytest.mark.parametrize("partitions", [0, 3])
async def test_each_gets_the_keys_it_takes_and_the_rest_waits_for_somebody(
    broker: BrokerProcess, topic: str, partitions: int
) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic, partitions=partitions)

        def consumer(*filters: str) -> Any:
            return client.consumer(
                topic,
                subscription="s",
                type="key-shared",
                start="earliest",
                key_filters=list(filters),
            )

        await client.admin.create_subscription(topic, "s", type="key-shared", start="earliest")
        async with consumer("eu-*", "uk-?") as europe, consumer("us-*") as america:
            await publish(client, topic, ["eu-1", "us-1", "asia-1", "uk-1", "us-2", "asia-2"] * 50)
            assert {*names(await take(europe, 100))} == {b"eu-1", b"uk-1"}
            assert {*names(await take(america, 100))} == {b"us-1", b"us-2"}
            async with asyncio.timeout(HANG_S):  # until the acknowledgements are there
                while True:
                    figures = (await client.admin.describe_subscription(topic, "s")).statistics
                    if (figures.backlog_messages, figures.unmatched_messages) == (100, 100):
                        break
                    await asyncio.sleep(LOOK_S)
            described = await client.admin.list_consumers(topic)
            assert {tuple(one.key_filters) for one in described} == {("eu-*", "uk-?"), ("us-*",)}
            async with consumer("asia-*") as asia:
                late = await take(asia, 100)
                assert {*names(late)} == {b"asia-1", b"asia-2"}
                for key in {*names(late)}:
                    numbers = [int(one.payload) for one in late if one.key == key]
                    assert numbers == sorted(numbers)


async def test_what_nobody_takes_goes_by_on_a_non_reliable_topic(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic, dispatch="non-reliable")
        async with client.consumer(
            topic, subscription="s", type="key-shared", key_filters=["a*"]
        ) as consumer:
            async with client.producer(topic, dispatch="non-reliable") as producer:
                await producer.send_many([b"1", b"2", b"3"], keys=[b"b", b"c", b"a"])
            assert (await consumer.receive(timeout=HANG_S)).payload == b"3"
            figures = (await client.admin.describe_subscription(topic, "s")).statistics
            assert figures.filtered_messages == 2
            assert figures.dropped_slow_messages == 0


async def test_one_hot_key_at_a_sleeper_stops_nobody(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        await client.admin.create_subscription(topic, "s", type="key-shared", start="earliest")
        settings: Any = {"subscription": "s", "type": "key-shared"}
        async with (
            client.consumer(topic, key_filters=["hot"], prefetch_messages=1, **settings) as sleeper,
            client.consumer(topic, key_filters=["cold-*"], **settings) as busy,
        ):
            # More of one key than is remembered of it: most of them are read past, and read again.
            async with client.producer(topic) as producer:
                for _ in range(10):
                    await producer.send_many(
                        [b"%d" % n for n in range(4000)],
                        keys=[b"hot" if n % 2 else b"cold-%d" % (n % 7) for n in range(4000)],
                    )
            assert len(await take(busy, 20_000)) == 20_000
            hot = await take(sleeper, 3)
            assert [one.payload for one in hot] == [b"1", b"3", b"5"]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"type": "shared", "key_filters": ["a"]}, "for type 'key-shared'"),
        ({"type": "key-shared", "key_filters": "eu-*"}, "must be a list"),
        ({"type": "key-shared", "key_filters": ["[ab]"]}, r"only \* "),
        ({"type": "key-shared", "key_filters": ["a"] * 65}, "64 key filters"),
    ],
)
async def test_bad_filters_are_refused(
    broker: BrokerProcess, topic: str, settings: Any, why: str
) -> None:
    async with danubius.connect(broker.url) as client:
        with pytest.raises(InvalidArgument, match=why):
            client.consumer(topic, subscription="s", **settings)


def test_filters_on_the_command_line_and_in_the_blocking_client(
    broker: BrokerProcess, topic: str
) -> None:
    with blocking.connect(broker.url) as client:
        client.create_topic(topic)
        client.admin.create_subscription(topic, "s", type="key-shared", start="earliest")
        with client.producer(topic) as producer:
            producer.send_many([b"one", b"two", b"three"], keys=[b"eu-1", b"us-1", b"eu-2"])
        options = (
            "--type",
            "key-shared",
            "--key-filter",
            "eu-*",
            "--count",
            "2",
            "--timeout",
            "60",
        )
        done = run_command("consume", topic, "-s", "s", *options, "--url", broker.url)
        assert done.stdout.splitlines() == ["one", "three"], done.stderr
        refused = run_command("consume", topic, "-s", "s", "--key-filter", "x", "--url", broker.url)
        assert refused.code != 0
        assert "for type 'key-shared'" in refused.stderr
        with client.consumer(
            topic, subscription="s", type="key-shared", key_filters=("us-?",)
        ) as consumer:
            assert consumer.receive(timeout=HANG_S).payload == b"two"
