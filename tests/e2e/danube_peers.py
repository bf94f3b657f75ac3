"""A producer and a consumer of Danube's API without the retries of its clients: every failure is the test's to see."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from e2e.danube_calls import calling
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from e2e.danube_calls import Calls

NON_RELIABLE, RELIABLE = 0, 1
EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
WITHIN_S = HANG_S


class DanubeProducer:
    """What `CreateProducer` answered, and messages under it."""

    def __init__(self, calls: Calls, topic: str, name: str, producer_id: int) -> None:
        self._calls = calls
        self._topic = topic
        self.name = name
        self.producer_id = producer_id
        self._requests = 1

    @classmethod
    async def open(
        cls, calls: Calls, topic: str, name: str = "p", dispatch: int = RELIABLE
    ) -> DanubeProducer:
        answer = await calls(
            "ProducerService/CreateProducer",
            request_id=1,
            producer_name=name,
            topic_name=topic,
            dispatch_strategy=dispatch,
        )
        return cls(calls, topic, name, answer.producer_id)

    def on(self, calls: Calls) -> DanubeProducer:
        """The same producer, as its client goes on with it on another connection."""
        return DanubeProducer(calls, self._topic, self.name, self.producer_id)

    async def send(self, payload: bytes, key: str | None = None) -> None:
        self._requests += 1
        request_id = self._requests
        answer = await self._calls(
            "ProducerService/SendMessage",
            request_id=request_id,
            msg_id={
                "producer_id": self.producer_id,
                "topic_name": self._topic,
                "broker_addr": "http://127.0.0.1:1",
            },
            payload=payload,
            publish_time=time.time_ns() // 1_000_000,
            producer_name=self.name,
            routing_key=key,
        )
        assert answer.request_id == request_id

    async def send_all(self, payloads: Sequence[bytes], keys: Sequence[str] = ()) -> None:
        """All at once: in any order."""
        async with asyncio.TaskGroup() as tasks:
            for at, payload in enumerate(payloads):
                tasks.create_task(self.send(payload, keys[at % len(keys)] if keys else None))


class DanubeConsumer:
    """What `Subscribe` answered, and the stream of its messages."""

    def __init__(self, calls: Calls, subscription: str, consumer_id: int) -> None:
        self._calls = calls
        self._subscription = subscription
        self.consumer_id = consumer_id
        self._stream: Any = None

    @classmethod
    async def open(
        cls,
        calls: Calls,
        topic: str,
        subscription: str = "s",
        name: str = "c",
        kind: int = EXCLUSIVE,
        filters: Sequence[str] = (),
    ) -> DanubeConsumer:
        answer = await calls(
            "ConsumerService/Subscribe",
            request_id=1,
            topic_name=topic,
            consumer_name=name,
            subscription=subscription,
            subscription_type=kind,
            key_filters=filters,
        )
        consumer = cls(calls, subscription, answer.consumer_id)
        consumer.listen()
        return consumer

    def listen(self) -> None:
        """Open the stream; nothing is read of it until somebody asks."""
        self._stream = self._calls.stream(
            "ConsumerService/ReceiveMessages", request_id=2, consumer_id=self.consumer_id
        )

    def on(self, calls: Calls) -> DanubeConsumer:
        """The same consumer, as its client goes on with it on another connection."""
        consumer = DanubeConsumer(calls, self._subscription, self.consumer_id)
        consumer.listen()
        return consumer

    def cancel(self) -> None:
        """All that Danube's clients do when they close a consumer."""
        self._stream.cancel()

    async def receive(self) -> Any:
        async with asyncio.timeout(WITHIN_S):
            return await self._stream.read()

    async def take(self, count: int, *, is_acking: bool = False) -> list[Any]:
        messages: list[Any] = []
        for _ in range(count):
            messages.append(await self.receive())
            if is_acking:
                await self.ack(messages[-1])
        return messages

    async def ack(self, message: Any) -> None:
        await self._calls(
            "ConsumerService/Ack",
            request_id=message.request_id,
            msg_id=message.msg_id,
            subscription_name=self._subscription,
        )

    async def nack(self, message: Any, **more: Any) -> None:
        await self._calls(
            "ConsumerService/Nack",
            request_id=message.request_id,
            msg_id=message.msg_id,
            subscription_name=self._subscription,
            **more,
        )


async def until(condition: Callable[[], Awaitable[bool]], within_s: float = 2 * WITHIN_S) -> None:
    """Wait for what another process has no event for."""
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def consuming(port: int, topic: str, **options: Any) -> AsyncGenerator[DanubeConsumer]:
    """A consumer on a connection of its own, which is lost at the end."""
    async with calling(port) as calls:
        yield await DanubeConsumer.open(calls, topic, **options)


def offsets(messages: Sequence[Any]) -> list[int]:
    return [one.msg_id.topic_offset for one in messages]


def payloads(messages: Sequence[Any]) -> list[bytes]:
    return [one.payload for one in messages]
