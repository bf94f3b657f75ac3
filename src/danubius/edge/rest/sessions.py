"""Consumers for HTTP: sessions that live from one request to the next.

A session is a consumer of a subscription, or one of each partition. It asks the broker for exactly as many messages as
a request wants, so that none wait here while others could work on them; what comes after a request gave up is kept for
the next, as long as its lease lasts. What is not acknowledged within the ack time-out goes out again, and a session
that nobody asks anything of for its idle time ends like a consumer whose connection broke.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec

from danubius.edge.in_process import Line
from danubius.edge.rest.bounds import SESSION_BYTES, SESSIONS_MAX
from danubius.edge.rest.messages import Filling, SeenMessage, Slice, slices
from danubius.edge.rest.problems import SessionNotFound
from danubius.edge.rest.reading import MessageLimit, Wait, take
from danubius.errors import (
    DanubiusError,
    InvalidArgument,
    Overloaded,
    SubscriptionMoved,
    error_from_code,
)
from danubius.model import admin
from danubius.model.admin import OFFSET_MAX
from danubius.model.policy import FailurePolicy
from danubius.model.subscription import LATEST, Position, SubscriptionType
from danubius.wire.commands import (
    Ack,
    CloseConsumer,
    ConsumerClosed,
    Deliver,
    Flow,
    Nack,
    Subscribe,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.model.buffers import Buffer
    from danubius.session.door import Door
    from danubius.wire.commands import AnyCommand

_AckTimeout = Annotated[int, msgspec.Meta(ge=1_000, le=3_600_000)]
_Idle = Annotated[int, msgspec.Meta(ge=1_000, le=3_600_000)]
_Offset = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX - 1)]
_Filter = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_NackDelay = Annotated[int, msgspec.Meta(ge=0, le=24 * 3600 * 1000)]
RANGES_MAX: Final = 10_000


class OpenConsumer(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Attach a consumer to a subscription, which is created if need be."""

    topic: str
    subscription: str
    type: SubscriptionType = SubscriptionType.EXCLUSIVE
    """How the consumers of the subscription share its messages."""
    start: Position = LATEST
    """Where the subscription begins, if it is created."""
    consumer: str | None = None
    """A name; null: one is made up."""
    ack_timeout_ms: _AckTimeout = 30_000
    """What is not acknowledged after this long goes out again."""
    idle_timeout_ms: _Idle = 60_000
    """The session ends when it was asked for nothing for this long."""
    key_filters: Annotated[list[_Filter], msgspec.Meta(max_length=100)] = []
    """Key-shared only: patterns with `*` and `?` of the keys that this consumer takes; none: all."""
    failure: FailurePolicy | None = None
    """Of the subscription, if it is created; null: as the topic's policies say."""
    skip_damaged: bool = False
    """Pass over stored ranges that fail their checksum."""


class OfSession(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A request of one session."""

    session: str
    """As it was given when the consumer was opened."""


class DescribeSession(OfSession, frozen=True, gc=False):
    """How does a session stand?"""


class CloseSession(OfSession, frozen=True, gc=False):
    """End a session; what it had not acknowledged goes to others."""


class ReceiveMessages(OfSession, frozen=True, gc=False):
    """Take messages; each is leased until it is acknowledged or its ack time-out is over."""

    limit: MessageLimit = 100
    """Messages at the most."""
    wait_ms: Wait = 0
    """How long to wait for the first of them."""


class Settle(OfSession, frozen=True, gc=False, kw_only=True):
    """A request about messages that were received."""

    topic: str | None = None
    """The partition that the offsets are of; null if the topic is not partitioned."""
    offsets: Annotated[list[_Offset], msgspec.Meta(max_length=RANGES_MAX)] = []
    """Single messages."""
    ranges: Annotated[list[tuple[_Offset, _Offset]], msgspec.Meta(max_length=RANGES_MAX)] = []
    """Runs of them: the first offset, and the one behind the last."""


class AckMessages(Settle, frozen=True, gc=False, kw_only=True):
    """Acknowledge messages; answers once that is durable."""

    up_to: _Offset | None = None
    """All up to and with this offset."""


class NackMessages(Settle, frozen=True, gc=False, kw_only=True):
    """Give messages back, to be delivered again."""

    delay_ms: _NackDelay = 0
    """Not before this long."""
    reason: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """What went wrong; kept with a message that ends as a dead letter."""


class SessionDescribed(msgspec.Struct, frozen=True, gc=False):
    """A session."""

    session: str
    """Give it with every request; whoever has it can consume."""
    topic: str
    subscription: str
    consumer: str
    topics: list[str]
    """What it consumes: the topic, or its partitions."""
    ack_timeout_ms: int
    idle_timeout_ms: int
    is_active: bool = True
    """False for a standby of a failover subscription."""
    buffered_messages: int = 0
    """Delivered here and not received yet."""


class MessagesReceived(msgspec.Struct, frozen=True, gc=False):
    """Messages of a subscription, each to be acknowledged."""

    messages: list[SeenMessage]


class _Held(NamedTuple):
    """Some messages that were delivered here and not received yet."""

    topic: str
    part: Slice
    again: int
    until_s: float
    """When their lease is over."""


class _Attached:
    """The consumer of one topic or partition."""

    __slots__ = ("bytes", "handle", "messages")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.messages = 0
        """Asked for and not delivered."""
        self.bytes = 0


class ConsumerSession:
    """One consumer over HTTP."""

    def __init__(
        self, door: Door, request: OpenConsumer, on_ended: Callable[[ConsumerSession], None]
    ) -> None:
        self._door = door
        self._loop = door.loop
        self._line = Line(door, "http", self._heard)
        self._on_ended = on_ended
        self._attached: dict[str, _Attached] = {}
        self._held: deque[_Held] = deque()
        self._arrived = asyncio.Event()
        self._error: DanubiusError | None = None
        self._is_receiving = False
        self._idle: asyncio.TimerHandle | None = None
        self._used_s = self._loop.time()
        self._consumer = request.consumer or f"http-{secrets.token_hex(4)}"
        self.request = request
        self.name = secrets.token_urlsafe(18)

    async def open(self) -> None:
        admin.SeekSubscription(
            self.request.topic, self.request.subscription, self.request.start
        ).check()
        await self._attach()
        self._watch()

    async def _attach(self) -> None:
        """Be on every partition there is, also after the topic has grown or the subscription has moved."""
        request = self.request
        for topic in self._door.parts_of(request.topic):
            if topic in self._attached:
                continue
            answer = await self._line.ask(
                Subscribe(
                    topic,
                    request.subscription,
                    request.type,
                    self._consumer,
                    request.start,
                    request.ack_timeout_ms,
                    request.skip_damaged,
                    tuple(request.key_filters),
                    request.failure,
                )
            )
            self._attached[topic] = _Attached(answer.command.handle)

    def describe(self) -> SessionDescribed:
        request = self.request
        return SessionDescribed(
            self.name,
            request.topic,
            request.subscription,
            self._consumer,
            list(self._attached),
            request.ack_timeout_ms,
            request.idle_timeout_ms,
            self._line.session.is_consuming,
            sum(held.part.stop - held.part.start for held in self._held),
        )

    def close(self, *, is_clean: bool = False) -> None:
        """End it: because its user says so (`is_clean`), or because nobody asks for it any more."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if is_clean:
            for attached in self._attached.values():
                self._line.tell(CloseConsumer(attached.handle))
        self._line.close()
        self._held.clear()
        self._arrived.set()
        self._on_ended(self)

    # ------------------------------------------------------------ idleness

    def touch(self) -> None:
        self._used_s = self._loop.time()

    def _watch(self) -> None:
        """End it when nobody has asked for anything for so long."""
        left_s = self._used_s + self.request.idle_timeout_ms / 1000 - self._loop.time()
        if self._is_receiving:
            left_s = self.request.idle_timeout_ms / 1000
        if left_s <= 0:
            self.close()
        else:
            self._idle = self._loop.call_later(left_s, self._watch)

    # ------------------------------------------------------------ receiving

    async def receive(self, request: ReceiveMessages) -> MessagesReceived:
        if self._is_receiving:
            raise Overloaded("another request receives from this session; wait for its answer")
        self._is_receiving = True
        try:
            if self._error is None:
                await self._attach()
            messages = await self._receive(request)
            self._raise_error(messages)
            return MessagesReceived(messages)
        finally:
            self._is_receiving = False
            self.touch()

    async def _receive(self, request: ReceiveMessages) -> list[SeenMessage]:
        self._forget_expired()
        self._ask_for(request.limit)
        if not self._held and request.wait_ms and self._error is None:
            self._arrived.clear()
            try:
                async with asyncio.timeout(request.wait_ms / 1000):
                    await self._arrived.wait()
            except TimeoutError:
                pass
        filling = Filling(request.limit)
        while self._held and not filling.is_full:
            held = self._held.popleft()
            try:
                taken = await take(filling, held.topic, held.part, held.again)
            except DanubiusError:
                if filling.messages:
                    self._held.appendleft(held)  # said with the next request
                    break
                raise
            if taken < held.part.stop:
                held.part.start = taken
                self._held.appendleft(held)
        return filling.messages

    def _raise_error(self, messages: list[SeenMessage]) -> None:
        """Say why it ended, once there is nothing else to say."""
        if self._error is not None and not messages:
            self.close()
            raise self._error

    def _ask_for(self, limit: int) -> None:
        """Grant credit so that with what is held and under way, `limit` messages can come."""
        count = max(1, len(self._attached))
        held = sum(held.part.stop - held.part.start for held in self._held)
        wanted = -(-max(0, limit - held) // count)
        size = max(1, SESSION_BYTES // count)
        for attached in self._attached.values():
            messages = max(0, wanted - attached.messages)
            more_bytes = max(0, size - attached.bytes) if wanted else 0
            if messages or more_bytes:
                attached.messages += messages
                attached.bytes += more_bytes
                self._line.tell(Flow(attached.handle, messages, more_bytes))

    def _forget_expired(self) -> None:
        """What was held longer than its lease has gone out again."""
        now_s = self._loop.time()
        while self._held and self._held[0].until_s <= now_s:
            self._held.popleft()

    def _heard(self, command: AnyCommand, payload: Sequence[Buffer]) -> None:
        if isinstance(command, Deliver):
            self._delivered(command, payload)
        elif isinstance(command, ConsumerClosed):
            self._ended(command)

    def _delivered(self, command: Deliver, payload: Sequence[Buffer]) -> None:
        for topic, attached in self._attached.items():
            if attached.handle == command.handle:
                attached.messages -= command.messages
                attached.bytes -= sum(map(len, payload))
                until_s = self._loop.time() + self.request.ack_timeout_ms / 1000
                self._held.extend(
                    _Held(topic, part, command.redelivery_count, until_s)
                    for part in slices(payload, command.first, command.end)
                )
                self._arrived.set()

    def _ended(self, command: ConsumerClosed) -> None:
        """The broker ended a consumer. One that was moved attaches again with the next request."""
        for topic, attached in list(self._attached.items()):
            if attached.handle == command.handle:
                del self._attached[topic]
                self._held = deque(held for held in self._held if held.topic != topic)
                if command.code != SubscriptionMoved.code:
                    self._error = error_from_code(command.code, command.message)
        self._arrived.set()

    # ------------------------------------------------------------ settling

    async def ack(self, request: AckMessages) -> None:
        ranges = _ranges(request)
        if request.up_to is not None:
            ranges.append((0, request.up_to + 1))
        await self._settle(request, ranges, lambda handle: Ack(handle, ranges))

    async def nack(self, request: NackMessages) -> None:
        ranges = _ranges(request)
        await self._settle(
            request, ranges, lambda handle: Nack(handle, ranges, request.delay_ms, request.reason)
        )

    async def _settle(
        self, request: Settle, ranges: list[tuple[int, int]], command: Callable[[int], Any]
    ) -> None:
        self.touch()
        if not ranges:
            raise InvalidArgument("nothing is named; give offsets, ranges or up_to")
        attached = self._attached_to(request.topic)
        await self._line.ask(command(attached.handle))

    def _attached_to(self, topic: str | None) -> _Attached:
        if self._error is not None:
            raise self._error
        if topic is None and len(self._attached) == 1:
            return next(iter(self._attached.values()))
        attached = self._attached.get(topic or self.request.topic)
        if attached is None:
            if not self._attached:
                raise SubscriptionMoved(
                    "the subscription was moved; receive again, and acknowledge what comes then"
                )
            names = ", ".join(list(self._attached)[:3])
            raise InvalidArgument(
                f"the session consumes {len(self._attached)} topics and {topic!r} is none of them; "
                f"give the topic of the message, as one of {names}"
            )
        return attached


def _ranges(request: Settle) -> list[tuple[int, int]]:
    for first, end in request.ranges:
        if first >= end:
            raise InvalidArgument(f"the range [{first}, {end}) is empty; the second must be larger")
    return [*request.ranges, *((offset, offset + 1) for offset in request.offsets)]


class ConsumerSessions:
    """All sessions of one broker, by their names."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._sessions: dict[str, ConsumerSession] = {}
        self._opening = 0

    def __len__(self) -> int:
        return len(self._sessions)

    async def open(self, request: OpenConsumer) -> SessionDescribed:
        if len(self._sessions) + self._opening >= SESSIONS_MAX:
            raise Overloaded(
                f"{SESSIONS_MAX} consumer sessions are open; end some, or wait until they expire"
            )
        self._opening += 1
        session = ConsumerSession(self._door, request, self._forget)
        try:
            await session.open()
        except BaseException:
            session.close()
            raise
        finally:
            self._opening -= 1
        self._sessions[session.name] = session
        return session.describe()

    def find(self, name: str) -> ConsumerSession:
        session = self._sessions.get(name)
        if session is None:
            raise SessionNotFound(
                f"there is no session {name[:80]!r}: it expired or was ended; open a consumer again"
            )
        session.touch()
        return session

    def _forget(self, session: ConsumerSession) -> None:
        self._sessions.pop(session.name, None)

    def close(self) -> None:
        for session in list(self._sessions.values()):
            session.close()
