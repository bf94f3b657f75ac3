"""A lasting tie to a broker: one session at a time, and a new one after each loss.

A link is up (it has a session), down (it is dialling), or failed for good. Its users (routes of topics, watches) are
told of each change and bring themselves back. The only task is the one that dials. With several addresses the first
that answers is used, and after a loss they are tried in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from danubius.client.connection.asking import persist
from danubius.client.connection.forking import FORKED, disown_after_fork
from danubius.client.connection.gate import Gate
from danubius.client.connection.session import Session
from danubius.client.core.address import urls_of
from danubius.client.core.repeat import fresh
from danubius.client.core.retry import RedialPace
from danubius.errors import (
    BrokerUnavailable,
    ClientClosed,
    DanubiusError,
    DeadlineExceeded,
    ProtocolViolation,
    UnsupportedVersion,
)
from danubius.runtime import ambient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.client.core.address import BrokerAddress
    from danubius.wire.commands import AnyCommand, Welcome

log = logging.getLogger(__name__)

ReplyT = TypeVar("ReplyT")

_HOPELESS = (UnsupportedVersion, ProtocolViolation)
"""Dialling again would end the same way."""
ADDRESSES_MAX: Final = 64
"""What a link remembers to dial; those that were learned first go first, and those of the user stay."""


class LinkOptions(msgspec.Struct, frozen=True):
    """How long the link tries, and how it waits."""

    connect_timeout_s: float
    """For one attempt to dial and shake hands."""
    request_timeout_s: float
    """For one request and its answer, reconnects included."""
    reconnect_timeout_s: float
    """After this long without a broker the client fails for good."""
    busy_poll: bool = True
    """Whether to stay awake for an answer that is about to come."""


class LinkUser(Protocol):
    """Told when the link changes; synchronous."""

    def on_link_up(self, session: Session) -> None: ...

    def on_link_down(self) -> None: ...

    def on_link_writable(self) -> None: ...

    def on_link_failed(self, error: DanubiusError) -> None: ...

    def flush_nowait(self) -> None: ...


class TopicWatcher(Protocol):
    """Told when the broker says that a topic changed; synchronous."""

    def on_topic_changed(self, topic: str) -> None: ...


class Link:
    """One connection, re-established until closed: to one broker, or to whichever of several answers."""

    def __init__(self, addresses: Sequence[BrokerAddress], options: LinkOptions) -> None:
        self.address = addresses[0]
        """The one that is connected to, or was last tried."""
        self.options = options
        self._addresses = list(addresses)
        self._given = len(addresses)
        self._asking = 0
        self._session: Session | None = None
        self._welcome: Welcome | None = None
        self._failure: DanubiusError | None = None
        self._users: dict[LinkUser, None] = {}
        self._watchers: dict[TopicWatcher, None] = {}
        self._pace = RedialPace(ambient.chance)
        self._changes = Gate()
        self._dialler: asyncio.Task[None] | None = None
        disown_after_fork(self)

    def disown(self) -> None:
        """In a child process: the connection is the parent's, and so is what was opened on it."""
        error = ClientClosed(FORKED)
        session, self._session = self._session, None
        if session is not None:
            session.disown(error)
        # A loop of another thread does not let itself be told; nobody waits on it in this process either.
        with contextlib.suppress(RuntimeError):
            self._fail(error)
            if self._dialler is not None:
                self._dialler.cancel()

    @property
    def session_or_none(self) -> Session | None:
        return self._session

    def check_open(self) -> None:
        """Raise why the link ended, if it did."""
        if self._failure is not None:
            raise fresh(self._failure)

    @property
    def is_failed(self) -> bool:
        """Whether it ended, and is not dialled any more."""
        return self._failure is not None

    @property
    def is_used(self) -> bool:
        """Whether anybody would miss it."""
        return bool(self._users or self._asking)

    @property
    def urls(self) -> str:
        """All that is dialled."""
        return urls_of(self._addresses)

    @property
    def broker_url(self) -> str:
        """What the broker calls itself; empty: it did not say."""
        return "" if self._welcome is None else self._welcome.url

    @property
    def message_bytes_max(self) -> int:
        assert self._welcome is not None
        return self._welcome.message_bytes_max

    @property
    def protocol_version(self) -> int:
        """What the broker and this client agreed on, the last time they shook hands."""
        assert self._welcome is not None
        return self._welcome.version

    # ------------------------------------------------------------ life

    async def open(self) -> None:
        """Connect once, to the first address that answers; failing is the caller's to know."""
        errors: list[DanubiusError] = []
        for address in self._addresses:
            self.address = address
            session = Session(address, self, busy_poll=self.options.busy_poll)
            try:
                self._welcome = await session.open(self.options.connect_timeout_s)
            except DanubiusError as error:
                errors.append(error)
                continue
            self._pace.up(asyncio.get_running_loop().time())
            self._session = session
            return
        raise _nobody(self._addresses, errors)

    def start(self) -> None:
        """Connect in the background, as after a loss; users are told when it is there."""
        cause = BrokerUnavailable(f"nobody has answered at {self.address.url} yet")
        self._dialler = self._spawn_dialler(cause, is_first=True)

    def learn(self, address: BrokerAddress) -> None:
        """Dial this one, too, when the connection is lost."""
        if address in self._addresses:
            return
        if len(self._addresses) >= max(ADDRESSES_MAX, self._given + 1):
            del self._addresses[self._given]
        self._addresses.append(address)

    async def close(self) -> None:
        """End everything. Producers, consumers and requests that are still there get ClientClosed."""
        session = self._session
        self._fail(ClientClosed("the client is closed"))
        try:
            if self._dialler is not None:
                self._dialler.cancel()
                await asyncio.wait((self._dialler,))
        finally:
            if session is not None:
                await session.close()

    def add(self, user: LinkUser) -> None:
        self._users[user] = None

    def remove(self, user: LinkUser) -> None:
        self._users.pop(user, None)

    def watch(self, watcher: TopicWatcher) -> None:
        self._watchers[watcher] = None

    def unwatch(self, watcher: TopicWatcher) -> None:
        self._watchers.pop(watcher, None)

    # ------------------------------------------------------------ requests

    async def request(
        self,
        command: AnyCommand,
        reply_type: type[ReplyT],
        *,
        repeats: bool = True,
        timeout_s: float | None = None,
    ) -> tuple[ReplyT, memoryview]:
        """Ask and wait for the answer and its payload; see `persist`."""
        self.flush_nowait()  # so that the answer reflects the acks before it
        self._asking += 1
        try:
            timeout_s = self.options.request_timeout_s if timeout_s is None else timeout_s
            return await persist(self, command, reply_type, repeats=repeats, timeout_s=timeout_s)
        finally:
            self._asking -= 1

    def flush_nowait(self) -> None:
        """Let go what users gathered."""
        for user in list(self._users):
            user.flush_nowait()

    def look_again(self, session: Session) -> bool:
        """A link knows one broker."""
        del session
        return False

    def unanswered(self, name: str, timeout_s: float) -> DanubiusError:
        """What to say about a request that was given up."""
        if self._session is None:
            return BrokerUnavailable(
                f"no broker answers at {self.urls}: {name} was given up after {timeout_s:g} s"
            )
        return DeadlineExceeded(f"{name} was not answered within {timeout_s:g} s")

    async def wait_up(self) -> Session:
        """The connection, as soon as there is one; raises why there will be none."""
        while self._session is None:
            if self._failure is not None:
                raise fresh(self._failure)
            await self._changes.wait()
        return self._session

    # ------------------------------------------------------------ losing and coming back

    def on_lost(self, error: DanubiusError) -> None:
        if self._failure is not None:
            return
        self._session = None
        loop = asyncio.get_running_loop()
        self._pace.lost(loop.time())
        log.info("connection lost", extra={"url": self.address.url, "reason": error.message})
        for user in list(self._users):
            user.on_link_down()
        self._dialler = self._spawn_dialler(error, is_first=False)

    def on_writable(self) -> None:
        for user in list(self._users):
            user.on_link_writable()

    def on_topic_changed(self, topic: str) -> None:
        for watcher in list(self._watchers):
            watcher.on_topic_changed(topic)

    def _spawn_dialler(self, cause: DanubiusError, *, is_first: bool) -> asyncio.Task[None]:
        # One task, owned here and cancelled by close(). The address in its name is the one that was lost.
        dialling = self._redial(cause, is_first=is_first)
        return asyncio.get_running_loop().create_task(dialling, name=f"redial {self.address.url}")

    async def _redial(self, cause: DanubiusError, *, is_first: bool) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.options.reconnect_timeout_s
        while True:
            left_s = deadline - loop.time()
            if left_s <= 0:
                self._fail(
                    BrokerUnavailable(
                        f"no broker answered at {self.urls} for"
                        f" {self.options.reconnect_timeout_s:g} s: {cause.message}"
                    )
                )
                return
            if not is_first:
                await asyncio.sleep(min(self._pace.next_delay_s(), left_s))
            is_first = False
            session = Session(self.address, self, busy_poll=self.options.busy_poll)
            try:
                self._welcome = await session.open(self.options.connect_timeout_s)
            except DanubiusError as error:
                cause = error
                if isinstance(error, _HOPELESS) and len(self._addresses) == 1:
                    self._fail(error)
                    return
                self._turn()
                continue
            self._up(session)
            return

    def _turn(self) -> None:
        """The next address has its turn."""
        known = self._addresses
        at = known.index(self.address) if self.address in known else -1
        self.address = known[(at + 1) % len(known)]

    def _up(self, session: Session) -> None:
        self._session = session
        self._pace.up(asyncio.get_running_loop().time())
        log.info(
            "connected again", extra={"url": self.address.url, "attempts": self._pace.attempts}
        )
        self._changes.open()
        for user in list(self._users):
            user.on_link_up(session)

    def _fail(self, error: DanubiusError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        self._session = None
        self._changes.open()
        for user in list(self._users):
            user.on_link_failed(error)
        self._users.clear()
        self._watchers.clear()


def _nobody(addresses: Sequence[BrokerAddress], errors: list[DanubiusError]) -> DanubiusError:
    """Why none of the addresses could be connected to."""
    if len(errors) == 1:
        return errors[0]
    told = "; ".join(
        f"{address.url}: {error.message}" for address, error in zip(addresses, errors, strict=True)
    )
    return BrokerUnavailable(f"none of {len(errors)} brokers answers: {told}")
