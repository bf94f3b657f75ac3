"""`spark.read.format("danube")`: every option changes what is read."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import danubius
from spark.topics import administer, create, numbers, payloads, publish, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

    from e2e.broker_process import BrokerProcess


def test_a_topic_is_a_dataframe(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    keys = [b"k%d" % (number % 3) for number in range(1000)]
    publish(
        broker.url, topic, numbers(0, 1000), keys=keys, attributes={"unit": "°C"}, batch_records=70
    )
    frame = read(spark, broker.url, topic=topic)
    assert frame.columns == [
        "topic", "partition", "offset", "publish_time", "key", "payload", "attributes", "producer", "schema_id",
        "schema_version",
    ]  # fmt: skip
    rows = frame.orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(1000))
    assert [bytes(row.payload) for row in rows] == numbers(0, 1000)
    assert [bytes(row.key) for row in rows] == keys
    first = rows[0]
    assert (first.topic, first.partition, first.attributes) == (topic, 0, {"unit": "°C"})
    assert (first.schema_id, first.schema_version) == (0, 0)
    assert abs((datetime.now(UTC) - first.publish_time.replace(tzinfo=UTC)).total_seconds()) < 3600
    # By path, and by the short name of a topic in the namespace `default`.
    assert spark.read.format("danube").option("url", broker.url).load(topic).count() == 1000
    assert read(spark, broker.url, topic=topic.rpartition("/")[2]).count() == 1000


def test_arrow_does_not_look_twice_in_a_tuned_session(spark: SparkSession) -> None:
    java: Any = spark.sparkContext._jvm
    assert not java.org.apache.arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED
    assert not java.org.apache.arrow.vector.NullCheckingForGet.NULL_CHECKING_ENABLED


def test_columns_and_schemas_prune(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    publish(broker.url, topic, numbers(0, 10), keys=[b"k"] * 10)
    chosen = read(spark, broker.url, topic=topic, columns="payload, offset")
    assert chosen.columns == ["payload", "offset"]
    assert payloads(chosen) == list(range(10))
    bare = read(spark, broker.url, topic=topic, includeHeaders="false")
    assert set(read(spark, broker.url, topic=topic).columns) - set(bare.columns) == {"attributes"}
    assert payloads(bare) == list(range(10))
    reader = spark.read.format("danube").options(url=broker.url, topic=topic)
    own = reader.schema("offset BIGINT, key BINARY").load()
    assert [(row.offset, bytes(row.key)) for row in own.orderBy("offset").collect()][9] == (9, b"k")
    assert reader.schema("attributes MAP<STRING, STRING>").load().count() == 10
    # The schema of one read serves another, with what is never null or without.
    assert payloads(reader.schema(chosen.schema).load()) == list(range(10))
    mixed = reader.schema("offset BIGINT, payload BINARY NOT NULL").load()
    assert payloads(mixed) == list(range(10))
    for schema, says in [
        ("ofset BIGINT", "no column 'ofset'; did you mean 'offset'?"),
        ("payload STRING", "the schema has payload as string; here it is binary"),
        ("key BINARY NOT NULL", "NOT NULL"),
    ]:
        assert says in _error(lambda schema=schema: reader.schema(schema).load().count())
    assert "did you mean 'payload'?" in _error(
        lambda: read(spark, broker.url, topic=topic, columns="paylod")
    )


def test_a_topic_is_cut_into_ranges(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    publish(broker.url, topic, numbers(0, 1001), batch_records=64)
    counts = {
        "plain": {},
        "min": {"minPartitions": 4},
        "max": {"maxRecordsPerPartition": 100},
        "both": {"minPartitions": 20, "maxRecordsPerPartition": 100},
    }
    partitions: dict[str, int] = {}
    for name, options in counts.items():
        frame = read(spark, broker.url, topic=topic, **options)
        partitions[name] = frame.rdd.getNumPartitions()
        assert payloads(frame) == list(range(1001)), name
    assert partitions == {"plain": 1, "min": 4, "max": 11, "both": 20}


def test_where_a_read_begins_and_ends(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    publish(broker.url, topic, numbers(0, 50))
    middle = datetime.now(UTC)
    publish(broker.url, topic, numbers(50, 80))
    at = {"topic": topic}
    start = json.dumps({topic: {"0": 10}})
    end = json.dumps({topic: {"0": 20}})
    ms = str(round(middle.timestamp() * 1000))
    for options, expected in [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, range(80)),
        ({"startingOffsets": start, "endingOffsets": end}, range(10, 20)),
        ({"startingOffsets": json.dumps({topic: {"0": -2}}), "endingOffsets": end}, range(20)),
        (
            {"startingOffsets": start, "endingOffsets": json.dumps({topic: {"0": -1}})},
            range(10, 80),
        ),
        ({"startingTimestamp": middle.isoformat()}, range(50, 80)),
        ({"startingTimestamp": ms, "endingTimestamp": "2100-01-01T00:00:00Z"}, range(50, 80)),
        ({"endingTimestamp": middle.isoformat()}, range(50)),
        ({"startingOffsets": end, "endingOffsets": start}, range(0)),
    ]:
        assert payloads(read(spark, broker.url, **at, **options)) == list(expected), options
    beyond = json.dumps({topic: {"0": 81}})
    assert "offset 81 is outside" in _error(
        lambda: read(spark, broker.url, topic=topic, startingOffsets=beyond).count()
    )
    other = json.dumps({topic: {"1": 0}})
    assert "partition 1" in _error(
        lambda: read(spark, broker.url, topic=topic, startingOffsets=other).count()
    )


def test_many_topics_and_their_partitions(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    names = [f"{topic}-{letter}" for letter in "abc"]
    create(broker.url, names[0], partitions=3)
    publish(broker.url, names[0], numbers(0, 300), keys=[b"%d" % at for at in range(300)])
    publish(broker.url, names[1], numbers(300, 400), compression="zstd")
    publish(broker.url, names[2], numbers(400, 500), compression="lz4")
    whole = read(spark, broker.url, topic=names[0])
    assert {row.partition for row in whole.select("partition").distinct().collect()} == {0, 1, 2}
    assert {row.topic for row in whole.select("topic").distinct().collect()} == {names[0]}
    assert payloads(whole) == list(range(300))
    assert payloads(read(spark, broker.url, topic=f"{names[0]}-part-1")) == sorted(
        int(row.payload) for row in whole.where("partition = 1").collect()
    )
    both = read(spark, broker.url, subscribe=f"{names[0]},{names[1]}")
    assert payloads(both) == list(range(400))
    pattern = read(spark, broker.url, subscribePattern=f"{topic}-[bc]")
    assert payloads(pattern) == list(range(300, 500))
    assert "no topic matches" in _error(
        lambda: read(spark, broker.url, subscribePattern="/nowhere/.*").count()
    )
    missing = json.dumps({names[0]: {"0": 0, "2": 0}})
    assert f"does not name partition 1 of {names[0]}" in _error(
        lambda: read(spark, broker.url, topic=names[0], startingOffsets=missing).count()
    )


def test_larger_messages_are_one_row(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    large = bytes(range(256)) * 4096

    async def send() -> None:
        async with (
            danubius.connect(broker.url) as client,
            client.producer(topic, chunk_bytes=100_000) as producer,
        ):
            await producer.send(b"before")
            await producer.send(large, key=b"large", attributes={"kind": "photo"})
            await producer.send(b"after")

    asyncio.run(send())
    rows = read(spark, broker.url, topic=topic).orderBy("offset").collect()
    assert [bytes(row.payload) for row in rows] == [b"before", large, b"after"]
    assert rows[1].attributes == {"kind": "photo"}
    # A range that holds the last piece only finds the others.
    last = json.dumps({topic: {"0": rows[1].offset}})
    tail = read(spark, broker.url, topic=topic, startingOffsets=last).orderBy("offset").collect()
    assert [len(row.payload) for row in tail] == [len(large), 5]


def test_what_is_gone_is_an_error_unless_it_may_be(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    publish(broker.url, topic, numbers(0, 100))
    strict = read(spark, broker.url, topic=topic)
    lossy = read(spark, broker.url, topic=topic, failOnDataLoss="false")
    for frame in (strict, lossy):
        frame.rdd.getNumPartitions()  # plans it
    administer(broker.url, "delete_topic", topic)
    assert "failOnDataLoss" in _error(strict.collect)
    assert lossy.collect() == []
    # Another topic of the same name, whether shorter or longer, has nothing of what was planned.
    for first, end in [(0, 5), (5, 200)]:
        publish(broker.url, topic, numbers(first, end))
        says = _error(strict.collect)
        assert "made anew" in says or "outside" in says
        assert lossy.collect() == []
    assert payloads(read(spark, broker.url, topic=topic)) == list(range(200))


def test_wrong_options_are_named(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    publish(broker.url, topic, numbers(0, 3))
    for options, says in [
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'?"),
        ({"startingOffsets": "latest"}, "leaves spark.read nothing to read"),
        ({"maxOffsetsPerTrigger": "5"}, "is for spark.readStream only"),
        ({"subscribe": "/default/a"}, "say the same thing"),
        ({"url": "http://127.0.0.1"}, "danube://host:port"),
    ]:
        reader = spark.read.format("danube").options(url=broker.url, topic=topic)
        text = _error(partial(_count, reader.options(**options)))
        assert says in text, options
        assert len(text.splitlines()) < 20, text
    assert "does not exist" in _error(
        lambda: read(spark, broker.url, topic="/default/nowhere").count()
    )
    assert "say which topic to read" in _error(lambda: read(spark, broker.url).count())


def test_no_broker_is_one_sentence(spark: SparkSession) -> None:
    options: dict[str, Any] = {"topic": "/default/t", "connectTimeout": "1s"}
    text = _error(lambda: read(spark, "danube://127.0.0.1:9", **options).count())
    assert "no broker answers at danube://127.0.0.1:9" in text
    assert len(text.splitlines()) < 20, text


def _count(reader: DataFrameReader) -> int:
    return reader.load().count()


def _error(action: Any) -> str:
    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)
