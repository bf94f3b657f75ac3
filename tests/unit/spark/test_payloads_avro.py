# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
"""Avro payloads: what a schema becomes, and bytes that do not fit."""

from __future__ import annotations

import io
import json
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from danubius.errors import InvalidArgument
from danubius.spark.payloads.avro_decoder import AvroDecoder
from danubius.spark.payloads.ddl import parse_ddl


def record(*fields: tuple[str, object]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields]}


def encode(schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


ALL = record(
    ("b", "boolean"),
    ("i", "int"),
    ("l", "long"),
    ("f", "float"),
    ("d", "double"),
    ("raw", "bytes"),
    ("s", ["null", "string"]),
    ("color", {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}),
    ("other", "Color"),
    ("tags", {"type": "array", "items": "string"}),
    ("counts", {"type": "map", "values": "long"}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("at", {"type": "long", "logicalType": "timestamp-micros"}),
    ("at_ms", {"type": "long", "logicalType": "timestamp-millis"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}),
    ("who", {"type": "string", "logicalType": "uuid"}),
    ("n", {"type": "record", "name": "N", "fields": [{"name": "x", "type": "int"}]}),
)
VALUE: dict[str, Any] = {
    "b": True, "i": 1, "l": 2, "f": 0.5, "d": 0.25, "raw": b"\x00", "s": None, "color": "RED", "other": "BLUE",
    "tags": ["a"], "counts": {"a": 1}, "day": date(2026, 1, 2), "at": datetime(2026, 1, 2, 3, tzinfo=UTC),
    "at_ms": datetime(2026, 1, 2, 4, tzinfo=UTC), "price": Decimal("1.25"), "n": {"x": 7},
}  # fmt: skip


def test_every_type_that_has_a_column() -> None:
    decoder = AvroDecoder(json.dumps(ALL))
    assert decoder.fields == parse_ddl(
        "b BOOLEAN, i INT, l BIGINT, f FLOAT, d DOUBLE, raw BINARY, s STRING, color STRING, other STRING,"
        " tags ARRAY<STRING>, counts MAP<STRING, BIGINT>, day DATE, at TIMESTAMP, at_ms TIMESTAMP, price DECIMAL(6,2),"
        " who STRING, n STRUCT<x: INT>"
    )
    who = uuid.UUID(int=5)
    values, errors = decoder.decode(pa.array([encode(ALL, VALUE | {"who": who})]))
    assert not errors
    (row,) = values.to_pylist()
    assert row == VALUE | {"who": str(who), "counts": [("a", 1)]}


def test_bytes_that_do_not_fit_are_bad_alone() -> None:
    schema = record(("s", "string"), ("d", {"type": "int", "logicalType": "date"}))
    good = encode(schema, {"s": "x", "d": date(2026, 1, 1)})
    payloads = [good, b"", good[:-1], good + b"!", b"\x02\xff\x00", good]
    values, errors = AvroDecoder(json.dumps(schema)).decode(pa.array(payloads))
    assert sorted(errors) == [1, 2, 3, 4]
    assert "1 bytes are left over" in errors[3]
    assert values.is_valid().to_pylist() == [True, False, False, False, False, True]


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("{", "which is JSON"),
        ('"string"', "is to be an Avro record"),
        (json.dumps(record(("a", "strin"))), "not a valid Avro schema"),
        (json.dumps(record(("a", ["int", "string"]))), "field a is a union"),
        (json.dumps(record(("a", ["null", "R"]))), "field a contains itself (R)"),
        (json.dumps(record(("a", {"type": "int", "logicalType": "time-millis"}))), "time-millis"),
        (
            json.dumps(record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 50}))),
            "decimal of 50 digits",
        ),
    ],
)
def test_schemas_without_columns_are_refused_with_the_field(schema: str, sentence: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        AvroDecoder(schema)
    assert sentence in caught.value.message
