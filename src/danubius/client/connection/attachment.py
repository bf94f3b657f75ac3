"""A producer's or consumer's hold on its topic: one handle, asked for again on every new connection.

Invariants: at most one request to attach counts; the handle that an abandoned request brought is given back at once;
after `end` nothing is called any more. The first refusal of a new attachment ends it, later ones end it only if
waiting cannot help. `held` is what the broker knows it by now, and every change of it opens `changes`.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from danubius.client.connection.gate import Gate
from danubius.client.connection.session import expect, ignore
from danubius.client.core.repeat import fresh
from danubius.client.core.retry import Backoff
from danubius.errors import BrokerUnavailable, DanubiusError, Retry
from danubius.runtime import ambient

if TYPE_CHECKING:
    from danubius.client.connection.route import Route
    from danubius.client.connection.session import Session
    from danubius.wire.commands import AnyCommand


class AttachReply(Protocol):
    """The broker's yes: ProducerOpened or Subscribed."""

    @property
    def handle(self) -> int: ...


ReplyT = TypeVar("ReplyT", bound=AttachReply)
ReplyIn = TypeVar("ReplyIn", contravariant=True)


class Held(NamedTuple, Generic[ReplyT]):
    """A handle: the connection it is of, and what the broker said when it gave it."""

    session: Session
    reply: ReplyT


class AttachmentOwner(Protocol[ReplyIn]):
    """The producer or consumer."""

    def attach_command(self) -> AnyCommand: ...

    def detach_command(self, handle: int) -> AnyCommand: ...

    def on_attached(self, session: Session, reply: ReplyIn) -> None: ...

    def on_detached(self) -> None: ...

    def on_ended(self, error: DanubiusError) -> None: ...

    def flush_nowait(self) -> None: ...


class Attachment(Generic[ReplyT]):
    """Keeps its owner attached for as long as it can be."""

    def __init__(
        self, route: Route, owner: AttachmentOwner[ReplyT], reply_type: type[ReplyT]
    ) -> None:
        self._route = route
        self._owner = owner
        self._reply_type = reply_type
        self._backoff = Backoff(ambient.chance)
        self._attempt = 0
        self._timer: asyncio.TimerHandle | None = None
        self._first: asyncio.Future[None] | None = None
        self._is_new = True
        self._is_ended = False
        self._opened: tuple[Session, int] | None = None
        self.held: Held[ReplyT] | None = None
        """None while it is on its way, or at its end."""
        self.changes = Gate()
        self.refusal: DanubiusError | None = None
        """Why the last attempt failed, while attempts go on."""

    async def open(self, timeout_s: float | None) -> None:
        """Attach for the first time and wait for it; None: for as long as it takes."""
        self._route.check_open()
        self._first = asyncio.get_running_loop().create_future()
        self._route.add(self)
        try:
            self.attach()
            async with asyncio.timeout(timeout_s):
                await self._first
        except TimeoutError:
            self._abandon()
            assert timeout_s is not None
            raise self._route.overdue(timeout_s) from None
        except BaseException:
            self._abandon()
            raise
        self._opened = None

    def attach(self) -> None:
        """Ask for a (new) handle now; without a connection, as soon as there is one."""
        session = self._route.session_or_none
        if self._is_ended or session is None:
            return
        self._hold(None)
        self._stop_timer()
        self._attempt += 1
        session.call(self._owner.attach_command(), partial(self._on_reply, session, self._attempt))

    def attach_later(self) -> None:
        """Ask for a (new) handle after a wait that grows with every call until one succeeds."""
        if self._is_ended or self._timer is not None:
            return
        self._hold(None)
        self._attempt += 1
        delay_s = self._backoff.next_delay_s()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.attach)

    def look_again(self, error: DanubiusError) -> None:
        """The broker serves the topic no longer: the route finds the one that does, and attaches there."""
        self.refusal = error
        if self.held is not None:
            self._route.look_again(self.held.session)

    async def outwait_move(self, timeout_s: float) -> None:
        """If the topic is on its way to another broker: until it is attached there, or the time is over."""
        if not self._route.is_moving:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.held is None and not self._is_ended:
                    await self.changes.wait()

    def calm(self) -> None:
        """Things go well again: the next wait is a short one."""
        self._backoff.reset()

    def end(self) -> None:
        """Let go. The owner is not called any more."""
        self._is_ended = True
        self._attempt += 1
        self._stop_timer()
        self._hold(None)
        self._route.remove(self)

    # ------------------------------------------------------------ the link calls these

    def on_link_up(self, session: Session) -> None:
        del session
        self.attach()

    def on_link_down(self) -> None:
        held = self.held
        self._attempt += 1
        self._stop_timer()
        self._hold(None)
        self._owner.on_detached()
        if held is not None and not held.session.is_lost:
            self._give_back(
                held.session, held.reply.handle
            )  # the topic moved: nobody is there any more

    def on_link_writable(self) -> None:
        self._owner.flush_nowait()

    def on_link_failed(self, error: DanubiusError) -> None:
        self._fail(error)

    def flush_nowait(self) -> None:
        self._owner.flush_nowait()

    # ------------------------------------------------------------ inside

    def _on_reply(
        self,
        session: Session,
        attempt: int,
        reply: AnyCommand | DanubiusError,
        _payload: memoryview,
    ) -> None:
        if attempt != self._attempt or self._is_ended:
            if isinstance(reply, self._reply_type):
                self._give_back(session, reply.handle)  # nobody would ever close it
            return
        if isinstance(reply, self._reply_type):
            if self._is_new:
                self._opened = session, reply.handle
            self._is_new = False
            self.refusal = None
            self._hold(Held(session, reply))
            self._owner.on_attached(session, reply)
            if self._first is not None and not self._first.done():
                self._first.set_result(None)
        elif not isinstance(reply, DanubiusError):
            self._fail(expect(reply, self._owner.attach_command().opcode.name))
        elif reply.retry is Retry.AFTER_LOOKUP:
            self.refusal = reply
            self._route.look_again(session)
        elif isinstance(reply, BrokerUnavailable) or (reply.is_retryable and not self._is_new):
            self.refusal = reply
            self.attach_later()
        else:
            self._fail(reply)

    def _hold(self, held: Held[ReplyT] | None) -> None:
        self.held = held
        self.changes.open()

    def _abandon(self) -> None:
        """Nobody waits for the first attachment any more, and it may be there already."""
        self.end()
        if self._opened is not None:
            self._owner.on_detached()
            self._give_back(*self._opened)

    def _give_back(self, session: Session, handle: int) -> None:
        session.call(self._owner.detach_command(handle), ignore)

    def _fail(self, error: DanubiusError) -> None:
        if self._is_ended:
            return
        self.end()
        self._owner.on_ended(error)
        if self._first is not None and not self._first.done():
            self._first.set_exception(fresh(error))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
