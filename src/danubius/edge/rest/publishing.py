"""Publishing for HTTP: a request becomes one batch for each topic it goes to, answered once that is durable.

Producers are opened when they are first needed and kept for some seconds. One that the topic remembers goes on where it
was, in the same life, so that a request that is repeated with its producer and sequence is recognised, also after a
restart of the broker. Requests without a producer share one name; their repetitions are stored again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from danubius.edge.in_process import Line
from danubius.edge.rest.bounds import IDLE_PRODUCER_S, PRODUCERS_MAX, READY_S
from danubius.edge.rest.messages import NewMessage, NewMessages
from danubius.errors import (
    DanubiusError,
    HandleNotFound,
    InvalidArgument,
    Overloaded,
    ProducerBusy,
    ProducerFenced,
    TopicExists,
)
from danubius.model.ids import TopicName, parse_name, parse_topic_name
from danubius.model.limits import DELAY_MAX_MS
from danubius.model.partitions import partition_name, route
from danubius.model.topic import Dispatch, TopicSpec
from danubius.record.encode import encode
from danubius.wire.commands import (
    CloseProducer,
    OpenProducer,
    Produce,
    ProducerClosed,
    ProducerOpened,
    Schedule,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.model.buffers import Buffer
    from danubius.session.door import Door
    from danubius.session.found import ProducerLife
    from danubius.wire.commands import AnyCommand

SHARED_NAME: Final = "http"
"""The producer of requests that name none."""
SCHEDULED: Final = -1
"""The offset of a message that has none yet."""
_Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Delay = Annotated[int, msgspec.Meta(ge=0, le=DELAY_MAX_MS)]


class PublishMessages(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Publish messages; they become one batch, or one for each partition they go to."""

    topic: str
    messages: NewMessages
    """In this order."""
    producer: str | None = None
    """A stable name of your own. With `sequence`, a request that is sent again is stored once."""
    sequence: _Sequence | None = None
    """The number of the first message among all of this producer, from 0; needs `producer`."""
    delay_ms: _Delay = 0
    """Deliver them after this many milliseconds, not before; the messages get their offsets then."""


class BinaryMessage(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """What the headers say of a message whose payload is the body."""

    key: str | None = None
    """The key as text."""
    attributes: str | None = None
    """The attributes as a JSON object of texts."""
    producer: str | None = None
    """A stable name of your own."""
    sequence: _Sequence | None = None
    """The number of the message among all of this producer, from 0."""
    delay_ms: _Delay = 0
    """Deliver it after this many milliseconds, not before."""


_attributes_decoder: Final = msgspec.json.Decoder(dict[str, str])


def publish_binary(topic: str, headers: BinaryMessage, body: bytes) -> PublishMessages:
    """One message: the body as it is."""
    try:
        attributes = _attributes_decoder.decode(headers.attributes or "{}")
    except (ValueError, RecursionError) as problem:
        raise InvalidArgument(
            f"the header x-danubius-attributes is not understood: {problem}; "
            'it must be a JSON object of texts, as {"colour": "blue"}'
        ) from problem
    key = msgspec.UNSET if headers.key is None else headers.key
    message = NewMessage(base64=body, key=key, attributes=attributes)
    return PublishMessages(topic, [message], headers.producer, headers.sequence, headers.delay_ms)


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a message was stored."""

    topic: str
    """`/namespace/topic`; of a partitioned topic, the partition."""
    offset: int
    """Its position there; -1 if it gets one when it is due."""


class MessagesPublished(msgspec.Struct, frozen=True, gc=False):
    """The messages are as durable as their topic asks, in the order of the request."""

    places: list[Place]
    next_sequence: int | None = None
    """Of the named producer: what its next request begins with."""


class Drafted(NamedTuple):
    """One message on its way."""

    payload: bytes
    key: bytes | None
    attributes: dict[str, str]


class _Open:
    """A producer that is open, or being opened."""

    __slots__ = ("error", "handle", "opened", "under_way", "used_s")

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        """Set when it is open, or could not be opened."""
        self.handle = 0
        self.error: DanubiusError | None = None
        self.under_way = 0
        """Requests that wait for its answer."""
        self.used_s = 0.0


class Publisher:
    """Everything that HTTP publishes."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._loop = door.loop
        self._line = Line(door, "http", self._heard)
        self._open: dict[tuple[str, str, bool], _Open] = {}
        self._turn = 0
        self._sweep: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._line.close()

    async def publish(self, request: PublishMessages) -> MessagesPublished:
        """Store the messages; answers once they are durable."""
        drafts = [
            Drafted(message.payload(), message.key_bytes(), message.attributes)
            for message in request.messages
        ]
        parse_topic_name(request.topic)
        _check_producer(request)
        await self._wait_ready()
        try:
            return await self._publish_routed(request, drafts)
        except TopicExists:
            # It may have been created by this very request, as one with partitions.
            found = self._door.lookup(request.topic)
            if found is None or not found.partitions:
                raise
            return await self._publish_routed(request, drafts)

    async def _wait_ready(self) -> None:
        try:
            async with asyncio.timeout(READY_S):
                await self._line.wait_ready()
        except TimeoutError:
            raise Overloaded(
                "too much waits for the broker's disk; try again in a second"
            ) from None

    async def _publish_routed(
        self, request: PublishMessages, drafts: Sequence[Drafted]
    ) -> MessagesPublished:
        groups = self._route(request, drafts)
        places: list[Place] = [Place("", 0)] * len(drafts)

        async def publish(topic: TopicName, indexes: Sequence[int]) -> DanubiusError | None:
            try:
                first = await self._publish_to(topic, request, [drafts[i] for i in indexes])
            except DanubiusError as error:
                return error
            for place, index in enumerate(indexes):
                places[index] = Place(topic, first + place if first >= 0 else -1)
            return None

        async with asyncio.TaskGroup() as tasks:
            under_way = [tasks.create_task(publish(*group)) for group in groups.items()]
        for task in under_way:
            error = task.result()
            if error is not None:
                raise error
        following = None if request.sequence is None else request.sequence + len(drafts)
        return MessagesPublished(places, following)

    def _route(
        self, request: PublishMessages, drafts: Sequence[Drafted]
    ) -> dict[TopicName, Sequence[int]]:
        """Which messages go where."""
        name = TopicName(request.topic)
        found = self._door.lookup(name)
        if found is None or not found.partitions:
            return {name: range(len(drafts))}
        if request.producer is not None:
            raise InvalidArgument(
                f"{name} is partitioned, and a sequence counts the messages of one topic: "
                f"publish to a partition, as {name}-part-0, or without a producer"
            )
        groups: dict[TopicName, list[int]] = {}
        for index, draft in enumerate(drafts):
            if draft.key is None:
                self._turn += 1
                part = self._turn % found.partitions
            else:
                part = route(draft.key, found.partitions)
            groups.setdefault(partition_name(name, part), []).append(index)
        return dict(groups)

    async def _publish_to(
        self, topic: TopicName, request: PublishMessages, drafts: Sequence[Drafted]
    ) -> int:
        """The offset of the first message, -1 if it has none yet."""
        name = request.producer or SHARED_NAME
        is_delayed = request.delay_ms > 0
        for _attempt in range(2):
            known = await self._producer(topic, name, is_delayed=is_delayed)
            life = self._line.session.producer_life(known.handle)
            if life is None:
                continue  # it was ended while this request waited for its opening
            batch = self._encode(life, request, drafts)
            known.under_way += 1
            try:
                if is_delayed:
                    due_ms = self._door.release_ms() + request.delay_ms
                    await self._line.ask(Schedule(known.handle, due_ms), batch)
                    return SCHEDULED
                answer = await self._line.ask(Produce(known.handle), batch)
            except (HandleNotFound, ProducerFenced):
                continue
            finally:
                known.under_way -= 1
            return int(answer.command.offset)
        raise Overloaded(f"the producer {name!r} on {topic} is ended again and again; try later")

    def _encode(
        self, life: ProducerLife, request: PublishMessages, drafts: Sequence[Drafted]
    ) -> bytearray:
        now_us = self._door.wall_us()
        sequence = request.sequence
        return encode(
            [draft.payload for draft in drafts],
            publish_time_us=now_us + request.delay_ms * 1000,
            keys=[draft.key for draft in drafts],
            attributes=[draft.attributes for draft in drafts],
            producer_id=life.producer_id,
            producer_epoch=life.epoch,
            base_sequence=life.next_sequence if sequence is None else sequence,
        )

    # ------------------------------------------------------------ producers

    async def _producer(self, topic: TopicName, name: str, *, is_delayed: bool) -> _Open:
        """An open producer; whoever comes while it is being opened waits for the first."""
        key = (topic, name, is_delayed)
        known = self._open.get(key)
        if known is not None:
            await known.opened.wait()
            if known.error is not None:
                raise known.error
        else:
            if len(self._open) >= PRODUCERS_MAX:
                self._close_oldest()
            known = self._open[key] = _Open()
            try:
                known.handle = await self._open_producer(topic, name, is_delayed=is_delayed)
            except BaseException as error:
                self._open.pop(key, None)
                is_told = isinstance(error, DanubiusError)
                known.error = error if is_told else Overloaded("opening the producer took too long")
                raise
            finally:
                known.opened.set()
            self._arm()
        known.used_s = self._loop.time()
        return known

    async def _open_producer(self, topic: TopicName, name: str, *, is_delayed: bool) -> int:
        spec, resume_epoch = TopicSpec(), 0
        existing = self._door.lookup(topic)
        if existing is not None:
            spec = existing.spec
        if not is_delayed:
            known = self._door.find_producer(topic, name)
            if known.is_attached:
                raise ProducerBusy(
                    f"a producer named {name!r} is connected to {topic} already; "
                    "choose another name, or wait until it has left"
                )
            resume_epoch = known.epoch
        command = OpenProducer(topic, name, spec, resume_epoch, is_delayed=is_delayed)
        if is_delayed and spec.dispatch is Dispatch.NON_RELIABLE:
            raise InvalidArgument(f"{topic} is non-reliable: it keeps nothing for later")
        answer = await self._line.ask(command)
        return int(answer.command.handle)

    def _heard(self, command: AnyCommand, payload: Sequence[Buffer]) -> None:
        """The broker ended a producer, or opened one that nobody waits for any more."""
        del payload
        if isinstance(command, ProducerOpened):
            self._loop.call_soon(self._line.tell, CloseProducer(command.handle))
        elif isinstance(command, ProducerClosed):
            for key, known in list(self._open.items()):
                if known.handle == command.handle:
                    del self._open[key]  # the next request opens it again

    def _close_oldest(self) -> None:
        idle = [
            (known.used_s, key)
            for key, known in self._open.items()
            if known.handle and not known.under_way
        ]
        if not idle:
            raise Overloaded("too many producers are busy over HTTP; try again in a second")
        self._close(min(idle)[1])

    def _close(self, key: tuple[str, str, bool]) -> None:
        self._line.tell(CloseProducer(self._open.pop(key).handle))

    def _arm(self) -> None:
        if self._sweep is None:
            self._sweep = self._loop.call_later(IDLE_PRODUCER_S, self._close_idle)

    def _close_idle(self) -> None:
        self._sweep = None
        before_s = self._loop.time() - IDLE_PRODUCER_S
        for key, known in list(self._open.items()):
            if known.handle and not known.under_way and known.used_s <= before_s:
                self._close(key)
        if self._open:
            self._arm()


def _check_producer(request: PublishMessages) -> None:
    if request.producer is not None:
        parse_name("producer", request.producer)
    if request.sequence is not None and request.producer is None:
        raise InvalidArgument("a sequence is a producer's: give producer too")
    if request.sequence is not None and request.delay_ms:
        raise InvalidArgument("a request with a sequence cannot be delayed: give one of the two")
