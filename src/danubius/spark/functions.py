"""Functions on the columns of a topic, for use in `select`, `where` and `withColumn`.

    from danubius.spark.functions import attribute, from_payload_json

    orders.select(from_payload_json("id BIGINT, price DECIMAL(10,2)").alias("order"), attribute("tenant"))

They are Spark's own expressions (`decode_avro` excepted: Spark's Avro reader is a jar that PyPI does not have, so that
one goes through Python workers in Arrow batches). What cannot be read is null; to see why, or to send it to a
dead-letter topic, let the source read the payloads: option `payloadFormat`, docs/spark-payloads.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import Column
    from pyspark.sql.types import StructType

__all__ = [
    "attribute",
    "attributes_of",
    "decode_avro",
    "from_payload_json",
    "key_text",
    "payload_text",
    "to_payload_json",
]


def payload_text(column: Column | str = "payload") -> Column:
    """The payload as text; null if it is not UTF-8."""
    return f.try_validate_utf8(_column(column).cast("string"))


def key_text(column: Column | str = "key") -> Column:
    """The key as text; null if there is none or it is not UTF-8."""
    return payload_text(column)


def from_payload_json(
    schema: str | StructType,
    column: Column | str = "payload",
    options: Mapping[str, str] | None = None,
) -> Column:
    """The payload, a JSON object, as a structure with this schema (DDL or a StructType); null if it is no JSON.

    Takes all that Spark's `from_json` takes, maps and `options` included.
    """
    return f.from_json(_column(column).cast("string"), schema, dict(options or {}))


def to_payload_json(*columns: Column | str) -> Column:
    """One JSON object with these columns, or one column that is a structure: what the sink takes as `payload`."""
    if not columns:
        raise ValueError("to_payload_json takes at least one column")
    return f.to_json(f.struct(*columns)).cast("binary").alias("payload")


def attribute(name: str, column: Column | str = "attributes") -> Column:
    """The value of one attribute; null if the message does not have it."""
    return f.try_element_at(_column(column), f.lit(name)).alias(name)


def attributes_of(**values: Column | str) -> Column:
    """A map for the sink's column `attributes`; values that are null are left out."""
    pairs = [
        part
        for name, value in values.items()
        for part in (f.lit(name), _column(value).cast("string"))
    ]
    return f.map_filter(f.create_map(*pairs), lambda _, value: value.isNotNull()).alias(
        "attributes"
    )


def decode_avro(schema: str, column: Column | str = "payload") -> Column:
    """The payload, one Avro datum of this record schema (JSON), as a structure; null if it does not fit."""
    from danubius.spark.payloads.avro_decoder import AvroDecoder

    fields = AvroDecoder(schema).fields

    def decode(batches: Iterator[Any]) -> Iterator[Any]:
        decoder = AvroDecoder(schema)
        for batch in batches:
            yield decoder.decode(batch).values

    make: Any = getattr(f, "arrow_udf")  # noqa: B009  # its stubs are unknown to the type checker
    return make(decode, fields, f.ArrowUDFType.SCALAR_ITER)(_column(column))


def _column(column: Column | str) -> Column:
    return f.col(column) if isinstance(column, str) else column
