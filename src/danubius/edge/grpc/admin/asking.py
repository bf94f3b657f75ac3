"""The way of the admin services to the broker's administration: the one that REST and the native protocol reach too."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from danubius.edge.grpc.names import number_of, outer_name
from danubius.edge.grpc.status import Code, Refused
from danubius.model import admin
from danubius.model.ids import parse_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from danubius.model.admin import AdminRequest
    from danubius.model.topic import Dispatch
    from danubius.session.door import Door
    from danubius.session.found import FoundTopic

PAGE: Final = 100
"""Lines asked for in one turn of the loop."""
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024 - 1024
"""Of one answer: Danube's clients take 4 MiB."""


class Addresses(NamedTuple):
    """Where this broker is reached, as URLs."""

    broker: str
    admin: str
    metrics: str


class TopicLine(NamedTuple):
    """A topic in a list."""

    name: str
    dispatch: Dispatch


class Office:
    """The admin services' hold on one broker."""

    def __init__(self, door: Door, addresses: Callable[[], Addresses]) -> None:
        """`addresses` is asked with each request: ports are known once they are open."""
        self._door = door
        self.addresses = addresses
        self.changing = asyncio.Lock()
        """Held from reading a subscription's policy until what was made of it is durable."""

    @property
    def number(self) -> int:
        """The broker as a number below 2^64, which this API knows brokers by."""
        return number_of(self._door.about.broker_id)

    @property
    def number_text(self) -> str:
        return str(self.number)

    def check_broker(self, broker_id: str) -> None:
        """NOT_FOUND unless it is this one, by its number or its name."""
        if not broker_id:
            raise Refused(Code.INVALID_ARGUMENT, "broker_id is empty")
        if broker_id not in (self.number_text, self._door.about.broker_id):
            raise Refused(
                Code.NOT_FOUND,
                f"there is no broker {broker_id[:100]!r}; this is {self.number_text}, and the only one",
            )

    async def ask(self, request: AdminRequest) -> Any:
        """What the broker answers to an operator; its error is raised."""
        request.check()
        return await self._door.administer(request)

    @property
    def topic_count(self) -> int:
        return self._door.topic_count

    @property
    def epoch(self) -> int:
        """Which time it is that the broker's state is taken up."""
        return self._door.epoch

    def check_namespace(self, name: str) -> None:
        """NamespaceNotFound unless it is there."""
        self._door.check_namespace(name)

    # ------------------------------------------------------------ whole lists

    async def namespaces(self) -> list[str]:
        names: list[str] = []
        after = ""
        while True:
            page = await self.ask(admin.ListNamespaces(after=after, limit=PAGE))
            names += [line.namespace for line in page.namespaces]
            after = page.next
            if not after:
                return names

    async def subscriptions(self, topic: str) -> list[str]:
        names: list[str] = []
        after = ""
        while True:
            page = await self.ask(admin.ListSubscriptions(topic, after=after, limit=PAGE))
            names += [outer_name(line.subscription) for line in page.subscriptions]
            after = page.next
            if not after:
                return names
            await asyncio.sleep(0)

    async def topics_in(self, namespace: str) -> list[TopicLine]:
        """Those of one namespace, in order, partitions by their own names."""
        parse_name("namespace", namespace)
        self.check_namespace(namespace)
        return [_line(topic) async for topic in self._topics(namespace)]

    async def topics(self) -> list[TopicLine]:
        """All that there are."""
        return [_line(topic) async for topic in self._topics("")]

    async def _topics(self, namespace: str) -> AsyncIterator[FoundTopic]:
        after = ""
        while True:
            page = self._door.list_topics(namespace, after, PAGE)
            for topic in page.topics:
                yield topic
            if not page.after:
                return
            after = page.after
            await asyncio.sleep(0)


def _line(topic: FoundTopic) -> TopicLine:
    return TopicLine(topic.name, topic.spec.dispatch)


def bounded(answer: Any) -> Any:
    """The answer, if a client takes one of its size."""
    size = answer.ByteSize()
    if size > ANSWER_BYTES_MAX:
        raise Refused(
            Code.RESOURCE_EXHAUSTED,
            f"the answer has {size} bytes, and clients of this API take {ANSWER_BYTES_MAX}; ask for one namespace, "
            "or page through the list over REST",
        )
    return answer
