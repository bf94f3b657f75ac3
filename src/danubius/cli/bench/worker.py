"""Danubius' producer and consumer processes for the benchmark, as a user would write them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from itertools import count as counter
from typing import TYPE_CHECKING

import danubius
from danubius.cli.bench import fairness_worker
from danubius.cli.bench.payloads import make, make_stamped
from danubius.cli.bench.side import Side, Sink, serve
from danubius.cli.event_loop import run_async

if TYPE_CHECKING:
    from danubius.cli.bench.work import Job, Result

_CHUNK_BYTES = 2 << 20
_CHUNK_MESSAGES_MAX = 20_000
_CHUNKS_UNDER_WAY = 6
"""`send_many` calls that wait for their answer while the next one is made."""

_TOPICS_BATCH = 100
"""Messages a batch when the work is spread over many topics, few or many alike."""
_TOPICS_UNDER_WAY = 64


async def _produce(side: Side) -> Result:
    work = side.work
    step = max(1, min(_CHUNK_MESSAGES_MAX, _CHUNK_BYTES // work.size))
    async with (
        danubius.connect(work.url) as client,
        client.producer(work.topic, durability=work.durability) as producer,
        asyncio.TaskGroup() as group,
    ):
        under_way: deque[asyncio.Task[object]] = deque()
        await side.ready()
        for first in range(0, work.count, step):
            payloads = make(first, min(step, work.count - first), work.size)
            under_way.append(group.create_task(producer.send_many(payloads)))
            if len(under_way) >= _CHUNKS_UNDER_WAY:
                await under_way.popleft()
        for task in under_way:
            await task
        return side.result()


async def _produce_paced(side: Side) -> Result:
    work = side.work
    step_ns = 10**9 // work.rate
    async with (
        danubius.connect(work.url) as client,
        client.producer(work.topic, durability=work.durability) as producer,
    ):
        started_ns = await side.ready()
        for sequence in range(work.count):
            wait_ns = started_ns + sequence * step_ns - time.monotonic_ns()
            if wait_ns > 0:
                await asyncio.sleep(wait_ns / 1e9)
            producer.send_nowait(make_stamped(sequence, time.monotonic_ns(), work.size))
        await producer.flush()
        return side.result()


async def _produce_one_at_a_time(side: Side) -> Result:
    """`await producer.send(...)` from `tasks` concurrent tasks."""
    work = side.work
    sequences = iter(range(work.count))
    async with (
        danubius.connect(work.url) as client,
        client.producer(work.topic, durability=work.durability) as producer,
    ):
        payload = make(0, 1, work.size)[0]

        async def sender() -> None:
            for _ in sequences:
                await producer.send(payload)

        await side.ready()
        async with asyncio.TaskGroup() as group:
            for _ in range(work.tasks):
                group.create_task(sender())
        return side.result()


async def _produce_to_many_topics(side: Side) -> Result:
    work = side.work
    async with danubius.connect(work.url) as client:
        producers: list[danubius.Producer] = []
        opened = counter()

        async def open_some() -> None:
            while (index := next(opened)) < work.topics:
                topic = f"{work.topic}-{index}"
                producer = await client.producer(topic, durability=work.durability)
                await producer.send(b"first")
                producers.append(producer)

        async with asyncio.TaskGroup() as group:
            for _ in range(_TOPICS_UNDER_WAY):
                group.create_task(open_some())

        starts = iter(range(0, work.count, _TOPICS_BATCH))
        turn = counter()

        async def send_some() -> None:
            for first in starts:
                payloads = make(first, min(_TOPICS_BATCH, work.count - first), work.size)
                await producers[next(turn) % work.topics].send_many(payloads)

        await side.ready()
        async with asyncio.TaskGroup() as group:
            for _ in range(_TOPICS_UNDER_WAY):
                group.create_task(send_some())
        return side.result()


async def _consume(side: Side) -> Result:
    sink = Sink(side.job)
    async with danubius.connect(side.work.url) as client:
        async with client.consumer(
            side.work.topic, subscription=f"bench-{side.job.index}", start="earliest"
        ) as consumer:
            await side.ready()
            while not sink.is_full:
                batch = await consumer.receive_batch()
                sink.add(batch.payloads)
                await consumer.ack(batch)
        # The consumer's end has flushed its acknowledgements to the broker.
        return side.result(sink)


async def _consume_paced(side: Side) -> Result:
    sink = Sink(side.job)
    async with danubius.connect(side.work.url) as client:
        async with client.consumer(
            side.work.topic, subscription=f"bench-{side.job.index}", start="earliest"
        ) as consumer:
            await side.ready()
            async for message in consumer:
                sink.add_stamped(message.payload)
                await consumer.ack(message)
                if sink.is_full:
                    break
        return side.result(sink)


def perform(job: Job) -> Result:
    """Do one job and report."""
    side = Side(job)
    if job.work.kind == "fairness":
        return run_async(fairness_worker.job_of, side)
    is_paced = job.work.kind == "latency"
    if job.role == "consumer":
        return run_async(_consume_paced if is_paced else _consume, side)
    match job.work.kind:
        case "latency":
            return run_async(_produce_paced, side)
        case "send":
            return run_async(_produce_one_at_a_time, side)
        case "topics":
            return run_async(_produce_to_many_topics, side)
        case _:
            return run_async(_produce, side)


if __name__ == "__main__":
    sys.exit(serve(perform))
