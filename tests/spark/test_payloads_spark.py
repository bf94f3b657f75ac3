"""Typed payloads through Spark: what the options change, and dead letters that come once."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from danubius import blocking
from danubius.spark.functions import (
    attribute,
    attributes_of,
    decode_avro,
    from_payload_json,
    key_text,
    payload_text,
    to_payload_json,
)
from danubius.spark.sql.topics import plain

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from e2e.broker_process import BrokerProcess

SCHEMA = "id BIGINT NOT NULL, price DOUBLE, at TIMESTAMP, tags ARRAY<STRING>, n STRUCT<x: INT, day: DATE>"
GOOD = (
    b'{"id":%d,"price":1.5,"at":"2026-01-02T03:04:05Z","tags":["a"],"n":{"x":1,"day":"2026-01-01"}}'
)
BAD = [b"oops", b'{"id":"x"}', b'{"price":1}', b"\xff"]
ROWS = 200
"""Good ones; the bad ones lie between them."""


def publish(url: str, topic: str) -> None:
    payloads = [GOOD % number for number in range(ROWS)]
    for at, bad in zip((0, 50, 100, 199), BAD, strict=True):
        payloads.insert(at, bad)
    with blocking.connect(url) as client, client.producer(topic) as producer:
        producer.send_many(
            payloads, keys=[b"k"] * len(payloads), attributes=[{"tenant": "a"}] * len(payloads)
        )


def load(spark: SparkSession, url: str, topic: str, **options: str) -> DataFrame:
    return spark.read.format("danube").options(url=url, topic=topic, **options).load()


def letters_in(url: str, topic: str) -> list[Any]:
    with blocking.connect(url) as client, client.reader(topic, stop_at_end=True) as reader:
        return list(reader)


def test_formats_and_modes_change_what_is_read(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    url = broker.url
    publish(url, topic)
    total = ROWS + len(BAD)

    assert load(spark, url, topic).schema["payload"].dataType.simpleString() == "binary"
    text = load(spark, url, topic, payloadFormat="string")
    assert text.where("payload LIKE '{%'").count() == total - 2
    assert [row._corrupt for row in text.where("_error IS NOT NULL").collect()] == [
        bytearray(b"\xff")
    ]

    frame = load(spark, url, topic, payloadFormat="json", payloadSchema=SCHEMA)
    assert frame.selectExpr("payload.*").schema.simpleString() == (
        "struct<id:bigint,price:double,at:timestamp,tags:array<string>,n:struct<x:int,day:date>>"
    )
    figures = frame.selectExpr(
        "count(*)", "count(payload)", "sum(payload.id)", "sum(payload.n.x)", "count(_error)",
        "min(payload.at) = TIMESTAMP '2026-01-02 03:04:05Z'", "max(payload.n.day) = DATE '2026-01-01'",
    )  # fmt: skip
    assert tuple(figures.collect()[0]) == (
        total,
        ROWS,
        sum(range(ROWS)),
        ROWS,
        len(BAD),
        True,
        True,
    )
    corrupt = (
        frame.where("payload IS NULL").orderBy("offset").select("_corrupt", "_error").collect()
    )
    assert [bytes(row._corrupt) for row in corrupt] == BAD
    assert all(row._error for row in corrupt)
    assert load(
        spark, url, topic, payloadFormat="json", payloadSchema=SCHEMA, columns="offset,payload"
    ).columns == ["offset", "payload", "_corrupt", "_error"]

    failing = load(spark, url, topic, payloadFormat="json", payloadSchema=SCHEMA, mode="failfast")
    with pytest.raises(PySparkException) as caught:
        failing.collect()
    assert plain(caught.value).message.startswith(
        f"the payload at offset 0 of partition 0 of {topic} cannot be read"
    )


def test_dead_letters_come_once_however_often_a_range_is_read(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    url, dead = broker.url, f"{topic}-dead"
    publish(url, topic)
    options = {
        "payloadFormat": "json",
        "payloadSchema": SCHEMA,
        "mode": "deadletter",
        "deadLetterTopic": dead,
    }
    frame = load(spark, url, topic, **options)
    assert "_error" not in frame.columns
    assert frame.count() == ROWS
    assert frame.where("payload.id IS NULL").count() == 0
    split = load(spark, url, topic, **options, minPartitions="4")
    assert split.rdd.getNumPartitions() >= 4
    assert split.count() == ROWS

    stream = (
        spark.readStream.format("danube")
        .options(url=url, topic=topic, **options)
        .option("startingOffsets", "earliest")
    )
    query = (
        stream.load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)
    assert query.exception() is None

    letters = letters_in(url, dead)
    assert sorted(letter.payload for letter in letters) == sorted(BAD)
    origins = {int(letter.attributes["x-original-topic-offset"]): letter for letter in letters}
    assert sorted(origins) == [0, 50, 100, 199]
    first = origins[0]
    assert first.payload == b"oops"
    assert first.key == b"k"
    assert first.attributes["tenant"] == "a"
    assert first.attributes["x-original-topic"] == topic
    assert first.attributes["x-original-partition"] == "0"
    assert first.attributes["x-failure-reason"] == "JSON is malformed: invalid character (byte 0)"


def test_dead_letter_topics_that_cannot_be_are_refused(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    publish(broker.url, topic)
    parts = f"{topic}-parts"
    with blocking.connect(broker.url) as client:
        client.create_topic(parts, partitions=2)
    for dead, sentence in ((topic, "one of the topics that are read"), (parts, "is partitioned")):
        frame = load(
            spark,
            broker.url,
            topic,
            payloadFormat="string",
            mode="deadletter",
            deadLetterTopic=dead,
        )
        with pytest.raises(PySparkException) as caught:
            frame.count()
        assert sentence in plain(caught.value).message


def test_avro_and_the_functions_on_columns(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2},
            },
            {"name": "tags", "type": {"type": "map", "values": "string"}},
        ],
    }
    parsed = fastavro.parse_schema(schema)
    payloads: list[bytes] = []
    for number in range(100):
        stream = io.BytesIO()
        value = {"id": number, "price": Decimal("1.25"), "tags": {"a": "b"}}
        fastavro.schemaless_writer(stream, parsed, value)
        payloads.append(stream.getvalue())
    with blocking.connect(broker.url) as client, client.producer(topic) as producer:
        producer.send_many([*payloads, b"\x01"])
    frame = load(spark, broker.url, topic, payloadFormat="avro", payloadSchema=json.dumps(schema))
    figures = frame.selectExpr(
        "sum(payload.id)",
        "CAST(sum(payload.price) AS STRING)",
        "max(payload.tags['a'])",
        "count(_error)",
    )
    assert tuple(figures.collect()[0]) == (sum(range(100)), "125.00", "b", 1)

    raw = load(spark, broker.url, topic)
    decoded = raw.select(decode_avro(json.dumps(schema)).alias("o"))
    assert tuple(decoded.selectExpr("sum(o.id)", "count(*)", "count(o)").collect()[0]) == (
        sum(range(100)), 101, 100,
    )  # fmt: skip


def test_functions_on_columns(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    with blocking.connect(broker.url) as client, client.producer(topic) as producer:
        producer.send(b'{"id":1,"m":{"x":2}}', key="é".encode(), attributes={"tenant": "a"})
        producer.send(b"\xff", key=b"\xff")
    frame = load(spark, broker.url, topic).orderBy("offset")
    first, second = frame.select(
        payload_text().alias("text"),
        key_text().alias("key"),
        from_payload_json("id INT, m MAP<STRING, INT>").alias("o"),
        attribute("tenant"),
        to_payload_json("offset", "topic"),
        attributes_of(at=f.col("offset"), none=f.lit(None)),
    ).collect()
    assert first.text == '{"id":1,"m":{"x":2}}'
    assert first.key == "é"
    assert (first.o.id, first.o.m) == (1, {"x": 2})
    assert first.tenant == "a"
    assert json.loads(first.payload) == {"offset": 0, "topic": topic}
    assert first.attributes == {"at": "0"}
    assert (second.text, second.key, second.o.id if second.o else None, second.tenant) == (
        None,
    ) * 4
