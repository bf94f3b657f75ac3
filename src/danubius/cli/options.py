"""Options and argument types of several commands. A type raises `click.BadParameter`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from danubius.client.core.address import parse_urls
from danubius.client.options import OFFSET_MAX
from danubius.errors import InvalidArgument, InvalidName
from danubius.model.ids import parse_name, parse_topic_name

if TYPE_CHECKING:
    from danubius.client.options import Start

DEFAULT_URL = "danube://127.0.0.1:6651"

F = TypeVar("F", bound=Callable[..., Any])  # Any: click decorates functions of any signature


def url_option(command: F) -> F:
    return click.option(
        "--url",
        type=broker_url,
        envvar="DANUBIUS_URL",
        default=DEFAULT_URL,
        show_default=True,
        show_envvar=True,
        help="Where the broker is. Of a cluster one is enough; several are tried in turn: danube://a:6651,b:6651.",
    )(command)


def json_option(command: F) -> F:
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object a line, for programs."
    )(command)


def broker_url(text: str) -> str:
    """`danube://host:port`, or several hosts with commas, checked before anything is dialled."""
    try:
        parse_urls(text)
    except InvalidArgument as error:
        raise click.BadParameter(error.message) from error
    return text


def topic_name(text: str) -> str:
    """`/namespace/topic`, checked before anything is dialled."""
    try:
        return parse_topic_name(text)
    except InvalidName as error:
        raise click.BadParameter(error.message) from error


def subscription_name(text: str) -> str:
    return _name("subscription", text)


def producer_name(text: str) -> str:
    return _name("producer", text)


def consumer_name(text: str) -> str:
    return _name("consumer", text)


def namespace_name(text: str) -> str:
    return _name("namespace", text)


def _name(kind: str, text: str) -> str:
    try:
        return parse_name(kind, text)
    except InvalidName as error:
        raise click.BadParameter(error.message) from error


def start_position(value: str | int | datetime) -> Start:
    """`earliest`, `latest`, an offset, or an ISO 8601 time (UTC unless it says otherwise)."""
    if not isinstance(value, str):
        return value
    if value == "earliest" or value == "latest":  # the type checker narrows only this form
        return value
    if value.isdecimal():
        if len(value) > len(str(OFFSET_MAX)) or int(value) > OFFSET_MAX:
            raise click.BadParameter(f"no topic has an offset over {OFFSET_MAX}")
        return int(value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is neither earliest, latest, an offset, nor a time (2026-01-31T12:00:00)"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def point_in_time(value: str | datetime) -> datetime:
    """An ISO 8601 time, UTC unless it says otherwise."""
    if isinstance(value, datetime):
        return value
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is no time; write it as 2026-01-31T12:00:00, or with a zone at its end (+01:00)"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def name_and_value(text: str | tuple[str, str]) -> tuple[str, str]:
    """`name=value`."""
    if isinstance(text, tuple):
        return text
    name, found, value = text.partition("=")
    if not found or not name:
        raise click.BadParameter(f"{text!r} is not of the form name=value")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"{text!r} is not text in UTF-8") from None
    return name, value


def count(value: str | int) -> int:
    """A number of things: `500`, `10k`, `1M`."""
    return _quantity(value, {"": 1, "k": 10**3, "K": 10**3, "m": 10**6, "M": 10**6, "G": 10**9})


def byte_count(value: str | int) -> int:
    """A number of bytes: `100`, `64KiB`, `1MB`, `5G`."""
    powers = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
    units = {"": 1, "B": 1}
    for letter, power in powers.items():
        units |= {letter: 1024**power, f"{letter}iB": 1024**power, f"{letter}B": 1000**power}
    return _quantity(value, units)


def seconds(value: str | int) -> int:
    """A length of time in seconds: `90`, `15m`, `12h`, `7d`."""
    return _quantity(value, {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400})


def milliseconds(value: str | int) -> int:
    """A length of time in milliseconds: `250ms`, `90` (seconds), `15m`, `7d`; `none` is 0."""
    if value == "none":
        return 0
    units = {"": 1000, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    return _quantity(value, units)


def age(value: str | int) -> int:
    """As `milliseconds`; `forever` is -1."""
    return -1 if value == "forever" else milliseconds(value)


def age_or_never(value: str | int) -> int:
    """As `milliseconds`; `never` is -1."""
    return -1 if value == "never" else milliseconds(value)


def size_or_never(value: str | int) -> int:
    """As `byte_count`; `never` is -1."""
    return -1 if value == "never" else byte_count(value)


def size_or_all(value: str | int) -> int:
    """As `byte_count`; `all` is -1."""
    return -1 if value == "all" else byte_count(value)


def count_or_none(value: str | int) -> int:
    """As `count`; `none` is 0."""
    return 0 if value == "none" else count(value)


def redeliveries(value: str | int) -> int:
    """As `count`; `none` is -1, for no bound."""
    return -1 if value == "none" else count(value)


def size_or_none(value: str | int) -> int:
    """As `byte_count`; `none` is 0."""
    return 0 if value == "none" else byte_count(value)


def _quantity(value: str | int, units: Mapping[str, int]) -> int:
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)", value)
    if match is None or match[2] not in units:
        known = ", ".join(unit for unit in units if unit)
        raise click.BadParameter(f"{value!r} is not a number with an optional unit ({known})")
    try:
        return round(float(match[1].replace("_", "")) * units[match[2]])
    except OverflowError:
        raise click.BadParameter(f"{value[:20]}… is too large a number") from None


def log_options(command: F) -> F:
    """How a server logs: `log_level` and `log_format`."""
    for option in (
        click.option(
            "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True,
            help="Lines for people, or JSON for log collectors.",
        ),
        click.option(
            "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
            show_default=True, help="How much to log, on stderr.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command
