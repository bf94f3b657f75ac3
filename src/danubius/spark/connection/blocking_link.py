"""A blocking connection for Spark's processes: requests, pipelined, over one socket at a time.

Spark's planners and workers are processes without an event loop that do one thing at a time, so this speaks the native
protocol (`wire.Connection`) over a blocking socket.

Invariants: every wait has a deadline; whatever is asked here may be asked twice, so a lost connection is dialled again
(with back-off, within `reconnect_s`, the addresses in turn) and what was not answered is asked again.
"""

from __future__ import annotations

import random
import socket
import time
from typing import TYPE_CHECKING, Final

import msgspec

from danubius.client.core.address import urls_of
from danubius.client.core.retry import Backoff
from danubius.client.version import CLIENT_NAME
from danubius.errors import (
    BrokerUnavailable,
    DanubiusError,
    DeadlineExceeded,
    ProtocolViolation,
    Retry,
    UnsupportedVersion,
)
from danubius.model.limits import MIB
from danubius.wire.commands import (
    AnyCommand,
    Error,
    Goodbye,
    Hello,
    Ping,
    Pong,
    Welcome,
)
from danubius.wire.connection import Connection
from danubius.wire.states import Role
from danubius.wire.version import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN, check_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.client.core.address import BrokerAddress
    from danubius.wire.frame import Frame

Answer = tuple[AnyCommand, memoryview] | DanubiusError

ADDRESSES_MAX: Final = 64
"""What a link remembers to dial."""
_CORRELATION_MAX: Final = 0xFFFF_FFFF
_RECEIVE_BUFFER_BYTES: Final = 4 * MIB
"""Holds an answer while Python and Spark work on the one before; the kernel may give less."""
_PIPELINE_MAX: Final = 256
"""Requests under way at once: far below what a broker lets wait."""
_TROUBLES_MAX: Final = 10
"""Refusals in a row of one request that may succeed later; with the back-off some ten seconds."""
_HOPELESS: Final = (UnsupportedVersion, ProtocolViolation)
"""Dialling again would end the same way."""


class Patience(msgspec.Struct, frozen=True):
    """How long to wait for what."""

    connect_s: float = 5.0
    """For a broker that nobody has reached yet: after this long there is none at that address."""
    request_s: float = 30.0
    """For one answer on a connection."""
    reconnect_s: float = 60.0
    """For a broker that was there before: a restart must fit into it."""


class BlockingLink:
    """One blocking connection, to whichever of its addresses answers, dialled again when it is lost."""

    def __init__(
        self, addresses: Sequence[BrokerAddress], patience: Patience, *, is_patient: bool = True
    ) -> None:
        """`is_patient=False`: a loss is the caller's to hear at once, who may know another broker."""
        self.address = addresses[0]
        """The one that is connected to, or was last tried."""
        self.patience = patience
        self.is_known = False
        """Whether a broker is known to live there: then its absence is taken for a restart."""
        self.broker_url = ""
        """What the broker calls itself; empty: it did not say."""
        self._addresses = list(addresses)
        self._is_patient = is_patient
        self._socket: socket.socket | None = None
        self._connection = Connection(Role.CLIENT)
        self._correlation = 0
        self._waited_for: set[int] = set()
        self._answers: dict[int, Answer] = {}

    @property
    def is_connected(self) -> bool:
        return self._socket is not None

    def ask(self, commands: Sequence[AnyCommand]) -> list[Answer]:
        """Ask many things in as few round trips as possible. Errors of single requests are returned, not raised.

        Raises:
            BrokerUnavailable: nobody answered for as long as patience goes.
        """
        answers: list[Answer] = []
        for at in range(0, len(commands), _PIPELINE_MAX):
            answers += self._persist(commands[at : at + _PIPELINE_MAX])
        return answers

    def learn(self, address: BrokerAddress) -> None:
        """Dial this one, too, when the connection is lost."""
        if address not in self._addresses and len(self._addresses) < ADDRESSES_MAX:
            self._addresses.append(address)

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._waited_for.clear()
        self._answers.clear()

    # ------------------------------------------------------------ persistence

    def _persist(self, commands: Sequence[AnyCommand]) -> list[Answer]:
        """Ask until each has an answer that asking again would not change."""
        answers: list[Answer | None] = [None] * len(commands)
        waits = Backoff(random.random)
        lost_at: float | None = None
        while True:
            open_ = [number for number, answer in enumerate(answers) if _is_open(answer)]
            if not open_:
                break
            was_connected = self.is_connected
            try:
                self._connect()
                tickets = [self._send(commands[number]) for number in open_]
                for number, ticket in zip(open_, tickets, strict=True):
                    answers[number] = self._wait(ticket)
                    lost_at = None
            except (BrokerUnavailable, DeadlineExceeded) as error:
                self.close()
                lost_at = self._bear(error, lost_at)
                if not was_connected:
                    self._turn()
                time.sleep(waits.next_delay_s())
                continue
            if any(_is_open(answers[number]) for number in open_):
                if waits.attempts >= _TROUBLES_MAX:
                    break
                time.sleep(waits.next_delay_s())
        return [answer for answer in answers if answer is not None]

    def _turn(self) -> None:
        """The next address has its turn."""
        known = self._addresses
        self.address = known[(known.index(self.address) + 1) % len(known)]

    def _bear(self, error: DanubiusError, lost_at: float | None) -> float:
        """Since when there is no broker; raises when that is too long."""
        now = time.monotonic()
        lost_at = now if lost_at is None else lost_at
        limit_s = self.patience.reconnect_s if self.is_known else self.patience.connect_s
        limit_s = limit_s if self._is_patient else 0.0
        if now - lost_at >= limit_s:
            raise BrokerUnavailable(
                f"no broker answers at {urls_of(self._addresses)} ({error.message}): start one with"
                " 'danubius standalone', or correct the option url"
            ) from None
        return lost_at

    def collect(self, ticket: int | None) -> Answer | None:
        """The answer to what was asked ahead; None if it went with its connection, or is to be asked for again."""
        if ticket in self._waited_for:
            assert ticket is not None
            try:
                answer = self._wait(ticket)
            except (BrokerUnavailable, DeadlineExceeded):
                self.close()
            else:
                return None if _is_open(answer) else answer
        return None

    def ask_ahead(self, command: AnyCommand) -> int | None:
        """Send a request whose answer is collected later; None if there is no connection to send it on."""
        try:
            return self._send(command)
        except BrokerUnavailable:
            self.close()
            return None

    def forget(self, ticket: int | None) -> None:
        """Nobody wants that answer any more."""
        if ticket is not None:
            self._waited_for.discard(ticket)
            self._answers.pop(ticket, None)

    # ------------------------------------------------------------ one connection

    def _connect(self) -> None:
        if self._socket is not None:
            return
        address, limit_s = self.address, self.patience.connect_s
        try:
            self._socket = socket.create_connection((address.host, address.port), limit_s)
        except OSError as error:
            reason = error.strerror or str(error)
            raise BrokerUnavailable(f"cannot connect to {address.url}: {reason}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        self._connection = Connection(Role.CLIENT)
        self._write(Hello(PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX, f"{CLIENT_NAME} spark"), 0)
        deadline = time.monotonic() + limit_s
        try:
            welcome = self._next_frame(deadline).command
            if isinstance(welcome, Error):
                raise welcome.as_exception()
            if not isinstance(welcome, Welcome):
                raise ProtocolViolation(f"the broker greets with {welcome.opcode.name}")
            check_version(welcome)
        except DanubiusError:
            self.close()
            raise
        self.is_known = True
        self.broker_url = welcome.url

    def _send(self, command: AnyCommand) -> int:
        self._correlation = ticket = self._correlation % _CORRELATION_MAX + 1
        self._write(command, ticket)
        self._waited_for.add(ticket)
        return ticket

    def _write(self, command: AnyCommand, correlation: int) -> None:
        if self._socket is None:
            raise BrokerUnavailable("the connection is closed")
        self._socket.settimeout(self.patience.request_s)
        try:
            self._socket.sendall(b"".join(self._connection.send(command, correlation)))
        except OSError as error:
            raise BrokerUnavailable(
                f"the connection to {self.address.url} was lost: {error}"
            ) from None

    def _wait(self, ticket: int) -> Answer:
        deadline = time.monotonic() + self.patience.request_s
        while ticket not in self._answers:
            self._take(self._next_frame(deadline))
        self._waited_for.discard(ticket)
        return self._answers.pop(ticket)

    def _take(self, frame: Frame) -> None:
        command, correlation, payload = frame
        match command:
            case Ping():
                self._write(Pong(), correlation)
            case Goodbye():
                raise BrokerUnavailable(f"the broker ended the connection: {command.reason}")
            case Error() if correlation in self._waited_for:
                self._answers[correlation] = command.as_exception()
            case Error(about=0) if not correlation:
                raise command.as_exception()
            case _ if correlation in self._waited_for:
                self._answers[correlation] = command, payload
            case _:
                pass  # an answer that nobody waits for any more

    def _next_frame(self, deadline: float) -> Frame:
        while (frame := self._connection.next_event()) is None:
            left_s = deadline - time.monotonic()
            if self._socket is None or left_s <= 0:
                raise DeadlineExceeded(f"the broker at {self.address.url} did not answer in time")
            self._socket.settimeout(left_s)
            try:
                count = self._socket.recv_into(self._connection.get_buffer(-1))
            except TimeoutError:
                continue
            except OSError as error:
                raise BrokerUnavailable(
                    f"the connection to {self.address.url} was lost: {error}"
                ) from None
            if not count:
                raise BrokerUnavailable(f"the broker at {self.address.url} hung up")
            self._connection.buffer_updated(count)
        return frame


def _is_open(answer: Answer | None) -> bool:
    """Whether asking again is due: not answered, or refused in a way that may pass."""
    if isinstance(answer, DanubiusError):
        may_pass = answer.is_retryable and answer.retry is not Retry.AFTER_LOOKUP
        return may_pass and not isinstance(answer, _HOPELESS)
    return answer is None
