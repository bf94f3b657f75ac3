"""Staging: what many processes write for one batch of a job, and the commit by which one of them publishes it.

A stage outlives its connection and the broker: what was not answered is sent again, in order, on the next connection,
and the broker passes over what it has. So a stage fails only where the broker says so, or when it stays away.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from danubius.client.core.checks import to_draft
from danubius.client.gate import Gate
from danubius.client.options import random_name, topic_of
from danubius.client.partitions import count_partitions
from danubius.errors import (
    BrokerUnavailable,
    DanubiusError,
    DeadlineExceeded,
    InvalidArgument,
    Overloaded,
    TopicExists,
    TopicNotFound,
)
from danubius.model.ids import parse_name
from danubius.model.partitions import partition_name, route
from danubius.model.topic import TopicSpec
from danubius.record.encode import encode
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

    from danubius.client.link import Link
    from danubius.model.buffers import Buffer
    from danubius.model.ids import TopicName
    from danubius.wire.commands import AnyCommand

ReplyT = TypeVar("ReplyT", bound="AnyCommand")

WINDOW_BYTES: Final = 16 * 1024 * 1024
"""What may be on its way to the broker; upload() waits at it."""
_BUSY_WAIT_S: Final = 0.2


class StageReceipt(NamedTuple):
    """What a commit has to know of a stage. Plain numbers: it travels to whoever commits."""

    stage: int
    """0: the batch was committed before, and nothing was staged."""
    batches: int
    messages: int


async def open_stage(link: Link, job: str, batch: int, task: str | None) -> Stage:
    """Ask for a stage; one that is there already goes on, whatever was uploaded by others into it."""
    parse_name("job", job)
    name = random_name("task") if task is None else parse_name("task", task)
    patience_s = link.options.reconnect_timeout_s
    opened, _ = await _patiently(link, OpenStage(job, batch, name), StageOpened, patience_s)
    return Stage(link, opened)


class Stage:
    """Messages of one attempt of one task; seen by nobody before the commit. Made by `Client.stage`."""

    def __init__(self, link: Link, opened: StageOpened) -> None:
        self._link = link
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
        link, patience_s = self._link, self._link.options.reconnect_timeout_s
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
                publish_time_us=time.time_ns() // 1000,
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
        target = name if partition is None else partition_name(name, partition)
        upload = Upload(self._number, self._next, target)
        self._next += 1
        self._messages += messages
        self._unanswered.append((upload, batch))
        self._unanswered_bytes += len(batch)
        if not self._is_lost:
            self._send(upload, batch, await self._link.wait_up())
        await self._wait(WINDOW_BYTES)

    async def finish(self) -> StageReceipt:
        """Wait until everything is written. Give what this returns to whoever commits."""
        await self._wait(0)
        return StageReceipt(self._number, self._next, self._messages)

    def _send(self, upload: Upload, batch: Buffer, session: object) -> None:
        current = self._link.session_or_none
        if self._is_lost or current is None or current is not session:
            self._is_lost = True
            return
        self._failed_calls += 1
        current.call(upload, partial(self._on_reply, upload, batch), (batch,))

    def _on_reply(
        self, upload: Upload, batch: Buffer, reply: AnyCommand | DanubiusError, _payload: memoryview
    ) -> None:
        self._failed_calls -= 1
        if isinstance(reply, BrokerUnavailable):
            self._is_lost = True
        elif isinstance(reply, DanubiusError):
            self._error = self._error or reply
        else:
            # Answers may overtake each other, where a limit makes one wait.
            self._unanswered.remove((upload, batch))
            self._unanswered_bytes -= len(batch)
        self._answers.open()

    async def _wait(self, bytes_max: int) -> None:
        """Until at most so many bytes have no answer; what a lost connection swallowed goes again."""
        timeout_s = self._link.options.request_timeout_s
        while self._unanswered if not bytes_max else self._unanswered_bytes > bytes_max:
            if self._error is not None:
                raise self._error
            if self._is_lost and not self._failed_calls:
                session = await self._link.wait_up()
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
    link: Link, job: str, batch: int, receipts: Sequence[StageReceipt], timeout_s: float
) -> None:
    """Ask until it is committed, or refused, or the time is over."""
    parse_name("job", job)
    if batch < 0:
        raise InvalidArgument(f"the batch is {batch}; batches are numbered from 0")
    stages = [(receipt.stage, receipt.batches) for receipt in receipts if receipt.stage]
    await _patiently(link, CommitStages(job, batch, stages), Done, timeout_s)


async def abort_stages(link: Link, job: str, batch: int, receipts: Sequence[StageReceipt]) -> None:
    """Drop stages of a batch; without any, all of them."""
    stages = [(receipt.stage, receipt.batches) for receipt in receipts if receipt.stage]
    await link.request(AbortStages(job, batch, stages), Done)


async def _patiently(
    link: Link, command: AnyCommand, reply_type: type[ReplyT], timeout_s: float
) -> tuple[ReplyT, memoryview]:
    """A request that may be repeated: one that takes long, comes at a busy moment, or while the broker restarts."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            return await link.request(command, reply_type)
        except (BrokerUnavailable, DeadlineExceeded, Overloaded):
            link.check_open()
            if loop.time() >= deadline:
                raise
            await asyncio.sleep(_BUSY_WAIT_S)
