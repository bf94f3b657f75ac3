"""Columns of a DataFrame: those of a topic, fewer if the option `columns` or a user's schema says so.

Invariant: what a reader yields has exactly the columns of the schema Spark was told, in order, with the same types;
Spark checks nothing but that, and fails with a riddle where it differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from danubius.errors import InvalidArgument
from danubius.spark.payloads.typed import CORRUPT, ERROR, PAYLOAD, PayloadSpec
from danubius.spark.source.options import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from danubius.spark.source.options import ReadOptions

TYPES: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "publish_time": TimestampType(),
    "key": BinaryType(),
    "payload": BinaryType(),
    "attributes": MapType(StringType(), StringType()),
    "producer": StringType(),
    "schema_id": LongType(),
    "schema_version": IntegerType(),
}
"""`record.arrow.SCHEMA` in Spark's words; DDL text cannot be parsed in Spark's worker processes."""
SOMETIMES_NULL: Final = frozenset({"key"})
"""The others never are, and Spark is told so: it then does not ask for every value whether it is there."""


class Shape(msgspec.Struct, frozen=True):
    """How the rows of a read look."""

    names: tuple[str, ...]
    """The columns of the DataFrame."""
    stored: tuple[str, ...]
    """The columns to take from the record batches."""
    never_null: frozenset[str] = frozenset()
    """The columns that Spark does not ask whether a value is there."""
    payload: PayloadSpec | None = None
    """How to read payloads; None: they are taken as they are, or not at all."""


def schema_of(options: ReadOptions) -> StructType:
    """The columns of a read without a user's schema."""
    names = options.columns or tuple(TYPES)
    if not options.include_headers:
        names = tuple(name for name in names if name != "attributes")
    envelope = StructType([_field(name) for name in names])
    spec = PayloadSpec.from_options(options.payload)
    return spec.columns(envelope) if PAYLOAD in envelope.names else envelope


def shape_of(options: ReadOptions, schema: StructType) -> Shape:
    """How to build the columns of this schema, the user's or ours."""
    if not schema.fields:
        raise InvalidArgument("the schema has no columns")
    spec = PayloadSpec.from_options(options.payload)
    known = {field.name: field for field in spec.columns(_whole()).fields}
    for field in schema.fields:
        _check(field, known)
    names = tuple(schema.names)
    never_null = frozenset(field.name for field in schema.fields if not field.nullable)
    if spec.is_raw or not {PAYLOAD, CORRUPT, ERROR}.intersection(names):
        return Shape(names, names, never_null)
    if spec.mode == "permissive":
        stored = {name for name in names if name in TYPES} | {PAYLOAD}
    elif spec.mode == "failfast":
        stored = {*names, "topic", "partition", "offset"}
    else:  # a dead letter has all that the message had
        stored = set(TYPES)
    return Shape(names, tuple(name for name in TYPES if name in stored), never_null, spec)


def _check(field: StructField, known: Mapping[str, StructField]) -> None:
    expected = known.get(field.name)
    if expected is None:
        raise _no_column(field.name, known)
    if field.dataType != expected.dataType:
        raise InvalidArgument(
            f"the schema has {field.name} as {field.dataType.simpleString()}; here it is"
            f" {expected.dataType.simpleString()}: cast it after reading, or set payloadFormat and payloadSchema"
        )
    if expected.nullable and not field.nullable:
        raise InvalidArgument(
            f"the schema has {field.name} NOT NULL, which a topic cannot promise: leave that out"
        )


def _whole() -> StructType:
    return StructType([_field(name) for name in TYPES])


def _field(name: str) -> StructField:
    if name not in TYPES:
        raise _no_column(name, TYPES)
    return StructField(name, TYPES[name], nullable=name in SOMETIMES_NULL)


def _no_column(name: str, known: Iterable[str]) -> InvalidArgument:
    names = list(known)
    return InvalidArgument(
        f"a topic has no column {name!r}{nearest(name, names)}. It has {', '.join(names)}"
    )
