# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
"""Typed payloads: Arrow in, Arrow out, and where bad records go."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from danubius.errors import InvalidArgument
from danubius.record.arrow import SCHEMA
from danubius.spark.payloads.typed import BadRecords, PayloadSpec, typed

_ENVELOPE = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("publish_time", TimestampType()),
        StructField("key", BinaryType()),
        StructField("payload", BinaryType()),
        StructField("attributes", MapType(StringType(), StringType())),
        StructField("producer", StringType()),
        StructField("schema_id", LongType()),
        StructField("schema_version", IntegerType()),
    ]
)


def envelope(payloads: list[bytes]) -> Any:
    count = len(payloads)
    columns: dict[str, Any] = {
        "topic": ["/default/t"] * count,
        "partition": [3] * count,
        "offset": list(range(100, 100 + count)),
        "publish_time": list(range(count)),
        "key": [None] * count,
        "payload": payloads,
        "attributes": [[("a", "b")]] * count,
        "producer": ["0" * 16] * count,
        "schema_id": [0] * count,
        "schema_version": [0] * count,
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def json_spec(schema: str, **options: str) -> PayloadSpec:
    return PayloadSpec.from_options({"payloadFormat": "json", "payloadSchema": schema, **options})


def read(payloads: list[bytes], spec: PayloadSpec) -> list[dict[str, Any]]:
    return typed(envelope(payloads), spec).select(["payload", "_corrupt", "_error"]).to_pylist()


def test_raw_payloads_are_left_alone() -> None:
    batch = envelope([b"\xff"])
    assert typed(batch, PayloadSpec()) is batch
    assert PayloadSpec().columns(_ENVELOPE) == _ENVELOPE


def test_every_type_that_json_can_hold() -> None:
    spec = json_spec(
        "b BOOLEAN, i8 TINYINT, i16 SMALLINT, i32 INT, i64 BIGINT, f FLOAT, d DOUBLE, s STRING, day DATE, at TIMESTAMP,"
        " local TIMESTAMP_NTZ, price DECIMAL(6,2), tags ARRAY<STRING>, n STRUCT<x: INT, days: ARRAY<DATE>>"
    )
    payload = (
        b'{"b":true,"i8":-128,"i16":-32768,"i32":1,"i64":9223372036854775807,"f":0.5,"d":1,'
        b'"s":"\\u00e9","day":"2026-02-28","at":"2026-01-02T03:04:05.5+02:00",'
        b'"local":"2026-01-02T03:04:05","price":12.5,"tags":["a",null],'
        b'"n":{"x":1,"days":["2026-01-01"]},"unknown":[{"deep":1}]}'
    )
    (row,) = read([payload], spec)
    assert row["payload"] == {
        "b": True,
        "i8": -128,
        "i16": -32768,
        "i32": 1,
        "i64": 2**63 - 1,
        "f": 0.5,
        "d": 1.0,
        "s": "é",
        "day": date(2026, 2, 28),
        "at": datetime(2026, 1, 2, 1, 4, 5, 500_000, UTC),
        "local": datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001  # a time without a zone is what it is
        "price": Decimal("12.50"),
        "tags": ["a", None],
        "n": {"x": 1, "days": [date(2026, 1, 1)]},
    }
    assert row["_corrupt"] is None
    assert row["_error"] is None


def test_a_text_is_no_decimal_wherever_it_stands() -> None:
    spec = json_spec("p DECIMAL(6,2), a ARRAY<DECIMAL(4,1)>, n STRUCT<x: STRING, q: DECIMAL(38,0)>")
    exact = b'{"p":0.1,"a":[1,2.5],"n":{"x":"5","q":12345678901234567890123456789012345678}}'
    texts = [b'{"p":"5"}', b'{"a":[1,"5"]}', b'{"n":{"q":"5"}}']
    assert [row["payload"] is None for row in read(texts, spec)] == [True] * 3
    good, *bad = read([exact, *texts], spec)
    assert good["payload"]["p"] == Decimal("0.10")
    assert good["payload"]["n"]["q"] == Decimal(12345678901234567890123456789012345678)
    assert [row["payload"] for row in bad] == [None] * 3
    assert "got `str` - at `$.p`" in bad[0]["_error"]


@pytest.mark.parametrize(
    "options",
    [
        {"payloadFormat": "string"},
        {
            "payloadFormat": "json",
            "payloadSchema": "a ARRAY<STRUCT<b: INT NOT NULL>> NOT NULL, at TIMESTAMP",
        },
        {"payloadFormat": "json", "payloadSchema": "a INT", "mode": "failfast"},
        {
            "payloadFormat": "json",
            "payloadSchema": "a INT",
            "mode": "deadletter",
            "deadLetterTopic": "/default/d",
        },
    ],
)
def test_the_arrow_schema_is_exactly_what_spark_expects(options: dict[str, str]) -> None:
    spec = PayloadSpec.from_options(options)
    expected = to_arrow_schema(spec.columns(_ENVELOPE), timezone="UTC")
    for payloads in ([], [b'{"a":null}'], [b'{"a":1}', b"\xff"]):
        if spec.mode != "failfast" or not payloads:
            assert typed(envelope(payloads), spec, lambda _: None).schema.equals(expected)


BAD = {
    b"": "the payload is empty",
    b"   ": "",
    b"\xff": "",
    b"[1]": "Expected `object`, got `array`",
    b"1": "",
    b'"{}"': "",
    b"null": "",
    b"{": "",
    b"}": "",
    b'{"id":1}{"id":2}': "trailing characters",
    b'{"id":1}\n{"id":2}': "trailing characters",
    b'{"id":1}\x00': "",
    b'{"id":1,}': "",
    b'{"id":1,"id":2}': "specified twice",
    b'{"id":"1"}': "Expected `int`, got `str` - at `$.id`",
    b'{"id":1.5}': "",
    b'{"id":300}': "300",
    b'{"id":null}': "",
    b"{}": "required field `id`",
    b'{"id":1,"day":"31.12.2026"}': "31.12.2026",
    b'{"id":1,"s":"\xff"}': "utf-8",
    b'{"id":1,"s":"a\nb"}': "",
    b'{"id":1,"s":"\\ud800"}': "",
    b'{"id":1,"n":{"x":[]}}': "$.n.x",
    b'{"id":1,"n":{"x":1}': "",
    b'{"id":1,"s":"}': "",
    b'{"n":{"x":1}},{"id":1}': "",
}
GOOD = [b'{"id":1}', b' {"id":2,\n"s":"x"}\r\n', b'{"id":3,"n":{"x":null}}']
SPEC = json_spec("id TINYINT NOT NULL, s STRING, day DATE, n STRUCT<x: INT>")


@pytest.mark.parametrize("payload", BAD, ids=repr)
def test_a_bad_record_goes_to_its_columns_and_its_neighbours_do_not(payload: bytes) -> None:
    before, bad, after, last = read([GOOD[0], payload, GOOD[1], GOOD[2]], SPEC)
    assert bad["payload"] is None
    assert bad["_corrupt"] == payload
    assert BAD[payload] in bad["_error"]
    assert [row["payload"]["id"] for row in (before, after, last)] == [1, 2, 3]
    assert [row["_error"] for row in (before, after, last)] == [None] * 3


@given(st.lists(st.sampled_from([*BAD, *GOOD]), max_size=12))
def test_a_record_is_good_or_bad_in_any_company(payloads: list[bytes]) -> None:
    assert read(payloads, SPEC) == [read([payload], SPEC)[0] for payload in payloads]


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-3, 3)
    | st.floats(allow_nan=True)
    | st.sampled_from(["", "x", "1", "1.5", "2026-01-02", "2026-01-02T03:04:05Z", "true", "NaN"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)
    ),
    max_leaves=6,
)
_ANY = json_spec(
    "b BOOLEAN, i INT, l BIGINT NOT NULL, f FLOAT, d DOUBLE, s STRING, day DATE, at TIMESTAMP, p DECIMAL(4,1),"
    " a ARRAY<INT>, n STRUCT<x: INT NOT NULL, y: ARRAY<STRUCT<z: STRING>>>"
)


@given(
    st.dictionaries(
        st.sampled_from(["b", "i", "l", "f", "d", "s", "day", "at", "p", "a", "n"]),
        _VALUES,
        max_size=4,
    )
)
def test_values_of_any_type_are_good_or_bad_beside_a_bad_one_too(value: dict[str, Any]) -> None:
    payload = json.dumps(value | {"l": value.get("l", 1)}).encode()
    alone = typed(envelope([payload]), _ANY).column("payload")[0]
    beside = typed(envelope([b"oops", payload]), _ANY).column("payload")[1]
    assert str(alone) == str(beside)


@given(st.lists(st.text(alphabet='{}[]",:1a \n', max_size=8).map(str.encode), max_size=6))
def test_fragments_never_join(payloads: list[bytes]) -> None:
    spec = json_spec("a STRING")
    assert read(payloads, spec) == [read([payload], spec)[0] for payload in payloads]


def test_text_that_is_not_utf8_is_bad() -> None:
    spec = PayloadSpec.from_options({"payloadFormat": "string"})
    good, bad = read(["é".encode(), b"a\xff"], spec)
    assert good == {"payload": "é", "_corrupt": None, "_error": None}
    assert bad["payload"] is None
    assert bad["_corrupt"] == b"a\xff"
    assert "byte 1" in bad["_error"]


def test_failfast_names_the_place_and_the_way_out() -> None:
    spec = json_spec("id INT", mode="failfast")
    assert typed(envelope([b'{"id":7}']), spec).column("payload").to_pylist() == [{"id": 7}]
    with pytest.raises(InvalidArgument) as caught:
        typed(envelope([b'{"id":7}', b"oops"]), spec)
    sentence = caught.value.message
    assert "offset 101 of partition 3 of /default/t" in sentence
    assert "mode=permissive" in sentence


def test_dead_letters_are_delivered_with_their_whole_record_and_left_out() -> None:
    spec = json_spec("id INT", mode="deadletter", deadLetterTopic="/default/d")
    letters: list[BadRecords] = []
    batch = envelope([b"oops", b'{"id":7}', b""])
    done = typed(batch, spec, letters.append)
    assert done.column("payload").to_pylist() == [{"id": 7}]
    assert done.column("offset").to_pylist() == [101]
    ((bad, reasons),) = letters
    assert bad.to_pylist() == [batch.to_pylist()[0], batch.to_pylist()[2]]
    assert reasons == ["JSON is malformed: invalid character (byte 0)", "the payload is empty"]


def test_a_spec_travels_to_workers() -> None:
    assert pickle.loads(pickle.dumps(SPEC)) == SPEC


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"payloadFormat": "yaml"}, "it is one of raw, string, json, avro"),
        ({"payloadFormat": "json"}, "needs payloadSchema"),
        ({"payloadFormat": "avro"}, "needs payloadSchema"),
        ({"payloadSchema": "a INT"}, "payloadFormat is raw"),
        ({"payloadFormat": "string", "payloadSchema": "a INT"}, "payloadFormat is string"),
        ({"payloadFormat": "json", "payloadSchema": "a INTT"}, "did you mean INT?"),
        (
            {"payloadFormat": "json", "payloadSchema": "m MAP<STRING, INT>"},
            "m is map<string,int>, which JSON payloads are not read into: declare it STRUCT<…>",
        ),
        (
            {"payloadFormat": "json", "payloadSchema": "a STRUCT<b: ARRAY<BINARY>>"},
            "a.b[] is binary, which JSON does not have: declare it STRING",
        ),
        ({"mode": "failfast"}, "payloadFormat=raw reads all"),
        ({"payloadFormat": "string", "mode": "strict"}, "permissive, failfast, deadletter"),
        ({"payloadFormat": "string", "mode": "deadletter"}, "needs deadLetterTopic"),
        (
            {"payloadFormat": "string", "mode": "deadletter", "deadLetterTopic": "x"},
            "deadLetterTopic",
        ),
        ({"payloadFormat": "string", "deadLetterTopic": "/default/d"}, "mode is permissive"),
    ],
)
def test_wrong_options_are_refused_with_a_sentence(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        PayloadSpec.from_options(options)
    assert sentence in caught.value.message
