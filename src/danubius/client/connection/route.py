"""The way to the broker that serves one topic: to its users it looks like one connection, whichever broker that is.

A move looks to them like a lost connection and a new one, so what they do about losses (producers resume by epoch and
sequence, consumers subscribe again, readers fetch from where they are) makes a move a pause.

Invariants: users are told of a connection only while the route stands (it is not cut); there is at most one search at
a time; it ends with a broker, or after `reconnect_timeout` with a sentence that says who named whom; while only one
broker is known, nothing is searched after a loss: that connection comes back by itself.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from danubius.client.connection.asking import persist
from danubius.client.connection.gate import Gate
from danubius.client.core.repeat import fresh
from danubius.client.core.retry import DELAY_MAX_S, STEADY_SESSION_S, Backoff
from danubius.errors import ClientClosed, DanubiusError, DeadlineExceeded, TopicMoved
from danubius.runtime import ambient

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from danubius.client.connection.link import Link, LinkOptions, LinkUser
    from danubius.client.connection.session import Session
    from danubius.model.ids import TopicName
    from danubius.wire.commands import AnyCommand

ReplyT = TypeVar("ReplyT")

_SAID_MAX: Final = 4
"""What brokers said last about a topic: enough to see two that name each other."""


class Referral(NamedTuple):
    """A broker's word about who serves a topic."""

    asked: Link
    link: Link


class BrokerFinder(Protocol):
    """The connections of the client."""

    @property
    def options(self) -> LinkOptions: ...

    @property
    def home(self) -> Link: ...

    @property
    def knows_several(self) -> bool:
        """Whether a topic was ever served by another broker than the one at hand."""
        ...

    async def find(self, topic: TopicName, doubted: Link | None) -> Referral: ...

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]: ...


class Route:
    """Whatever is open on one topic holds one of these instead of a link."""

    def __init__(self, finder: BrokerFinder, topic: TopicName, link: Link) -> None:
        self.topic = topic
        self.options = finder.options
        self.finder = finder
        self._link = link
        self._users: dict[LinkUser, None] = {}
        self._changes = Gate()
        self._is_cut = False
        self._search: asyncio.Task[None] | None = None
        self._asking = 0
        self._looks = 0
        self._backoff = Backoff(ambient.chance)
        self._said: deque[str] = deque(maxlen=_SAID_MAX)
        self._since_s = 0.0
        self._settled_s = -math.inf
        self._error: DanubiusError | None = None

    @property
    def link(self) -> Link:
        """Where the topic is, or was seen last."""
        return self._link

    @property
    def is_moving(self) -> bool:
        """Whether nobody is known to serve the topic just now."""
        return self._is_cut or self._search is not None

    @property
    def session_or_none(self) -> Session | None:
        return None if self._is_cut else self._link.session_or_none

    @property
    def message_bytes_max(self) -> int:
        return self.finder.home.message_bytes_max

    def check_open(self) -> None:
        """Raise why the client ended, if it did."""
        self.finder.home.check_open()

    def overdue(self, timeout_s: float) -> DanubiusError:
        """What to say when nothing could be opened in time."""
        if self.is_moving:
            return self._nowhere(timeout_s)
        return DeadlineExceeded(
            f"the broker at {self._link.address.url} did not answer within {timeout_s:g} s"
        )

    def add(self, user: LinkUser) -> None:
        self._users[user] = None
        self._error = None
        self._link.add(self)
        if self.session_or_none is None and (self._is_cut or self.finder.knows_several):
            self._seek()

    def remove(self, user: LinkUser) -> None:
        self._users.pop(user, None)
        self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        if not self._users and not self._asking:
            self._link.remove(self)
            if self._search is not None:
                self._search.cancel()
                self._search = None

    # ------------------------------------------------------------ requests

    async def request(
        self, command: AnyCommand, reply_type: type[ReplyT], *, repeats: bool = True
    ) -> tuple[ReplyT, memoryview]:
        """Ask the broker that serves the topic, whichever it turns out to be; see `persist`."""
        self._link.flush_nowait()  # so that the answer reflects the acks before it
        self._asking += 1
        self._link.add(self)
        try:
            timeout_s = self.options.request_timeout_s
            return await persist(self, command, reply_type, repeats=repeats, timeout_s=timeout_s)
        finally:
            self._asking -= 1
            self._leave_if_idle()

    async def wait_up(self) -> Session:
        """The connection to the topic's broker, as soon as there is one; raises why there will be none."""
        session = self.session_or_none
        if session is not None:
            return session
        self._error = None
        self._asking += 1
        self._link.add(self)
        try:
            while (session := self.session_or_none) is None:
                if self._error is not None:
                    raise fresh(self._error)
                self.check_open()
                if self._is_cut or self.finder.knows_several:
                    self._seek()
                await self._changes.wait()
        finally:
            self._asking -= 1
            self._leave_if_idle()
        return session

    def unanswered(self, name: str, timeout_s: float) -> DanubiusError:
        """What to say about a request that was given up."""
        if self.is_moving:
            return self._nowhere(timeout_s)
        return self._link.unanswered(name, timeout_s)

    # ------------------------------------------------------------ looking for the broker

    def look_again(self, session: Session) -> bool:
        """The broker at the other end of this connection says that it does not serve the topic."""
        if session is self.session_or_none:  # else it is known already
            self._cut()
            self._seek()
        return True

    def _cut(self) -> None:
        self._is_cut = True
        for user in list(self._users):
            user.on_link_down()

    def _seek(self) -> None:
        if self._search is None:
            self._search = self.finder.spawn(self._look())

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        waits = loop.time() - self._settled_s < STEADY_SESSION_S
        if not waits:
            self._backoff.reset()
            self._said.clear()
            self._since_s = loop.time()
        try:
            while True:
                if waits:
                    await asyncio.sleep(self._backoff.next_delay_s())
                waits = True
                limit_s = self.options.reconnect_timeout_s
                if loop.time() - self._since_s >= limit_s:
                    self._end(self._nowhere(limit_s))
                    return
                if await self._look_once():
                    return
        finally:
            if self._search is asyncio.current_task():
                self._search = None

    async def _look_once(self) -> bool:
        """Whether the search is over: there is a connection to who is said to serve the topic."""
        self._looks += 1
        try:
            # Who refused knows best where the topic went, and whoever does not know is not asked for ever.
            found = await self.finder.find(self.topic, self._link if self._looks % 2 else None)
        except DanubiusError as error:
            if error.is_retryable and not isinstance(error, ClientClosed):
                self._say(error.message)
                return False
            self._end(error)
            return True
        self._say(f"{_name(found.asked)} says {_name(found.link)}")
        self._take(found.link)
        if self._link.session_or_none is None:
            try:
                async with asyncio.timeout(DELAY_MAX_S):
                    await self._link.wait_up()
            except (TimeoutError, DanubiusError):
                self._say(f"{_name(self._link)} does not answer")
                return False  # perhaps it is gone, and another has the topic by now
        if self._is_cut:
            return False
        if self._is_cut:
            return False  # who is said to serve it has refused meanwhile
        self._settled_s = asyncio.get_running_loop().time()
        return True

    def _take(self, link: Link) -> None:
        """Stand on this link."""
        is_other, was_cut = link is not self._link, self._is_cut
        if is_other:
            if self.session_or_none is not None:
                self._cut()
            self._link.remove(self)
            self._link = link
        self._is_cut = False
        if self._users or self._asking:
            link.add(self)
        session = link.session_or_none
        if session is not None and (is_other or was_cut):
            for user in list(self._users):
                user.on_link_up(session)
        self._changes.open()

    def _say(self, words: str) -> None:
        if words not in self._said:
            self._said.append(words)

    def _nowhere(self, timeout_s: float) -> DanubiusError:
        said = "; ".join(self._said) or f"{_name(self._link)} does not serve it"
        return TopicMoved(
            f"no broker that serves {self.topic} was found within {timeout_s:g} s: {said}"
        )

    def _end(self, error: DanubiusError) -> None:
        self._error = error
        self._is_cut = True
        users, self._users = self._users, {}
        self._link.remove(self)
        for user in users:
            user.on_link_failed(error)
        self._changes.open()

    # ------------------------------------------------------------ the link calls these

    def on_link_up(self, session: Session) -> None:
        if not self._is_cut:
            for user in list(self._users):
                user.on_link_up(session)
            self._changes.open()

    def on_link_down(self) -> None:
        if self._is_cut:
            return
        for user in list(self._users):
            user.on_link_down()
        if self.finder.knows_several:
            self._seek()  # the broker may be gone for good, and another have the topic

    def on_link_writable(self) -> None:
        if not self._is_cut:
            for user in list(self._users):
                user.on_link_writable()

    def on_link_failed(self, error: DanubiusError) -> None:
        if self._link is self.finder.home or isinstance(error, ClientClosed):
            self._end(error)
        else:
            self._seek()

    def flush_nowait(self) -> None:
        for user in list(self._users):
            user.flush_nowait()


def _name(link: Link) -> str:
    """The broker of a link, as brokers name it."""
    return link.broker_url or link.address.url
