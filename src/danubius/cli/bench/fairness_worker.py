"""Danubius' four processes for the fairness benchmark, as a user would write them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec

import danubius
from danubius.cli.bench.fairness import (
    BUSY,
    LAST,
    QuietSink,
    Timeline,
    quiet_count,
    quiet_topic,
)
from danubius.cli.bench.payloads import checksum, make, make_stamped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any

    from danubius.cli.bench.side import Side
    from danubius.cli.bench.work import Result

_OPENED_AT_ONCE = 64
_CHUNK_BYTES = 2 << 20
_CHUNK_MESSAGES_MAX = 20_000
_CHUNKS_UNDER_WAY = 3


def job_of(side: Side) -> Coroutine[Any, Any, Result]:
    """What this process does."""
    is_producer = side.job.role == "producer"
    if side.job.index == BUSY:
        return _produce_busily(side) if is_producer else _consume_busily(side)
    return _produce_quietly(side) if is_producer else _consume_quietly(side)


async def _for_each(count: int, action: Callable[[int], Awaitable[None]]) -> None:
    """A few at a time."""
    indexes = iter(range(count))

    async def some() -> None:
        for index in indexes:
            await action(index)

    async with asyncio.TaskGroup() as group:
        for _ in range(_OPENED_AT_ONCE):
            group.create_task(some())


async def _produce_quietly(side: Side) -> Result:
    """One message a second to each topic, evenly spread."""
    work = side.work
    producers: dict[int, danubius.Producer] = {}
    async with danubius.connect(work.url) as client:

        async def open_one(index: int) -> None:
            topic = quiet_topic(work, index)
            producers[index] = await client.producer(topic, durability=work.durability)

        await _for_each(work.topics, open_one)
        count, step_ns = quiet_count(work), 10**9 // work.topics
        started_ns = await side.ready()
        for sequence in range(count):
            wait_ns = started_ns + sequence * step_ns - time.monotonic_ns()
            if wait_ns > 0:
                await asyncio.sleep(wait_ns / 1e9)
            payload = make_stamped(sequence, time.monotonic_ns(), work.size)
            producers[sequence % work.topics].send_nowait(payload)
        for producer in producers.values():
            await producer.flush()
        return msgspec.structs.replace(side.result(), count=count)


async def _consume_quietly(side: Side) -> Result:
    work = side.work
    consumers: dict[int, danubius.Consumer] = {}
    async with danubius.connect(work.url) as client:

        async def open_one(index: int) -> None:
            topic = quiet_topic(work, index)
            consumers[index] = await client.consumer(topic, subscription="bench", start="earliest")

        await _for_each(work.topics, open_one)
        sink = QuietSink(work, await side.ready())
        is_full = asyncio.Event()

        async def receive(consumer: danubius.Consumer) -> None:
            async for message in consumer:
                sink.add(message.payload, time.monotonic_ns())
                await consumer.ack(message)
                if sink.is_full:
                    is_full.set()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(receive(consumer)) for consumer in consumers.values()]
            await is_full.wait()
            result = side.result()
            for task in tasks:
                task.cancel()
        return msgspec.structs.replace(
            result,
            count=sink.count,
            checksum=sink.checksum,
            latency=sink.beside,
            latency_alone=sink.alone,
        )


async def _produce_busily(side: Side) -> Result:
    """Nothing at first, then as much as goes, and so on until the end."""
    work, times = side.work, Timeline.of(side.work)
    step = max(1, min(_CHUNK_MESSAGES_MAX, _CHUNK_BYTES // work.size))
    async with (
        danubius.connect(work.url) as client,
        client.producer(work.topic, durability=work.durability) as producer,
        asyncio.TaskGroup() as group,
    ):
        under_way: deque[asyncio.Task[object]] = deque()
        started_ns = await side.ready()
        count = 0
        for begin, end in times.busy:
            await asyncio.sleep((started_ns + begin - time.monotonic_ns()) / 1e9)
            while time.monotonic_ns() - started_ns < end:
                payloads = make(count, step, work.size)
                under_way.append(group.create_task(producer.send_many(payloads)))
                count += step
                if len(under_way) >= _CHUNKS_UNDER_WAY:
                    await under_way.popleft()
            while under_way:
                await under_way.popleft()
        await producer.send(LAST)
        return msgspec.structs.replace(side.result(), count=count)


async def _consume_busily(side: Side) -> Result:
    work = side.work
    count = total = 0
    async with danubius.connect(work.url) as client:
        async with client.consumer(work.topic, subscription="bench", start="earliest") as consumer:
            await side.ready()
            is_last = False
            while not is_last:
                batch = await consumer.receive_batch()
                payloads = batch.payloads
                is_last = payloads[-1] == LAST
                if is_last:
                    payloads = payloads[:-1]
                count += len(payloads)
                total += checksum(payloads)
                await consumer.ack(batch)
        return msgspec.structs.replace(side.result(), count=count, checksum=total)
