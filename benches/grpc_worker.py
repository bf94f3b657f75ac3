"""Danube's own client under measurement: sends or receives, and prints how long it took. Runs in its environment."""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import sys
import time

from danube import DanubeClientBuilder, DispatchStrategy


async def send(client, topic, senders, count, size):
    """`senders` calls at a time until `count` messages are stored."""
    producer = (
        client.new_producer()
        .with_topic(topic)
        .with_name("bench")
        .with_dispatch_strategy(DispatchStrategy.RELIABLE)
        .build()
    )
    await producer.create()
    payload, left = bytes(size), iter(range(count))

    async def work():
        for _ in left:
            await producer.send(payload, None)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(senders):
            tasks.create_task(work())
    return time.perf_counter() - started


async def receive(client, topic, _senders, count, _size):
    """Receive and acknowledge one by one, from the moment it says that it is ready."""
    consumer = (
        client.new_consumer()
        .with_topic(topic)
        .with_consumer_name("bench")
        .with_subscription("bench")
        .build()
    )
    await consumer.subscribe()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    queue = await consumer.receive()
    await consumer.ack(await queue.get())
    started = time.perf_counter()
    for _ in range(count - 1):
        await consumer.ack(await queue.get())
    return time.perf_counter() - started


async def main():
    what, url, topic, *numbers = sys.argv[1:]
    client = await DanubeClientBuilder().service_url(url).build()
    work = {"send": send, "receive": receive}[what]
    seconds = await work(client, topic, *map(int, numbers))
    sys.stdout.write(json.dumps({"seconds": seconds}) + "\n")


asyncio.run(main())
