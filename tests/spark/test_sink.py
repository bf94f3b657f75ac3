"""Writing topics from Spark: what arrives, where, once; and what is refused, in words."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

import danubius

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker


def received(url: str, topic: str) -> list[tuple[bytes | None, bytes, dict[str, str], str]]:
    """Key, payload, attributes and topic of every message."""

    async def run() -> list[tuple[bytes | None, bytes, dict[str, str], str]]:
        async with (
            danubius.connect(url) as client,
            client.reader(topic, start="earliest", stop_at_end=True) as reader,
        ):
            return [
                (message.key, message.payload, dict(message.attributes), message.topic)
                async for message in reader
            ]

    return asyncio.run(run())


def create(url: str, topic: str, partitions: int) -> None:
    async def run() -> None:
        async with danubius.connect(url) as client:
            await client.create_topic(topic, partitions=partitions)

    asyncio.run(run())


def numbers(spark: SparkSession, count: int, partitions: int = 4) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(f.col("id").cast("string").alias("payload"))


def write(frame: DataFrame, url: str, **options: Any) -> None:
    frame.write.format("danube").mode("append").options(url=url, **options).save()


def test_a_batch_write_brings_every_row_once(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    write(numbers(spark, 25_000), broker.url, topic=topic, compression="lz4")
    found = Counter(int(payload) for _, payload, _, _ in received(broker.url, topic))
    assert found == Counter(range(25_000))

    rows = spark.range(100).select(
        f.concat(f.lit("v"), f.col("id")).cast("binary").alias("payload"),
        f.when(f.col("id") % 2 == 0, f.concat(f.lit("k"), f.col("id"))).alias("key"),
        f.create_map(f.lit("n"), f.col("id").cast("string")).alias("attributes"),
        f.concat(f.lit(topic), f.lit("-"), (f.col("id") % 3).cast("string")).alias("topic"),
    )
    write(rows, broker.url)
    for home in range(3):
        expected = [
            (f"k{n}".encode() if n % 2 == 0 else None, f"v{n}".encode(), {"n": str(n)})
            for n in range(home, 100, 3)
        ]
        got = [message[:3] for message in received(broker.url, f"{topic}-{home}")]
        assert sorted(got, key=str) == sorted(expected, key=str)


def test_keys_go_to_the_partitions_of_client_producers(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    create(broker.url, topic, 3)
    rows = spark.range(3000).select(
        f.concat(f.lit("key-"), f.col("id") % 50).alias("key"),
        f.col("id").cast("string").alias("payload"),
    )
    write(rows, broker.url, topic=topic)
    homes = {key: where for key, _, _, where in received(broker.url, topic)}

    async def send_same() -> None:
        async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
            for key in homes:
                assert (await producer.send(b"x", key=key)).topic == homes[key]

    asyncio.run(send_same())
    assert len(set(homes.values())) == 3
    write(numbers(spark, 3000), broker.url, topic=topic)
    spread = Counter(where for key, _, _, where in received(broker.url, topic) if key is None)
    assert set(spread.values()) == {1000}


def test_a_job_that_fails_writes_nothing(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    create(broker.url, topic, 0)
    bad = spark.range(0, 20_000, 1, 4).select(
        f.when(f.col("id") == 19_999, f.raise_error(f.lit("boom")))
        .otherwise(f.col("id").cast("string"))
        .alias("payload")
    )
    with pytest.raises(PySparkException):
        write(bad, broker.url, topic=topic)
    assert received(broker.url, topic) == []


def test_what_cannot_be_written_is_refused_in_words(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    frame = numbers(spark, 3)
    for rows, options, says in [
        (spark.range(3), {"topic": topic}, "no column payload"),
        (
            frame.withColumn("colour", f.lit("red")),
            {"topic": topic},
            "columns colour have no place",
        ),
        (frame.withColumn("key", f.lit(1)), {"topic": topic}, "column key is int"),
        (frame, {}, "say where to write"),
        (frame, {"topics": topic}, "did you mean 'topic'?"),
        (frame, {"topic": topic, "compression": "gzip"}, "none, lz4 or zstd"),
        (frame, {"topic": topic, "batchBytes": "1"}, "write 1k to 8m"),
        (frame.withColumn("topic", f.lit(None).cast("string")), {}, "column topic has nulls"),
        (frame.select(f.lit(None).cast("string").alias("payload")), {"topic": topic}, "has nulls"),
    ]:
        with pytest.raises(PySparkException) as caught:
            write(rows, broker.url, **options)
        assert says in str(caught.value), options
    with pytest.raises(PySparkException, match="a topic is a log"):
        frame.write.format("danube").mode("overwrite").options(url=broker.url, topic=topic).save()
    with pytest.raises(PySparkException, match="no broker answers"):
        write(frame, "danube://127.0.0.1:9", topic=topic, connectTimeout="1s")


def test_a_stream_goes_on_after_a_restart_without_a_gap_or_a_double(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path
) -> None:
    """The same checkpoint, with the last batch's commit forgotten by Spark, and a broker killed in between."""
    broker = start_broker()
    source, target = "/default/in", "/default/out"
    write(numbers(spark, 5000), broker.url, topic=source)

    def run() -> None:
        rows = (
            spark.readStream.format("danube")
            .options(url=broker.url, topic=source, startingOffsets="earliest")
            .option("maxOffsetsPerTrigger", "1500")
            .load()
        )
        query = (
            rows.select("key", "payload")
            .writeStream.format("danube")
            .options(url=broker.url, topic=target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    assert len(received(broker.url, target)) == 5000
    commits = sorted(
        (path for path in (tmp_path / "checkpoint/commits").iterdir() if path.name.isdigit()),
        key=lambda path: int(path.name),
    )
    for path in commits[-1:]:
        path.unlink()
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    broker.kill()
    broker.start()
    write(numbers(spark, 700), broker.url, topic=source)
    run()
    found = Counter(int(payload) for _, payload, _, _ in received(broker.url, target))
    assert found == Counter(range(5000)) + Counter(range(700))
