"""The connections of a client: one to a broker of its URL, and one to each other broker that serves a topic of its.

A broker answers a lookup with a URL. Only where that is not what the broker calls itself (`Welcome.url`) another one is
meant: the address that was dialled may be that of a proxy, a container or a name service, and says nothing.

Invariants: one link an address, at most LINKS_MAX; all are owned here and closed here, those that nobody uses after a
while; so are the tasks that search.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from danubius.client.connection.link import Link
from danubius.client.connection.partitions import PARTITIONS_VERSION
from danubius.client.connection.route import Referral, Route
from danubius.client.core.address import dialable
from danubius.errors import DanubiusError, LimitReached, Retry, TopicNotFound
from danubius.wire.commands import Located, Lookup

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from danubius.client.connection.link import LinkOptions
    from danubius.client.connection.session import Session
    from danubius.client.core.address import BrokerAddress
    from danubius.model.ids import TopicName
    from danubius.wire.commands import AnyCommand

ReplyT = TypeVar("ReplyT")

LINKS_MAX: Final = 256
"""To brokers besides the first: each costs a socket here and there, and no cluster is as large."""
IDLE_S: Final = 30.0
"""A link that nobody used from one look to the next, this much later, is closed."""
_LOOKUP_TIMEOUT_S: Final = 5.0
"""A broker that does not answer within this is not the one to ask: another may know."""
_LOOKUPS_AT_ONCE: Final = 256
"""Far below what a broker lets wait."""


class Connections:
    """All links of one client."""

    def __init__(self, addresses: Sequence[BrokerAddress], options: LinkOptions) -> None:
        self._options = options
        self._home = Link(addresses, options)
        self._links: dict[BrokerAddress, Link] = {}
        self._idle: set[Link] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._knows_several = False

    @property
    def options(self) -> LinkOptions:
        return self._options

    @property
    def home(self) -> Link:
        """The link to a broker that the user named, or to one that took its place."""
        return self._home

    @property
    def knows_several(self) -> bool:
        return self._knows_several

    def __len__(self) -> int:
        """How many brokers are connected to, or dialled."""
        return 1 + len(self._links)

    # ------------------------------------------------------------ life

    async def open(self) -> None:
        """Connect to the first broker that answers."""
        await self._home.open()

    async def close(self) -> None:
        """End everything, and wait for it."""
        if self._timer is not None:
            self._timer.cancel()
        links, self._links = [*self._links.values()], {}
        try:
            for link in links:
                await link.close()
        finally:
            await self._home.close()
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run a search or the end of a link; it ends with the client at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ------------------------------------------------------------ topics

    async def locate(self, topic: TopicName) -> tuple[Route, int]:
        """The way to a topic, and the number of its partitions: 0 for a plain one, and for one that is not there."""
        home = self._home
        if home.protocol_version < PARTITIONS_VERSION:
            return self.route(topic), 0
        try:
            located, _ = await home.request(Lookup(topic, watch=True), Located)
        except DanubiusError as error:
            if isinstance(error, TopicNotFound) or error.retry is Retry.AFTER_LOOKUP:
                return self.route(topic), 0
            raise
        return Route(self, topic, self.link_for(located.url, home)), located.partitions

    async def routes(self, topics: Sequence[TopicName]) -> list[Route]:
        """The ways to many topics. As long as one broker serves all that is known, nothing is asked."""
        if not self._knows_several:
            return [self.route(topic) for topic in topics]
        found: list[Route] = []
        for start in range(0, len(topics), _LOOKUPS_AT_ONCE):
            async with asyncio.TaskGroup() as group:
                part = topics[start : start + _LOOKUPS_AT_ONCE]
                tasks = [group.create_task(self._resolve(topic)) for topic in part]
            found += [task.result() for task in tasks]
        return found

    async def _resolve(self, topic: TopicName) -> Route:
        try:
            found = await self.find(topic, None)
        except DanubiusError as error:
            if not error.is_retryable:
                raise
            return self.route(topic)  # whoever is asked there says more
        return Route(self, topic, found.link)

    def route(self, topic: TopicName) -> Route:
        """The way to a topic that begins at home, and goes on from there if it is elsewhere."""
        return Route(self, topic, self._home)

    async def request(
        self,
        topic: TopicName,
        command: AnyCommand,
        reply_type: type[ReplyT],
        *,
        repeats: bool = True,
    ) -> tuple[ReplyT, memoryview]:
        """Ask something about a topic, of whoever can answer it."""
        return await self.route(topic).request(command, reply_type, repeats=repeats)

    async def find(self, topic: TopicName, doubted: Link | None) -> Referral:
        """Who serves the topic, by the word of the broker that was `doubted`, or of any that is there."""
        asked = self._somebody(doubted)
        timeout_s = min(_LOOKUP_TIMEOUT_S, self._options.request_timeout_s)
        try:
            located, _ = await asked.request(Lookup(topic), Located, timeout_s=timeout_s)
        except TopicNotFound:
            return Referral(
                asked, asked
            )  # whoever wants to attach hears it there, or makes the topic
        return Referral(asked, self.link_for(located.url, asked))

    def _somebody(self, doubted: Link | None) -> Link:
        if doubted is not None and doubted.session_or_none is not None:
            return doubted
        for link in (self._home, *self._links.values()):
            if link.session_or_none is not None:
                return link
        return self._home

    # ------------------------------------------------------------ links

    def link_for(self, url: str, asked: Link) -> Link:
        """The link to the broker of this name, which `asked` gave."""
        own = asked.broker_url
        if not own or not url or url == own:
            return asked
        address = dialable(url)
        if address is None:
            return asked
        self._knows_several = True
        self._home.learn(address)
        for link in (self._home, *self._links.values()):
            if link.broker_url == url and link.session_or_none is not None:
                return link
        link = self._links.get(address)
        if link is None or link.is_failed:
            self._make_room()
            link = self._links[address] = Link((address,), self._options)
            link.start()
            self._arm()
        return link

    def link_of(self, session: Session) -> Link | None:
        """The link that has this connection; None: it is no connection of this client."""
        for link in (self._home, *self._links.values()):
            if link.session_or_none is session:
                return link
        return None

    def _make_room(self) -> None:
        if len(self._links) < LINKS_MAX:
            return
        for address, link in self._links.items():
            if not link.is_used:
                self._drop(address)
                return
        raise LimitReached(
            f"this client uses {LINKS_MAX} brokers at once, as many as it may: close producers, consumers or readers,"
            " or use a second client"
        )

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._sweep)

    def _sweep(self) -> None:
        """Close what was not used at the last look and is not used now."""
        self._timer = None
        for address, link in list(self._links.items()):
            if not link.is_used and (link in self._idle or link.is_failed):
                self._drop(address)
        self._idle = {link for link in self._links.values() if not link.is_used}
        if self._links:
            self._arm()

    def _drop(self, address: BrokerAddress) -> None:
        self.spawn(self._links.pop(address).close())
