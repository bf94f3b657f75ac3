"""One client's life on the broker: its commands find who does what they ask, and all is undone when it goes."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Final

from danubius.errors import DanubiusError, UnsupportedVersion
from danubius.model.limits import FRAME_BYTES_MAX
from danubius.session import administering as session_administration
from danubius.session import consuming as session_consuming
from danubius.session import delaying as session_delaying
from danubius.session import producing as session_producing
from danubius.session import staging as session_staging
from danubius.session import topics as session_topics
from danubius.session import transactions as session_transactions
from danubius.session.state import SessionState
from danubius.wire.commands import AnyCommand, Error, Goodbye, Hello, Ping, Pong, Welcome
from danubius.wire.version import choose_version

if TYPE_CHECKING:
    from danubius.session.state import Handler, PayloadHandler


class Session(SessionState):
    """The commands of one connection. A request fails alone: its error is its answer."""

    def handle(self, command: AnyCommand, correlation_id: int, payload: memoryview) -> None:
        """Do what a command asks; DanubiusErrors become its answer."""
        kind = type(command)
        try:
            if kind in _PAYLOAD_HANDLERS:
                _PAYLOAD_HANDLERS[kind](self, command, correlation_id, payload)
            else:
                _HANDLERS[kind](self, command, correlation_id)
        except DanubiusError as error:
            if correlation_id or kind is Hello:
                self.fail(correlation_id, error)
            else:
                # Nobody waits for it: the answer says what it is about, and that the connection lives on.
                handle: int = getattr(command, "handle", 0)
                self.peer.send(Error.of(error, command.opcode, handle))


def _hello(session: SessionState, command: Hello, correlation_id: int) -> None:
    session.version = choose_version(command)
    session.client = command.client[:200]
    config = session.shard.config
    session.peer.send(
        Welcome(
            session.version,
            session.name,
            FRAME_BYTES_MAX,
            config.message_bytes_max,
            config.keepalive_ms,
            session.advertised_url,
        ),
        correlation_id,
    )


def _ping(session: SessionState, _command: Ping, correlation_id: int) -> None:
    session.peer.send(Pong(), correlation_id)


def _goodbye(session: SessionState, _command: Goodbye, _correlation_id: int) -> None:
    session.close()


def _ignore(_session: SessionState, _command: AnyCommand, _correlation_id: int) -> None:
    """Pongs matter to the edge's keepalive only."""


def _refuse(_session: SessionState, command: AnyCommand, _correlation_id: int) -> None:
    """The protocol has it, and nothing here does it."""
    name = type(command).__name__
    raise UnsupportedVersion(f"this broker does not serve {name}: upgrade it")


def _answer_unknown(_session: SessionState, command: Error, _correlation_id: int) -> None:
    """No client sends it: the codec puts it in the place of a command that sets what this version does not know."""
    raise command.as_exception()


_HANDLERS: Final[dict[type, Handler]] = {
    **dict.fromkeys(typing.get_args(AnyCommand), _refuse),
    Error: _answer_unknown,
    Hello: _hello,
    Ping: _ping,
    Pong: _ignore,
    Goodbye: _goodbye,
    **session_topics.HANDLERS,
    **session_transactions.HANDLERS,
    **session_staging.HANDLERS,
    **session_producing.HANDLERS,
    **session_delaying.HANDLERS,
    **session_consuming.HANDLERS,
    **session_administration.HANDLERS,
}
_PAYLOAD_HANDLERS: Final[dict[type, PayloadHandler]] = {
    **session_transactions.PAYLOAD_HANDLERS,
    **session_staging.PAYLOAD_HANDLERS,
    **session_producing.PAYLOAD_HANDLERS,
    **session_delaying.PAYLOAD_HANDLERS,
}
