"""A small blocking client for Spark's processes: requests, pipelined, and the records of an offset range.

Spark's planners and workers are processes without an event loop that do one thing at a time, so this speaks the native
protocol (`wire.Connection`) over a blocking socket. There is one client for each process and address, kept in a module
global because worker processes live long and dialling costs more than a small task.

Invariants: every wait has a deadline; whatever is asked here may be asked twice, so a lost connection is dialled again
(with back-off, within `reconnect_s`) and what was not answered is asked again; a fork never shares a socket, because
clients are found by process id.
"""

from __future__ import annotations

import os
import random
import socket
import time
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from danubius.client.core.address import BrokerAddress, parse_url
from danubius.client.core.retry import Backoff
from danubius.client.version import CLIENT_NAME
from danubius.errors import (
    BrokerUnavailable,
    DanubiusError,
    DeadlineExceeded,
    OffsetOutOfRange,
    ProtocolViolation,
    TopicDeleted,
    TopicNotFound,
    UnsupportedVersion,
)
from danubius.model.limits import KIB, MIB
from danubius.model.subscription import EARLIEST, AtOffset
from danubius.spark.connection.file_parts import FileParts
from danubius.wire.commands import (
    AnyCommand,
    Error,
    Fetch,
    Fetched,
    Goodbye,
    Hello,
    OffsetResolved,
    Ping,
    Pong,
    ResolveOffset,
    Welcome,
)
from danubius.wire.connection import Connection
from danubius.wire.states import Role
from danubius.wire.version import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN, check_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from danubius.wire.frame import Frame

ReplyT = TypeVar("ReplyT", bound=AnyCommand)
Answer = tuple[AnyCommand, memoryview] | DanubiusError

_CORRELATION_MAX: Final = 0xFFFF_FFFF
_RECEIVE_BUFFER_BYTES: Final = 4 * MIB
"""Holds an answer while Python and Spark work on the one before; the kernel may give less."""
_SIZE_SLACK: Final = 1.1
"""Records at the end of a range may be larger than the average."""
_PIPELINE_MAX: Final = 256
"""Requests under way at once: far below what a broker lets wait."""
_TROUBLES_MAX: Final = 10
"""Refusals in a row of one request that may succeed later; with the back-off some ten seconds."""
_HOPELESS: Final = (UnsupportedVersion, ProtocolViolation)
"""Dialling again would end the same way."""
_GONE: Final = (OffsetOutOfRange, TopicNotFound, TopicDeleted)


class Patience(msgspec.Struct, frozen=True):
    """How long to wait for what."""

    connect_s: float = 5.0
    """For a broker that nobody has reached yet: after this long there is none at that address."""
    request_s: float = 30.0
    """For one answer on a connection."""
    reconnect_s: float = 60.0
    """For a broker that was there before: a restart must fit into it."""


class Wanted(msgspec.Struct, frozen=True):
    """The records [begin, end) of a topic, and how they may come."""

    topic: str
    begin: int
    end: int
    bytes_max: int
    """In one answer."""
    lossy: bool = False
    """Pass over what is gone (deleted, truncated, damaged) instead of raising OffsetOutOfRange, TopicNotFound or
    LedgerDamaged."""
    incarnation: int = 0
    """Of which topic of this name the offsets are, if that is known; of one that was made anew nothing comes."""
    record_bytes: float = 0.0
    """About how large a record is, so that little is fetched beyond the end."""


class Payload(NamedTuple):
    """Whole record batches, one behind the other."""

    data: memoryview
    is_proven: bool
    """Whether checksums say that these are the bytes that were stored."""


class FetchClient:
    """One broker, one blocking connection, dialled again when it is lost."""

    def __init__(self, address: BrokerAddress, patience: Patience) -> None:
        self.address = address
        self.patience = patience
        self.is_known = False
        """Whether a broker is known to live at the address: then its absence is taken for a restart."""
        self._socket: socket.socket | None = None
        self._connection = Connection(Role.CLIENT)
        self._correlation = 0
        self._waited_for: set[int] = set()
        self._answers: dict[int, Answer] = {}
        self._files = FileParts()
        self.may_point = True
        """Whether to read the broker's files, where it is on this machine."""

    # ------------------------------------------------------------ requests

    def request(self, command: AnyCommand, reply_type: type[ReplyT]) -> ReplyT:
        """Ask and wait for the answer."""
        (answer,) = self.request_all([command])
        return self.check(command, answer, reply_type)

    def request_all(self, commands: Sequence[AnyCommand]) -> list[Answer]:
        """Ask many things in as few round trips as possible. Errors of single requests are returned, not raised."""
        answers: list[Answer] = []
        for at in range(0, len(commands), _PIPELINE_MAX):
            answers += self._persist(commands[at : at + _PIPELINE_MAX])
        return answers

    @staticmethod
    def check(command: AnyCommand, answer: Answer, reply_type: type[ReplyT]) -> ReplyT:
        """The answer, or its error raised."""
        if isinstance(answer, DanubiusError):
            raise answer
        reply = answer[0]
        if not isinstance(reply, reply_type):
            raise ProtocolViolation(
                f"the broker answered {command.opcode.name} with {reply.opcode.name}"
            )
        return reply

    def fetch(self, wanted: Wanted) -> Iterator[Payload]:
        """Record batches that hold what is wanted, in order. The next are asked for before some are handed out."""
        topic, end, lossy = wanted.topic, wanted.end, wanted.lossy

        def ask() -> Fetch:
            size = wanted.bytes_max
            if wanted.record_bytes:
                size = min(size, int((end - at) * wanted.record_bytes * _SIZE_SLACK) + KIB)
            may_point = is_pointing and self.may_point and not lossy
            may_point = may_point and self._files.is_worth_asking
            return Fetch(topic, AtOffset(at), size, 0, lossy, may_point)

        at = wanted.begin
        is_pointing = True
        ticket: int | None = None
        try:
            while at < end:
                command = ask()
                answer = self._collect(command, ticket)
                ticket = None
                if lossy and isinstance(answer, _GONE):
                    at = self._first_left(topic, at, end)
                    continue
                reply = self.check(command, answer, Fetched)
                if not lossy:
                    _check_whole(wanted, at, reply)
                elif reply.next <= at or _is_another(wanted.incarnation, reply):
                    return
                came_from, at = at, reply.next
                if at < end:
                    ticket = self._ask_ahead(ask())
                payload = self._payload_of(answer)
                is_pointing = payload is not None
                if payload is not None:
                    yield payload
                    continue
                # The file is elsewhere, or gone, or damaged, which the broker says better: let it send the bytes.
                self._forget(ticket)
                at, ticket = came_from, None
        finally:
            self._forget(ticket)

    def _payload_of(self, answer: Answer) -> Payload | None:
        """The batches of an answer; None if they lie in a file and cannot be read there."""
        assert not isinstance(answer, DanubiusError)
        reply, data = answer
        part = reply.part if isinstance(reply, Fetched) else None
        if part is None:
            return Payload(data, is_proven=False)
        read = self._files.read(part)
        return None if read is None else Payload(read, is_proven=True)

    def _first_left(self, topic: str, at: int, end: int) -> int:
        """Where to go on when `at` is gone; `end` if nothing before it is there."""
        command = ResolveOffset(topic, EARLIEST)
        (answer,) = self.request_all([command])
        if isinstance(answer, TopicNotFound | TopicDeleted):
            return end
        start = self.check(command, answer, OffsetResolved).offset
        return start if start > at else end

    def close(self) -> None:
        """Hang up."""
        self._files.close()
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
            try:
                self._connect()
                tickets = [self._send(commands[number]) for number in open_]
                for number, ticket in zip(open_, tickets, strict=True):
                    answers[number] = self._wait(ticket)
                    lost_at = None
            except (BrokerUnavailable, DeadlineExceeded) as error:
                self.close()
                lost_at = self._bear(error, lost_at)
                time.sleep(waits.next_delay_s())
                continue
            if any(_is_open(answers[number]) for number in open_):
                if waits.attempts >= _TROUBLES_MAX:
                    break
                time.sleep(waits.next_delay_s())
        return [answer for answer in answers if answer is not None]

    def _bear(self, error: DanubiusError, lost_at: float | None) -> float:
        """Since when there is no broker; raises when that is too long."""
        now = time.monotonic()
        lost_at = now if lost_at is None else lost_at
        limit_s = self.patience.reconnect_s if self.is_known else self.patience.connect_s
        if now - lost_at >= limit_s:
            raise BrokerUnavailable(
                f"no broker answers at {self.address.url} ({error.message}): start one with"
                " 'danubius standalone', or correct the option url"
            ) from None
        return lost_at

    def _collect(self, command: AnyCommand, ticket: int | None) -> Answer:
        """The answer to what was asked ahead, or to asking now."""
        if ticket in self._waited_for:  # else its connection is gone
            assert ticket is not None
            try:
                answer = self._wait(ticket)
            except (BrokerUnavailable, DeadlineExceeded):
                self.close()
            else:
                if not _is_open(answer):
                    return answer
        return self._persist([command])[0]

    def _ask_ahead(self, command: AnyCommand) -> int | None:
        try:
            return self._send(command)
        except BrokerUnavailable:
            self.close()
            return None

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

    def _forget(self, ticket: int | None) -> None:
        if ticket is not None:
            self._waited_for.discard(ticket)
            self._answers.pop(ticket, None)

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


def _is_another(incarnation: int, reply: Fetched) -> bool:
    """Whether the topic that answered only has the name of the one that was meant."""
    return bool(incarnation and reply.incarnation) and reply.incarnation != incarnation


def _check_whole(wanted: Wanted, at: int, reply: Fetched) -> None:
    """Refuse an answer with a hole before it, or none where the topic had records when the read was planned."""
    topic, end = wanted.topic, wanted.end
    if _is_another(wanted.incarnation, reply):
        raise OffsetOutOfRange(
            f"offsets {at} to {end - 1} of {topic} are gone: it was deleted and made anew since the read was planned"
        )
    if reply.first > at:
        raise OffsetOutOfRange(
            f"offsets {at} to {reply.first - 1} of {topic} are gone: it was truncated while it was read"
        )
    if reply.next <= at:
        raise OffsetOutOfRange(
            f"{topic} ends at offset {reply.end_offset}, but offsets up to {end - 1} were there when the read was"
            " planned: it was deleted and made anew"
        )


def _is_open(answer: Answer | None) -> bool:
    """Whether asking again is due: not answered, or refused in a way that may pass."""
    if isinstance(answer, DanubiusError):
        return answer.is_retryable and not isinstance(answer, _HOPELESS)
    return answer is None


_clients: dict[tuple[int, BrokerAddress], FetchClient] = {}


def client_of(url: str, patience: Patience, *, is_known: bool = False) -> FetchClient:
    """This process's client for a broker. `is_known`: somebody has just spoken to it."""
    key = (os.getpid(), parse_url(url))
    client = _clients.get(key)
    if client is None:
        for stale in [other for other in _clients if other[0] != key[0]]:
            del _clients[stale]  # a parent's: its socket is not ours to use
        client = _clients[key] = FetchClient(key[1], patience)
    client.patience = patience
    client.is_known = client.is_known or is_known
    return client


def close_clients() -> None:
    """Hang up on every broker: for processes that are about to end, or whose brokers are."""
    for (pid, _), client in _clients.items():
        if pid == os.getpid():
            client.close()
    _clients.clear()
