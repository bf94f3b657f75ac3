"""Consumers of Danube's clients: who has subscribed, whose stream is served, and what they acknowledge.

A client opens its stream again at once whenever it ends, with nothing but its number, and subscribes again only if it
was told CLOSE before. So a stream is held rather than ended; one that has to end does so after its client had the time
to hear CLOSE. Invariants:
- One stream of a consumer is served, the newest; those it took over from wait, and go on when it has ended.
- A consumer's number is durable before its client has it, so a stream goes on after a restart of the broker.
- What a stream was sent and did not acknowledge goes to others when it ends.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from danubius.edge.grpc.bounds import (
    CLOSE_TAKEN_S,
    CLOSE_TOLD_S,
    IDLE_CONSUMER_S,
    SWEEP_S,
    TURNS_MAX,
    WAIT_S,
)
from danubius.edge.grpc.data.attachment import LEFT, REPLACED, Attachment
from danubius.edge.grpc.policies import unless_told
from danubius.edge.grpc.status import Code, Refused
from danubius.errors import (
    ConsumerReplaced,
    DanubiusError,
    LedgerDamaged,
    ShuttingDown,
    SubscriptionMoved,
    TopicDeleted,
    TopicExists,
    TopicNotFound,
)
from danubius.model.ids import TopicName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from danubius.edge.grpc.data.consumer_book import ConsumerBook, Known
    from danubius.model.policy import FailurePolicy
    from danubius.session.door import Door

log = logging.getLogger(__name__)


class _Turn:
    """One stream of a consumer."""

    __slots__ = ("attachment", "wake")

    def __init__(self) -> None:
        self.attachment: Attachment | None = None
        self.wake = asyncio.Event()
        """Set when it may be its turn."""


class GrpcConsumer:
    """One consumer: its streams, the newest last."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.turns: list[_Turn] = []
        self.spare: Attachment | None = None
        """Attached by its subscribing, until a stream takes it."""
        self.used_s = 0.0
        self.closing: asyncio.Event | None = None
        """Its streams are about to end; set when its client was told."""
        self.lock = asyncio.Lock()
        """Held by who attaches it."""


class Consumers:
    """Everything that Danube's clients consume."""

    def __init__(self, door: Door, book: ConsumerBook, broker_url: str) -> None:
        self._door = door
        self._loop = door.loop
        self._book = book
        self._broker_url = broker_url
        self._consumers: dict[int, GrpcConsumer] = {}
        self._attached: dict[tuple[str, str], dict[Attachment, None]] = {}
        """By topic and subscription."""
        self._strangers: dict[int, asyncio.Event] = {}
        """Numbers that nobody knows and that hold a stream; set when their client was told."""
        self._sweep = self._loop.call_later(SWEEP_S, self._forget_idle)

    def __len__(self) -> int:
        return len(self._consumers)

    @property
    def streams(self) -> int:
        return sum(len(consumer.turns) for consumer in self._consumers.values())

    def close(self) -> None:
        self._sweep.cancel()
        stopping = ShuttingDown("the broker is stopping")
        for attached in list(self._attached.values()):
            for attachment in list(attached):
                attachment.close(stopping, is_clean=True)

    # ------------------------------------------------------------ subscribing

    async def subscribe(self, known: Known, address: str) -> None:
        """Attach a consumer, and remember it."""
        consumer = self._consumers.get(known.number)
        if consumer is None:
            consumer = self._consumers[known.number] = GrpcConsumer(known)
        consumer.used_s = self._loop.time()
        async with consumer.lock:
            consumer.known = known
            if consumer.spare is not None and consumer.spare.known != known:
                consumer.spare.close(REPLACED, is_clean=True)
            served = consumer.turns[-1].attachment if consumer.turns else None
            if served is not None and served.known != known:
                served.close(REPLACED, is_clean=True)  # its stream goes on as it asked now
            if consumer.spare is None and not consumer.turns:
                consumer.spare = await self._attach(consumer, address)
            consumer.closing = None
            await self._book.keep(known)

    async def _attach(self, consumer: GrpcConsumer, address: str) -> Attachment:
        known = consumer.known
        attachment = Attachment(
            self._door, known, self._broker_url, lambda one: self._ended(consumer, one), address
        )
        place = self._attached.setdefault((known.topic, known.subscription), {})
        place[attachment] = None
        try:
            await attachment.open(self._failure(known))
        except BaseException:
            self._ended(consumer, attachment)
            raise
        return attachment

    def _failure(self, known: Known) -> FailurePolicy | None:
        """What Danube does with messages that fail, unless the topic's policies say something else."""
        policy = self._door.policies_of(known.topic).failure
        told = unless_told(policy)
        return None if told == policy else told

    def _ended(self, consumer: GrpcConsumer, attachment: Attachment) -> None:
        place = (attachment.known.topic, attachment.known.subscription)
        attached = self._attached.get(place)
        if attached is not None:
            attached.pop(attachment, None)
            if not attached:
                del self._attached[place]
        if consumer.spare is attachment:
            consumer.spare = None

    # ------------------------------------------------------------ streams

    async def receive(
        self, number: int, address: str, write: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Write the messages of a consumer, for as long as its client holds the stream."""
        consumer = self._find(number)
        if consumer is None:
            await self._hold_stranger(number)
            raise Refused(
                Code.UNAVAILABLE,
                f"consumer {number} is not known to this broker: subscribe again",
            )
        if len(consumer.turns) >= TURNS_MAX:
            await asyncio.sleep(CLOSE_TOLD_S)  # its client comes again at once
            raise Refused(
                Code.UNAVAILABLE,
                f"{TURNS_MAX} streams of consumer {consumer.known.consumer!r} are open",
            )
        turn = _Turn()
        _take_over(consumer, turn)
        try:
            while True:
                attachment = await self._serve(consumer, turn, address)
                reason = await attachment.deliver(write)
                turn.attachment = None
                await self._after(consumer, reason)
        finally:
            self._leave(consumer, turn)

    def _find(self, number: int) -> GrpcConsumer | None:
        consumer = self._consumers.get(number)
        if consumer is None:
            known = self._book.find(number)
            if known is not None:
                consumer = self._consumers[number] = GrpcConsumer(known)
        return consumer

    async def _serve(self, consumer: GrpcConsumer, turn: _Turn, address: str) -> Attachment:
        """Wait for the turn of a stream, and attach it."""
        while True:
            while consumer.turns[-1] is not turn:
                turn.wake.clear()
                await turn.wake.wait()
            try:
                attachment = await self._attach_turn(consumer, turn, address)
            except (TopicNotFound, TopicDeleted, TopicExists) as error:
                await self._close(consumer)
                raise Refused(Code.UNAVAILABLE, error.message) from error
            except DanubiusError as error:
                # Somebody else is there, or the disk is full: subscribing again would help no more than waiting.
                log.info(
                    "a stream waits", extra={"consumer": consumer.known.consumer, "why": str(error)}
                )
                attachment = None
            if attachment is not None:
                return attachment
            await asyncio.sleep(WAIT_S)

    async def _attach_turn(
        self, consumer: GrpcConsumer, turn: _Turn, address: str
    ) -> Attachment | None:
        """None: it cannot be, for now."""
        async with consumer.lock:
            if consumer.turns[-1] is not turn or self._is_taken(consumer):
                return None
            attachment, consumer.spare = consumer.spare, None
            if attachment is None:
                attachment = await self._attach(consumer, address)
            if consumer.turns[-1] is not turn:  # a newer one came meanwhile
                attachment.close(REPLACED, is_clean=True)
                return None
            turn.attachment = attachment
            return attachment

    def _is_taken(self, consumer: GrpcConsumer) -> bool:
        """Whether a client of another protocol consumes under this name; it came later, and is not driven out."""
        known = consumer.known
        if consumer.spare is not None:
            return False
        return self._door.has_consumer(TopicName(known.topic), known.subscription, known.consumer)

    async def _after(self, consumer: GrpcConsumer, reason: DanubiusError) -> None:
        """What follows when a consumer is over: another turn, or the end of its stream."""
        if reason is REPLACED or isinstance(reason, SubscriptionMoved | ConsumerReplaced):
            return
        if isinstance(reason, ShuttingDown):
            raise reason
        if isinstance(reason, LedgerDamaged):
            await asyncio.sleep(CLOSE_TOLD_S)  # its client comes again at once
            raise reason
        await self._close(consumer)
        raise Refused(Code.UNAVAILABLE, reason.message)

    async def _close(self, consumer: GrpcConsumer) -> None:
        """Let the client hear that it has to subscribe again, before its stream ends."""
        if consumer.closing is None:
            consumer.closing = asyncio.Event()
        await _wait_told(consumer.closing)

    async def _hold_stranger(self, number: int) -> None:
        told = self._strangers.setdefault(number, asyncio.Event())
        try:
            await _wait_told(told)
        finally:
            self._strangers.pop(number, None)

    def _leave(self, consumer: GrpcConsumer, turn: _Turn) -> None:
        if turn.attachment is not None:
            turn.attachment.close(LEFT, is_clean=False)
        consumer.turns.remove(turn)
        consumer.used_s = self._loop.time()
        if consumer.turns:
            consumer.turns[-1].wake.set()

    # ------------------------------------------------------------ health

    def is_well(self, number: int) -> bool:
        """Whether the client of a consumer may go on as it is; otherwise it subscribes again."""
        consumer = self._consumers.get(number)
        if consumer is not None:
            consumer.used_s = self._loop.time()
            if consumer.closing is None:
                return True
            consumer.closing.set()
            return False
        if self._book.find(number) is not None:
            return True
        told = self._strangers.get(number)
        if told is not None:
            told.set()
        return False

    def _forget_idle(self) -> None:
        before_s = self._loop.time() - IDLE_CONSUMER_S
        for number, consumer in list(self._consumers.items()):
            if consumer.turns or consumer.lock.locked() or consumer.used_s > before_s:
                continue
            if consumer.spare is not None:
                consumer.spare.close(LEFT, is_clean=True)
            del self._consumers[number]
        self._sweep = self._loop.call_later(SWEEP_S, self._forget_idle)

    # ------------------------------------------------------------ settling

    def ack(self, topic: str, subscription: str, offset: int) -> None:
        """A message is done with, whoever it was sent to."""
        for attachment in self._attached.get((topic, subscription), ()):
            if attachment.holds(offset):
                attachment.ack(offset)
                return
        # Its stream has ended, or the broker was restarted, since it was delivered.
        self._door.ack(topic, subscription, offset)

    def nack(self, topic: str, subscription: str, offset: int, delay_ms: int, reason: str) -> None:
        """A message has failed; one that is out with nobody is on its way again anyway."""
        for attachment in self._attached.get((topic, subscription), ()):
            if attachment.holds(offset):
                attachment.nack(offset, delay_ms, reason)
                return


def _take_over(consumer: GrpcConsumer, turn: _Turn) -> None:
    """The newest stream is the one that is served."""
    if consumer.turns and consumer.turns[-1].attachment is not None:
        consumer.turns[-1].attachment.close(REPLACED, is_clean=True)
    consumer.turns.append(turn)


async def _wait_told(told: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(CLOSE_TOLD_S):
            await told.wait()
            await asyncio.sleep(CLOSE_TAKEN_S)
    except TimeoutError:
        pass
