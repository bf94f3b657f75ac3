# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow comes without types)
"""Which columns a DataFrame has: those of a topic, fewer if the option `columns` or a user's schema says so.

Invariant: what a reader yields has exactly the columns of the schema Spark was told, in order, with the same types;
Spark checks nothing but that, and fails with a riddle where it differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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
from danubius.spark.options import nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.spark.options import ReadOptions

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


class Shape(msgspec.Struct, frozen=True):
    """How the rows of a read look."""

    stored: tuple[str, ...]
    """The columns to take from the record batches."""
    decode: Callable[[Any], Any] | None = None
    """Makes the rows that Spark gets out of those, if they differ."""


def schema_of(options: ReadOptions) -> StructType:
    """The columns of a read without a user's schema."""
    if options.payload_format != "raw":
        return _typed().schema_of(options)
    return StructType([_field(name) for name in options.columns or TYPES])


def shape_of(options: ReadOptions, schema: StructType) -> Shape:
    """How to build the columns of this schema, the user's or ours."""
    if options.payload_format != "raw":
        return _typed().shape_of(options, schema)
    for field in schema.fields:
        expected = _field(field.name).dataType
        if field.dataType != expected:
            raise InvalidArgument(
                f"the schema has {field.name} as {field.dataType.simpleString()}; in a topic it is"
                f" {expected.simpleString()}: cast it after reading, or set payloadFormat"
            )
        if not field.nullable:
            raise InvalidArgument(
                f"the schema has {field.name} NOT NULL, which a source cannot promise to Spark"
            )
    if not schema.fields:
        raise InvalidArgument("the schema has no columns")
    return Shape(tuple(field.name for field in schema.fields))


def _field(name: str) -> StructField:
    kind = TYPES.get(name)
    if kind is None:
        raise InvalidArgument(
            f"a topic has no column {name!r}{nearest(name, TYPES)}. It has {', '.join(TYPES)}"
        )
    return StructField(name, kind)


def _typed() -> Any:
    """Typed payloads; imported by those who ask for them."""
    from danubius.spark import payloads  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]

    return payloads
