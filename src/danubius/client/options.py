"""Options as users may write them, and what they mean: every check of an argument is here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import msgspec

from danubius.client.messages import to_time_us
from danubius.errors import InvalidArgument, InvalidName
from danubius.model.ids import TopicName, parse_name, parse_topic_name
from danubius.model.key_filters import check_key_filters
from danubius.model.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, FETCH_BYTES_MAX, KIB, MIB
from danubius.model.policy import FailurePolicy
from danubius.model.subscription import (
    EARLIEST,
    LATEST,
    AtOffset,
    AtTime,
    Position,
    SubscriptionType,
)
from danubius.model.topic import Dispatch, Durability, Retention, TopicSpec
from danubius.record.batch import Codec
from danubius.runtime import ambient
from danubius.wire.commands import Access, Subscribe

if TYPE_CHECKING:
    from collections.abc import Mapping

DispatchName = Literal["reliable", "non-reliable"]
DurabilityName = Literal["synced", "written"]
CompressionName = Literal["lz4", "zstd"]
AccessName = Literal["shared", "exclusive", "wait-for-exclusive"]
SubscriptionTypeName = Literal["exclusive", "shared", "failover", "key-shared"]
Start = Literal["earliest", "latest"] | int | datetime
"""Where to begin: the oldest message, behind the newest, at an offset, or at the first message of a time."""
DeliverAfter = float | timedelta
"""Seconds from now."""
TimeToLive = float | timedelta
"""Seconds from when it is published."""
DeliverAfterMany = DeliverAfter | Sequence[DeliverAfter]
DeliverAtMany = datetime | Sequence[datetime]
"""One for all, or one for each."""

BATCH_HEADROOM_BYTES: Final = MIB
"""Room for the header, the offsets and the attribute columns beside the messages of a full batch."""
BATCH_BYTES: Final = 512 * KIB
BATCH_RECORDS: Final = 100_000
BUFFER_BYTES: Final = 64 * MIB
PREFETCH_MESSAGES: Final = 100_000
PREFETCH_BYTES: Final = 16 * MIB
FETCH_BYTES: Final = 4 * MIB
CHUNK_BYTES_MIN: Final = KIB
CHUNK_PATIENCE_S: Final = 60.0
"""After so long without its last piece a message is looked at."""
SECONDS_MAX: Final = 10**9
"""No wait is longer: thirty years. Clocks and timers take it, which they do not of infinity."""
REASON_CHARS_MAX: Final = 1000
"""Of the reason of a nack."""
OFFSET_MAX: Final = 2**63 - 1

_CODECS: Final[Mapping[str, Codec]] = {"lz4": Codec.LZ4, "zstd": Codec.ZSTD}

WordT = TypeVar("WordT", bound=StrEnum)


class ProducerOptions(msgspec.Struct, frozen=True):
    """A producer's settings, checked."""

    topic: TopicName
    name: str
    spec: TopicSpec
    codec: Codec
    batch_bytes: int
    batch_records: int
    linger_s: float
    buffer_bytes: int
    send_timeout_s: float
    access: Access = Access.SHARED
    resume: bool = False
    chunk_bytes: int | None = None

    def check(self) -> None:
        if self.chunk_bytes is not None:
            self._check_chunking(self.chunk_bytes)
        if self.resume and self.spec.dispatch is not Dispatch.RELIABLE:
            raise InvalidArgument(
                "resume=True needs a reliable topic: of others nobody knows what was stored"
            )
        check_count("batch_bytes", self.batch_bytes, 1, BATCH_BYTES_MAX - BATCH_HEADROOM_BYTES)
        check_count("batch_records", self.batch_records, 1, BATCH_RECORDS_MAX)
        _check_range("linger", self.linger_s, 0, 60)
        check_count("buffer_bytes", self.buffer_bytes, 1, 1 << 40)
        _check_range("send_timeout", self.send_timeout_s, 0, SECONDS_MAX)

    def _check_chunking(self, chunk_bytes: int) -> None:
        check_count("chunk_bytes", chunk_bytes, CHUNK_BYTES_MIN, BATCH_BYTES_MAX)
        if self.spec.dispatch is not Dispatch.RELIABLE:
            raise InvalidArgument(
                "chunk_bytes needs a reliable topic: others do not keep a piece until the last one is there"
            )
        if self.resume:
            raise InvalidArgument(
                "chunk_bytes does not go with resume=True: pieces have numbers too, so next_sequence would not"
                " count messages"
            )


class ConsumerOptions(msgspec.Struct, frozen=True):
    """A consumer's settings, checked."""

    topic: TopicName
    subscription: str
    type: SubscriptionType
    name: str
    start: Position
    prefetch_messages: int
    prefetch_bytes: int
    ack_timeout_ms: int
    skip_damaged: bool
    failure: FailurePolicy | None = None
    chunk_patience_s: float = CHUNK_PATIENCE_S
    key_filters: Sequence[str] = ()

    def check(self) -> None:
        _check_range("chunk_patience", self.chunk_patience_s, 0.001, SECONDS_MAX)
        check_key_filters(self.key_filters, self.type)
        check_count("prefetch_messages", self.prefetch_messages, 1, 100_000_000)
        check_count("prefetch_bytes", self.prefetch_bytes, 1, 1 << 40)
        if self.failure is not None:
            check_failure(self.failure)

    def to_command(self) -> Subscribe:
        return Subscribe(
            self.topic,
            self.subscription,
            self.type,
            self.name,
            self.start,
            self.ack_timeout_ms,
            self.skip_damaged,
            tuple(self.key_filters),
            self.failure,
        )


class ReaderOptions(msgspec.Struct, frozen=True):
    """A reader's settings, checked."""

    topic: TopicName
    start: Position
    stop_at_end: bool
    fetch_bytes: int
    skip_damaged: bool

    def check(self) -> None:
        check_count("fetch_bytes", self.fetch_bytes, 1, FETCH_BYTES_MAX)


def check_failure(failure: object) -> None:
    """Refuse what is no failure policy, or one that cannot be obeyed."""
    if not isinstance(failure, FailurePolicy):
        raise InvalidArgument(
            f"failure is {failure!r}; it must be a danubius.FailurePolicy, such as FailurePolicy(redeliveries_max=5)"
        )
    try:  # a struct takes anything when it is made
        msgspec.convert(msgspec.to_builtins(failure), FailurePolicy)
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidArgument(f"failure has a value of the wrong kind: {error}") from None
    failure.check()
    if failure.dead_letter_topic:
        topic_of(failure.dead_letter_topic)


def check_reason(reason: object) -> str:
    """What went wrong with a message, in few words: more are cut off."""
    if not isinstance(reason, str):
        raise InvalidArgument(f"reason is {reason!r}; it must be a str")
    return reason[:REASON_CHARS_MAX]


def topic_of(text: object) -> TopicName:
    """A topic's name; whatever is none is InvalidName."""
    return parse_topic_name(_text_of("topic", text))


def name_of(kind: str, text: object) -> str:
    """The name of a subscription, producer, consumer or namespace."""
    return parse_name(kind, _text_of(kind, text))


def _text_of(kind: str, text: object) -> str:
    if not isinstance(text, str):
        raise InvalidName(f"the {kind} is {text!r}; it must be a str")
    return text


def parse_word(kind: type[WordT], option: str, word: str) -> WordT:
    """One of the words of an enumeration."""
    try:
        return kind(word)
    except ValueError:
        words = ", ".join(repr(str(member)) for member in kind)
        raise InvalidArgument(f"{option} is {word!r}; it must be one of {words}") from None


def parse_spec(
    dispatch: str,
    durability: str,
    retention: Retention | None = None,
) -> TopicSpec:
    return TopicSpec(
        parse_word(Dispatch, "dispatch", dispatch),
        parse_word(Durability, "durability", durability),
        retention,
    )


def producer_name(name: str | None, *, resume: bool) -> str:
    """The name that was given, or one that nobody has."""
    if name is not None:
        return name_of("producer name", name)
    if resume:
        raise InvalidArgument(
            'resume=True needs a name that is the same after a restart, such as name="loader"'
        )
    return random_name("producer")


def parse_codec(compression: str | None) -> Codec:
    if compression is None:
        return Codec.NONE
    codec = _CODECS.get(str(compression))
    if codec is None:
        raise InvalidArgument(
            f"compression is {compression!r}; it must be None, {' or '.join(map(repr, _CODECS))}"
        )
    return codec


def parse_start(start: Start) -> Position:
    """Where to begin reading."""
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidArgument(
                f"start is {start.isoformat()} without a time zone; write datetime(..., tzinfo=UTC)"
            )
        return AtTime(to_time_us(start))
    if start == "earliest":
        return EARLIEST
    if start == "latest":
        return LATEST
    if type(start) is int and 0 <= start <= OFFSET_MAX:
        return AtOffset(start)
    raise InvalidArgument(
        f"start is {start!r}; it must be 'earliest', 'latest', an offset from 0 to 2**63 - 1,"
        " or a datetime"
    )


def to_milliseconds(option: str, duration: float | timedelta | None) -> int | None:
    """Seconds or a timedelta as whole milliseconds, rounded up: a wait is never shorter than asked for."""
    if duration is None:
        return None
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not _is_number(seconds) or not 0 <= seconds <= SECONDS_MAX:
        raise InvalidArgument(
            f"{option} is {duration!r}; it must be a number of seconds, 0 or more, or a timedelta"
        )
    return math.ceil(seconds * 1000)


def ttl_us_of(ttl: TimeToLive) -> int:
    """How long a message is worth delivering, in microseconds."""
    ttl_ms = to_milliseconds("ttl", ttl)
    if not ttl_ms:
        raise InvalidArgument(f"ttl is {ttl!r}; it must be more than 0 seconds, or None for no end")
    return ttl_ms * 1000


def check_timeout(option: str, seconds: float | None) -> float | None:
    """Refuse negative times and things that are not times; infinity is no limit, as None is."""
    if seconds is None or seconds == math.inf:
        return None
    if not _is_number(seconds) or not seconds >= 0:
        raise InvalidArgument(
            f"{option} is {seconds!r}; it must be None or a number of seconds, 0 or more"
        )
    return min(seconds, SECONDS_MAX)


def check_positive(option: str, seconds: float) -> float:
    """Refuse times that leave no time, and those without end."""
    if not _is_number(seconds) or not 0 < seconds <= SECONDS_MAX:
        raise InvalidArgument(
            f"{option} is {seconds!r}; it must be a number of seconds, more than 0 and at most {SECONDS_MAX}"
        )
    return seconds


def random_name(kind: str) -> str:
    """A name that nobody else has."""
    return f"{kind}-{ambient.token(8).hex()}"


def check_count(option: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgument(
            f"{option} is {value!r}; it must be a whole number from {least} to {most}"
        )


def _check_range(option: str, value: float, least: float, most: float) -> None:
    if not _is_number(value) or not least <= value <= most:
        raise InvalidArgument(
            f"{option} is {value!r}; it must be a number from {least:g} to {most:g}"
        )


def _is_number(value: object) -> bool:
    """Callers without a type checker pass None and strings too."""
    return isinstance(value, int | float) and not isinstance(value, bool)
