# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow comes without types)
"""Avro payloads (one datum each, without header) to an Arrow struct column.

Avro has no marks between records and Arrow cannot read it, so this decodes row by row, with fastavro: 180,000 small
records a second and core, where JSON goes at a million. The schema is the writer's; fields are taken as they come. A
schema that Spark has no type for is refused when the query is planned.
"""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from danubius.errors import InvalidArgument
from danubius.spark.payloads.json_decoder import Decoded, shorten

if TYPE_CHECKING:
    from collections.abc import Callable

_PRIMITIVES: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
    "fixed": BinaryType(),
}
_LOGICAL: Final[dict[tuple[str, str], DataType]] = {
    ("int", "date"): DateType(),
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
    ("long", "local-timestamp-millis"): TimestampNTZType(),
    ("long", "local-timestamp-micros"): TimestampNTZType(),
}
_DIGITS_MAX: Final = 38


class AvroDecoder:
    """Decodes payloads written with one Avro record schema."""

    def __init__(self, schema: str, what: str = "payloadSchema") -> None:
        self._declared = _load(schema, what)
        self.fields = _to_spark(self._declared, what)
        self.type: Any = to_arrow_type(self.fields, timezone="UTC")

    def decode(self, column: Any) -> Decoded:
        """`column`: a binary Arrow array without nulls."""
        read = self._reader()
        rows: list[object] = []
        errors: dict[int, str] = {}
        for row, payload in enumerate(column.to_pylist()):
            stream = io.BytesIO(payload)
            try:
                record = read(stream)
                if stream.tell() != len(payload):
                    raise ValueError(f"{len(payload) - stream.tell()} bytes are left over")  # noqa: TRY301  # one path
            except Exception as error:  # noqa: BLE001  # broken bytes raise whatever the decoder stumbles over
                errors[row] = shorten(f"not Avro of this schema: {error or type(error).__name__}")
                record = None
            rows.append(record)
        return Decoded(self._to_column(rows, errors), errors)

    def _to_column(self, rows: list[object], errors: dict[int, str]) -> Any:
        try:
            return pa.array(rows, self.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            pass
        for number, record in enumerate(rows):
            try:
                pa.array([record], self.type)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                errors[number] = shorten(f"not a value that Spark can hold: {error}")
                rows[number] = None
        return pa.array(rows, self.type)

    @functools.cached_property
    def _parsed(self) -> Any:
        return _library().parse_schema(_plain(self._declared))

    def _reader(self) -> Callable[[io.BytesIO], object]:
        read, schema = _library().schemaless_reader, self._parsed
        return lambda stream: read(stream, schema, None)


def _library() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise InvalidArgument(
            "payloadFormat=avro needs the Python package fastavro, also where Spark's executors run:"
            " pip install 'danubius[avro]'"
        ) from error
    return fastavro


def _load(schema: str, what: str) -> dict[str, Any]:
    try:
        declared = msgspec.json.decode(schema)
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"{what} is not an Avro schema, which is JSON: {error}") from error
    if not isinstance(declared, dict) or declared.get("type") != "record":
        raise InvalidArgument(
            f"{what} is to be an Avro record, as {{'type': 'record', 'name': …, 'fields': […]}}"
        )
    try:
        _library().parse_schema(_plain(declared))
    except InvalidArgument:
        raise
    except Exception as error:
        raise InvalidArgument(f"{what} is not a valid Avro schema: {error!r}") from error
    return declared


def _plain(node: Any) -> Any:
    """Without the logical type uuid, whose values Arrow does not take: they stay text."""
    if isinstance(node, dict):
        return {
            name: _plain(value)
            for name, value in node.items()
            if not (name == "logicalType" and value == "uuid")
        }
    return [_plain(each) for each in node] if isinstance(node, list) else node


def _to_spark(declared: dict[str, Any], what: str) -> StructType:
    kind = _Mapping(what).of(declared, "")
    assert isinstance(kind, StructType)
    return kind


class _Mapping:
    """Avro's types as Spark's; named types are known by name once they were declared."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._named: dict[str, DataType | None] = {}

    def of(self, node: Any, path: str) -> DataType:
        if isinstance(node, list):
            return self._union(node, path)
        if isinstance(node, str):
            return self._by_name(node, path)
        declared = node.get("type")
        name = node.get("name")
        if name:
            self._named[name] = None
        kind = self._complex(node, declared, path)
        if name:
            self._named[name] = self._named[f"{node.get('namespace', '')}.{name}"] = kind
        return kind

    def _complex(self, node: dict[str, Any], declared: Any, path: str) -> DataType:
        match declared:
            case "record":
                fields = [
                    StructField(each["name"], self.of(each["type"], f"{path}.{each['name']}"))
                    for each in node["fields"]
                ]
                return StructType(fields)
            case "array":
                return ArrayType(self.of(node["items"], f"{path}[]"))
            case "map":
                return MapType(StringType(), self.of(node["values"], f"{path}[]"))
            case "bytes" | "fixed" if node.get("logicalType") == "decimal":
                return self._decimal(node, path)
            case str() if (declared, node.get("logicalType")) in _LOGICAL:
                return _LOGICAL[declared, node["logicalType"]]
            case str() if node.get("logicalType") in {"time-millis", "time-micros", "duration"}:
                raise self._error(
                    path, f"has the logical type {node['logicalType']}, which is not supported"
                )
            case _:
                return self.of(declared, path)

    def _decimal(self, node: dict[str, Any], path: str) -> DecimalType:
        precision = node.get("precision", 0)
        if not 1 <= precision <= _DIGITS_MAX:
            raise self._error(
                path, f"is a decimal of {precision} digits; Spark has at most {_DIGITS_MAX}"
            )
        return DecimalType(precision, node.get("scale", 0))

    def _union(self, kinds: list[Any], path: str) -> DataType:
        real = [kind for kind in kinds if kind != "null"]
        if len(real) != 1:
            raise self._error(
                path, "is a union of several types; only one type and null can become a column"
            )
        return self.of(real[0], path)

    def _by_name(self, name: str, path: str) -> DataType:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        if name in self._named:
            known = self._named[name]
            if known is None:
                raise self._error(path, f"contains itself ({name}); Spark's columns have an end")
            return known
        raise self._error(path, f"has the unknown type {name}")

    def _error(self, path: str, problem: str) -> InvalidArgument:
        return InvalidArgument(
            f"{self._what}: the Avro field {path.lstrip('.') or '(all)'} {problem}"
        )
