"""The calls of Danube's clients for Java and Go, in their order and with what they put in them, by hand.

The clients themselves are run by `make test-danube-clients`, where they can be had; this always runs.
Java: partitions are asked for before anything else, one producer is created after the other, each partition's consumer
has a name of its own, acknowledgements are counted. Go: producers of partitions are created at once, all consumers have
one name, health is asked for at once, acknowledgements carry the number of the message.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from e2e.danube_calls import Calls, calling
from e2e.danube_peers import NON_RELIABLE, RELIABLE, SHARED, offsets, payloads
from patience import HANG_S, SOON_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from e2e.broker_process import BrokerProcess
    from e2e.grpc_loop import GrpcStream

PRODUCER, CONSUMER = 0, 1


@pytest.fixture
async def calls(grpc_broker: BrokerProcess) -> AsyncIterator[Calls]:
    async with calling(grpc_broker.grpc_port) as connected:
        yield connected


async def look_up(calls: Calls, topic: str) -> str:
    """The broker's address; of a topic that is not there yet, both clients take the one they came by."""
    error = await calls.outcome("Discovery/TopicLookup", request_id=1, topic=topic)
    if error is not None:
        assert error.code() is grpc.StatusCode.NOT_FOUND
        return "http://127.0.0.1:1"
    found = await calls("Discovery/TopicLookup", request_id=2, topic=topic)
    assert (found.response_type, found.proxy) == (1, False)
    assert found.broker_url == found.connect_url
    return str(found.broker_url)


async def create(calls: Calls, topic: str, name: str, dispatch: int) -> int:
    answer = await calls(
        "ProducerService/CreateProducer",
        request_id=1,
        producer_name=name,
        topic_name=topic,
        producer_access_mode=0,
        dispatch_strategy=dispatch,
    )
    assert answer.producer_name == name
    assert 0 < answer.producer_id < 2**63, "a number that Java has"
    return int(answer.producer_id)


async def send(calls: Calls, topic: str, name: str, number: int, address: str, at: int) -> None:
    place = {"producer_id": number, "topic_name": topic, "broker_addr": address}
    answer = await calls(
        "ProducerService/SendMessage",
        request_id=at + 2,
        msg_id=place,
        payload=b"%d" % at,
        publish_time=time.time_ns() // 1_000_000,
        producer_name=name,
        attributes={"at": str(at)},
    )
    assert answer.request_id == at + 2


async def subscribe(calls: Calls, topic: str, name: str) -> tuple[int, GrpcStream]:
    await look_up(calls, topic)
    answer = await calls(
        "ConsumerService/Subscribe",
        request_id=1,
        topic_name=topic,
        consumer_name=name,
        subscription="s",
        subscription_type=SHARED,
    )
    number = int(answer.consumer_id)
    stream = calls.stream("ConsumerService/ReceiveMessages", request_id=2, consumer_id=number)
    return number, stream


async def is_well(calls: Calls, client: int, number: int) -> bool:
    answer = await calls("HealthCheck/HealthCheck", request_id=1, client=client, id=number)
    return answer.status == 0


async def take(stream: GrpcStream, count: int) -> list[Any]:
    async with asyncio.timeout(HANG_S):
        return [await stream.read() for _ in range(count)]


@pytest.mark.parametrize("partitions", [0, 3])
async def test_java_asks_for_partitions_first_and_then_goes_one_by_one(
    calls: Calls, topic: str, partitions: int
) -> None:
    listed = (await calls("Discovery/TopicPartitions", request_id=1, topic=topic)).partitions
    assert list(listed) == []
    targets = [f"{topic}-part-{one}" for one in range(partitions)] or [topic]
    names = [f"p-{one}" for one in range(partitions)] or ["p"]
    addresses = [await look_up(calls, target) for target in targets]
    numbers = [
        await create(calls, target, name, RELIABLE)
        for target, name in zip(targets, names, strict=True)
    ]
    listed = (await calls("Discovery/TopicPartitions", request_id=2, topic=topic)).partitions
    assert list(listed) == targets
    consumers = [
        await subscribe(calls, target, f"c-{one}" if partitions else "c")
        for one, target in enumerate(targets)
    ]
    for at in range(6):
        one = at % len(targets)
        await send(calls, targets[one], names[one], numbers[one], addresses[one], at)
    found: list[Any] = []
    for target, (number, stream) in zip(targets, consumers, strict=True):
        some = await take(stream, 6 // len(targets))
        assert {message.msg_id.topic_name for message in some} == {target}
        for at, message in enumerate(some):
            await calls(
                "ConsumerService/Ack",
                request_id=at + 3,
                msg_id=message.msg_id,
                subscription_name="s",
            )
        assert await is_well(calls, CONSUMER, number)
        found += some
    assert sorted(payloads(found)) == [b"%d" % at for at in range(6)]
    assert all([await is_well(calls, PRODUCER, number) for number in numbers])


@pytest.mark.parametrize("dispatch", [RELIABLE, NON_RELIABLE])
async def test_go_creates_all_partitions_at_once_under_one_name_of_the_consumer(
    calls: Calls, topic: str, dispatch: int
) -> None:
    targets = [f"{topic}-part-{one}" for one in range(3)]

    async def open_one(one: int) -> tuple[str, int]:
        address = await look_up(calls, targets[one])
        number = await create(calls, targets[one], f"p-{one}", dispatch)
        assert await is_well(calls, PRODUCER, number)
        return address, number

    async with asyncio.TaskGroup() as tasks:
        opening = [tasks.create_task(open_one(one)) for one in range(3)]
    listed = (await calls("Discovery/TopicPartitions", request_id=1, topic=topic)).partitions
    assert list(listed) == targets
    async with asyncio.TaskGroup() as tasks:
        subscribing = [tasks.create_task(subscribe(calls, target, "c")) for target in targets]
    consumers = [one.result() for one in subscribing]
    assert len({number for number, _ in consumers}) == 3
    for one, (number, stream) in enumerate(consumers):
        assert await is_well(calls, CONSUMER, number)
        address, producer = opening[one].result()
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(take(stream, 1))
            while not reading.done():  # until the stream of a topic that keeps nothing is open
                await send(calls, targets[one], f"p-{one}", producer, address, one)
                await asyncio.wait(
                    [reading], timeout=SOON_S if dispatch == NON_RELIABLE else HANG_S
                )
        (message,) = reading.result()
        assert offsets([message]) == [0]
        settled = {"request_id": message.request_id, "msg_id": message.msg_id}
        await calls("ConsumerService/Nack", subscription_name="s", **settled)
        await calls("ConsumerService/Ack", subscription_name="s", **settled)
