"""Commands of operators, as far as they are alike: one question to the broker, and figures in words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

import danubius
from danubius.cli.event_loop import run_async
from danubius.cli.output import (
    human_bytes,
    human_count,
    print_facts,
    print_json,
    print_line,
    print_table,
)
from danubius.model.policy import FOREVER, FailurePolicy, Policies

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from danubius.cli.output import Cell
    from danubius.client.administration import Administration
    from danubius.model.policy import Effective

T = TypeVar("T")
StructT = TypeVar("StructT", bound=msgspec.Struct)


def ask(url: str, question: Callable[[Administration], Awaitable[T]]) -> T:
    """Connect, ask, and go."""

    async def run() -> T:
        async with danubius.connect(url) as client:
            return await question(client.admin)

    return run_async(run)


def to_json(struct: msgspec.Struct) -> dict[str, Any]:  # Any: JSON
    """A reply or a line of one as a program wants it: without the name of the reply."""
    fields: dict[str, Any] = msgspec.to_builtins(struct)
    fields.pop("reply", None)
    return fields


def print_lines(
    lines: Sequence[StructT],
    columns: Mapping[str, Callable[[StructT], Cell]],
    *,
    json: bool,
    nothing: str,
) -> None:
    """A list: a table, or one object a line; `nothing` is the sentence for an empty one."""
    if json:
        for line in lines:
            print_json(to_json(line))
    elif not lines:
        print_line(nothing)
    else:
        print_table(list(columns), [[cell(line) for cell in columns.values()] for line in lines])


def print_done(what: str, facts: dict[str, object], *, json: bool) -> None:
    """A change that was made."""
    if json:
        print_json(facts)
    else:
        print_line(what)


def print_figures(figures: msgspec.Struct, *, json: bool) -> None:
    """Every figure, one a line."""
    if json:
        print_json(to_json(figures))
    else:
        print_facts(in_words(figures))


def in_words(figures: msgspec.Struct) -> dict[str, Cell]:
    """The fields by their names in words, with units as their names say."""
    return {
        name.removesuffix("_ms")
        .removesuffix("_s")
        .removeprefix("is_")
        .replace("_", " "): figure_in_words(name, getattr(figures, name))
        for name in figures.__struct_fields__
    }


def figure_in_words(name: str, value: object) -> Cell:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, cast("list[object]", value))) or "none"
    if isinstance(value, int | float):
        return _number_in_words(name, value)
    return str(value)


def _number_in_words(name: str, value: float) -> str:
    if name.endswith("_rate"):
        return rate(value, is_bytes="bytes" in name)
    if name.endswith("_bytes"):
        return human_bytes(round(value))
    if name.endswith("_ms"):
        return moment(round(value))
    return duration(round(value * 1000)) if name.endswith("_s") else human_count(value)


def moment(time_ms: int) -> str:
    if not time_ms:
        return "unknown"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def rate(per_second: float, *, is_bytes: bool = False) -> str:
    if is_bytes:
        return f"{human_bytes(round(per_second))}/s"
    return f"{per_second:,.1f}/s" if per_second < 100 else f"{per_second:,.0f}/s"


def duration(time_ms: int) -> str:
    """The largest unit that says it shortly."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if time_ms >= size:
            number = time_ms / size
            return f"{number:.3g} {unit}" if number < 100 else f"{number:,.0f} {unit}"
    return f"{time_ms} ms"


# ---------------------------------------------------------------- policies


def policy_facts(own: Policies, effective: Effective) -> dict[str, Cell]:
    """What holds, and what of it was set here rather than inherited."""
    facts: dict[str, Cell] = {}
    for name in effective.__struct_fields__:
        value = getattr(effective, name)
        is_own = getattr(own, name) not in (msgspec.UNSET, None)
        words = name.removesuffix("_ms").replace("_", " ")
        text = failure_in_words(value) if name == "failure" else _policy_in_words(name, value)
        facts[words] = text if is_own else f"{text} (inherited)"
    return facts


def failure_in_words(failure: FailurePolicy) -> str:
    limit = failure.redeliveries_max
    parts = [
        f"ack timeout {duration(failure.ack_timeout_ms) if failure.ack_timeout_ms else 'none'}",
        f"{failure.backoff} delay from {duration(failure.delay_ms)} to {duration(failure.delay_max_ms)}",
        "redeliveries without limit"
        if limit is None
        else f"{limit} redeliveries, then {failure.then}",
    ]
    if failure.jitter:
        parts.insert(2, f"jitter {failure.jitter:g}")
    if failure.dead_letter_topic:
        parts.append(f"to {failure.dead_letter_topic}")
    if failure.unacked_messages_max is not msgspec.UNSET:
        parts.append(f"at most {failure.unacked_messages_max} unacknowledged")
    return ", ".join(parts)


def _policy_in_words(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return str(figure_in_words(name, value))
    if value == FOREVER and name.startswith(("retention", "local", "offload")):
        return "never" if name.startswith("offload") else "without limit"
    if value == 0 and not name.startswith(("retention", "auto", "offload", "local")):
        return "none"
    if name.endswith("_ms"):
        return duration(value)
    if name.endswith("_per_s"):
        return rate(value, is_bytes="bytes" in name)
    return human_bytes(value) if "bytes" in name else human_count(value)
