"""What is damaged: directories and stores of brokers with a known history, one for each kind of store.

A history has two lives. In each, messages are published to several topics, some acknowledged, and a transaction
committed; between them the broker is stopped. The second life makes a checkpoint in the middle, then goes on, and is
killed with another transaction open, or stopped in good order.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING, Final, NamedTuple

import danubius
from damage.worlds import World
from danubius.ledger.managed import ManagedLedger
from danubius.wal.core.format import parse_mark

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from damage.worlds import Broker, Image

SMALL: Final = "/default/small"
LARGE: Final = "/default/large"
PARTS: Final = "/default/parts"
PAID: Final = "/default/paid"
SUBSCRIPTION: Final = "reader"
PRODUCER: Final = "writer"
PARTITIONS: Final = 2
WRITTEN: Final = (SMALL, LARGE, *(f"{PARTS}-part-{number}" for number in range(PARTITIONS)))
"""Topics with a producer of their own."""
_WAIT_S: Final = 60.0
_LOOK_S: Final = 0.02


class Known(NamedTuple):
    """What was acknowledged."""

    messages: dict[str, list[bytes]]
    """By topic: the payloads, at their offsets."""
    acked: dict[str, set[int]]
    """By topic: what the subscription acknowledged and heard of."""
    transactions: set[int]
    """Those that were committed."""
    sequences: dict[str, int]
    """By topic: the next sequence of the producer."""
    epoch: int
    """The last one that was used."""


class Template(NamedTuple):
    """One history, and what its operator may have lying around."""

    kind: str
    image: Image
    older: Image
    """As it was after the first life."""
    earlier: Image
    """As it was in the middle of the second."""
    other: Image
    """Of another broker."""
    known: Known


class _History:
    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.seed = seed
        self.messages: dict[str, list[bytes]] = {}
        self.acked: dict[str, set[int]] = {}
        self.transactions: set[int] = set()
        self.sequences: dict[str, int] = {}
        self.epoch = 0

    def known(self) -> Known:
        return Known(
            {topic: list(sent) for topic, sent in self.messages.items()},
            {topic: set(acked) for topic, acked in self.acked.items()},
            set(self.transactions),
            dict(self.sequences),
            self.epoch,
        )

    def _payloads(self, topic: str, count: int, size: int) -> list[bytes]:
        first = len(self.messages.setdefault(topic, []))
        mark = b"%s %d " % (topic.encode(), self.seed)
        return [
            (mark + b"%d " % number).ljust(size, b".") for number in range(first, first + count)
        ]

    async def create(self, client: danubius.Client) -> None:
        for topic in (SMALL, LARGE, PAID):
            await client.create_topic(topic)
        await client.create_topic(PARTS, partitions=PARTITIONS)

    async def publish(self, writers: dict[str, danubius.Producer], rounds: int) -> None:
        for _ in range(rounds):
            for topic, producer in writers.items():
                count, size = {SMALL: (6, 120), LARGE: (6, 3000 + self.seed)}.get(topic, (4, 200))
                payloads = self._payloads(topic, count, size)
                receipts = await producer.send_many(payloads)
                assert receipts.first_offset == len(self.messages[topic])
                self.messages[topic] += payloads

    async def consume(self, client: danubius.Client, topic: str, count: int) -> None:
        """Acknowledge every other one of so many messages."""
        acked = self.acked.setdefault(topic, set())
        async with client.consumer(topic, subscription=SUBSCRIPTION, start="earliest") as consumer:
            for number in range(count):
                message = await consumer.receive(timeout=_WAIT_S)
                if number % 2 == 0:
                    await consumer.ack(message)
                    acked.add(message.offset)

    async def commit(self, client: danubius.Client) -> None:
        payloads = self._payloads(PAID, 3, 150)
        async with client.producer(PAID, name=PRODUCER) as producer:
            transaction = await client.transaction()
            await transaction.send_many(producer, payloads)
            await transaction.commit()
        self.messages[PAID] += payloads

    def look(self, broker: Broker) -> None:
        """Take down what only the broker knows."""
        self.epoch = max(self.epoch, broker.epoch)
        for first, end in broker.shard.committed_transactions:
            self.transactions.update(range(first, end))
        for topic in WRITTEN:
            sequencer = broker.shard.topic(topic).pipeline.sequencer
            producer = sequencer.producer_or_none(PRODUCER)
            assert producer is not None
            self.sequences[topic] = producer.committed_next


async def _offloaded(world: World, broker: Broker) -> None:
    """Wait until everything that may lie in cold storage does."""
    if world.kind != "tier":
        return
    async with asyncio.timeout(_WAIT_S):
        while True:
            metas = [
                meta
                for topic in broker.shard.topics.values()
                if isinstance(topic.log, ManagedLedger)
                for meta in topic.log.ledgers
                if meta.is_sealed
            ]
            if metas and all(meta.is_cold for meta in metas):
                return
            await broker.offload()


async def _marked(world: World, broker: Broker) -> Image:
    """All of it, once the mark beside the journal says how far that was synced: the journal tells so a little later."""
    async with asyncio.timeout(_WAIT_S):
        while True:
            image = world.image()
            mark = image.get("data/journal/end")
            if world.kind == "diskless" or (
                mark is not None and parse_mark(mark) == broker.shard.journal.end_position
            ):
                return image
            await asyncio.sleep(_LOOK_S)


@contextlib.asynccontextmanager
async def _writers(client: danubius.Client) -> AsyncGenerator[dict[str, danubius.Producer]]:
    async with contextlib.AsyncExitStack() as stack:
        yield {
            topic: await stack.enter_async_context(client.producer(topic, name=PRODUCER))
            for topic in WRITTEN
        }


async def _live(kind: str, seed: int, *, is_killed: bool) -> tuple[Image, Image, Image, Known]:
    world = World(kind)
    history = _History(world, seed)
    async with world.broker(listens=True) as broker:
        async with danubius.connect(broker.url) as client:
            await history.create(client)
            async with _writers(client) as writers:
                await history.publish(writers, 5 + seed)
            await history.consume(client, SMALL, 10)
            await history.commit(client)
        await broker.end()
    older = world.image()
    async with world.broker(listens=True) as broker:
        async with (
            danubius.connect(broker.url) as client,
            _writers(client) as writers,
            client.producer(PAID, name="other-writer") as producer,
        ):
            await history.publish(writers, 6)
            await history.consume(client, SMALL, 8)
            await _offloaded(world, broker)
            await broker.checkpoint()
            await history.publish(writers, 2)
            await broker.checkpoint()
            await history.publish(writers, 1)
            earlier = world.image()
            await history.publish(writers, 4)
            await history.consume(client, LARGE, 6)
            await history.commit(client)
            transaction = await client.transaction()
            await transaction.send(producer, b"never committed")
            history.look(broker)
            image = await _marked(world, broker)
            await transaction.abort()
        if not is_killed:
            await broker.end()
            image = world.image()
    return image, older, earlier, history.known()


@functools.cache
def _made(kind: str, seed: int, *, is_killed: bool) -> tuple[Image, Image, Image, Known]:
    with asyncio.Runner() as runner:
        return runner.run(_live(kind, seed, is_killed=is_killed))


def template(kind: str, *, is_killed: bool) -> Template:
    """Made once in a process."""
    image, older, earlier, known = _made(kind, 0, is_killed=is_killed)
    other, *_ = _made(kind, 2, is_killed=is_killed)
    return Template(kind, image, older, earlier, other, known)
