"""The number of partitions of a topic: asked when something is opened on it, and watched from then on.

Partitions are only ever added. The broker tells those who asked with `watch` on the same connection; a client that did
not hear of it asks again after a reconnect, and once a minute.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from danubius.errors import DanubiusError, InvalidArgument, TopicNotFound
from danubius.model.subscription import EARLIEST, AtOffset, Position
from danubius.wire.commands import Located, Lookup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

    from danubius.client.connection.link import Link
    from danubius.client.connection.session import Session
    from danubius.model.ids import TopicName

log = logging.getLogger(__name__)

ReplyT = TypeVar("ReplyT")

LOOK_INTERVAL_S: Final = 60.0
PARTITIONS_MAX: Final = 1000
PARTITIONS_VERSION: Final = 2
"""The version of the protocol that knows partitions; brokers of an older one have none."""


class Openable(Protocol):
    """A lane, or what is made of lanes."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...


async def count_partitions(link: Link, topic: TopicName) -> int:
    """The number of partitions; 0 for a plain topic, and for one that is not there (yet)."""
    if link.protocol_version < PARTITIONS_VERSION:
        return 0
    try:
        located, _ = await link.request(Lookup(topic, watch=True), Located)
    except TopicNotFound:
        return 0
    return located.partitions


def partition_start(start: Position) -> Position:
    """Where to begin in each partition. An offset names a message of one partition only; 0 is the start of each."""
    if not isinstance(start, AtOffset):
        return start
    if not start.offset:
        return EARLIEST
    raise InvalidArgument(
        f"start is offset {start.offset}, and the topic is partitioned: begin at 'earliest', 'latest' or a time, or"
        " open one partition, as /namespace/topic-part-0"
    )


async def attempt_all(calls: Iterable[Coroutine[Any, Any, ReplyT]]) -> list[ReplyT | DanubiusError]:
    """Run all at the same time, each to its end: the error of one does not stop the others."""

    async def attempt(call: Coroutine[Any, Any, ReplyT]) -> ReplyT | DanubiusError:
        try:
            return await call
        except DanubiusError as error:
            return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(attempt(call)) for call in calls]
    return [task.result() for task in tasks]


async def open_all(lanes: Sequence[Openable]) -> None:
    """Open all lanes at the same time. If one cannot be, none is, and its error is raised."""
    opened: list[Openable] = []

    async def open_one(lane: Openable) -> None:
        await lane.open()
        opened.append(lane)

    try:
        _raise_first(await attempt_all(map(open_one, lanes)))
    except BaseException:
        await attempt_all(lane.close() for lane in opened)
        raise


async def close_all(lanes: Sequence[Openable]) -> None:
    """Close all lanes at the same time, and raise the first error once all are closed."""
    _raise_first(await attempt_all(lane.close() for lane in lanes))


def _raise_first(outcomes: Iterable[DanubiusError | None]) -> None:
    for outcome in outcomes:
        if outcome is not None:
            raise outcome


class PartitionWatch:
    """Notices that a topic has grown. It runs one task at the most, and only while it asks."""

    def __init__(
        self, link: Link, topic: TopicName, grow: Callable[[int], Awaitable[None]]
    ) -> None:
        """`grow` is told the number of partitions, whenever it was asked for; it makes the lanes that are missing."""
        self._link = link
        self._topic = topic
        self._grow = grow
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_stale = False
        self._is_ended = False

    def start(self) -> None:
        self._link.add(self)
        self._link.watch(self)
        self._arm()

    async def close(self) -> None:
        """Stop; nothing grows any more once this returns."""
        self._end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def _end(self) -> None:
        self._is_ended = True
        self._link.remove(self)
        self._link.unwatch(self)
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        self._timer = self._loop.call_later(LOOK_INTERVAL_S, self._look)

    def _look(self) -> None:
        if self._is_ended:
            return
        if self._task is not None:
            self._is_stale = True  # the answer under way may be older than what was just heard
            return
        if self._timer is not None:
            self._timer.cancel()
        self._is_stale = False
        self._task = self._loop.create_task(self._ask(), name=f"partitions of {self._topic}")

    async def _ask(self) -> None:
        try:
            await self._grow(await count_partitions(self._link, self._topic))
        except DanubiusError as error:
            # Nothing is lost: what is open goes on, and the next look comes.
            log.warning(
                "cannot follow the partitions", extra={"topic": self._topic, "error": str(error)}
            )
        finally:
            self._task = None
            if not self._is_ended:
                if self._is_stale:
                    self._look()
                else:
                    self._arm()

    # ------------------------------------------------------------ the link calls these

    def on_topic_changed(self, topic: str) -> None:
        if topic == self._topic:
            self._look()

    def on_link_up(self, session: Session) -> None:
        del session
        self._look()

    def on_link_down(self) -> None:
        """The lanes see to themselves."""

    def on_link_writable(self) -> None:
        """A watch writes next to nothing."""

    def on_link_failed(self, error: DanubiusError) -> None:
        del error
        self._end()

    def flush_nowait(self) -> None:
        """A watch has nothing to flush."""
