"""The client's lasting tie to its broker: one session at a time, and a new one after each loss.

A link is up (it has a session), down (it is dialling), or failed for good. Attachments (one per producer and consumer)
are told of each change and bring themselves back. The only task is the one that dials.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from danubius.client.core.repeat import fresh
from danubius.client.core.retry import FIRST_DELAY_S, RedialPace
from danubius.client.forking import FORKED, disown_after_fork
from danubius.client.gate import Gate
from danubius.client.session import Session, expect
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
    from danubius.client.core.address import BrokerAddress
    from danubius.wire.commands import AnyCommand, Welcome

log = logging.getLogger(__name__)

ReplyT = TypeVar("ReplyT")

_HOPELESS = (UnsupportedVersion, ProtocolViolation)
"""Dialling again would end the same way."""


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
    """One broker, one connection, re-established until closed."""

    def __init__(self, address: BrokerAddress, options: LinkOptions) -> None:
        self.address = address
        self.options = options
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
        """Connect once; failing is the caller's to know."""
        session = Session(self.address, self, busy_poll=self.options.busy_poll)
        self._welcome = await session.open(self.options.connect_timeout_s)
        self._pace.up(asyncio.get_running_loop().time())
        self._session = session

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
        self, command: AnyCommand, reply_type: type[ReplyT], *, repeats: bool = True
    ) -> tuple[ReplyT, memoryview]:
        """Ask and wait for the answer and its payload.

        `repeats` says that asking twice is harmless: the request is then sent again after a lost connection.
        """
        for user in self._users:
            user.flush_nowait()  # so that the answer reflects the acks before it
        name = command.opcode.name
        timeout_s = self.options.request_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    session = await self.wait_up()
                    try:
                        return await _ask(session, command, reply_type)
                    except BrokerUnavailable:
                        if self._failure is not None:
                            raise fresh(self._failure) from None
                        if not repeats:
                            raise
                        if session is self._session:
                            await asyncio.sleep(
                                FIRST_DELAY_S
                            )  # it is ending; its loss is about to be known
        except TimeoutError:
            if self._session is None:
                raise BrokerUnavailable(
                    f"no broker answers at {self.address.url}: {name} was given up after {timeout_s:g} s"
                ) from None
            raise DeadlineExceeded(f"{name} was not answered within {timeout_s:g} s") from None

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
        # One task, owned here and cancelled by close(); nothing else of the client runs as a task.
        self._dialler = loop.create_task(self._redial(error), name=f"redial {self.address.url}")

    def on_writable(self) -> None:
        for user in list(self._users):
            user.on_link_writable()

    def on_topic_changed(self, topic: str) -> None:
        for watcher in list(self._watchers):
            watcher.on_topic_changed(topic)

    async def _redial(self, cause: DanubiusError) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.options.reconnect_timeout_s
        while True:
            left_s = deadline - loop.time()
            if left_s <= 0:
                self._fail(
                    BrokerUnavailable(
                        f"no broker answered at {self.address.url} for"
                        f" {self.options.reconnect_timeout_s:g} s: {cause.message}"
                    )
                )
                return
            await asyncio.sleep(min(self._pace.next_delay_s(), left_s))
            session = Session(self.address, self, busy_poll=self.options.busy_poll)
            try:
                self._welcome = await session.open(self.options.connect_timeout_s)
            except _HOPELESS as error:
                self._fail(error)
                return
            except DanubiusError as error:
                cause = error
                continue
            self._up(session)
            return

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


async def _ask(
    session: Session, command: AnyCommand, reply_type: type[ReplyT]
) -> tuple[ReplyT, memoryview]:
    future: asyncio.Future[tuple[ReplyT, memoryview]] = asyncio.get_running_loop().create_future()
    session.call(command, partial(_answer, future, command.opcode.name, reply_type))
    return await future


def _answer(
    future: asyncio.Future[tuple[ReplyT, memoryview]],
    name: str,
    reply_type: type[ReplyT],
    reply: AnyCommand | DanubiusError,
    payload: memoryview,
) -> None:
    if future.done():
        return
    if isinstance(reply, reply_type):
        future.set_result((reply, payload))
    elif isinstance(reply, DanubiusError):
        future.set_exception(reply)
    else:
        future.set_exception(expect(reply, name))
