"""A schema for JSON payloads, guessed from some of them.

Numbers that are all whole are BIGINT, others DOUBLE; texts stay STRING, also those that look like a time. A field that
has values of several kinds, or never any value, has no column that all of them fit, so it gets none and is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONG: Final = range(-(2**63), 2**63)
_DEPTH_MAX: Final = 32
"""Objects within objects; what lies deeper is left out."""


class Inferred(NamedTuple):
    """The columns found, the fields that have none, and how many payloads were objects at all."""

    fields: StructType
    omitted: list[str]
    objects: int


def infer(payloads: Iterable[bytes]) -> Inferred:
    """Look at all payloads; those that are not JSON objects say nothing."""
    root = _Seen()
    objects = 0
    for payload in payloads:
        try:
            value = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            objects += 1
            root.add(value, 0)
    omitted: list[str] = []
    fields = root.fields_of("", omitted)
    return Inferred(StructType(fields), omitted, objects)


def to_ddl(fields: StructType) -> str:
    """The columns as text that `ddl.parse_ddl` and Spark read alike."""
    return ", ".join(f"{_quoted(field.name)} {_type(field.dataType)}" for field in fields.fields)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _type(kind: DataType) -> str:
    match kind:
        case StructType():
            inner = ", ".join(f"{_quoted(f.name)}: {_type(f.dataType)}" for f in kind.fields)
            return f"STRUCT<{inner}>"
        case ArrayType():
            return f"ARRAY<{_type(kind.elementType)}>"
        case _:
            return kind.simpleString().upper()


class _Seen:
    """What values were seen in one place."""

    def __init__(self) -> None:
        self._kinds: set[type[DataType] | None] = set()
        self._members: dict[str, _Seen] = {}
        self._items: _Seen | None = None

    def add(self, value: Any, depth: int) -> None:
        match value:
            case None:
                pass
            case bool():
                self._kinds.add(BooleanType)
            case int() if value in _LONG:
                self._kinds.add(LongType)
            case int() | float():
                self._kinds.add(DoubleType)
            case str():
                self._kinds.add(StringType)
            case list() if depth < _DEPTH_MAX:
                self._kinds.add(ArrayType)
                self._items = self._items or _Seen()
                items: list[Any] = value  # pyright: ignore[reportUnknownVariableType] - any JSON
                for item in items:
                    self._items.add(item, depth + 1)
            case dict() if depth < _DEPTH_MAX:
                self._kinds.add(StructType)
                members: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType] - any JSON
                for name, member in members.items():
                    self._members.setdefault(name, _Seen()).add(member, depth + 1)
            case _:
                self._kinds.add(None)

    def fields_of(self, path: str, omitted: list[str]) -> list[StructField]:
        fields: list[StructField] = []
        lower: set[str] = set()
        for name, seen in self._members.items():
            kind = seen.type_of(f"{path}{name}", omitted)
            if kind is None or name.lower() in lower or not name:
                omitted.append(f"{path}{name}")
                continue
            lower.add(name.lower())
            fields.append(StructField(name, kind))
        return fields

    def type_of(self, path: str, omitted: list[str]) -> DataType | None:
        """None: there is no type that all values fit."""
        kinds = self._kinds
        if kinds == {LongType, DoubleType}:
            return DoubleType()
        if len(kinds) != 1:
            return None
        (kind,) = kinds
        if kind is ArrayType:
            assert self._items is not None
            item = self._items.type_of(f"{path}[]", omitted)
            return None if item is None else ArrayType(item)
        if kind is StructType:
            inner = self.fields_of(f"{path}.", omitted)
            return StructType(inner) if inner else None
        return None if kind is None else kind()
