"""Partitioned topics through the client, against a real broker: rows of the delivery matrix, growth, deletion."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

import danubius
from danubius.errors import (
    DanubiusError,
    InvalidArgument,
    TopicDeleted,
    TopicExists,
    TopicNotFound,
)
from danubius.model.ids import TopicName
from danubius.model.partitions import partition_name, route
from danubius.model.policy import Policies
from e2e.storage_files import size_of
from e2e.traffic import collect, nothing_comes, take
from patience import HANG_S, LOOK_S
from proving import sized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from danubius import Client, Consumer, Message
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

Kind = Literal["exclusive", "shared", "failover", "key-shared"]
Dispatch = Literal["reliable", "non-reliable"]
PARTITIONS = 4
MESSAGES = 1_000
KEYS = 37
SCALE = sized(1, 20)


def ordered(count: int) -> list[bytes]:
    """Payloads whose order as bytes is that of sending."""
    return [b"%08d" % number for number in range(count)]


def keys_of(count: int) -> list[bytes]:
    return [b"key-%d" % (number % KEYS) for number in range(count)]


def flat(received: Iterable[list[Message]]) -> list[Message]:
    return [message for one in received for message in one]


def by_partition(messages: Iterable[Message]) -> dict[str, list[Message]]:
    found: dict[str, list[Message]] = defaultdict(list)
    for message in messages:
        found[message.topic].append(message)
    return found


def assert_in_order(messages: Iterable[Message]) -> None:
    """Per partition: offsets rise, and with them what was sent."""
    for part in by_partition(messages).values():
        for before, after in pairwise(part):
            assert before.offset < after.offset
            assert before.payload < after.payload


def assert_all_once(messages: list[Message], sent: list[bytes]) -> None:
    assert sorted(message.payload for message in messages) == sorted(sent)


def assert_whole_partitions(messages: list[Message], topic: str) -> None:
    """All partitions took part, and none has a hole."""
    parts = by_partition(messages)
    assert sorted(parts) == [f"{topic}-part-{index}" for index in range(PARTITIONS)]
    for part in parts.values():
        assert sorted(message.offset for message in part) == list(range(len(part)))


async def becomes(is_true: Callable[[], bool], *, within_s: float = HANG_S) -> None:
    """Wait for what another process does with its files."""
    async with asyncio.timeout(within_s):
        while not is_true():  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(LOOK_S)


async def open_consumers(
    stack: AsyncExitStack, client: Client, topic: str, kind: Kind, count: int
) -> list[Consumer]:
    return [
        await stack.enter_async_context(
            client.consumer(topic, subscription="s", type=kind, start="earliest", name=f"c{number}")
        )
        for number in range(count)
    ]


async def send_all(client: Client, topic: str, dispatch: Dispatch, sent: list[bytes]) -> None:
    async with client.producer(topic, dispatch=dispatch) as producer:
        keys = keys_of(len(sent))
        for at in range(0, len(sent), 100):
            await producer.send_many(sent[at : at + 100], keys=keys[at : at + 100])


# ---------------------------------------------------------------- the delivery matrix, partitioned rows


async def test_reliable_partitioned_exclusive(start_broker: StartBroker, topic: str) -> None:
    """Persisted, in order per partition, at least once.

    Fails if: partitions are not journaled (nothing after kill -9), or if a lane's window hands out of order.
    """
    broker = start_broker()
    sent = ordered(MESSAGES)
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic, partitions=PARTITIONS)
        await send_all(client, topic, "reliable", sent)
    broker.kill()
    broker.start()
    async with danubius.connect(broker.url) as client:
        async with client.consumer(topic, subscription="s", start="earliest") as first:
            seen = await take(first, MESSAGES)
        assert_in_order(seen)
        assert_whole_partitions(seen, topic)
        assert_all_once(seen, sent)
        # Nothing was acknowledged: the next consumer gets all of it again, in the same order.
        async with client.consumer(topic, subscription="s") as second:
            again = await take(second, MESSAGES)
            assert_in_order(again)
            assert_all_once(again, sent)
            with pytest.raises(danubius.SubscriptionBusy):
                await client.consumer(topic, subscription="s")


async def test_reliable_partitioned_shared(start_broker: StartBroker, topic: str) -> None:
    """Persisted, shared out, at least once.

    Fails if: a lane joins only some partitions, or if the cursor of one is not journaled.
    """
    broker = start_broker()
    sent = ordered(MESSAGES)
    async with danubius.connect(broker.url) as client, AsyncExitStack() as stack:
        await client.create_topic(topic, partitions=PARTITIONS)
        consumers = await open_consumers(stack, client, topic, "shared", 3)
        await send_all(client, topic, "reliable", sent)
        received = await collect(consumers, MESSAGES)
        assert all(received)
        assert_all_once(flat(received), sent)
        assert_whole_partitions(flat(received), topic)
    broker.kill()
    broker.start()
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(topic, subscription="s", type="shared") as consumer,
        client.producer(topic) as producer,
    ):
        await producer.send(b"one more")
        # What was acknowledged in the last moments before the kill may come again, nothing else.
        while (message := (await take(consumer, 1))[0]).payload != b"one more":
            assert message.payload in sent


async def test_non_reliable_partitioned_exclusive(broker: BrokerProcess, topic: str) -> None:
    """Not stored, in order per partition, at most once: nobody there, nothing kept.

    Fails if: a partition is made with other settings than the whole (it would be stored).
    """
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic, dispatch="non-reliable", partitions=PARTITIONS)
        await send_all(client, topic, "non-reliable", [b"unheard"] * 50)
        async with client.consumer(topic, subscription="s") as consumer:
            sent = ordered(MESSAGES)
            await send_all(client, topic, "non-reliable", sent)
            seen = await take(consumer, MESSAGES)
            await nothing_comes(consumer)
        assert_in_order(seen)
        assert_all_once(seen, sent)
        described = await client.describe_topic(topic)
        assert described.summary.stored_bytes == 0
        # At most once: not acknowledged, and yet it does not come again.
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            await nothing_comes(consumer)


async def test_non_reliable_partitioned_shared(broker: BrokerProcess, topic: str) -> None:
    """Not stored, shared out, at most once.

    Fails if: two consumers of one subscription both get a message, or if one gets none.
    """
    async with danubius.connect(broker.url) as client, AsyncExitStack() as stack:
        await client.create_topic(topic, dispatch="non-reliable", partitions=PARTITIONS)
        consumers = await open_consumers(stack, client, topic, "shared", 3)
        sent = ordered(MESSAGES)
        await send_all(client, topic, "non-reliable", sent)
        received = await collect(consumers, MESSAGES)
        assert all(received)
        assert_all_once(flat(received), sent)
        for consumer in consumers:
            await nothing_comes(consumer)


@pytest.mark.parametrize("dispatch", ["reliable", "non-reliable"])
async def test_partitioned_failover(broker: BrokerProcess, topic: str, dispatch: Dispatch) -> None:
    """As exclusive, and the standby takes all partitions over when the active one's connection is lost.

    Fails if: a standby is not promoted on every partition, or if it is sent to before that.
    """
    async with (
        danubius.connect(broker.url) as client,
        danubius.connect(broker.url) as other,
    ):
        await client.create_topic(topic, dispatch=dispatch, partitions=PARTITIONS)
        first = await other.consumer(topic, subscription="s", type="failover", start="earliest")
        async with client.consumer(topic, subscription="s", type="failover") as standby:
            sent = ordered(MESSAGES)
            await send_all(client, topic, dispatch, sent)
            [seen] = await collect([first], MESSAGES)
            assert_in_order(seen)
            assert_all_once(seen, sent)
            await nothing_comes(standby)
            await other.close()
            await send_all(client, topic, dispatch, sent)
            taken = await take(standby, MESSAGES)
            assert_in_order(taken)
            assert_all_once(taken, sent)


@pytest.mark.parametrize("dispatch", ["reliable", "non-reliable"])
async def test_partitioned_key_shared(
    broker: BrokerProcess, topic: str, dispatch: Dispatch
) -> None:
    """A key is in one partition and with one consumer, in order.

    Fails if: the producer routes by anything but the key, or if the selector ignores it.
    """
    async with danubius.connect(broker.url) as client, AsyncExitStack() as stack:
        await client.create_topic(topic, dispatch=dispatch, partitions=PARTITIONS)
        consumers = await open_consumers(stack, client, topic, "key-shared", 3)
        sent = ordered(MESSAGES)
        await send_all(client, topic, dispatch, sent)
        received = await collect(consumers, MESSAGES)
    assert_all_once(flat(received), sent)
    homes: dict[bytes | None, set[tuple[int, str]]] = defaultdict(set)
    for number, one in enumerate(received):
        runs: dict[bytes | None, list[bytes]] = defaultdict(list)
        for message in one:
            homes[message.key].add((number, message.topic))
            runs[message.key].append(message.payload)
        assert all(run == sorted(run) for run in runs.values())
    assert len(homes) == KEYS
    for key, places in homes.items():
        assert key is not None
        [(_, partition)] = places
        assert partition == partition_name(TopicName(topic), route(key, PARTITIONS))


# ---------------------------------------------------------------- growth


@pytest.mark.grows
@pytest.mark.parametrize("kind", ["exclusive", "shared"])
async def test_growth_under_load(broker: BrokerProcess, topic: str, kind: Kind) -> None:
    """From 4 to 8 partitions while messages flow: each is received once, and the new ones are used."""
    total = 4_000 * SCALE
    async with danubius.connect(broker.url) as client, danubius.connect(broker.url) as operator:
        await client.create_topic(topic, partitions=4)
        async with (
            client.consumer(topic, subscription="s", type=kind, start="earliest") as consumer,
            operator.producer(topic) as producer,
        ):
            sent = ordered(total)

            async def produce() -> None:
                for at in range(0, total, 100):
                    await producer.send_many(sent[at : at + 100])
                    if at == total // 4:
                        await operator.admin.update_topic(topic, partitions=8)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(produce())
                [received] = await collect([consumer], total, within_s=60 + 2 * SCALE)
            assert_all_once(received, sent)
            assert all(message.redelivery_count == 0 for message in received)
            assert_in_order(received)
            # By now the producer knows them all: one round of messages is one message each.
            async with asyncio.timeout(HANG_S):
                while True:
                    receipts = await producer.send_many([b"round"] * 8)
                    if {receipt.topic for receipt in receipts} == {
                        f"{topic}-part-{index}" for index in range(8)
                    }:
                        break


async def test_growth_while_nobody_consumes_loses_nothing(
    broker: BrokerProcess, topic: str
) -> None:
    """An idle subscription owes what is published to partitions that it has never seen."""
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic, partitions=1)
        async with client.consumer(topic, subscription="s"):
            pass
        await client.admin.update_topic(topic, partitions=3)
        async with client.producer(topic) as producer:
            await producer.send_many(ordered(30))
        async with client.consumer(topic, subscription="s", start="latest") as consumer:
            assert_all_once(await take(consumer, 30), ordered(30))


async def test_a_reader_reads_all_partitions(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic, partitions=PARTITIONS)
        await send_all(client, topic, "reliable", ordered(200))
        async with client.reader(topic, stop_at_end=True) as reader:
            seen = [message async for message in reader]
        assert_in_order(seen)
        assert_all_once(seen, ordered(200))
        with pytest.raises(InvalidArgument, match="partitioned"):
            await client.reader(topic, start=5)


# ---------------------------------------------------------------- as a whole


async def test_a_partitioned_topic_answers_as_a_whole(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic, partitions=PARTITIONS)
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            await send_all(client, topic, "reliable", ordered(100))
            await take(consumer, 100)
            described = await client.describe_topic(topic)
            [line] = described.subscriptions
            assert (described.summary.topic, described.summary.end_offset) == (topic, 100)
            assert (line.name, line.backlog, line.unacked) == ("s", 100, 100)
        assert await client.resolve_offset(topic, "latest") == 100
        assert await client.resolve_offset(topic, "earliest") == 0
        line = next(one for one in await client.admin.list_topics() if one.topic == topic)
        assert (line.partitions, line.stored_messages) == (PARTITIONS, 100)
        with pytest.raises(TopicExists, match=f"{topic}-part-9"):
            await client.create_topic(f"{topic}-part-9")
        with pytest.raises(InvalidArgument, match="as a whole"):
            await client.delete_topic(f"{topic}-part-0")


async def test_deletion_ends_producers_and_consumers(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client, danubius.connect(broker.url) as operator:
        await client.create_topic(topic, partitions=PARTITIONS)
        producer = await client.producer(topic)
        consumer = await client.consumer(topic, subscription="s")
        await producer.send(b"before")
        await take(consumer, 1)

        async def wait_for_the_end() -> None:
            with pytest.raises(TopicDeleted):
                await consumer.receive()

        async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(wait_for_the_end())
            await operator.delete_topic(topic)
        with pytest.raises(TopicDeleted):
            for _ in range(PARTITIONS):
                await producer.send(b"after")
        with pytest.raises(TopicNotFound):
            await client.describe_topic(topic)
        assert not [t for t in await client.list_topics() if t.topic.startswith(topic)]
        # The name is free again, for a plain topic too.
        await client.create_topic(topic)
        await client.delete_topic(topic)


@pytest.mark.grows
async def test_deletion_gives_back_files_and_disk(start_broker: StartBroker, topic: str) -> None:
    """Made, used and deleted again and again: open files and stored bytes are what they were."""
    broker = start_broker()

    def usage() -> tuple[int, int]:
        ledgers = broker.data_dir / "ledgers"
        stored = sum(size_of(path) for path in ledgers.rglob("*"))
        return len(list(Path(f"/proc/{broker.pid}/fd").iterdir())), stored

    async def use(client: Client) -> None:
        await client.create_topic(topic, partitions=3)
        async with (
            client.producer(topic) as producer,
            client.consumer(topic, subscription="s", type="shared") as consumer,
        ):
            await producer.send_many([b"x" * 1000] * 300)
            await client.admin.update_topic(topic, Policies(ttl_ms=3_600_000), partitions=4)
            await take(consumer, 300)
        await client.delete_topic(topic)

    async with danubius.connect(broker.url) as client:
        await use(client)
        await becomes(lambda: usage()[1] == 0)
        files, _ = usage()
        for _ in range(10 * SCALE):
            await use(client)
        await becomes(lambda: usage() == (files, 0))


async def test_a_namespace_can_partition_new_topics(broker: BrokerProcess, topic: str) -> None:
    """`auto_partitions`: a producer that opens a missing topic finds itself on a partitioned one."""
    space = topic.split("/")[2]
    async with danubius.connect(broker.url) as client:
        await client.admin.create_namespace(space, Policies(auto_partitions=3))
        async with client.producer(f"/{space}/t") as producer:
            receipts = await producer.send_many([b"x"] * 3)
        assert len({receipt.topic for receipt in receipts}) == 3
        await client.admin.delete_namespace(space, force=True)
        with pytest.raises(DanubiusError):
            await client.describe_topic(f"/{space}/t")
