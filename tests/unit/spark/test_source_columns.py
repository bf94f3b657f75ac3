# pyright: reportUnknownVariableType=false
# (pyarrow comes without types)
"""Which columns a read has, and which of them are taken from the topic."""

from __future__ import annotations

import re

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from danubius.errors import InvalidArgument
from danubius.record.arrow import SCHEMA
from danubius.spark.source.columns import TYPES, schema_of, shape_of
from danubius.spark.source.options import read_options


def _options(**options: str) -> dict[str, str]:
    return {"topic": "/default/t", **options}


def _shape(
    schema: StructType | None = None, /, **options: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    read = read_options(_options(**options))
    shape = shape_of(read, schema or schema_of(read))
    return shape.names, shape.stored


def test_spark_and_arrow_agree_on_the_columns() -> None:
    told = to_arrow_schema(schema_of(read_options(_options())), timezone="UTC")
    assert [(field.name, field.type) for field in told] == [
        (field.name, field.type) for field in SCHEMA
    ]
    assert list(TYPES) == SCHEMA.names


def test_spark_is_told_what_is_never_null() -> None:
    told = schema_of(read_options(_options()))
    assert [field.name for field in told if field.nullable] == ["key"]
    text = schema_of(read_options(_options(payloadFormat="string")))
    nullable = ["key", "payload", "_corrupt", "_error"]
    assert [field.name for field in text if field.nullable] == nullable
    read = read_options(_options())
    assert shape_of(read, told).never_null == set(TYPES) - {"key"}
    own = StructType([StructField("offset", LongType()), StructField("topic", StringType(), False)])
    assert shape_of(read, own).never_null == {"topic"}


def test_only_what_is_asked_for_is_taken() -> None:
    assert _shape() == (tuple(TYPES), tuple(TYPES))
    assert _shape(columns="payload,key") == (("payload", "key"), ("payload", "key"))
    assert "attributes" not in _shape(includeHeaders="false")[1]
    own = StructType([StructField("key", BinaryType()), StructField("offset", LongType())])
    assert _shape(own) == (("key", "offset"), ("key", "offset"))


def test_typed_payloads_take_what_their_mode_needs() -> None:
    json = {"payloadFormat": "json", "payloadSchema": "id BIGINT"}
    names, stored = _shape(columns="key,payload", **json)
    assert names == ("key", "payload", "_corrupt", "_error")
    assert set(stored) == {"key", "payload"}
    text = StructType([StructField("payload", StringType())])
    assert _shape(text, payloadFormat="string") == (("payload",), ("payload",))
    failfast = _shape(text, payloadFormat="string", mode="failfast")
    assert failfast == (("payload",), ("topic", "partition", "offset", "payload"))
    letters = {"mode": "deadletter", "deadLetterTopic": "/default/letters"}
    assert _shape(text, payloadFormat="string", **letters) == (("payload",), tuple(TYPES))
    # Nobody looks at the payloads: nothing is read, nothing can be wrong with it.
    assert _shape(StructType([StructField("key", BinaryType())]), **json) == (("key",), ("key",))


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (StructField("keys", BinaryType()), "did you mean 'key'?"),
        (StructField("key", StringType()), "the schema has key as string; here it is binary"),
        (StructField("key", BinaryType(), nullable=False), "NOT NULL"),
        (StructField("attributes", MapType(StringType(), LongType())), "map<string,bigint>"),
    ],
)
def test_schemas_that_do_not_fit(field: StructField, says: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(says)):
        _shape(StructType([field]))


def test_a_schema_has_columns() -> None:
    with pytest.raises(InvalidArgument, match="no columns"):
        shape_of(read_options(_options()), StructType([]))
