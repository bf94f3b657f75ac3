"""What a micro-batch takes, and what a message takes through source, map and sink: each in a process of its own.

python benches/spark_latency.py micro-plain URL     # prints milliseconds as JSON, as do micro-tuned and latency
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final

import danubius
from danubius.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES: Final = 120
WARM_UP_BATCHES: Final = 40
"""Queries run for long: what the JVM compiles in the first seconds is not what they take."""
LOOK_S: Final = 0.05
"""Between looks at the query's progress, which take the JVM some milliseconds too."""
RATE: Final = 1_000
"""Messages a second of the latency run, sent one by one."""
TICK_S: Final = 0.01
WARM_UP_S: Final = 8.0
MEASURED_S: Final = 15.0
IN: Final = "/default/latency-in"
OUT: Final = "/default/latency-out"


def quiet_session(*, tuned: bool) -> SparkSession:
    settings = {"spark.log.level": "FATAL", "spark.ui.enabled": "false"}
    return session("micro", master="local[2]", tuned=tuned, config=settings)


async def send(url: str, topic: str, count: int) -> None:
    async with danubius.connect(url) as client, client.producer(topic) as producer:
        await producer.send_many([b"x" * 100] * count)


def micro_batches(url: str, checkpoint: str, *, tuned: bool) -> dict[str, float]:
    """From trigger to commit, of batches of a few messages in two tasks."""
    spark = quiet_session(tuned=tuned)
    topic = f"/default/micro-{'tuned' if tuned else 'plain'}"
    asyncio.run(send(url, topic, 10))
    options = {"url": url, "topic": topic, "minPartitions": "2", "startingOffsets": "earliest"}
    frame = spark.readStream.format("danube").options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="0 seconds").start()
    seen = 0
    durations: list[int] = []
    while len(durations) < BATCHES:
        asyncio.run(send(url, topic, 4))
        while not _has_batch(query.lastProgress, seen):
            time.sleep(LOOK_S)
        durations.append(query.lastProgress["batchDuration"])
        seen = query.lastProgress["batchId"] + 1
    query.stop()
    spark.stop()
    warm = sorted(durations[WARM_UP_BATCHES:])
    return {"median": statistics.median(warm), "best": warm[0]}


def _has_batch(progress: Any, seen: int) -> bool:
    return progress is not None and progress["batchId"] >= seen and bool(progress["numInputRows"])


def latency(url: str, checkpoint: str) -> dict[str, float]:
    """From the call of send to the message in a consumer's hands, through a query at the fastest trigger."""
    asyncio.run(_create(url))
    spark = quiet_session(tuned=True)
    frame = (
        spark.readStream.format("danube")
        .options(url=url, topic=IN, startingOffsets="earliest", columns="key,payload")
        .load()
    )
    query = (
        frame.selectExpr("key", "concat(CAST(payload AS STRING), ' seen') AS payload")
        .writeStream.format("danube")
        .options(url=url, topic=OUT, checkpointLocation=checkpoint)
        .trigger(processingTime="0 seconds")
        .start()
    )
    taken = asyncio.run(_follow(url))
    query.stop()
    spark.stop()
    taken.sort()
    return {
        "p50": taken[len(taken) // 2],
        "p99": taken[len(taken) * 99 // 100],
        "worst": taken[-1],
        "messages": len(taken),
    }


async def _create(url: str) -> None:
    async with danubius.connect(url) as client:
        await client.create_topic(IN)
        await client.create_topic(OUT)


async def _follow(url: str) -> list[float]:
    """Send at an even pace for a while; the milliseconds that messages took after the warm-up."""
    total = int(RATE * (WARM_UP_S + MEASURED_S))
    warm = int(RATE * WARM_UP_S)
    taken: list[float] = []
    async with danubius.connect(url) as client, client.reader(OUT, start="earliest") as reader:
        async with client.producer(IN) as producer:
            await producer.send(b"the query runs")
        messages = aiter(reader)
        await anext(messages)
        async with asyncio.TaskGroup() as group:
            group.create_task(_send_evenly(client, total))
            for _ in range(total):
                message = await anext(messages)
                number, sent = message.payload.split()[:2]
                if int(number) >= warm:
                    taken.append((time.monotonic_ns() - int(sent)) / 1e6)
    return taken


async def _send_evenly(client: Any, total: int) -> None:
    begin = time.monotonic()
    sent = 0
    async with client.producer(IN) as producer:
        while sent < total:
            due = min(total, int((time.monotonic() - begin) * RATE))
            for number in range(sent, due):
                producer.send_nowait(b"%d %d %s" % (number, time.monotonic_ns(), b"x" * 70))
            sent = max(sent, due)
            await asyncio.sleep(TICK_S)
        await producer.flush()


def main(kind: str, url: str) -> None:
    with tempfile.TemporaryDirectory(prefix="danubius-bench-") as checkpoint:
        if kind == "latency":
            found = latency(url, checkpoint)
        else:
            found = micro_batches(url, checkpoint, tuned=kind == "micro-tuned")
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
