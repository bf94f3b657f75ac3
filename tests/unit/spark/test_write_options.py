"""Options and columns of a write: what they become, and the sentence if they are wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from danubius.errors import DanubiusError
from danubius.record.header import Codec
from danubius.spark.connection.blocking_link import Patience
from danubius.spark.sink.options import WRITE_OPTIONS, WriteOptions, check_columns, write_options

PAGE = Path(__file__).parents[3] / "docs/spark-writing.md"
URL = "danube://127.0.0.1:6651"


def test_every_option_sets_its_field() -> None:
    options = write_options(
        {
            "URL": URL,
            "topic": "orders",
            "compression": "ZSTD",
            "batchbytes": "2m",
            "connectTimeout": "1s",
            "requestTimeout": "2s",
            "reconnectTimeout": "3m",
            "checkpointLocation": "/somewhere",
        }
    )
    assert options == WriteOptions(
        url=URL,
        topic="/default/orders",
        codec=Codec.ZSTD,
        batch_bytes=2 * 1024 * 1024,
        patience=Patience(1.0, 2.0, 180.0),
    )


def test_without_options_the_environment_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DANUBIUS_URL", raising=False)
    assert write_options({"path": "/a/b"}) == WriteOptions(url=URL, topic="/a/b")
    monkeypatch.setenv("DANUBIUS_URL", "danube://elsewhere:1")
    assert write_options({}).url == "danube://elsewhere:1"


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"topik": "x"}, "did you mean 'topic'?"),
        ({"topic": "/a"}, "option topic"),
        ({"topic": "/a/b", "path": "/a/c"}, "say the same thing"),
        ({"compression": "gzip"}, "none, lz4 or zstd"),
        ({"batchBytes": "9m"}, "1k to 8m"),
        ({"connectTimeout": "soon"}, "500ms, 30s"),
        ({"url": "http://x"}, "danube://host:port"),
    ],
)
def test_a_wrong_option_is_named(raw: dict[str, str], says: str) -> None:
    with pytest.raises(DanubiusError, match=re.escape(says)):
        write_options(raw)


TEXT, BINARY, LONG = StringType(), BinaryType(), LongType()
MAP = MapType(TEXT, TEXT)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"payload": TEXT, "key": BINARY, "attributes": MAP}, ""),
        ({"payload": BINARY, "offset": LONG, "publish_time": TimestampType()}, ""),
        ({"id": LONG}, "no column payload; the columns are id"),
        ({"payload": LONG}, "column payload is bigint; it must be binary or string"),
        ({"payload": TEXT, "attributes": TEXT}, "column attributes is string"),
        ({"payload": TEXT, "id": LONG, "name": TEXT}, "columns id, name have no place"),
    ],
)
def test_wrong_columns_are_named(columns: dict[str, DataType], says: str) -> None:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    options = WriteOptions(url=URL, topic="/a/b")
    if not says:
        check_columns(schema, options)
        return
    with pytest.raises(DanubiusError, match=re.escape(says)):
        check_columns(schema, options)


def test_a_topic_is_needed_somewhere() -> None:
    options = WriteOptions(url=URL)
    rows = StructType([StructField("payload", TEXT)])
    with pytest.raises(DanubiusError, match="say where to write"):
        check_columns(rows, options)
    check_columns(StructType([*rows.fields, StructField("topic", TEXT)]), options)


def test_the_page_lists_every_option() -> None:
    table = PAGE.read_text().split("## Options")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(WRITE_OPTIONS)
