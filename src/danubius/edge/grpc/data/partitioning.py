"""Partitions that come one by one: Danube's clients never say how many there are.

A client with three partitions opens producers on `/ns/t-part-0` to `/ns/t-part-2`, in any order. The topic `/ns/t` gets
as many as the highest that was asked for: it is made with what is known by then, and grows. Those that ask while a
change is under way share the next one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from danubius.errors import TopicNotFound
from danubius.model.admin import UpdateTopic
from danubius.model.ids import namespace_of
from danubius.model.partitions import base_of
from danubius.model.topic import TopicSpec
from danubius.wire.commands import CreateTopic

if TYPE_CHECKING:
    from danubius.edge.in_process import Line
    from danubius.model.ids import TopicName
    from danubius.model.topic import Dispatch
    from danubius.session.door import Door


class _Change:
    """What is wanted of one topic, by those who wait for it."""

    __slots__ = ("lock", "users", "wanted")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.wanted = 0
        self.users = 0


class Partitioning:
    """Makes partitions that producers ask for."""

    def __init__(self, door: Door, line: Line) -> None:
        self._door = door
        self._line = line
        self._changes: dict[TopicName, _Change] = {}

    async def provide(self, topic: TopicName, dispatch: Dispatch) -> None:
        """See to it that a partition exists; nothing if the name is none of a partition, or there is one already."""
        found = base_of(topic)
        if found is None or self._door.lookup(topic) is not None:
            return
        base, index = found
        policies = self._door.policies_in(namespace_of(base))
        if not policies.auto_create:
            raise TopicNotFound(
                f"topic {topic} does not exist, and auto-creation is off in its namespace; "
                f"`danubius topics create {base} --partitions N` creates it"
            )
        change = self._changes.setdefault(base, _Change())
        change.wanted = max(change.wanted, index + 1)
        change.users += 1
        try:
            async with change.lock:
                if self._door.lookup(topic) is None:
                    await self._grow(base, change.wanted, dispatch)
        finally:
            change.users -= 1
            if not change.users:
                del self._changes[base]

    async def _grow(self, base: TopicName, count: int, dispatch: Dispatch) -> None:
        found = self._door.lookup(base)
        if found is None or not found.partitions:
            await self._line.ask(CreateTopic(base, TopicSpec(dispatch), True, count))
            return
        await self._door.administer(UpdateTopic(base, partitions=count))
