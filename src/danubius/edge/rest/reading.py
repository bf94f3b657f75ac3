"""Reading for HTTP without a subscription: from a position, what is not acknowledged, and where a topic is."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from danubius.edge.rest.bounds import ANSWER_BYTES_MAX, MESSAGES_MAX, WAIT_MS_MAX
from danubius.edge.rest.messages import Filling, SeenMessage, slices
from danubius.errors import InvalidArgument, OffsetOutOfRange
from danubius.model.admin import OFFSET_MAX
from danubius.model.admin_replies import TopicRanges
from danubius.model.limits import FETCH_BYTES_MAX
from danubius.model.subscription import EARLIEST, LATEST, AtOffset, AtTime, Position
from danubius.wire.commands import Fetch, Lookup, ResolveOffset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.edge.in_process import Line
    from danubius.edge.rest.messages import Slice
    from danubius.model.buffers import Buffer
    from danubius.wire.commands import Fetched

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
BATCHES: Final = "application/vnd.danubius.batches"
"""Record batches, one after the other, as docs/internals/record-batch.md describes them."""
_START: Final = msgspec.Meta(
    description="`earliest`, `latest`, an offset, or a time as in 2026-01-31T12:00:00Z",
    extra_json_schema={
        "examples": ["earliest", "17", "2026-01-31T12:00:00Z"],
        "pattern": r"^(earliest|latest|[0-9]{1,19}|[0-9]{4}-[0-9]{2}-[0-9]{2}T.+)$",
    },
)
Start = Annotated[str, _START]
Wait = Annotated[int, msgspec.Meta(ge=0, le=WAIT_MS_MAX)]
MessageLimit = Annotated[int, msgspec.Meta(ge=1, le=MESSAGES_MAX)]


class LookUpTopic(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Which broker serves a topic, and is it partitioned?"""

    topic: str


class TopicLocated(msgspec.Struct, frozen=True, gc=False):
    """Where clients of the native protocol find the topic."""

    topic: str
    url: str
    """Clients connect here."""
    partitions: int = 0
    """0: it is not partitioned. Else its partitions are the topics `{topic}-part-0` and so on."""


class ResolvePosition(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Which offset is a position now?"""

    topic: str
    at: Start = "latest"


class PositionResolved(msgspec.Struct, frozen=True, gc=False):
    """The offset of the position, and the range that the topic holds."""

    offset: int
    start_offset: int
    """Of the oldest message that is still there."""
    end_offset: int
    """Behind the newest."""


class FetchMessages(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Read messages from a position, without a subscription."""

    topic: str
    start: Start = "earliest"
    limit: MessageLimit = 100
    """Messages at the most; ignored for record batches, which are whole."""
    wait_ms: Wait = 0
    """How long to wait at the end of the topic for something new."""
    skip_damaged: bool = False
    """Pass over stored ranges that fail their checksum."""
    accept: str = ""
    """The media types that the reader takes."""

    @property
    def wants_batches(self) -> bool:
        return BATCHES in self.accept


class MessagesFetched(msgspec.Struct, frozen=True, gc=False):
    """Messages in the order of their offsets."""

    messages: list[SeenMessage]
    next: int
    """Give it as `start` to go on."""
    start_offset: int
    """Of the oldest message that is still there."""
    end_offset: int
    """Behind the newest."""


class MessagesSeen(msgspec.Struct, frozen=True, gc=False):
    """The first messages that are not acknowledged, and where they lie; consumers may have them already."""

    ranges: list[TopicRanges]
    messages: list[SeenMessage]
    """Without those that are gone by now, and as many as fit an answer."""


class BatchesFetched(NamedTuple):
    """Record batches as they are stored."""

    reply: Fetched
    batches: bytes


def parse_start(text: str) -> Position:
    """A position from its text."""
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= OFFSET_MAX:
        return AtOffset(int(text))
    try:
        time = dt.datetime.fromisoformat(text)
        time_us = (time - _EPOCH) // dt.timedelta(microseconds=1)
    except (ValueError, TypeError, OverflowError):
        time_us = -1
    if time_us < 0:
        raise InvalidArgument(
            f"start is {text[:80]!r}; it must be earliest, latest, an offset from 0 to 2**63 - 1, "
            "or a time with its zone since 1970, as 2026-01-31T12:00:00Z"
        )
    return AtTime(time_us)


async def look_up(line: Line, request: LookUpTopic) -> TopicLocated:
    found = (await line.ask(Lookup(request.topic))).command
    return TopicLocated(found.topic, found.url, found.partitions)


async def resolve(line: Line, request: ResolvePosition) -> PositionResolved:
    found = (await line.ask(ResolveOffset(request.topic, parse_start(request.at)))).command
    return PositionResolved(found.offset, found.start_offset, found.end_offset)


async def fetch(line: Line, request: FetchMessages) -> MessagesFetched:
    """Messages as JSON."""
    fetched, payload = await _fetch(line, request, ANSWER_BYTES_MAX)
    filling = Filling(request.limit)
    following = fetched.next
    for part in slices(payload, fetched.first, fetched.next):
        if filling.is_full:
            following = part.batch.offsets()[part.start]
            break
        taken = await take(filling, request.topic, part)
        if taken < part.stop:
            following = part.batch.offsets()[taken]
            break
    return MessagesFetched(filling.messages, following, fetched.start_offset, fetched.end_offset)


async def fetch_batches(line: Line, request: FetchMessages) -> BatchesFetched:
    """Record batches as they are."""
    fetched, payload = await _fetch(line, request, FETCH_BYTES_MAX)
    return BatchesFetched(fetched, b"".join(payload))


async def _fetch(line: Line, request: FetchMessages, size: int) -> tuple[Fetched, Sequence[Buffer]]:
    answer = await line.ask(
        Fetch(
            request.topic, parse_start(request.start), size, request.wait_ms, request.skip_damaged
        )
    )
    return answer.command, answer.payload


async def take(filling: Filling, topic: str, part: Slice, again: int = 0) -> int:
    """Unpack into an answer; a large batch on a thread, for the loop serves others."""
    if part.is_large:
        return await asyncio.to_thread(filling.take, topic, part, again)
    return filling.take(topic, part, again)


async def peek(line: Line, found: Sequence[TopicRanges], limit: int) -> MessagesSeen:
    """The messages of these ranges that are still there."""
    filling = Filling(limit)
    for line_of in found:
        for first, end in line_of.ranges:
            at = first
            while at < end and not filling.is_full:
                at = await _peek_from(line, line_of.topic, at, end, filling)
    return MessagesSeen(list(found), filling.messages)


async def _peek_from(line: Line, topic: str, at: int, end: int, filling: Filling) -> int:
    """Take what one read gives; returns where to go on."""
    try:
        answer = await line.ask(Fetch(topic, AtOffset(at), ANSWER_BYTES_MAX, 0, True))
    except OffsetOutOfRange:
        return end  # retention was quicker
    fetched: Fetched = answer.command
    for part in slices(answer.payload, max(at, fetched.first), min(end, fetched.next)):
        if filling.is_full:
            break
        await take(filling, topic, part)
    return max(fetched.next, at + 1) if fetched.next > at else end
