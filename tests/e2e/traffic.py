"""What tests do with messages again and again, and the bystander whose traffic may never stop."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import danubius
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from danubius import Client, Consumer, Message, Producer


async def collect(
    consumers: Sequence[Consumer], count: int, *, within_s: float = HANG_S, is_acking: bool = True
) -> list[list[Message]]:
    """What each consumer got, until they have `count` messages together."""
    received: list[list[Message]] = [[] for _ in consumers]
    is_done = asyncio.Event()

    async def run(consumer: Consumer, into: list[Message]) -> None:
        while True:
            message = await consumer.receive()
            into.append(message)
            if is_acking:
                await consumer.ack(message)
            if sum(map(len, received)) >= count:
                is_done.set()

    try:
        async with asyncio.timeout(within_s), asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(run(*pair)) for pair in zip(consumers, received, strict=True)
            ]
            await is_done.wait()
            for task in running:
                task.cancel()
    except TimeoutError as error:
        counts = [len(messages) for messages in received]
        raise AssertionError(
            f"after {within_s} s only {counts} of {count} messages came"
        ) from error
    return received


async def take(consumer: Consumer, count: int, *, within_s: float = HANG_S) -> list[Message]:
    """The next messages of one consumer, not acknowledged."""
    messages: list[Message] = []
    try:
        async with asyncio.timeout(within_s):
            while len(messages) < count:
                messages.append(await consumer.receive())
    except TimeoutError as error:
        offsets = [message.offset for message in messages]
        raise AssertionError(
            f"only {len(messages)} of {count} in {within_s} s: {offsets}"
        ) from error
    return messages


async def read_all(client: Client, topic: str, start: int = 0) -> list[Message]:
    """Everything that the topic holds."""
    messages: list[Message] = []
    async with (
        asyncio.timeout(HANG_S),
        client.reader(topic, start=start, stop_at_end=True) as reader,
    ):
        async for message in reader:
            messages.append(message)  # noqa: PERF401 - an async comprehension hides the deadline's place
    return messages


async def nothing_comes(consumer: Consumer, seconds: float = 0.3) -> None:
    """Nothing may come; the wait is the test's only price, so it is short."""
    try:
        async with asyncio.timeout(seconds):
            message = await consumer.receive()
    except TimeoutError:
        return
    raise AssertionError(f"offset {message.offset} came though nothing should")


async def eventually(condition: Callable[[], bool], what: str, *, within_s: float = HANG_S) -> None:
    """Wait for something that has no event to wait for, such as another process."""
    limit = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < limit, f"not within {within_s} s: {what}"
        await asyncio.sleep(LOOK_S)


def payloads(messages: Sequence[Message]) -> list[bytes]:
    return [message.payload for message in messages]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"message %d" % number for number in range(start, start + count)]


class Bystander:
    """An honest client on the same broker: whatever others do, its messages go round."""

    def __init__(self, producer: Producer, consumer: Consumer) -> None:
        self._producer = producer
        self._consumer = consumer
        self._sent = 0

    async def check(self, rounds: int = 5, *, within_s: float = HANG_S) -> None:
        """Send and receive."""
        for _ in range(rounds):
            payload = b"bystander %d" % self._sent
            self._sent += 1
            async with asyncio.timeout(within_s):
                await self._producer.send(payload)
                message = await self._consumer.receive()
                await self._consumer.ack(message)
            assert message.payload == payload


@asynccontextmanager
async def bystander(url: str, topic: str) -> AsyncGenerator[Bystander]:
    """A bystander on a connection and a topic of its own, checked before and after."""
    own = f"{topic}-bystander"
    async with (
        danubius.connect(url) as client,
        client.producer(own) as producer,
        client.consumer(own, subscription="bystander", start="earliest") as consumer,
    ):
        other = Bystander(producer, consumer)
        await other.check(2)
        yield other
        await other.check(2)
