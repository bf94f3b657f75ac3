"""Single values of a pipeline file: keys and their types, durations, parameters. Pure; problems are gathered."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from danubius.pipeline.problems import Problems, nearest, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from danubius.pipeline.lines import Lines

Toml = dict[str, object]

_DURATION: Final = re.compile(
    r"(\d{1,12})\s*(ms|milliseconds?|s|seconds?|m|minutes?|h|hours?|d|days?)"
)
_UNIT_MS: Final = {"ms": 1, "mi": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PARAMETER: Final = re.compile(r"\$\{([^}]*)\}")
_TYPES: Final[dict[type, str]] = {
    str: "text", bool: "true or false", int: "a whole number", dict: "a table { name = value }",
    list: 'a list of texts ["a", "b"]',
}  # fmt: skip


def duration_ms(text: str) -> int | None:
    """`500ms`, `10s`, `5 minutes`; None if it is none."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        return None
    unit = match[2]
    is_milli = unit.startswith(("ms", "milli"))
    return int(match[1]) * (1 if is_milli else _UNIT_MS[unit[0]])


def substitute(
    value: object, parameters: Mapping[str, str], where: str, problems: Problems
) -> object:
    """The value with every `${name}` replaced, in texts at any depth."""
    if isinstance(value, str):

        def put(match: re.Match[str]) -> str:
            if match[1] not in parameters:
                problems.add(
                    where,
                    f"there is no parameter {match[1]}{nearest(match[1], parameters)}"
                    " Parameters stand below a line [parameters].",
                )
            return parameters.get(match[1], "")

        return _PARAMETER.sub(put, value)
    if isinstance(value, dict):
        table = cast("Toml", value)
        return {name: substitute(each, parameters, where, problems) for name, each in table.items()}
    if isinstance(value, list):
        return [
            substitute(each, parameters, where, problems) for each in cast("list[object]", value)
        ]
    return value


class Reading(NamedTuple):
    """One table of the file, with where it stands and where mistakes in it go."""

    path: tuple[str, ...]
    table: Toml
    lines: Lines
    problems: Problems

    def at(self, *key: str) -> str:
        return self.lines.at(*self.path, *key)

    def say(self, sentence: str, *key: str) -> None:
        self.problems.add(self.at(*key), sentence)

    def only(self, kinds: Mapping[str, type]) -> None:
        """Every key is known and has its type."""
        title = ".".join(self.path)
        for key, value in self.table.items():
            if key not in kinds:
                place = f"[{title}]" if title else "the file"
                self.say(f"{place} has no setting {key}{nearest(key, kinds)}", key)
            elif not _is(value, kinds[key]):
                self.say(f"{key} is {shown(value)}; it must be {_TYPES[kinds[key]]}", key)

    def text(self, key: str) -> str | None:
        value = self.table.get(key)
        if isinstance(value, str) and not value.strip():
            self.say(f"{key} is empty; give it a value or leave the line out", key)
            return None
        return value if isinstance(value, str) else None

    def flag(self, key: str, default: bool) -> bool:
        value = self.table.get(key)
        return value if isinstance(value, bool) else default

    def number(self, key: str, default: int) -> int:
        value = self.table.get(key)
        if isinstance(value, str) and value.isdecimal():
            value = int(value)  # a parameter is text
        if isinstance(value, int) and not isinstance(value, bool):
            if value >= 0:
                return value
            self.say(f"{key} is {value}; it must be 0 or more", key)
        return default

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.table.get(key)
        return tuple(cast("list[str]", value)) if _is(value, list) else ()

    def strings(self, key: str) -> dict[str, str]:
        """A table of settings as Spark wants them: texts."""
        value = self.table.get(key)
        if not isinstance(value, dict):
            return {}
        return {name: as_text(each) for name, each in cast("Toml", value).items()}

    def duration(self, key: str, default_ms: int) -> int:
        given = self.text(key)
        if given is None:
            return default_ms
        parsed = duration_ms(given)
        if parsed is None:
            self.say(
                f'{key} is {shown(given)}; it must be a time such as "500ms", "10s" or "5 minutes"',
                key,
            )
        return default_ms if parsed is None else parsed

    def choice(self, key: str, words: tuple[str, ...], default: str) -> str:
        given = self.text(key)
        if given is None or given in words:
            return given or default
        self.say(f"{key} is {shown(given)}; it must be one of {', '.join(words)}", key)
        return default

    def below(self, key: str) -> dict[str, Reading]:
        """The tables below this one, by name."""
        value = self.table.get(key)
        if not isinstance(value, dict):
            return {}
        found: dict[str, Reading] = {}
        for name, each in cast("Toml", value).items():
            if isinstance(each, dict):
                path = (*self.path, key, name)
                found[name] = Reading(path, cast("Toml", each), self.lines, self.problems)
            else:
                self.say(
                    f"{key}.{name} must be a table: begin it with a line [{key}.{name}]", key, name
                )
        return found


def as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is(value: object, kind: type) -> bool:
    if kind is list:
        return isinstance(value, list) and all(
            isinstance(each, str) for each in cast("list[object]", value)
        )
    if kind is int:
        is_digits = isinstance(value, str) and value.isdecimal()
        return is_digits or (isinstance(value, int) and not isinstance(value, bool))
    return isinstance(value, kind)
