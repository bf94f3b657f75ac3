"""The life of a connection and who may say what in it.

    HELLO ── Hello ──► GREETED ── Welcome ──► OPEN ── Goodbye or violation ──► CLOSING ── end ──► CLOSED

Both peers keep the same state. The client speaks first and waits for Welcome before it says more. After a
Goodbye of either side the client is silent and the broker may still answer what is under way; client frames that
crossed the broker's Goodbye are dropped unread.
"""

from __future__ import annotations

import enum
from typing import Final

from danubius.wire.commands import Opcode


class Role(enum.Enum):
    """Which end of the connection this is."""

    CLIENT = "client"
    BROKER = "broker"

    @property
    def peer(self) -> Role:
        return Role.BROKER if self is Role.CLIENT else Role.CLIENT


class ConnectionState(enum.Enum):
    """Where the connection is in its life."""

    HELLO = "hello"
    """Nothing was said yet."""
    GREETED = "greeted"
    """The client said Hello; the broker has not answered."""
    OPEN = "open"
    CLOSING = "closing"
    """Somebody said Goodbye, or the peer broke the protocol."""
    CLOSED = "closed"
    """The peer's bytes have ended."""


_EITHER: Final = frozenset({Opcode.PING, Opcode.PONG, Opcode.GOODBYE})

_REQUESTS: Final = _EITHER | {
    Opcode.LOOKUP,
    Opcode.CREATE_TOPIC,
    Opcode.DELETE_TOPIC,
    Opcode.LIST_TOPICS,
    Opcode.DESCRIBE_TOPIC,
    Opcode.RESOLVE_OFFSET,
    Opcode.ADMINISTER,
    Opcode.OPEN_PRODUCER,
    Opcode.PRODUCE,
    Opcode.CLOSE_PRODUCER,
    Opcode.SCHEDULE,
    Opcode.SUBSCRIBE,
    Opcode.FLOW,
    Opcode.ACK,
    Opcode.NACK,
    Opcode.CLOSE_CONSUMER,
    Opcode.FETCH,
    Opcode.BEGIN_TRANSACTION,
    Opcode.STAGE,
    Opcode.STAGE_ACK,
    Opcode.COMMIT_TRANSACTION,
    Opcode.ABORT_TRANSACTION,
    Opcode.OPEN_STAGE,
    Opcode.UPLOAD,
    Opcode.COMMIT_STAGES,
    Opcode.ABORT_STAGES,
}

_ANSWERS: Final = _EITHER | {
    Opcode.ERROR,
    Opcode.DONE,
    Opcode.LOCATED,
    Opcode.TOPICS_LISTED,
    Opcode.TOPIC_DESCRIBED,
    Opcode.OFFSET_RESOLVED,
    Opcode.TOPIC_CHANGED,
    Opcode.ADMINISTERED,
    Opcode.PRODUCER_OPENED,
    Opcode.PRODUCED,
    Opcode.PRODUCER_CLOSED,
    Opcode.SUBSCRIBED,
    Opcode.DELIVER,
    Opcode.CONSUMER_CLOSED,
    Opcode.CONSUMER_ACTIVE,
    Opcode.FETCHED,
    Opcode.TRANSACTION_BEGUN,
    Opcode.STAGE_OPENED,
}

_REFUSALS: Final = frozenset({Opcode.ERROR, Opcode.GOODBYE})
_NOTHING: Final[frozenset[Opcode]] = frozenset()

LEGAL: Final[dict[ConnectionState, dict[Role, frozenset[Opcode]]]] = {
    ConnectionState.HELLO: {Role.CLIENT: frozenset({Opcode.HELLO}), Role.BROKER: _REFUSALS},
    ConnectionState.GREETED: {
        Role.CLIENT: frozenset({Opcode.GOODBYE}),
        Role.BROKER: _REFUSALS | {Opcode.WELCOME},
    },
    ConnectionState.OPEN: {Role.CLIENT: _REQUESTS, Role.BROKER: _ANSWERS},
    ConnectionState.CLOSING: {Role.CLIENT: _NOTHING, Role.BROKER: _ANSWERS},
    ConnectionState.CLOSED: {Role.CLIENT: _NOTHING, Role.BROKER: _NOTHING},
}
"""Which opcodes a role may send in a state, if the version of the connection has them (see `wire/version.py`)."""

assert set().union(*(LEGAL[s][r] for s in ConnectionState for r in Role)) == set(Opcode)
