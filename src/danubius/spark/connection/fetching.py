"""A small blocking client for Spark's processes: requests, and the records of an offset range, from whoever has them.

There is one client for each process and URL, kept in a module global because worker processes live long and dialling
costs more than a small task. Topics are found as any client finds them: a broker that does not serve one says so, a
lookup names who does, and what was asked is asked there.

Invariants: every wait has a deadline, and a move is a wait: a topic that moves in the middle of a read costs it
nothing; a fork never shares a socket, because clients are found by process id.
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from danubius.client.core.address import BrokerAddress, dialable, parse_urls
from danubius.client.core.retry import Backoff
from danubius.errors import (
    BrokerUnavailable,
    DanubiusError,
    DeadlineExceeded,
    OffsetOutOfRange,
    ProtocolViolation,
    TopicDeleted,
    TopicMoved,
    TopicNotFound,
)
from danubius.model.admin_codec import decode_request
from danubius.model.limits import KIB
from danubius.model.subscription import EARLIEST, AtOffset
from danubius.spark.connection.blocking_link import Answer, BlockingLink, Patience
from danubius.spark.connection.file_parts import FileParts
from danubius.wire.commands import (
    Administer,
    AnyCommand,
    Fetch,
    Fetched,
    Located,
    Lookup,
    OffsetResolved,
    ResolveOffset,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ReplyT = TypeVar("ReplyT", bound=AnyCommand)

LINKS_MAX: Final = 64
"""To brokers besides the first; the one that was used first goes first."""
PLACES_MAX: Final = 10_000
"""Topics that are known to be elsewhere; the one that was learned first is forgotten first."""
_SIZE_SLACK: Final = 1.1
"""Records at the end of a range may be larger than the average."""
_GONE: Final = (OffsetOutOfRange, TopicNotFound, TopicDeleted)


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


class _Ahead(NamedTuple):
    """What was asked before it is needed."""

    link: BlockingLink
    ticket: int


class FetchClient:
    """The brokers behind one URL."""

    def __init__(self, addresses: Sequence[BrokerAddress], patience: Patience) -> None:
        self._home = BlockingLink(addresses, patience)
        self._links: dict[BrokerAddress, BlockingLink] = {}
        self._places: dict[str, BlockingLink] = {}
        """Topics that are elsewhere than at home."""
        self._files = FileParts()
        self.may_point = True
        """Whether to read the broker's files, where it is on this machine."""

    @property
    def is_known(self) -> bool:
        """Whether a broker is known to live there: then its absence is taken for a restart."""
        return self._home.is_known

    @is_known.setter
    def is_known(self, is_known: bool) -> None:
        self._home.is_known = is_known

    @property
    def patience(self) -> Patience:
        return self._home.patience

    @patience.setter
    def patience(self, patience: Patience) -> None:
        for link in (self._home, *self._links.values()):
            link.patience = patience

    # ------------------------------------------------------------ requests

    def request(self, command: AnyCommand, reply_type: type[ReplyT]) -> ReplyT:
        """Ask and wait for the answer."""
        (answer,) = self.request_all([command])
        return self.check(command, answer, reply_type)

    def request_all(self, commands: Sequence[AnyCommand]) -> list[Answer]:
        """Ask many things in as few round trips as possible. Errors of single requests are returned, not raised.

        What is about a topic is asked of the broker that serves it, looked for as long as patience goes.
        """
        answers: list[Answer] = [_UNASKED] * len(commands)
        open_ = list(range(len(commands)))
        waits = Backoff(random.random)
        deadline: float | None = None
        while True:
            self._ask(commands, open_, answers)
            open_ = [at for at in open_ if isinstance(answers[at], TopicMoved)]
            now = time.monotonic()
            if not open_ or (deadline is not None and now >= deadline):
                return answers
            deadline = now + self.patience.reconnect_s if deadline is None else deadline
            time.sleep(waits.next_delay_s())
            for topic in sorted({_topic_of(commands[at]) for at in open_}):
                # Who refused knows best where a topic went, but may not know: then the one at home is asked.
                self._look_again(topic, ask_home=not waits.attempts % 2)

    def _ask(
        self, commands: Sequence[AnyCommand], open_: Sequence[int], answers: list[Answer]
    ) -> None:
        """One round: each command to where its topic was seen last."""
        parts: dict[BlockingLink, list[int]] = {}
        for at in open_:
            parts.setdefault(self._link_for(commands[at]), []).append(at)
        for link, part in parts.items():
            try:
                given = link.ask([commands[at] for at in part])
            except (BrokerUnavailable, DeadlineExceeded) as error:
                if link is self._home:
                    raise
                # It may be gone for good, and its topics be somewhere else by now.
                given = [TopicMoved(error.message)] * len(part)
            for at, answer in zip(part, given, strict=True):
                answers[at] = answer

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
        ahead: _Ahead | None = None
        try:
            while at < end:
                answer = self._collect(ask(), ahead)
                ahead = None
                if lossy and isinstance(answer, _GONE):
                    at = self._first_left(topic, at, end)
                    continue
                reply = self.check(ask(), answer, Fetched)
                if not lossy:
                    _check_whole(wanted, at, reply)
                elif reply.next <= at or _is_another(wanted.incarnation, reply):
                    return
                came_from, at = at, reply.next
                if at < end:
                    ahead = self._ask_ahead(topic, ask())
                payload = self._payload_of(answer)
                is_pointing = payload is not None
                if payload is not None:
                    yield payload
                    continue
                # The file is elsewhere, or gone, or damaged, which the broker says better: let it send the bytes.
                _forget(ahead)
                at, ahead = came_from, None
        finally:
            _forget(ahead)

    def _ask_ahead(self, topic: str, command: Fetch) -> _Ahead | None:
        link = self._link_of(topic)
        ticket = link.ask_ahead(command)
        return None if ticket is None else _Ahead(link, ticket)

    def _collect(self, command: Fetch, ahead: _Ahead | None) -> Answer:
        """The answer to what was asked ahead, or to asking now."""
        answer = None if ahead is None else ahead.link.collect(ahead.ticket)
        if answer is None or isinstance(answer, TopicMoved):
            (answer,) = self.request_all([command])
        return answer

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
        for link in (self._home, *self._links.values()):
            link.close()
        self._links.clear()
        self._places.clear()

    # ------------------------------------------------------------ finding brokers

    def _link_of(self, topic: str) -> BlockingLink:
        return self._places.get(topic, self._home)

    def _link_for(self, command: AnyCommand) -> BlockingLink:
        if not self._places or isinstance(command, Lookup):
            return self._home  # any broker answers a lookup
        return self._link_of(_topic_of(command))

    def _look_again(self, topic: str, *, ask_home: bool) -> None:
        """Ask who serves a topic: the broker that does not, or the one at home."""
        link = self._link_of(topic)
        asked = self._home if ask_home or not link.is_connected else link
        try:
            (answer,) = asked.ask([Lookup(topic)])
        except (BrokerUnavailable, DeadlineExceeded):
            if asked is self._home:
                raise
            return
        if isinstance(answer, DanubiusError):
            self._places.pop(topic, None)  # whoever is asked there says why
            return
        found = self._found(self.check(Lookup(topic), answer, Located).url, asked)
        self._places.pop(topic, None)
        if found is not self._home:
            if len(self._places) >= PLACES_MAX:
                del self._places[next(iter(self._places))]
            self._places[topic] = found

    def _found(self, url: str, asked: BlockingLink) -> BlockingLink:
        """The link to the broker of this name, which `asked` gave; see `client.connection.connections`."""
        own = asked.broker_url
        address = dialable(url) if own and url != own else None
        if address is None:
            return asked
        self._home.learn(address)
        for link in (self._home, *self._links.values()):
            if link.is_connected and link.broker_url == url:
                return link
        found = self._links.get(address)
        if found is None:
            if len(self._links) >= LINKS_MAX:
                self._drop(next(iter(self._links)))
            found = BlockingLink((address,), self.patience, is_patient=False)
            self._links[address] = found
        return found

    def _drop(self, address: BrokerAddress) -> None:
        link = self._links.pop(address)
        link.close()
        self._places = {topic: place for topic, place in self._places.items() if place is not link}


_UNASKED: Final = TopicMoved("nobody was asked yet")


def _topic_of(command: AnyCommand) -> str:
    """What a command is about; empty: no topic."""
    asked = decode_request(command.request) if isinstance(command, Administer) else command
    topic: str | None = getattr(asked, "topic", None)
    return topic or ""


def _forget(ahead: _Ahead | None) -> None:
    if ahead is not None:
        ahead.link.forget(ahead.ticket)


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


_clients: dict[tuple[int, tuple[BrokerAddress, ...]], FetchClient] = {}


def client_of(url: str, patience: Patience, *, is_known: bool = False) -> FetchClient:
    """This process's client for a URL. `is_known`: somebody has just spoken to a broker there."""
    key = (os.getpid(), parse_urls(url))
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
