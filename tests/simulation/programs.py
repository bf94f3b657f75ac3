"""What the clients of a simulated world do, each in a process of its own that may be killed and started again.

All of it is the public client. What it was told goes into the books; errors that a broker in trouble may answer with
are borne, every other one ends the world. Nothing gives up: whatever was to be sent is sent in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import danubius
from danubius.errors import (
    BrokerUnavailable,
    DanubiusError,
    SubscriptionBusy,
    TopicNotFound,
    TransactionAborted,
    TransactionConflict,
)
from simulation.world import URL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from danubius.client.options import SubscriptionTypeName
    from simulation.books import SubscriptionBook
    from simulation.world import World

TOPIC: Final = "/default/events"
MOVED: Final = "/default/moved"
PAYLOAD_BYTES_MAX: Final = 900
MESSAGES: Final = 50
"""Of each producer."""
EVER_S: Final = 3000.0
"""For whatever never gives up; beyond the bound of the world's rest."""
TRANSACTION_S: Final = 5.0
POLL_S: Final = 2.0
"""A consumer without messages looks this often whether it is over."""
KEYS: Final = (b"red", b"green", b"blue")
_BORNE: Final = (SubscriptionBusy, TransactionAborted, TransactionConflict)


class Way(NamedTuple):
    """How a consumer goes about it."""

    subscription: str
    type: SubscriptionTypeName
    nacked: float = 0.0
    """Share of the batches that are given back."""
    is_cumulative: bool = False
    seeks: float = 0.0
    """After a batch, how often it goes back."""
    leaves: float = 0.0
    """After a batch, how often it closes and comes again."""


class Programs:
    """The five clients of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = random.Random(f"{world.seed} programs")
        self._sent = 0
        self._lives = 0
        self.loaded = False
        self.is_sent = False
        self.is_calm = False
        """Nobody makes anything come again any more."""
        self.is_over = False

    def start(self) -> None:
        programs: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "loader": self._loader,
            "sender": self._sender,
            "billing": lambda: self._consumers(
                Way("billing", "exclusive", is_cumulative=True, seeks=0.03, leaves=0.2), reads=True
            ),
            "workers": lambda: self._consumers(
                Way("workers", "shared", nacked=0.2),
                Way("keyed", "key-shared"),
                Way("standby", "failover"),
            ),
            "mover": lambda: self._mover_and(
                Way("workers", "shared", leaves=0.1),
                Way("keyed", "key-shared"),
                Way("standby", "failover"),
            ),
        }
        for name, program in programs.items():
            self._world.start_client(name, program)

    # ------------------------------------------------------------ sending

    async def _loader(self) -> None:
        """Goes on where the broker says that it is: each message is stored once, in order."""
        await self._again(self._load)

    async def _load(self, client: danubius.Client) -> bool:
        book = self._world.topic(TOPIC)
        async with client.producer(
            TOPIC, name="loader", resume=True, send_timeout=EVER_S
        ) as producer:
            while (first := producer.next_sequence) < MESSAGES:
                end = min(MESSAGES, first + self._dice.choice([1, 1, 3, 10]))
                payloads = [book.try_(_payload(b"loader", number)) for number in range(first, end)]
                receipts = await producer.send_many(payloads, keys=[self._key() for _ in payloads])
                for payload, receipt in zip(payloads, receipts, strict=True):
                    book.acknowledged(payload, receipt.offset)
                await self._pause(0.3)
        self.loaded = True
        return True

    async def _sender(self) -> None:
        """Is somebody new in each life; what it had under way when it was killed may be stored or not."""
        self._lives += 1
        await self._again(self._send)

    async def _send(self, client: danubius.Client) -> bool:
        book = self._world.topic(TOPIC)
        life = self._lives
        async with client.producer(TOPIC, send_timeout=EVER_S) as producer:
            while self._sent < MESSAGES:
                self._sent += 1
                if self._dice.random() < 0.1:
                    await self._send_later(producer)
                    continue
                payload = book.try_(_payload(b"sender-%d" % life, self._sent))
                if self._dice.random() < 0.2:
                    producer.send_nowait(payload, key=self._key())
                    continue
                receipt = await producer.send(payload, key=self._key())
                book.acknowledged(payload, receipt.offset)
                await self._pause(0.1)
            await producer.flush()
        self.is_sent = True
        return True

    async def _send_later(self, producer: danubius.Producer) -> None:
        book = self._world.topic(TOPIC)
        # A name of its own: it is published when it is due, whatever its producer sends meanwhile.
        payload = book.try_(_payload(b"later-%d" % self._sent, self._sent))
        await producer.send(payload, key=self._key(), deliver_after=self._dice.uniform(0.01, 1.5))
        book.scheduled.add(payload)

    # ------------------------------------------------------------ receiving

    async def _consumers(self, *ways: Way, reads: bool = False) -> None:
        """Several on one connection."""
        async with asyncio.TaskGroup() as group:
            for way in ways:
                group.create_task(self._again(lambda client, way=way: self._consume(client, way)))
            if reads:
                group.create_task(self._again(self._read))

    async def _consume(self, client: danubius.Client, way: Way) -> bool:
        book = self._world.subscription(TOPIC, way.subscription)
        book.is_ordered = way.type in ("exclusive", "failover")
        attached = book.attached()
        consumer = await client.consumer(
            TOPIC,
            subscription=way.subscription,
            type=way.type,
            start="earliest",
            prefetch_messages=20,
        )
        witness = Witness(consumer, book, attached)
        async with consumer:
            while not self.is_over:
                batch = await _next_batch(consumer, self._dice.choice([1, 5, None]))
                if batch is None:
                    continue
                for message in batch:
                    key = message.key if way.type == "key-shared" else None
                    book.deliver(message.offset, message.payload, witness.attached, key)
                if self._dice.random() < way.nacked:
                    await consumer.nack(batch, delay=self._dice.choice([0.0, 0.05]))
                elif way.is_cumulative:
                    await consumer.ack_cumulative(batch)
                else:
                    await consumer.ack(batch)
                await self._pause(0.02)
                if not self.is_calm and self._dice.random() < way.seeks:
                    await self._seek(client, book)
                if self._dice.random() < way.leaves:
                    return False
        return True

    async def _seek(self, client: danubius.Client, book: SubscriptionBook) -> None:
        """Back to somewhere: from there on all comes again."""
        to = self._dice.randint(0, max(book.seen))
        self._world.note("seek of", book.name, "to", to)
        with book.moving():
            await client.admin.seek(TOPIC, book.name, to)

    async def _read(self, client: danubius.Client) -> bool:
        """From an offset to the end, again and again."""
        book = self._world.topic(TOPIC)
        while not self.is_over:
            start = self._dice.randint(0, len(book.log))
            with contextlib.suppress(danubius.OffsetOutOfRange):
                async with client.reader(TOPIC, start=start, stop_at_end=True) as reader:
                    expected = start
                    async for message in reader:
                        assert message.offset == expected, "a reader goes on by one"
                        book.saw(message.offset, message.payload, "a reader")
                        expected += 1
            await asyncio.sleep(self._dice.uniform(0.5, 2.0))
        return True

    # ------------------------------------------------------------ receiving and sending as one

    async def _mover_and(self, *ways: Way) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._again(self._move))
            group.create_task(self._consumers(*ways))

    async def _move(self, client: danubius.Client) -> bool:
        """Every message of one topic into the other, once."""
        book, target = self._world.subscription(TOPIC, "mover"), self._world.topic(MOVED)
        attached = book.attached()
        async with client.producer(MOVED, send_timeout=EVER_S) as producer:
            consumer = await client.consumer(
                TOPIC, subscription="mover", start="earliest", prefetch_messages=20
            )
            witness = Witness(consumer, book, attached)
            async with consumer:
                while not self.is_over:
                    batch = await _next_batch(consumer, 10)
                    if batch is None:
                        continue
                    moved: list[bytes] = []
                    for message in batch:
                        book.deliver(message.offset, message.payload, witness.attached)
                        moved.append(target.try_(b"%d:%s" % (message.offset, message.payload)))
                    async with client.transaction(timeout=TRANSACTION_S) as transaction:
                        await transaction.send_many(producer, moved)
                        await transaction.ack(consumer, batch)
                    ranges = [(message.offset, message.offset + 1) for message in batch]
                    book.confirm(ranges)
                    await self._pause(0.1)
        return True

    # ------------------------------------------------------------ inside

    async def _again(self, work: Callable[[danubius.Client], Awaitable[bool]]) -> None:
        """With a connection, and again with another one, until the work is done."""
        while True:
            # There is a topic as soon as its producer was there, and then for ever.
            borne = _BORNE if self._world.topic(TOPIC).stored else (*_BORNE, TopicNotFound)
            try:
                async with danubius.connect(URL, reconnect_timeout=EVER_S) as client:
                    while not await work(client):
                        pass
                    return
            except DanubiusError as error:
                if not (error.is_retryable or isinstance(error, borne)):
                    raise
                if not isinstance(error, BrokerUnavailable):
                    self._world.note("borne:", type(error).__name__, error)
            await asyncio.sleep(self._dice.uniform(0.05, 0.5))

    async def _pause(self, at_most_s: float) -> None:
        await asyncio.sleep(self._dice.uniform(0, at_most_s))

    def _key(self) -> bytes:
        return self._dice.choice(KEYS)


class Witness:
    """Hears what the broker confirms to a consumer, and when it attaches: the public face does not say."""

    def __init__(self, consumer: danubius.Consumer, book: SubscriptionBook, attached: int) -> None:
        self.attached = attached
        losses = book.power_losses
        lane: Any = consumer  # of a plain topic: a lane
        on_attached, on_ack_reply = lane.on_attached, lane._on_ack_reply

        def note_attached(*facts: object) -> None:
            nonlocal losses
            self.attached, losses = book.attached(), book.power_losses
            on_attached(*facts)

        def note_reply(
            session: object,
            moves: int,
            ranges: Iterable[tuple[int, int]],
            reply: object,
            payload: object,
        ) -> None:
            # What was still under way when the power failed is as if it had been confirmed before.
            is_current = moves == lane._moves.count and losses == book.power_losses
            if is_current and not isinstance(reply, DanubiusError):
                book.confirm(ranges)
            on_ack_reply(session, moves, ranges, reply, payload)

        lane.on_attached, lane._on_ack_reply = note_attached, note_reply


def _payload(name: bytes, number: int) -> bytes:
    """Of sizes that differ, and always the same for one number."""
    return b"%s:%d:%s" % (name, number, b"." * (number * 7919 % PAYLOAD_BYTES_MAX))


async def _next_batch(
    consumer: danubius.Consumer, max_messages: int | None
) -> danubius.ReceivedBatch | None:
    try:
        return await consumer.receive_batch(timeout=POLL_S, max_messages=max_messages)
    except danubius.ReceiveTimeout:
        return None
