"""Well-formed requests of Danube's API that race each other over a few topics: created, used and deleted at once.

Whatever meets whatever, each is answered with a status that means something, streams are held or end, and nothing of
the broker fails. Which request meets which is up to the machine; the requests are from a seed.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

import grpc

import danubius
from e2e.danube_calls import Calls, calling
from e2e.danube_peers import DanubeConsumer, DanubeProducer
from e2e.traffic import bystander, numbered, payloads, read_all
from patience import SOON_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from e2e.conftest import StartBroker

WORKERS: Final = 12
STEPS: Final = 120
SEED: Final = 77
TOPICS: Final = ["/chaos/a", "/chaos/b", "/chaos/p-part-0", "/chaos/p-part-1"]
SENSIBLE: Final = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
}


class Worker:
    """One client of each kind, on connections of its own."""

    def __init__(self, number: int, data: Calls, admin: Calls) -> None:
        self.dice = random.Random(SEED * 1000 + number)
        self.data = data
        self.admin = admin
        self.done = 0
        self.steps: list[Callable[[], Awaitable[Any]]] = [
            *[self.produce] * 5,
            *[self.consume] * 5,
            self.create,
            self.delete,
            self.partition,
            self.unsubscribe,
            self.set_policy,
            self.look,
        ]

    @property
    def topic(self) -> str:
        return self.dice.choice(TOPICS)

    @property
    def of(self) -> dict[str, str]:
        return {"topic": self.topic, "subscription": self.dice.choice("st")}

    async def run(self) -> None:
        for _ in range(STEPS):
            try:
                await self.dice.choice(self.steps)()
                self.done += 1
            except grpc.aio.AioRpcError as error:
                if error.code() not in SENSIBLE:
                    raise

    async def produce(self) -> None:
        name = f"p{self.dice.randrange(4)}"
        producer = await DanubeProducer.open(
            self.data, self.topic, name, self.dice.choice([0, 1, 1, 1])
        )
        keys = [f"k{number}" for number in range(5)]
        for number in range(self.dice.randrange(20)):
            await producer.send(b"%d" % number, self.dice.choice(keys))

    async def consume(self) -> None:
        consumer = await DanubeConsumer.open(
            self.data,
            self.topic,
            self.dice.choice("st"),
            f"c{self.dice.randrange(6)}",
            self.dice.randrange(4),
        )
        try:
            async with asyncio.timeout(6 * SOON_S):
                for _ in range(self.dice.randrange(1, 20)):
                    (message,) = await consumer.take(1)
                    await self.settle(consumer, message)
        except TimeoutError:
            pass
        finally:
            if self.dice.random() < 0.8:
                consumer.cancel()

    async def settle(self, consumer: DanubeConsumer, message: Any) -> None:
        if not hasattr(message, "msg_id"):
            return  # the stream has ended
        what = self.dice.randrange(5)
        if what == 0:
            await consumer.nack(message, delay_ms=self.dice.randrange(50), reason="no")
        elif what < 4:
            await consumer.ack(message)

    async def create(self) -> None:
        await self.admin("TopicAdmin/CreateTopic", name=self.topic, dispatch_strategy=1)

    async def partition(self) -> None:
        await self.admin(
            "TopicAdmin/CreatePartitionedTopic",
            base_name="/chaos/p",
            partitions=2,
            dispatch_strategy=1,
        )

    async def delete(self) -> None:
        await self.admin(
            "TopicAdmin/DeleteTopic", name=self.dice.choice(["/chaos/a", "/chaos/b", "/chaos/p"])
        )

    async def unsubscribe(self) -> None:
        await self.admin("TopicAdmin/Unsubscribe", **self.of)

    async def set_policy(self) -> None:
        policy = {
            "max_redelivery_count": self.dice.randrange(4),
            "poison_policy": self.dice.randrange(3),
            "ack_timeout_ms": self.dice.choice([0, 20, 30_000]),
        }
        await self.admin(
            "TopicAdmin/SetSubscriptionFailurePolicy", failure_policy=policy, **self.of
        )
        config = {"max_unacked_messages": self.dice.choice([1, 3, 1000])}
        await self.admin(
            "TopicAdmin/SetSubscriptionDispatchConfig", dispatch_config=config, **self.of
        )

    async def look(self) -> None:
        await self.data("Discovery/TopicPartitions", topic="/chaos/p")
        await self.data("Discovery/TopicLookup", topic=self.topic)
        await self.admin("TopicAdmin/DescribeTopic", name=self.topic)
        await self.admin("NamespaceAdmin/GetNamespaceTopics", name="chaos")


async def test_requests_that_race_each_other_are_answered_with_sense(
    start_broker: StartBroker,
) -> None:
    broker = start_broker(grpc=True)
    topic = "/honest/t"
    done: list[int] = []

    async def work(number: int) -> None:
        async with calling(broker.grpc_port) as data, calling(broker.admin_port) as admin:
            worker = Worker(number, data, admin)
            await worker.run()
            done.append(worker.done)

    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        await client.admin.create_namespace("chaos")
        await producer.send_many(numbered(100))
        async with bystander(broker.url, "/honest/other") as other, asyncio.TaskGroup() as tasks:
            for number in range(WORKERS):
                tasks.create_task(work(number))
            await other.check()
    assert len(done) == WORKERS
    assert sum(done) > WORKERS * STEPS // 4, "most of it failed"
    broker.kill()
    await asyncio.to_thread(broker.start)
    async with danubius.connect(broker.url) as client:
        assert payloads(await read_all(client, topic)) == numbered(100)
    async with calling(broker.admin_port) as admin:
        await admin("BrokerAdmin/ListNamespaces")
    assert broker.stop() == 0
    assert "Traceback" not in broker.log()
