# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportAttributeAccessIssue=false
# (pyarrow comes without types)
"""JSON payloads to an Arrow struct column: whole batches in one call, bad records found apart.

A batch is joined by newlines and parsed by Arrow at once. Arrow reads documents one behind the other and does not look
at lines, so that the n-th row is the n-th payload has to be shown: every payload begins with `{` and ends with `}`. One
that is not complete at its `}` needs `,`, `}` or `]` next (inside a string, the newline is an error already), but the
next one begins with `{`: an error. So every payload holds one document or more, and n rows mean exactly one each.

What is a bad record is decided by Arrow alone, and by that record alone: it is good or bad in any company. Only a batch
that failed is looked at row by row, by msgspec, which knows quickly whom to suspect and says best what is wrong.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from danubius.errors import InvalidArgument
from danubius.spark.payloads.ddl import nullable

_SPACE: Final = r"[ \t\r\n]*"
_OBJECT_START: Final = rf"\A{_SPACE}\{{"
_OBJECT_END: Final = rf"\}}{_SPACE}\z"
_REASON_MAX: Final = 300
_NOISE: Final = re.compile(r"^JSON parse error: |(?<=\.)? in row \d+$")


class Decoded(NamedTuple):
    """A column of values, null where the payload is bad; and what is wrong there, by row."""

    values: Any  # an Arrow array
    errors: dict[int, str]


class JsonDecoder:
    """Decodes payloads that are JSON objects with the fields of one schema. Fields it does not name are passed over."""

    def __init__(self, fields: StructType, what: str = "payloadSchema") -> None:
        for field in fields.fields:
            _check(field.dataType, field.name, what)
        self.type: Any = to_arrow_type(nullable(fields), timezone="UTC")
        self._parsing = pj.ParseOptions(
            explicit_schema=pa.schema(to_arrow_type(_readable(fields), timezone="UTC")),
            unexpected_field_behavior="ignore",
        )
        decimals = [f for f in fields.fields if _has_decimals(f.dataType)]
        self._numbers = (
            pj.ParseOptions(
                explicit_schema=pa.schema(
                    to_arrow_type(_as_doubles(StructType(decimals)), timezone="UTC")
                ),
                unexpected_field_behavior="ignore",
            )
            if decimals
            else None
        )
        self._suspicion = msgspec.json.Decoder(_expected(fields))

    def decode(self, column: Any) -> Decoded:
        """`column`: a binary Arrow array without nulls."""
        try:
            return Decoded(self._parse(column), {})
        except pa.ArrowInvalid:
            pass
        errors = self._find_suspects(column)
        rest = pa.array([row not in errors for row in range(len(column))])
        rows = [row for row in range(len(column)) if row not in errors]
        parts = self._divide(column.filter(rest), rows, errors)
        values = pa.concat_arrays(parts) if parts else pa.nulls(0, self.type)
        places = pc.if_else(rest, pc.subtract(pc.cumulative_sum(rest.cast(pa.int64())), 1), None)
        return Decoded(values.take(places), errors)

    def _find_suspects(self, column: Any) -> dict[int, str]:
        """The rows that msgspec does not like and Arrow does not either.

        Arrow need not be asked (which takes long for single rows) about what is no object, nor about a value of another
        type than its field: there both refuse the same. It is asked about the grammar, where it is the more tolerant.
        """
        errors: dict[int, str] = {}
        shapes = _is_object(column).to_pylist()
        for row, payload in enumerate(column.to_pylist()):
            try:
                self._suspicion.decode(payload)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as suspicion:
                is_sure = isinstance(suspicion, msgspec.ValidationError) or not shapes[row]
                if is_sure or self._refuses(column.slice(row, 1)):
                    errors[row] = shorten(str(suspicion) if payload else "the payload is empty")
        return errors

    def _refuses(self, one: Any) -> bool:
        try:
            self._parse(one)
        except pa.ArrowInvalid:
            return True
        return False

    def _divide(self, column: Any, rows: list[int], errors: dict[int, str]) -> list[Any]:
        """Halve what fails until each bad row is alone: k of n bad rows take about k log n calls."""
        if not len(column):
            return []
        try:
            return [self._parse(column)]
        except pa.ArrowInvalid as error:
            if len(column) == 1:
                errors[rows[0]] = shorten(_NOISE.sub("", str(error)))
                return [pa.nulls(1, self.type)]
        half = len(column) // 2
        return [
            *self._divide(column.slice(0, half), rows[:half], errors),
            *self._divide(column.slice(half), rows[half:], errors),
        ]

    def _parse(self, column: Any) -> Any:
        """All of it, or ArrowInvalid."""
        if not len(column):
            return pa.nulls(0, self.type)
        if not _are_objects(column):
            raise pa.ArrowInvalid("the payload is not a JSON object")
        lines = pc.binary_join_element_wise(column, pa.scalar(b""), pa.scalar(b"\n"))
        text = lines.buffers()[2]
        reading = pj.ReadOptions(use_threads=False, block_size=len(text) + 1)
        table = pj.read_json(pa.BufferReader(text), reading, self._parsing)
        if self._numbers is not None:  # Arrow takes a text for a decimal, and for no other number
            pj.read_json(pa.BufferReader(text), reading, self._numbers)
        if table.num_rows != len(column):
            raise pa.ArrowInvalid("the payload holds more than one JSON object")
        values = pa.StructArray.from_arrays(
            [chunked.combine_chunks() for chunked in table.columns], fields=list(table.schema)
        )
        values = values.cast(self.type)
        values.validate(full=True)  # Arrow lets broken UTF-8 through
        return values


def shorten(reason: str) -> str:
    """A reason fit for a column or an attribute."""
    line = " ".join(reason.split())
    return line if len(line) <= _REASON_MAX else line[: _REASON_MAX - 1] + "…"


def _are_objects(column: Any) -> bool:
    """Whether each value begins with { and ends with }, apart from white space."""
    quick = pc.all(pc.and_(pc.starts_with(column, "{"), pc.ends_with(column, "}"))).as_py()
    if quick:
        return True
    return bool(pc.all(_is_object(column)).as_py())


def _is_object(column: Any) -> Any:
    starts = pc.match_substring_regex(column, _OBJECT_START)
    return pc.and_(starts, pc.match_substring_regex(column, _OBJECT_END))


def _check(kind: DataType, name: str, what: str) -> None:
    match kind:
        case StructType():
            for field in kind.fields:
                _check(field.dataType, f"{name}.{field.name}", what)
        case ArrayType():
            _check(kind.elementType, f"{name}[]", what)
        case MapType():
            raise InvalidArgument(
                f"{what}: {name} is {kind.simpleString()}, which JSON payloads are not read into: declare it STRUCT<…>"
                " with the names that you need, or read payloads with payloadFormat string and use from_json in SQL"
                " (danubius.spark.functions.from_payload_json in Python)"
            )
        case BinaryType():
            raise InvalidArgument(
                f"{what}: {name} is binary, which JSON does not have: declare it STRING, and decode it with unbase64"
                " or unhex"
            )
        case _:
            pass


def _readable(kind: DataType) -> Any:  # a DataType of the same class
    """What Arrow parses: dates as text, to be cast afterwards (it takes a number of days for a date)."""
    match kind:
        case StructType():
            return StructType(
                [StructField(f.name, _readable(f.dataType), f.nullable) for f in kind.fields]
            )
        case ArrayType():
            return ArrayType(_readable(kind.elementType), kind.containsNull)
        case DateType():
            return StringType()
        case _:
            return kind


def _has_decimals(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_has_decimals(field.dataType) for field in kind.fields)
        case ArrayType():
            return _has_decimals(kind.elementType)
        case _:
            return isinstance(kind, DecimalType)


def _as_doubles(kind: DataType) -> Any:  # a DataType
    """The decimals in a type, as numbers that Arrow takes no text for; the rest of it is left out."""
    match kind:
        case StructType():
            inner = [f for f in kind.fields if _has_decimals(f.dataType)]
            return StructType([StructField(f.name, _as_doubles(f.dataType)) for f in inner])
        case ArrayType():
            return ArrayType(_as_doubles(kind.elementType))
        case _:
            return DoubleType()


def _expected(kind: DataType) -> Any:  # a type that msgspec checks
    match kind:
        case StructType():
            fields: list[Any] = []
            for number, field in enumerate(kind.fields):
                inner: Any = _expected(field.dataType)
                fields.append(
                    (f"f{number}", inner | None, None) if field.nullable else (f"f{number}", inner)
                )
            names = {f"f{number}": field.name for number, field in enumerate(kind.fields)}
            return msgspec.defstruct("Object", fields, rename=names, kw_only=True, gc=False)
        case ArrayType():
            return list[_expected(kind.elementType) | None]
        case _:
            return next((plain for kinds, plain in _PLAIN if isinstance(kind, kinds)), _Anything)


_Anything: Final[Any] = bool | float | str | list[Any] | dict[str, Any]
_PLAIN: Final[tuple[tuple[tuple[type, ...], type], ...]] = (
    ((BooleanType,), bool),
    ((ByteType, ShortType, IntegerType, LongType), int),
    ((FloatType, DoubleType, DecimalType), float),
    ((StringType, DateType, TimestampType, TimestampNTZType), str),
)
