"""Producers of Danube's clients: messages that come one by one are gathered into batches, each answered when durable.

A client sends one message a call and has many calls under way. What a producer was sent while its last batch was on its
way becomes its next batch; the batches of all producers that are ready in one turn of the loop share one commit. A
producer is known by its topic and name, which every message carries: one that this broker has forgotten, because it was
silent or the broker was restarted, is opened again by its next message. Invariants: every message is answered once;
messages of one producer are stored in the order in which they came.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.edge.grpc.bounds import (
    GATHERED_BYTES_MAX,
    GATHERED_MESSAGES_MAX,
    IDLE_PRODUCER_S,
    PRODUCERS_MAX,
    SILENT_PRODUCER_S,
    SWEEP_S,
    WAITING_BYTES_MAX,
)
from danubius.edge.grpc.names import number_of
from danubius.edge.in_process import Line
from danubius.errors import (
    BrokerUnavailable,
    DanubiusError,
    HandleNotFound,
    LimitReached,
    MessageTooLarge,
    Overloaded,
    ProducerBusy,
    ShuttingDown,
    TopicNotFound,
)
from danubius.model.topic import Dispatch, TopicSpec
from danubius.record.encode import encode
from danubius.runtime.answers import answer_of
from danubius.wire.commands import (
    Access,
    CloseProducer,
    OpenProducer,
    Produce,
    ProducerClosed,
    ProducerOpened,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from danubius.edge.in_process import Answer
    from danubius.model.buffers import Buffer
    from danubius.model.ids import TopicName
    from danubius.session.door import Door
    from danubius.session.found import ProducerLife
    from danubius.wire.commands import AnyCommand

_ADDRESS: Final = "grpc"


OnStored = Callable[[DanubiusError | None], None]
"""Hears that a message is stored, or why not."""


class Draft(NamedTuple):
    """One message on its way in."""

    payload: bytes
    key: bytes | None
    attributes: Mapping[str, str] | None
    time_us: int
    schema: tuple[int, int]
    """Its number and version; (0, 0): none."""
    size: int
    """With all that came with it."""

    def check(self, topic: TopicName, limit: int) -> None:
        """Refuse what is larger than its topic allows: a batch is looked at as a whole, this one is not alone in it."""
        if self.size <= limit:
            return
        size = len(self.payload) + len(self.key or b"")
        for name, value in (self.attributes or {}).items():
            size += len(name.encode()) + len(value.encode())
        if size > limit:
            raise MessageTooLarge(
                f"the message has {size:,} bytes, {topic} accepts at most {limit:,}"
            )


class _Send(NamedTuple):
    draft: Draft
    stored: OnStored


class GrpcProducer:
    """One producer of one topic, shared by all clients that use its name."""

    def __init__(self, owner: Producers, topic: TopicName, name: str) -> None:
        self._owner = owner
        self.topic = topic
        self.name = name
        self.number = number_of(topic, name)
        self.handle = 0
        """0: it is not open."""
        self.opened = asyncio.Event()
        """Set when it is open, or could not be opened."""
        self.error: DanubiusError | None = None
        self.used_s = 0.0
        self._waiting: deque[_Send] = deque()
        self._apart: deque[_Send] = deque()
        """What was refused together with others: each for itself."""
        self._is_sending = False

    @property
    def was_ended(self) -> bool:
        return not self.handle and self.opened.is_set()

    @property
    def is_busy(self) -> bool:
        return self._is_sending or bool(self._waiting) or not self.handle

    def add(self, draft: Draft, on_stored: OnStored) -> None:
        """Take a message, also while it is being opened."""
        self._waiting.append(_Send(draft, on_stored))
        self._owner.waiting_bytes += draft.size
        if self.handle and not self._is_sending:
            self._owner.make_ready(self)

    def begin(self, handle: int) -> None:
        """It is open: what came meanwhile goes out."""
        self.handle = handle
        if self._waiting:
            self._owner.make_ready(self)

    def send_batch(self) -> None:
        """Publish what has gathered, if nothing is on its way."""
        if self._is_sending or not self.handle:
            return
        sends = self._take()
        if not sends:
            return
        life = self._owner.line.session.producer_life(self.handle)
        if life is None:
            self._settle(sends, HandleNotFound(f"the producer {self.name!r} was ended; try again"))
            self.end(BrokerUnavailable(f"the producer {self.name!r} was ended; try again"))
            return
        self._is_sending = True
        answered = functools.partial(self._answered, sends)
        try:
            batch = _encode(sends, life)
            self._owner.line.start(Produce(self.handle), batch, answered)
        except DanubiusError as error:
            answered(error)

    def _take(self) -> list[_Send]:
        """What goes into the next batch: as much as there is of one schema, within bounds."""
        if self._apart:
            return [self._apart.popleft()]
        waiting, sends, size = self._waiting, list[_Send](), 0
        while waiting and len(sends) < GATHERED_MESSAGES_MAX:
            draft = waiting[0].draft
            if sends and (
                draft.schema != sends[0].draft.schema or size + draft.size > GATHERED_BYTES_MAX
            ):
                break
            size += draft.size
            sends.append(waiting.popleft())
        return sends

    def _answered(self, sends: list[_Send], answer: Answer | DanubiusError) -> None:
        self._is_sending = False
        if isinstance(answer, DanubiusError) and not answer.is_retryable and len(sends) > 1:
            # One of them cannot be stored, which is no reason not to store the others.
            self._apart.extend(sends)
        else:
            self._settle(sends, answer if isinstance(answer, DanubiusError) else None)
        if self._waiting or self._apart:
            self._owner.make_ready(self)

    def _settle(self, sends: list[_Send], error: DanubiusError | None) -> None:
        for send in sends:
            self._owner.waiting_bytes -= send.draft.size
            send.stored(error)

    def end(self, error: DanubiusError) -> None:
        """It is no longer open; what waits is answered with the reason."""
        self.handle = 0
        self._settle([*self._apart, *self._waiting], error)
        self._apart.clear()
        self._waiting.clear()


def _encode(sends: Sequence[_Send], life: ProducerLife) -> bytearray:
    drafts = [send.draft for send in sends]
    schema_id, schema_version = drafts[0].schema
    has_keys = any(draft.key is not None for draft in drafts)
    has_attributes = any(draft.attributes for draft in drafts)
    return encode(
        [draft.payload for draft in drafts],
        publish_time_us=[draft.time_us for draft in drafts],
        keys=[draft.key for draft in drafts] if has_keys else None,
        attributes=[draft.attributes for draft in drafts] if has_attributes else None,
        producer_id=life.producer_id,
        producer_epoch=life.epoch,
        base_sequence=life.next_sequence,
        schema_id=schema_id,
        schema_version=schema_version,
    )


class Producers:
    """Everything that Danube's clients publish."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self.loop = door.loop
        self.line = Line(door, _ADDRESS, self._heard, self._arm)
        self.waiting_bytes = 0
        self._known: dict[tuple[str, str], GrpcProducer] = {}
        self._by_number: dict[int, GrpcProducer] = {}
        self._by_handle: dict[int, GrpcProducer] = {}
        self._ready: dict[GrpcProducer, None] = {}
        self._is_armed = False
        self._openings: set[asyncio.Task[None]] = set()
        """Of producers that a message brought back."""
        self._sweep = self.loop.call_later(SWEEP_S, self._close_idle)

    def __len__(self) -> int:
        return len(self._known)

    def close(self) -> None:
        self._sweep.cancel()
        for opening in self._openings:
            opening.cancel()
        for producer in list(self._known.values()):
            producer.end(ShuttingDown("the broker is stopping; try again"))
        self.line.close()

    # ------------------------------------------------------------ sending

    async def send(self, topic: TopicName, name: str, draft: Draft) -> None:
        """Store a message; returns once it is as durable as its topic asks."""
        await answer_of(lambda stored: self.start_send(topic, name, draft, stored))

    def start_send(self, topic: TopicName, name: str, draft: Draft, on_stored: OnStored) -> None:
        """Store a message; `on_stored` hears how that ended. What is wrong from the beginning is raised."""
        if self.waiting_bytes + draft.size > WAITING_BYTES_MAX:
            raise Overloaded("too much waits for the broker's disk; try again in a second")
        limit = self._door.message_bytes_max(topic)
        if limit is not None:
            draft.check(topic, limit)
        producer = self._known.get((topic, name))
        if producer is None or producer.was_ended:
            dispatch = self._dispatch_of(topic)
            producer = self._make(topic, name)
            opening = self.loop.create_task(self._open(producer, dispatch, Access.SHARED))
            self._openings.add(opening)
            opening.add_done_callback(self._opened)
        producer.used_s = self.loop.time()
        producer.add(draft, on_stored)

    def _opened(self, opening: asyncio.Task[None]) -> None:
        self._openings.discard(opening)
        if not opening.cancelled():
            opening.exception()  # whoever waits for the producer was told

    def _dispatch_of(self, topic: TopicName) -> Dispatch:
        found = self._door.lookup(topic)
        if found is None or found.partitions:
            raise TopicNotFound(f"topic {topic} does not exist: create the producer again")
        return found.spec.dispatch

    def make_ready(self, producer: GrpcProducer) -> None:
        """It has something to send: with all others of this turn."""
        self._ready[producer] = None
        self._arm()

    def _arm(self) -> None:
        if not self._is_armed and self._ready:
            self._is_armed = True
            self.loop.call_soon(self._send_ready)

    def _send_ready(self) -> None:
        self._is_armed = False
        # Whoever is left when the broker has no more room goes on when it has.
        while self._ready and self.line.is_ready:
            producer = next(iter(self._ready))
            del self._ready[producer]
            producer.send_batch()

    # ------------------------------------------------------------ opening

    async def open(
        self, topic: TopicName, name: str, dispatch: Dispatch, access: Access
    ) -> GrpcProducer:
        """An open producer; whoever comes while it is being opened waits for the first."""
        producer = self._known.get((topic, name))
        if producer is None or producer.was_ended:
            producer = self._make(topic, name)
            await self._open(producer, dispatch, access)
        else:
            await producer.opened.wait()
            if producer.error is not None:
                raise producer.error
        producer.used_s = self.loop.time()
        return producer

    def _make(self, topic: TopicName, name: str) -> GrpcProducer:
        """One that is not open yet, in the place of one that was ended."""
        before = self._known.get((topic, name))
        if before is not None:
            self._forget(before)
        if len(self._known) >= PRODUCERS_MAX:
            self._close_oldest()
        producer = self._known[topic, name] = GrpcProducer(self, topic, name)
        return producer

    async def _open(self, producer: GrpcProducer, dispatch: Dispatch, access: Access) -> None:
        try:
            handle = await self._open_handle(producer.topic, producer.name, dispatch, access)
            self._by_number[producer.number] = producer
            self._by_handle[handle] = producer
            producer.begin(handle)
        except BaseException as error:
            self._forget(producer)
            is_told = isinstance(error, DanubiusError)
            producer.error = error if is_told else Overloaded("the producer was not opened in time")
            producer.end(producer.error)
            raise
        finally:
            producer.opened.set()

    async def _open_handle(
        self, topic: TopicName, name: str, dispatch: Dispatch, access: Access
    ) -> int:
        known = self._door.find_producer(topic, name)
        if known.is_attached:
            raise ProducerBusy(
                f"a producer named {name!r} of another client is connected to {topic}; "
                "choose another name, or wait until it has left"
            )
        asked = OpenProducer(topic, name, TopicSpec(dispatch), known.epoch, access)
        try:
            answer = await self.line.ask(asked)
        except LimitReached:
            if not self._close_silent(topic):
                raise
            answer = await self.line.ask(asked)
        return int(answer.command.handle)

    def _heard(self, command: AnyCommand, payload: Sequence[Buffer]) -> None:
        """The broker ended a producer, or opened one that nobody waits for any more."""
        del payload
        if isinstance(command, ProducerOpened):
            self.loop.call_soon(self.line.tell, CloseProducer(command.handle))
        elif isinstance(command, ProducerClosed):
            producer = self._by_handle.get(command.handle)
            if producer is not None:
                self._forget(producer)
                producer.end(BrokerUnavailable(f"{command.message}; try again"))

    # ------------------------------------------------------------ idleness

    def touch(self, number: int) -> None:
        """Its client is there."""
        producer = self._by_number.get(number)
        if producer is not None:
            producer.used_s = self.loop.time()

    def _forget(self, producer: GrpcProducer) -> None:
        if self._known.get((producer.topic, producer.name)) is producer:
            del self._known[producer.topic, producer.name]
        if self._by_number.get(producer.number) is producer:
            del self._by_number[producer.number]
        if self._by_handle.get(producer.handle) is producer:
            del self._by_handle[producer.handle]

    def _leave(self, producer: GrpcProducer) -> None:
        handle = producer.handle
        self._forget(producer)
        producer.end(BrokerUnavailable("the producer was idle; try again"))
        self.line.tell(CloseProducer(handle))

    def _close_oldest(self) -> None:
        """Those unused for longest, several at once: looking for them takes longer than opening one."""
        idle = [one for one in self._known.values() if not one.is_busy]
        if not idle:
            raise Overloaded("too many producers are busy; try again in a second")
        for one in heapq.nsmallest(PRODUCERS_MAX // 100, idle, key=lambda one: one.used_s):
            self._leave(one)

    def _close_silent(self, topic: TopicName) -> bool:
        """Let the producers of a topic go whose clients seem to be gone; False: there are none."""
        before_s = self.loop.time() - SILENT_PRODUCER_S
        silent = [
            one
            for one in self._known.values()
            if one.topic == topic and not one.is_busy and one.used_s <= before_s
        ]
        for one in silent:
            self._leave(one)
        return bool(silent)

    def _close_idle(self) -> None:
        before_s = self.loop.time() - IDLE_PRODUCER_S
        for producer in list(self._known.values()):
            if not producer.is_busy and producer.used_s <= before_s:
                self._leave(producer)
        self._sweep = self.loop.call_later(SWEEP_S, self._close_idle)
