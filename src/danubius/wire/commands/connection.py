"""Greeting, keeping alive, saying that something failed, parting."""

# ruff: noqa: TC001  # msgspec reads the annotations when the module is imported

from __future__ import annotations

from danubius.errors import DanubiusError, LedgerDamaged, Throttled, error_from_code
from danubius.wire.commands.fields import Count, Handle
from danubius.wire.commands.opcodes import Command, Opcode


class Hello(Command, frozen=True):
    """Client, first frame: which protocol versions it speaks and who it is."""

    opcode = Opcode.HELLO
    version_min: Count
    version_max: Count
    client: str
    """Free text for logs, for example `danubius-python/0.1.0`."""


class Welcome(Command, frozen=True):
    """Broker, first frame: the chosen version and the limits that hold on this connection."""

    opcode = Opcode.WELCOME
    version: Count
    broker: str
    frame_bytes_max: Count
    message_bytes_max: Count
    keepalive_ms: Count
    """Either side sends PING after this long without receiving anything, and gives up after three times as long."""
    url: str = ""
    """What this broker calls itself in Located; empty: it does not say, and every topic is served here."""


class Ping(Command, frozen=True):
    """Are you there? Answered by Pong with the same correlation id, in any open state, by either side."""

    opcode = Opcode.PING


class Pong(Command, frozen=True):
    """I am."""

    opcode = Opcode.PONG


class Error(Command, frozen=True):
    """The request with this correlation id failed.

    With correlation id 0 and `about`, a command that nobody waits for failed, and the connection lives on; without
    `about`, the connection is about to be closed.
    """

    opcode = Opcode.ERROR
    code: Count
    message: str
    retry: Count
    about: Count = 0
    """The opcode of the command that failed, if it had no correlation id."""
    handle: Handle = 0
    """The producer or consumer which that command named."""
    first: Count = 0
    end: Count = 0
    """The offsets [first, end) that the error is about: a damaged range. To skip it, go on at `end`."""
    wait_ms: Count = 0
    """How long to wait before the same is tried again, if the broker knows."""

    @classmethod
    def of(cls, error: DanubiusError, about: int = 0, handle: int = 0) -> Error:
        """The frame that tells a peer of this error, with all that the error carries."""
        first, end = (error.first, error.end) if isinstance(error, LedgerDamaged) else (0, 0)
        wait_ms = error.wait_ms if isinstance(error, Throttled) else 0
        return cls(error.code, error.message, error.retry, about, handle, first, end, wait_ms)

    def as_exception(self) -> DanubiusError:
        """The error that the peer told us of."""
        return error_from_code(self.code, self.message, self.first, self.end, self.wait_ms)


class Done(Command, frozen=True):
    """The request with this correlation id succeeded and has nothing else to say."""

    opcode = Opcode.DONE


class Goodbye(Command, frozen=True):
    """The sender will close the connection; nothing more is accepted on it."""

    opcode = Opcode.GOODBYE
    reason: str
