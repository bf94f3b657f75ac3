"""Requests over whatever leads to a broker, asked until they are answered, refused, or out of time."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from danubius.client.connection.session import expect
from danubius.client.core.retry import FIRST_DELAY_S
from danubius.errors import BrokerUnavailable, DanubiusError, Retry

if TYPE_CHECKING:
    from danubius.client.connection.session import Session
    from danubius.wire.commands import AnyCommand

ReplyT = TypeVar("ReplyT")


class RequestPath(Protocol):
    """A link, or the route to a topic."""

    @property
    def session_or_none(self) -> Session | None: ...

    async def wait_up(self) -> Session:
        """The connection, as soon as there is one; raises why there will be none."""
        ...

    def check_open(self) -> None: ...

    def look_again(self, session: Session) -> bool:
        """The broker there does not serve what was asked about: whether another will be found."""
        ...

    def unanswered(self, name: str, timeout_s: float) -> DanubiusError:
        """What to say about a request that was given up."""
        ...


async def persist(
    way: RequestPath,
    command: AnyCommand,
    reply_type: type[ReplyT],
    *,
    repeats: bool,
    timeout_s: float,
) -> tuple[ReplyT, memoryview]:
    """Ask and wait for the answer and its payload.

    `repeats` says that asking twice is harmless: the request is then sent again after a lost connection. A broker that
    does not serve the topic has done nothing, so then it is asked again elsewhere in any case.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                session = await way.wait_up()
                try:
                    return await _ask(session, command, reply_type)
                except BrokerUnavailable:
                    way.check_open()
                    if not repeats:
                        raise
                    if session is way.session_or_none:
                        # It is ending; its loss is about to be known.
                        await asyncio.sleep(FIRST_DELAY_S)
                except DanubiusError as error:
                    if error.retry is not Retry.AFTER_LOOKUP or not way.look_again(session):
                        raise
    except TimeoutError:
        raise way.unanswered(command.opcode.name, timeout_s) from None


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
