"""What Danube v0.15.1 gets wrong by a reading of its source, and what is right: a test for each defect of one broker.

The numbers are those of the list of 24. Not here, since one broker without security has no such thing: 13 and 14
(permissions), 24 (leader change). Not here, since this broker does not have the part: 19 (schemas), 22 (Iceberg), 23
(MQTT).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

import danubius
from danubius.model.policy import Policies
from danubius.model.topic import TopicSpec
from e2e.danube_calls import calling
from e2e.danube_peers import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    NON_RELIABLE,
    RELIABLE,
    SHARED,
    DanubeConsumer,
    DanubeProducer,
    consuming,
    offsets,
    payloads,
    until,
)
from e2e.traffic import numbered, read_all
from patience import HANG_S, SOON_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

Code = grpc.StatusCode


@pytest.fixture
def broker(grpc_broker: BrokerProcess) -> BrokerProcess:
    return grpc_broker


async def restart(broker: BrokerProcess) -> None:
    """As it goes when the machine has no time for good-byes."""
    broker.kill()
    await asyncio.to_thread(broker.start)


async def test_01_what_was_acknowledged_is_there_after_a_kill(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker(grpc=True)
    async with calling(broker.grpc_port) as calls:
        producer = await DanubeProducer.open(calls, topic)
        await producer.send_all(numbered(1000))
    await restart(broker)
    async with danubius.connect(broker.url) as client:
        found = await read_all(client, topic)
    assert sorted(one.payload for one in found) == sorted(numbered(1000))


async def test_02_offsets_go_on_after_a_restart(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker(grpc=True)
    async with calling(broker.grpc_port) as calls:
        producer = await DanubeProducer.open(calls, topic)
        consumer = await DanubeConsumer.open(calls, topic)
        await producer.send_all(numbered(10))
        assert offsets(await consumer.take(10, is_acking=True)) == list(range(10))
    assert broker.stop() == 0
    await asyncio.to_thread(broker.start)
    async with calling(broker.grpc_port) as calls:
        consumer = consumer.on(calls)
        await producer.on(calls).send_all(numbered(10))
        assert offsets(await consumer.take(10)) == list(range(10, 20))


async def test_03_fifteen_hundred_changes_are_there_after_a_restart(
    start_broker: StartBroker,
) -> None:
    broker = start_broker(grpc=True)
    names = [f"/many/t{number}" for number in range(500)]

    async def work(admin: Any, mine: list[str]) -> None:
        for name in mine:
            of = {"topic": name, "subscription": "s"}
            policy = {"max_redelivery_count": len(name)}
            await admin("TopicAdmin/CreateTopic", name=name, dispatch_strategy=RELIABLE)
            await admin(
                "TopicAdmin/SetSubscriptionDispatchConfig",
                dispatch_config={"max_unacked_messages": len(name)},
                **of,
            )
            await admin("TopicAdmin/SetSubscriptionFailurePolicy", failure_policy=policy, **of)

    async with calling(broker.admin_port) as admin:
        await admin("NamespaceAdmin/CreateNamespace", name="many")
        async with asyncio.TaskGroup() as tasks:
            for at in range(20):
                tasks.create_task(work(admin, names[at::20]))
    await restart(broker)
    async with calling(broker.admin_port) as admin:
        listed = await admin("NamespaceAdmin/GetNamespaceTopics", name="many")
        assert list(listed.topics) == sorted(names)
        for name in names[::25]:
            of = {"topic": name, "subscription": "s"}
            found = await admin("TopicAdmin/GetSubscriptionFailurePolicy", **of)
            window = await admin("TopicAdmin/GetSubscriptionDispatchConfig", **of)
            assert found.failure_policy.max_redelivery_count == len(name)
            assert window.dispatch_config.max_unacked_messages == len(name)


async def test_04_a_consumer_that_falls_behind_loses_nothing(
    broker: BrokerProcess, topic: str
) -> None:
    async with calling(broker.grpc_port) as calls, danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        consumer = await DanubeConsumer.open(calls, topic)
        async with client.producer(topic) as producer:
            await producer.send_many(numbered(5000))
        found: list[Any] = []
        while len(found) < 5000:
            some = await consumer.take(5)
            async with asyncio.TaskGroup() as tasks:
                for message in some:
                    tasks.create_task(consumer.ack(message))
            found += some
    assert payloads(found) == numbered(5000)
    assert offsets(found) == list(range(5000))


async def test_05_what_was_not_acknowledged_comes_again_after_a_restart(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker(grpc=True)
    async with calling(broker.grpc_port) as calls:
        producer = await DanubeProducer.open(calls, topic)
        consumer = await DanubeConsumer.open(calls, topic)
        for payload in numbered(5):
            await producer.send(payload)
        await consumer.take(2)
    await restart(broker)
    async with calling(broker.grpc_port) as calls:
        assert payloads(await consumer.on(calls).take(5)) == numbered(5)


async def test_06_a_standby_takes_over_with_what_was_not_acknowledged(
    broker: BrokerProcess, topic: str
) -> None:
    async with calling(broker.grpc_port) as calls:
        producer = await DanubeProducer.open(calls, topic)
        async with consuming(broker.grpc_port, topic, name="a", kind=FAILOVER) as active:
            standby = await DanubeConsumer.open(calls, topic, name="b", kind=FAILOVER)
            for payload in numbered(10):
                await producer.send(payload)
            await active.take(2, is_acking=True)
            await active.take(3)
        assert payloads(await standby.take(8)) == numbered(8, start=2)


async def test_07_a_dead_exclusive_consumer_makes_way_for_another(
    broker: BrokerProcess, topic: str
) -> None:
    async with calling(broker.grpc_port) as calls:
        producer = await DanubeProducer.open(calls, topic)
        subscribe = {"topic_name": topic, "subscription": "s", "consumer_name": "b"}
        async with consuming(broker.grpc_port, topic, name="a", kind=EXCLUSIVE) as first:
            await producer.send(b"one")
            await first.take(1)
            code = await calls.code("ConsumerService/Subscribe", **subscribe)
            assert code is Code.PERMISSION_DENIED

        async def is_in() -> bool:
            error = await calls.outcome("ConsumerService/Subscribe", **subscribe)
            assert error is None or error.code() is Code.PERMISSION_DENIED
            return error is None

        await until(is_in)
        second = await DanubeConsumer.open(calls, topic, name="b")
        assert payloads(await second.take(1)) == [b"one"]


async def test_08_key_shared_redelivers_takes_back_and_drains(
    broker: BrokerProcess, topic: str
) -> None:
    keys = [f"key-{number}" for number in range(100)]
    async with calling(broker.grpc_port) as calls:
        producer = await DanubeProducer.open(calls, topic)
        async with consuming(broker.grpc_port, topic, name="a", kind=KEY_SHARED) as lost:
            for at, payload in enumerate(numbered(10)):
                await producer.send(payload, keys[at])
            await lost.take(10)
            heir = await DanubeConsumer.open(calls, topic, name="b", kind=KEY_SHARED)
        found = await heir.take(10, is_acking=True)
        assert sorted(payloads(found)) == sorted(numbered(10)), "all that the lost one had"
        async with consuming(broker.grpc_port, topic, name="a", kind=KEY_SHARED) as back:
            await producer.send_all(numbered(100), keys)
            got = await collect_all([back, heir], 100)
            assert sorted(got[0] + got[1]) == sorted(numbered(100))
            assert got[0], "who came back has its share"
    await drain(broker, topic + "-backlog")


async def collect_all(consumers: list[DanubeConsumer], count: int) -> list[list[bytes]]:
    """What each of them gets until they have so many together."""
    got: list[list[bytes]] = [[] for _ in consumers]
    is_done = asyncio.Event()

    async def collect(consumer: DanubeConsumer, mine: list[bytes]) -> None:
        while True:
            message = await consumer.receive()
            mine.append(message.payload)
            await consumer.ack(message)
            if sum(map(len, got)) >= count:
                is_done.set()

    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(collect(*one)) for one in zip(consumers, got, strict=True)]
        await is_done.wait()
        for task in running:
            task.cancel()
    return got


async def drain(broker: BrokerProcess, topic: str) -> None:
    """A backlog of 10,000 messages goes out as fast as it is acknowledged."""
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        keys = [b"%d" % (at % 500) for at in range(10_000)]
        await producer.send_many(numbered(10_000), keys=keys)
        seen = 0
        async with (
            asyncio.timeout(HANG_S),
            client.consumer(topic, subscription="s", type="key-shared", start="earliest") as one,
        ):
            while seen < 10_000:
                batch = await one.receive_batch()
                await one.ack(batch)
                seen += len(batch)


async def test_09_a_rebalance_loses_nothing(broker: BrokerProcess, topic: str) -> None:
    async with calling(broker.grpc_port) as calls, calling(broker.admin_port) as admin:
        producer = await DanubeProducer.open(calls, topic)
        await producer.send_all(numbered(100))
        assert (await admin("BrokerAdmin/TriggerRebalance")).success
        await producer.send_all(numbered(100, start=100))
    async with danubius.connect(broker.url) as client:
        found = await read_all(client, topic)
    assert sorted(one.payload for one in found) == sorted(numbered(200))


async def test_10_a_topic_that_cannot_be_unloaded_is_served_on(
    broker: BrokerProcess, topic: str
) -> None:
    async with calling(broker.grpc_port) as calls, calling(broker.admin_port) as admin:
        producer = await DanubeProducer.open(calls, topic, dispatch=NON_RELIABLE)
        consumer = await DanubeConsumer.open(calls, topic)
        await heard(producer, consumer)
        code = await admin.code("TopicAdmin/UnloadTopic", name=topic)
        assert code is Code.FAILED_PRECONDITION
        await producer.send(b"after")
        while (await consumer.receive()).payload != b"after":
            pass  # what was sent until the stream was open


async def heard(producer: DanubeProducer, consumer: DanubeConsumer) -> None:
    """A stream of a topic that keeps nothing is open once something came through it."""
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(consumer.receive())
        while not first.done():
            await producer.send(b"is anybody there?")
            await asyncio.wait([first], timeout=SOON_S)


async def test_11_old_topics_are_served_after_a_restart(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker(grpc=True)
    async with calling(broker.grpc_port) as calls:
        producer = await DanubeProducer.open(calls, topic)
        consumer = await DanubeConsumer.open(calls, topic)
        await producer.send(b"before")
        await consumer.take(1, is_acking=True)
    assert broker.stop() == 0
    await asyncio.to_thread(broker.start)
    async with calling(broker.grpc_port) as calls:
        consumer = consumer.on(calls)
        await producer.on(calls).send(b"after")
        assert payloads(await consumer.take(1)) == [b"after"]


async def test_12_a_dispatch_rate_delays_and_drops_nothing(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        slow = TopicSpec(policies=Policies(dispatch_messages_per_s=100))
        await client.admin.create_topic(topic, slow)
    async with calling(broker.grpc_port) as calls:
        consumer = await DanubeConsumer.open(calls, topic)
        producer = await DanubeProducer.open(calls, topic)
        await producer.send_all(numbered(200))
        found = await consumer.take(200, is_acking=True)
    assert offsets(found) == list(range(200))


async def test_15_policies_hold_at_once(broker: BrokerProcess, topic: str) -> None:
    of = {"topic": topic, "subscription": "s"}
    async with calling(broker.grpc_port) as calls, calling(broker.admin_port) as admin:

        async def set_window(most: int) -> None:
            config = {"max_unacked_messages": most}
            await admin("TopicAdmin/SetSubscriptionDispatchConfig", dispatch_config=config, **of)

        producer = await DanubeProducer.open(calls, topic)
        consumer = await DanubeConsumer.open(calls, topic, kind=SHARED)
        await set_window(3)
        for payload in numbered(20):
            await producer.send(payload)
        messages = await consumer.take(3)
        async with danubius.connect(broker.url) as client:
            found = await client.admin.describe_subscription(topic, "s")
            assert found.statistics.unacked_messages == 3
        await set_window(20)
        messages += await consumer.take(17)
        assert payloads(messages) == numbered(20)
        policy = {"max_redelivery_count": 0, "poison_policy": 2}
        await admin("TopicAdmin/SetSubscriptionFailurePolicy", failure_policy=policy, **of)
        for message in messages:
            await consumer.nack(message, reason="they all fail")
        await producer.send(b"next")
        assert payloads(await consumer.take(1)) == [b"next"], "the others failed too often"


async def test_16_names_that_begin_alike_are_told_apart(broker: BrokerProcess) -> None:
    async with calling(broker.grpc_port) as calls, calling(broker.admin_port) as admin:
        for space in ("alike", "alike2"):
            await admin("NamespaceAdmin/CreateNamespace", name=space)
        for name in ("foo", "foobar", "foo-bar"):
            await admin("TopicAdmin/CreateTopic", name=f"/alike/{name}", dispatch_strategy=RELIABLE)
        await admin("TopicAdmin/CreatePartitionedTopic", base_name="/alike/fo", partitions=2)
        await admin("TopicAdmin/CreateTopic", name="/alike2/foo")
        parts = ["/alike/fo-part-0", "/alike/fo-part-1"]
        plain = ["/alike/foo", "/alike/foo-bar", "/alike/foobar"]
        for name in plain:
            found = await calls("Discovery/TopicPartitions", topic=name)
            assert list(found.partitions) == [name]
        found = await calls("Discovery/TopicPartitions", topic="/alike/fo")
        assert list(found.partitions) == parts
        assert await calls.code("Discovery/TopicLookup", topic="/alike/foob") is Code.NOT_FOUND
        listed = await admin("NamespaceAdmin/GetNamespaceTopics", name="alike")
        assert list(listed.topics) == [*parts, *plain]
        namespaces = list((await admin("BrokerAdmin/ListNamespaces")).namespaces)
        assert len(namespaces) == len(set(namespaces))


async def test_17_producers_and_consumers_go_on_across_kills(
    start_broker: StartBroker, topic: str
) -> None:
    """With the numbers that they were given once, and nothing else."""
    broker = start_broker(grpc=True)
    async with calling(broker.grpc_port) as calls:
        producer = await DanubeProducer.open(calls, topic)
        consumer = await DanubeConsumer.open(calls, topic)
    seen: set[bytes] = set()
    for life in range(3):
        await restart(broker)
        async with calling(broker.grpc_port) as calls:
            consumer = consumer.on(calls)
            await producer.on(calls).send_all(numbered(10, start=10 * life))
            # What was acknowledged in the last moment before the kill may come again.
            while not seen.issuperset(numbered(10 * life + 10)):
                seen.update(payloads(await consumer.take(1, is_acking=True)))
    assert seen == set(numbered(30))
    async with danubius.connect(broker.url) as client:
        assert len(await read_all(client, topic)) == 30, "nothing was stored twice"


async def test_18_what_everybody_acknowledged_frees_the_disk(
    broker: BrokerProcess, topic: str
) -> None:
    filler = bytes(256 * 1024)
    async with danubius.connect(broker.url) as client:
        queue = TopicSpec(policies=Policies(delete_after_ack=True))
        await client.admin.create_topic(topic, queue)
        async with calling(broker.grpc_port) as calls:
            consumer = await DanubeConsumer.open(calls, topic)
            producer = await DanubeProducer.open(calls, topic)
            for _ in range(16):
                await producer.send_all([filler] * 16)
                await consumer.take(16, is_acking=True)

        async def is_freed() -> bool:
            return (await client.admin.measure_topic(topic)).stored_bytes < 16 * 1024 * 1024

        await until(is_freed)


async def test_20_producers_that_went_without_a_word_make_room(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        few = TopicSpec(policies=Policies(producers_max=3))
        await client.admin.create_topic(topic, few)
    for number in range(6):
        async with calling(broker.grpc_port) as calls:

            async def is_in(calls: Any = calls, name: str = f"p{number}") -> bool:
                error = await calls.outcome(
                    "ProducerService/CreateProducer",
                    producer_name=name,
                    topic_name=topic,
                    dispatch_strategy=RELIABLE,
                )
                assert error is None or error.code() is Code.RESOURCE_EXHAUSTED
                return error is None

            await until(is_in)
            producer = await DanubeProducer.open(calls, topic, f"p{number}")
            await producer.send(b"p%d" % number)
    async with danubius.connect(broker.url) as client:
        found = await read_all(client, topic)
    assert [one.payload for one in found] == [b"p%d" % number for number in range(6)]


async def test_21_a_burst_reaches_a_consumer_that_reads(broker: BrokerProcess, topic: str) -> None:
    """Also of a topic that keeps nothing."""
    async with calling(broker.grpc_port) as calls, calling(broker.grpc_port) as others:
        producer = await DanubeProducer.open(others, topic, dispatch=NON_RELIABLE)
        consumer = await DanubeConsumer.open(calls, topic)
        await heard(producer, consumer)
        found: list[bytes] = []

        async def collect() -> None:
            while len(found) < 1000:
                payload = (await consumer.receive()).payload
                if payload.startswith(b"message"):
                    found.append(payload)

        async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(collect())
            tasks.create_task(producer.send_all(numbered(1000)))
    assert sorted(found) == sorted(numbered(1000))
