"""Danube's own client, unmodified, doing what it is told: one JSON command a line in, one JSON answer a line out.

It runs in an environment that holds nothing but `danube-client` from PyPI, and imports nothing of this project.
Commands have a number and are answered in any order, so that a test may have many under way.
"""
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import logging
import sys

import grpc
from danube import DanubeClientBuilder, DispatchStrategy, SubType

HANG_S = 300.0
"""As in patience.py, which is not here."""
LOOK_S = 0.2
MOMENT_S = 0.5
"""For what must not come."""


class Agent:
    def __init__(self, client) -> None:
        self.client = client
        self.producers = {}
        self.consumers = {}
        self.queues = {}
        self.received = {}
        self.seen = {}
        self.stored = {}
        self.errors = []
        self.is_sending = False
        self.progress = asyncio.Event()
        self.tasks = set()
        self.senders = set()

    def spawn(self, work):
        task = asyncio.get_running_loop().create_task(work)
        group = self.senders if "send" in work.__name__ else self.tasks
        group.add(task)
        task.add_done_callback(group.discard)

    async def open_producer(self, name, topic, reliable=True, partitions=0, subject=None):
        strategy = DispatchStrategy.RELIABLE if reliable else DispatchStrategy.NON_RELIABLE
        builder = self.client.new_producer().with_topic(topic).with_name(name)
        builder = builder.with_dispatch_strategy(strategy)
        if partitions:
            builder = builder.with_partitions(partitions)
        if subject is not None:
            builder = builder.with_schema_subject(subject)
        producer = builder.build()
        await producer.create()
        self.producers[name] = producer

    async def send(self, name, payload, attributes=None, key=None):
        producer, data = self.producers[name], base64.b64decode(payload)
        if key is None:
            return await producer.send(data, attributes)
        return await producer.send_with_key(data, attributes, key)

    async def send_zeros(self, name, size):
        return await self.producers[name].send(bytes(size), None)

    async def send_many(self, name, first, count, width, keys=0):
        """Numbers as text, `width` calls at a time; answers with those that were acknowledged, and other errors."""
        numbers, stored, errors = iter(range(first, first + count)), [], []
        producer = self.producers[name]

        async def work():
            for number in numbers:
                data = str(number).encode()
                while True:
                    try:
                        if keys:
                            await producer.send_with_key(data, None, f"k{number % keys}")
                        else:
                            await producer.send(data, None)
                    except grpc.aio.AioRpcError as error:
                        # What the client documents: it gives up on a broker that is away for too long.
                        if error.code() is not grpc.StatusCode.UNAVAILABLE:
                            errors.append(f"{error.code().name}: {error.details()}")
                            break
                        await asyncio.sleep(LOOK_S)
                        continue
                    stored.append(number)
                    break

        async with asyncio.TaskGroup() as tasks:
            for _ in range(width):
                tasks.create_task(work())
        return {"stored": stored, "errors": errors}

    async def subscribe(self, name, topic, subscription, kind="shared", filters=(), listen=True):
        builder = self.client.new_consumer().with_topic(topic).with_consumer_name(name)
        builder = builder.with_subscription(subscription)
        builder = builder.with_subscription_type(SubType[kind.upper()])
        if filters:
            builder = builder.with_key_filters(list(filters))
        consumer = builder.build()
        await consumer.subscribe()
        self.consumers[name] = consumer
        if listen:
            await self.listen(name)

    async def listen(self, name):
        self.queues[name] = await self.consumers[name].receive()
        self.received[name] = []

    async def take(self, name, count=1, within=60.0, ack=True):
        """Messages as they come; fewer than `count` only when the time is over."""
        taken, queue = [], self.queues[name]
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            async with asyncio.timeout(within):
                while len(taken) < count:
                    message = await queue.get()
                    self.received[name].append(message)
                    taken.append(self.tell(message, len(self.received[name]) - 1))
                    if ack:
                        await self.consumers[name].ack(message)
        return taken

    async def take_all(self, names, count, within=HANG_S):
        """What several consumers get until `count` different payloads came, and a moment longer."""
        self.start_taking(names)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while len({one for name in names for one in self.seen[name]}) < count:
                    await self.next_taken()
        await asyncio.sleep(MOMENT_S)
        return {name: self.seen[name] for name in names}

    async def begin_taking(self, names):
        self.start_taking(names)

    def start_taking(self, names):
        for name in names:
            self.seen[name] = []
            self.spawn(self._take_for_ever(name))

    async def _take_for_ever(self, name):
        while True:
            message = await self.queues[name].get()
            self.seen[name].append(message.payload.decode())
            self.progress.set()
            try:
                await self.consumers[name].ack(message)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    self.errors.append(f"ack: {error.code().name}: {error.details()}")

    async def next_taken(self):
        """Until something was sent or received, or for a moment: several may wait for it."""
        self.progress.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self.progress.wait()

    async def await_taken(self, names, payloads, within=HANG_S):
        """Which of these payloads did not come in time."""
        missing = set(payloads)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while missing := missing.difference(*(self.seen[name] for name in names)):
                    await self.next_taken()
        return {"missing": sorted(missing), "errors": self.errors}

    async def begin_sending(self, name, width, keys=0):
        """Send without an end, `width` calls at a time: the producer's name and a number."""
        self.stored[name], self.is_sending = [], True
        numbers = itertools.count()
        for _ in range(width):
            self.spawn(self._send_for_ever(name, numbers, keys))

    async def _send_for_ever(self, name, numbers, keys):
        while self.is_sending:
            payload = f"{name}-{next(numbers)}"
            while await self._send_one(name, payload, keys):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)  # nothing tells when a broker is back

    async def _send_one(self, name, payload, keys):
        """Whether it has to be sent again."""
        producer, data = self.producers[name], payload.encode()
        try:
            if keys:
                await producer.send_with_key(data, None, f"k{hash(payload) % keys}")
            else:
                await producer.send(data, None)
        except grpc.aio.AioRpcError as error:
            # What the client documents: it gives up on a broker that is away for too long.
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return True
            self.errors.append(f"send: {error.code().name}: {error.details()}")
            return False
        self.stored[name].append(payload)
        self.progress.set()
        return False

    async def await_sent(self, name, more):
        target = len(self.stored[name]) + more
        while len(self.stored[name]) < target:
            await self.next_taken()

    async def end_sending(self):
        self.is_sending = False
        while self.senders:
            await asyncio.wait(self.senders)
        return {
            "stored": [one for some in self.stored.values() for one in some],
            "errors": self.errors,
        }

    @staticmethod
    def tell(message, place):
        return {
            "place": place,
            "payload": base64.b64encode(message.payload).decode(),
            "topic": message.msg_id.topic_name,
            "offset": message.msg_id.topic_offset,
            "key": message.routing_key if message.HasField("routing_key") else None,
            "attributes": dict(message.attributes),
            "producer": message.producer_name,
            "publish_time": message.publish_time,
        }

    async def ack(self, name, place):
        await self.consumers[name].ack(self.received[name][place])

    async def nack(self, name, place, delay_ms=None, reason=None):
        await self.consumers[name].nack(self.received[name][place], delay_ms, reason)

    async def close_consumer(self, name):
        await self.consumers.pop(name).close()

    async def close_producer(self, name):
        await self.producers.pop(name).close()


def explain(error):
    if isinstance(error, grpc.aio.AioRpcError):
        return {"error": error.code().name, "message": error.details()}
    return {"error": type(error).__name__, "message": str(error)}


async def answer(agent, line):
    command = json.loads(line)
    number = command.pop("number")
    try:
        result = {"result": await getattr(agent, command.pop("do"))(**command)}
    except Exception as error:  # noqa: BLE001  # whatever it was, the test is told
        result = explain(error)
    sys.stdout.write(json.dumps({"number": number, **result}) + "\n")
    sys.stdout.flush()


async def main():
    logging.basicConfig(level=logging.ERROR)
    agent = Agent(await DanubeClientBuilder().service_url(sys.argv[1]).build())
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    under_way = set()
    while line := await reader.readline():
        task = asyncio.create_task(answer(agent, line))  # noqa: TID251  # no part of the project
        under_way.add(task)
        task.add_done_callback(under_way.discard)


if __name__ == "__main__":
    asyncio.run(main())
