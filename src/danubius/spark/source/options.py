"""Options of reading, as people write them in `.option(...)`, checked: strings in, a frozen `ReadOptions` out.

Spark folds the case of option names and passes on whatever it is given, so every name is looked up here, and one that
is not known is refused together with the nearest one that is: a misspelt `startingOffsets` must not read everything.
`OPTIONS` is the whole list, but for those of an object store (`tierOption.…`), which knows them itself; docs/spark.md
has its meaning in words, and a test compares the two.
"""

from __future__ import annotations

import difflib
import os
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from danubius.client.core.address import DEFAULT_PORT, parse_urls
from danubius.errors import InvalidArgument, InvalidName
from danubius.model.ids import parse_name, parse_topic_name
from danubius.model.limits import FETCH_BYTES_MAX, KIB, MIB
from danubius.spark.connection.blocking_link import Patience
from danubius.spark.source.offsets import EARLIEST, LATEST, Slot, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from danubius.spark.source.offsets import Offsets

URL_VARIABLE: Final = "DANUBIUS_URL"
TIER_URL_VARIABLE: Final = "DANUBIUS_TIER_URL"
TIER_OPTIONS_VARIABLE: Final = "DANUBIUS_TIER_OPTIONS"
"""As brokers read them: an address, and `name=value,name=value`."""
TIER_OPTION: Final = "tierOption."
"""How options of the object store begin; the rest is their name there, as with --tier-option."""
DEFAULT_URL: Final = f"danube://127.0.0.1:{DEFAULT_PORT}"
PAYLOAD_OPTIONS: Final = ("payloadFormat", "payloadSchema", "mode", "deadLetterTopic")
DEFAULT_NAMESPACE: Final = "default"

Mode = Literal["batch", "stream"]
ReadFrom = Literal["auto", "broker", "tier"]


class Boundary(msgspec.Struct, frozen=True):
    """A place in every partition: earliest, latest, a time, or single offsets."""

    common: int | None = None
    """EARLIEST or LATEST."""
    time_us: int | None = None
    offsets: dict[tuple[str, int], int] | None = None

    def per_slot(self) -> Offsets:
        assert self.offsets is not None
        return {Slot(*slot): offset for slot, offset in self.offsets.items()}


FROM_EARLIEST: Final = Boundary(EARLIEST)
FROM_LATEST: Final = Boundary(LATEST)


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that shapes a read."""

    url: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression for whole names of topics; used if there are no topics."""
    starting: Boundary | None = None
    ending: Boundary | None = None
    min_partitions: int = 0
    max_records_per_partition: int = 0
    max_offsets_per_trigger: int = 0
    max_bytes_per_trigger: int = 0
    min_offsets_per_trigger: int = 0
    max_trigger_delay_s: float = 900.0
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = ()
    include_headers: bool = True
    payload: dict[str, str] = {}
    """Options about payloads by their names, checked by `payloads.PayloadSpec`."""
    subscription: str | None = None
    fetch_bytes: int = 4 * MIB
    patience: Patience = Patience()
    read_from: ReadFrom = "auto"
    tier_url: str = ""
    """Where objects are; empty: where the broker says."""
    tier_options: dict[str, str] = {}


# ---------------------------------------------------------------- values


def _text(_name: str, value: str) -> str:
    return value


def _url(_name: str, value: str) -> str:
    parse_urls(value)
    return value


def topic_name(name: str, value: str) -> str:
    """A topic, `/namespace/topic`, or only its last part for the namespace `default`."""
    value = value.strip()
    try:
        return parse_topic_name(value if "/" in value else f"/{DEFAULT_NAMESPACE}/{value}")
    except InvalidName as error:
        raise InvalidName(f"option {name}: {error.message}") from None


def _topic(name: str, value: str) -> tuple[str, ...]:
    return (topic_name(name, value),)


def _topic_names(name: str, value: str) -> tuple[str, ...]:
    names = [topic_name(name, part) for part in value.split(",") if part.strip()]
    if not names:
        raise InvalidArgument(f"option {name} names no topic: write /default/orders,/default/users")
    return tuple(sorted(set(names)))


def _pattern(name: str, value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise InvalidArgument(
            f"option {name}: {value!r} is not a regular expression: {error}"
        ) from None
    return value


def _boundary(name: str, value: str) -> Boundary:
    word = value.strip().lower()
    if word == "earliest":
        return FROM_EARLIEST
    if word == "latest":
        return FROM_LATEST
    if not word.startswith("{"):
        raise InvalidArgument(
            f"option {name} is {value!r}: write earliest, latest, or offsets as JSON"
        )
    offsets = parse(value, f"option {name}")
    return Boundary(offsets={(slot.topic, slot.partition): at for slot, at in offsets.items()})


def _time(name: str, value: str) -> Boundary:
    text = value.strip()
    if text.isascii() and text.isdecimal():
        return Boundary(time_us=int(text) * 1000)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"option {name} is {value!r}: write milliseconds since 1970, or a time as 2026-01-31T12:00:00Z"
        ) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return Boundary(time_us=round(when.timestamp() * 1_000_000))


def whole_number(least: int) -> Callable[[str, str], int]:
    """A reader of whole numbers that are not too small."""

    def read(name: str, value: str) -> int:
        text = value.strip().replace("_", "")
        if not text.isascii() or not text.isdecimal() or len(text) > 18 or int(text) < least:
            raise InvalidArgument(
                f"option {name} is {value!r}: write a whole number of at least {least}"
            )
        return int(text)

    return read


_SIZE: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]+)?) ?([kmgt]?)(?:i?b)?\Z", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": KIB, "m": MIB, "g": KIB * MIB, "t": MIB * MIB}


def size(name: str, value: str) -> int:
    """A number of bytes: 67108864, 64m, 64MiB."""
    found = _SIZE.match(value.strip())
    number = int(float(found[1]) * _UNITS[found[2].lower()]) if found else 0
    if number < 1:
        raise InvalidArgument(f"option {name} is {value!r}: write bytes, as 67108864 or 64m")
    return number


def _fetch_size(name: str, value: str) -> int:
    number = size(name, value)
    if not 64 * KIB <= number <= FETCH_BYTES_MAX:
        raise InvalidArgument(f"option {name} is {value!r}: write 64k to {FETCH_BYTES_MAX // MIB}m")
    return number


_DURATION: Final = re.compile(
    r"([0-9]{1,9}(?:\.[0-9]+)?) ?(ms|s|sec|seconds?|m|min|minutes?|h|hours?)\Z", re.IGNORECASE
)


def duration(name: str, value: str) -> float:
    """Seconds, from 500ms, 30s, 15m or 1h."""
    found = _DURATION.match(value.strip())
    if found is None:
        raise InvalidArgument(f"option {name} is {value!r}: write a time as 500ms, 30s, 15m or 1h")
    unit = found[2].lower()
    factor = 0.001 if unit == "ms" else {"s": 1.0, "m": 60.0, "h": 3600.0}[unit[0]]
    return float(found[1]) * factor


def truth(name: str, value: str) -> bool:
    """Either of the two words."""
    word = value.strip().lower()
    if word not in {"true", "false"}:
        raise InvalidArgument(f"option {name} is {value!r}: write true or false")
    return word == "true"


def _names(name: str, value: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in value.split(",") if part.strip())
    if not names or len(set(names)) < len(names):
        raise InvalidArgument(
            f"option {name} is {value!r}: write names of columns, each once, as key,payload"
        )
    return names


def _subscription(_name: str, value: str) -> str:
    return parse_name("subscription", value)


def _read_from(name: str, value: str) -> str:
    word = value.strip().lower()
    if word not in {"auto", "broker", "tier"}:
        raise InvalidArgument(
            f"option {name} is {value!r}: write auto, broker or tier{nearest(word, ['auto', 'broker', 'tier'])}"
        )
    return word


def _tier_url(name: str, value: str) -> str:
    address = value.strip()
    if "://" not in address:
        raise InvalidArgument(
            f"option {name} is {value!r}: write where objects are, as s3://bucket/prefix"
        )
    return address


def _pairs(text: str) -> dict[str, str]:
    """`a=b,c=d`."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if not all(name.strip() and sign for name, sign, _ in pairs):
        raise InvalidArgument(f"{TIER_OPTIONS_VARIABLE} must be name=value,name=value")
    return {name.strip(): value for name, _, value in pairs}


# ---------------------------------------------------------------- the list


class Option(msgspec.Struct, frozen=True):
    """One option: where it goes, how it is read, and which of the two kinds of read it is for."""

    name: str
    field: str
    read: Any
    only: Mode | None = None


OPTIONS: Final = (
    Option("url", "url", _url),
    Option("topic", "topics", _topic),
    Option("path", "topics", _topic),
    Option("subscribe", "topics", _topic_names),
    Option("subscribePattern", "pattern", _pattern),
    Option("startingOffsets", "starting", _boundary),
    Option("startingTimestamp", "starting", _time),
    Option("endingOffsets", "ending", _boundary, "batch"),
    Option("endingTimestamp", "ending", _time, "batch"),
    Option("minPartitions", "min_partitions", whole_number(1)),
    Option("maxRecordsPerPartition", "max_records_per_partition", whole_number(1)),
    Option("maxOffsetsPerTrigger", "max_offsets_per_trigger", whole_number(1), "stream"),
    Option("maxBytesPerTrigger", "max_bytes_per_trigger", size, "stream"),
    Option("minOffsetsPerTrigger", "min_offsets_per_trigger", whole_number(1), "stream"),
    Option("maxTriggerDelay", "max_trigger_delay_s", duration, "stream"),
    Option("failOnDataLoss", "fail_on_data_loss", truth),
    Option("columns", "columns", _names),
    Option("includeHeaders", "include_headers", truth),
    Option("payloadFormat", "payloadFormat", _text),
    Option("payloadSchema", "payloadSchema", _text),
    Option("mode", "mode", _text),
    Option("deadLetterTopic", "deadLetterTopic", _text),
    Option("subscription", "subscription", _subscription, "stream"),
    Option("fetchBytes", "fetch_bytes", _fetch_size),
    Option("connectTimeout", "connect_s", duration),
    Option("requestTimeout", "request_s", duration),
    Option("reconnectTimeout", "reconnect_s", duration),
    Option("readFrom", "read_from", _read_from),
    Option("tierUrl", "tier_url", _tier_url),
)
_BY_NAME: Final = {option.name.lower(): option for option in OPTIONS}
_PATIENCE: Final = ("connect_s", "request_s", "reconnect_s")


def read_options(raw: Mapping[str, str], mode: Mode | None = None) -> ReadOptions:
    """Check all options; `mode` None: it is not known yet which kind of read it is."""
    fields: dict[str, Any] = {}
    given: dict[str, str] = {}
    tier_options: dict[str, str] = {}
    for key, value in raw.items():
        if _is_tier_option(key):
            tier_options[key.lower().removeprefix(TIER_OPTION.lower())] = value
            continue
        option = _BY_NAME.get(key.lower())
        if option is None:
            known = [*(option.name for option in OPTIONS), f"{TIER_OPTION}NAME"]
            raise unknown_option(key, known)
        if option.only is not None and mode is not None and option.only != mode:
            reads = "spark.read" if option.only == "batch" else "spark.readStream"
            raise InvalidArgument(f"option {option.name} is for {reads} only")
        if option.field in given:
            raise InvalidArgument(
                f"options {given[option.field]} and {option.name} say the same thing: give one of them"
            )
        given[option.field] = option.name
        fields[option.field] = option.read(option.name, value)
    waits = {name: fields.pop(name) for name in _PATIENCE if name in fields}
    payload = {name: fields.pop(name) for name in PAYLOAD_OPTIONS if name in fields}
    fields.setdefault("url", os.environ.get(URL_VARIABLE, DEFAULT_URL))
    _url("url", fields["url"])
    _add_tier(fields, tier_options)
    options = ReadOptions(**fields, payload=payload, patience=Patience(**waits))
    _check(options, given, mode)
    return options


def _is_tier_option(key: str) -> bool:
    return key.lower().startswith(TIER_OPTION.lower()) and len(key) > len(TIER_OPTION)


def _add_tier(fields: dict[str, Any], tier_options: dict[str, str]) -> None:
    """Where objects are and how they are reached, from options and, what these leave open, the environment."""
    if fields.get("read_from") == "broker":
        if tier_options or "tier_url" in fields:
            name = f"{TIER_OPTION}{min(tier_options)}" if tier_options else "tierUrl"
            raise InvalidArgument(f"option {name} says nothing with readFrom = broker")
        return
    address = os.environ.get(TIER_URL_VARIABLE, "")
    if address:
        fields.setdefault("tier_url", _tier_url(TIER_URL_VARIABLE, address))
    fields["tier_options"] = _pairs(os.environ.get(TIER_OPTIONS_VARIABLE, "")) | tier_options


def _check(options: ReadOptions, given: Mapping[str, str], mode: Mode | None) -> None:
    """What single options cannot tell."""
    if bool(options.topics) == (options.pattern is not None):
        raise InvalidArgument(
            "say which topic to read: exactly one of the options topic (/default/orders), subscribe (a list with"
            " commas) and subscribePattern (a regular expression)"
        )
    if mode == "batch" and options.starting == FROM_LATEST:
        raise InvalidArgument(
            "option startingOffsets is 'latest', which leaves spark.read nothing to read: write earliest, or JSON"
        )
    if "include_headers" in given and options.columns:
        raise InvalidArgument(
            "option columns says already whether there are attributes: leave out includeHeaders"
        )
    if options.ending == FROM_EARLIEST:
        raise InvalidArgument("option endingOffsets is 'earliest', which leaves nothing to read")
    if "max_trigger_delay_s" in given and not options.min_offsets_per_trigger:
        raise InvalidArgument("option maxTriggerDelay says nothing without minOffsetsPerTrigger")
    most = options.max_offsets_per_trigger
    if most and options.min_offsets_per_trigger > most:
        raise InvalidArgument(
            f"option minOffsetsPerTrigger ({options.min_offsets_per_trigger}) is above maxOffsetsPerTrigger ({most})"
        )


def unknown_option(name: str, known: Iterable[str]) -> InvalidArgument:
    """The error for an option that does not exist."""
    names = sorted(known)
    return InvalidArgument(
        f"there is no option {name!r}{nearest(name, names)}. The options are {', '.join(names)}"
    )


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing."""
    by_fold = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), list(by_fold), n=1, cutoff=0.5)
    return f"; did you mean {by_fold[close[0]]!r}?" if close else ""
