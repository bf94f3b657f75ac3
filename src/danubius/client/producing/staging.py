"""Staging: what many processes write for one batch of a job, and the commit by which one of them publishes it.

A stage outlives its connection and the broker: what was not answered is sent again, in order, on the next connection,
and the broker passes over what it has. So a stage fails only where the broker says so, or when it stays away. It is
kept by the broker that serves its first topic, and moves with that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from danubius.client.connection.gate import Gate
from danubius.client.connection.partitions import count_partitions
from danubius.client.core.checks import to_draft
from danubius.client.options import random_name, topic_of
from danubius.errors import (
    BrokerUnavailable,
    DanubiusError,
    DeadlineExceeded,
    InvalidArgument,
    Overloaded,
    Retry,
    TopicExists,
    TopicMoved,
    TopicNotFound,
)
from danubius.model.ids import parse_name
from danubius.model.partitions import partition_name, route
from danubius.model.topic import TopicSpec
from danubius.record.encode import encode
from danubius.runtime import ambient
from danubius.wire.commands import (
    AbortStages,
    CommitStages,
    CreateTopic,
    Done,
    Located,
    Lookup,
    OpenStage,
    StageOpened,
    Upload,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from danubius.client.connection.connections import Connections
    from danubius.client.connection.link import Link
    from danubius.client.connection.route import Route
    from danubius.client.connection.session import Session
    from danubius.model.buffers import Buffer
    from danubius.model.ids import TopicName
    from danubius.wire.commands import AnyCommand

ReplyT = TypeVar("ReplyT", bound="AnyCommand")

WINDOW_BYTES: Final = 16 * 1024 * 1024
"""What may be on its way to the broker; upload() waits at it."""
_BUSY_WAIT_S: Final = 0.2


class StageReceipt(NamedTuple):
    """What a commit has to know of a stage. Plain values: it travels to whoever commits."""

    stage: int
    """0: the batch was committed before, and nothing was staged."""
    batches: int
    messages: int
    topic: str = ""
    """The first that was staged for: whoever serves it has the stage. Empty: nothing was staged."""


class RequestTarget(Protocol):
    """A link, or the route to a topic."""

    async def request(
        self, command: AnyCommand, reply_type: type[ReplyT]
    ) -> tuple[ReplyT, memoryview]: ...

    def check_open(self) -> None: ...


async def open_stage(connections: Connections, job: str, batch: int, task: str | None) -> Stage:
    """Ask for a stage; one that is there already goes on, whatever was uploaded by others into it."""
    parse_name("job", job)
    name = random_name("task") if task is None else parse_name("task", task)
    patience_s = connections.options.reconnect_timeout_s
    opening = OpenStage(job, batch, name)
    opened, _ = await _patiently(connections.home, opening, StageOpened, patience_s)
    return Stage(connections, opening, opened)


class Stage:
    """Messages of one attempt of one task; seen by nobody before the commit. Made by `Client.stage`."""

    def __init__(self, connections: Connections, opening: OpenStage, opened: StageOpened) -> None:
        self._connections = connections
        self._opening = opening
        self._route: Route | None = None
        """To the broker of the first topic, which has the stage."""
        self._has_answers = False
        """Whether a broker has taken something: the stage is there, and moves with the topic."""
        self._is_refused = False
        """The broker says that it is not the one."""
        self._link: Link | None = None
        """Where the stage was opened."""
        self._options = connections.options
        self._number = opened.stage
        self._next = opened.next_index
        self._messages = 0
        self._partitions: dict[TopicName, int] = {}
        self._turn = 0
        self._unanswered: deque[tuple[Upload, Buffer]] = deque()
        self._unanswered_bytes = 0
        self._answers = Gate()
        self._is_lost = False
        """The connection went before everything was answered."""
        self._failed_calls = 0
        self._refused_since_s: float | None = None
        self._error: DanubiusError | None = None

    @property
    def is_over(self) -> bool:
        """Whether the batch was committed before: nothing that is staged for it would count, so nothing is sent."""
        return self._number == 0

    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has, 0 for a plain one; it is created if it does not exist."""
        name = topic_of(topic)
        known = self._partitions.get(name)
        if known is None:
            known = self._partitions[name] = await self._find(name)
        return known

    async def _find(self, name: TopicName) -> int:
        link, patience_s = self._connections.home, self._options.reconnect_timeout_s
        try:
            located, _ = await _patiently(link, Lookup(name), Located, patience_s)
        except TopicNotFound:
            # Somebody else may be as quick, and its namespace may have a rule for new topics.
            with contextlib.suppress(TopicExists):
                command = CreateTopic(name, TopicSpec(), exist_ok=True)
                await _patiently(link, command, Done, patience_s)
            return await count_partitions(link, name)
        return located.partitions

    async def send_many(
        self,
        topic: str,
        payloads: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        attributes: Sequence[Mapping[str, str] | None] | None = None,
    ) -> None:
        """Stage messages for a topic, as one batch a partition; for large amounts encode batches and `upload` them."""
        draft = to_draft(payloads, keys, attributes)
        count = await self.partitions(topic)
        groups: dict[int, list[int]] = {}
        for index in range(len(payloads)) if count else ():
            key = None if keys is None else keys[index]
            if key is None:
                self._turn = home = (self._turn + 1) % count
            else:
                home = route(key, count)
            groups.setdefault(home, []).append(index)
        if not count and payloads:
            groups[0] = list(range(len(payloads)))
        for home, group in groups.items():
            batch = encode(
                [draft.payloads[i] for i in group],
                publish_time_us=ambient.wall_ns() // 1000,
                keys=None if draft.keys is None else [draft.keys[i] for i in group],
                attributes=(
                    None if draft.attributes is None else [draft.attributes[i] for i in group]
                ),
            )
            await self.upload(topic, batch, len(group), partition=home if count else None)

    async def upload(
        self, topic: str, batch: Buffer, messages: int, *, partition: int | None = None
    ) -> None:
        """Stage an encoded record batch for a plain topic, or for a partition; `finish` waits until it is written."""
        if self._error is not None:
            raise self._error
        if self.is_over:
            return
        name = topic_of(topic)
        if self._route is None:
            await self._choose_broker(name)
            if self.is_over:
                return
        target = name if partition is None else partition_name(name, partition)
        upload = Upload(self._number, self._next, target)
        self._next += 1
        self._messages += messages
        self._unanswered.append((upload, batch))
        self._unanswered_bytes += len(batch)
        if not self._is_lost:
            self._send(upload, batch, await self._wait_up())
        await self._wait(WINDOW_BYTES)

    async def finish(self) -> StageReceipt:
        """Wait until everything is written. Give what this returns to whoever commits."""
        await self._wait(0)
        topic = "" if self._route is None else self._route.topic
        return StageReceipt(self._number, self._next, self._messages, topic)

    # ------------------------------------------------------------ the broker

    async def _choose_broker(self, topic: TopicName) -> None:
        """Its first topic decides where a stage is."""
        (route,) = await self._connections.routes([topic])
        self._link = self._connections.home
        self._route = route
        await self._move_if_elsewhere(route)

    async def _move_if_elsewhere(self, route: Route) -> None:
        """Open the stage where its topic is, if that is known to be elsewhere; what was sent is not there yet."""
        if route.link is self._link:
            return
        patience_s = self._options.reconnect_timeout_s
        opened, _ = await _patiently(route, self._opening, StageOpened, patience_s)
        self._link = route.link
        before, self._number, self._next = self._number, opened.stage, opened.next_index
        if before and self.is_over:
            self._unanswered.clear()
            self._unanswered_bytes = 0
        for at, (upload, batch) in enumerate(self._unanswered):
            moved = Upload(self._number, self._next, upload.topic)
            self._unanswered[at] = moved, batch
            self._next += 1

    async def _wait_up(self) -> Session:
        """The connection to send on; behind a refusal to another broker than before."""
        assert self._route is not None
        timeout_s = self._options.reconnect_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                session = await self._route.wait_up()
                if self._is_refused and not self._has_answers:
                    await self._move_if_elsewhere(self._route)
                    session = await self._route.wait_up()
        except TimeoutError:
            raise self._route.unanswered("UPLOAD", timeout_s) from None
        self._is_refused = False
        return session

    def _send(self, upload: Upload, batch: Buffer, session: Session) -> None:
        assert self._route is not None
        current = self._route.session_or_none
        if self._is_lost or current is None or current is not session:
            self._is_lost = True
            return
        self._failed_calls += 1
        current.call(upload, partial(self._on_reply, current, upload, batch), (batch,))

    def _on_reply(
        self,
        session: Session,
        upload: Upload,
        batch: Buffer,
        reply: AnyCommand | DanubiusError,
        _payload: memoryview,
    ) -> None:
        self._failed_calls -= 1
        if isinstance(reply, BrokerUnavailable):
            self._is_lost = True
        elif isinstance(reply, DanubiusError) and reply.retry is Retry.AFTER_LOOKUP:
            self._on_refused(session, reply)
        elif isinstance(reply, DanubiusError):
            self._error = self._error or reply
        else:
            # Answers may overtake each other, where a limit makes one wait.
            self._has_answers = True
            self._refused_since_s = None
            self._unanswered.remove((upload, batch))
            self._unanswered_bytes -= len(batch)
        self._answers.open()

    def _on_refused(self, session: Session, error: DanubiusError) -> None:
        """A topic is served elsewhere: all of it goes again, there; not for ever, if its topics are apart."""
        assert self._route is not None
        now_s = asyncio.get_running_loop().time()
        if self._refused_since_s is None:
            self._refused_since_s = now_s
        elif now_s - self._refused_since_s > self._options.reconnect_timeout_s:
            self._error = self._error or type(error)(
                f"the topics of one stage have to be served by one broker: {error.message}"
            )
        self._is_lost = self._is_refused = True
        self._route.look_again(session)

    async def _wait(self, bytes_max: int) -> None:
        """Until at most so many bytes have no answer; what a lost connection swallowed goes again."""
        timeout_s = self._options.request_timeout_s
        while self._unanswered if not bytes_max else self._unanswered_bytes > bytes_max:
            if self._error is not None:
                raise self._error
            if self._is_lost and not self._failed_calls:
                session = await self._wait_up()
                self._is_lost = False
                for upload, batch in list(self._unanswered):
                    self._send(upload, batch, session)
                if self._is_lost:
                    await asyncio.sleep(_BUSY_WAIT_S)
                continue
            try:
                async with asyncio.timeout(timeout_s * 4):
                    await self._answers.wait()
            except TimeoutError:
                raise DeadlineExceeded(
                    f"the broker did not answer for {timeout_s * 4:g} s while a stage was written"
                ) from None
        if self._error is not None:
            raise self._error


async def commit_stages(
    connections: Connections,
    job: str,
    batch: int,
    receipts: Sequence[StageReceipt],
    timeout_s: float,
) -> None:
    """Ask until it is committed, or refused, or the time is over."""
    parse_name("job", job)
    if batch < 0:
        raise InvalidArgument(f"the batch is {batch}; batches are numbered from 0")
    stages = [(receipt.stage, receipt.batches) for receipt in receipts if receipt.stage]
    broker = await _broker_of(connections, receipts)
    await _patiently(broker, CommitStages(job, batch, stages), Done, timeout_s)


async def abort_stages(
    connections: Connections, job: str, batch: int, receipts: Sequence[StageReceipt]
) -> None:
    """Drop stages of a batch; without any, all of them."""
    stages = [(receipt.stage, receipt.batches) for receipt in receipts if receipt.stage]
    broker = await _broker_of(connections, receipts)
    await broker.request(AbortStages(job, batch, stages), Done)


async def _broker_of(connections: Connections, receipts: Sequence[StageReceipt]) -> RequestTarget:
    """Who has these stages: one broker has all of them, or there is nothing that could commit them together."""
    topics = sorted({topic_of(receipt.topic) for receipt in receipts if receipt.topic})
    if not topics:
        return connections.home
    routes = await connections.routes(topics)
    for other in routes[1:]:
        if other.link is not routes[0].link:
            raise InvalidArgument(
                f"{routes[0].topic} is served by {routes[0].link.address.url}, and {other.topic} by"
                f" {other.link.address.url}: the topics of one batch have to be served by one broker"
            )
    return routes[0]


async def _patiently(
    asked: RequestTarget, command: AnyCommand, reply_type: type[ReplyT], timeout_s: float
) -> tuple[ReplyT, memoryview]:
    """A request that may be repeated: one that takes long, comes at a busy moment, or while the broker restarts."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            return await asked.request(command, reply_type)
        except (BrokerUnavailable, DeadlineExceeded, Overloaded, TopicMoved):
            asked.check_open()
            if loop.time() >= deadline:
                raise
            await asyncio.sleep(_BUSY_WAIT_S)
