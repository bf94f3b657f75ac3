"""Danube's own client on one side and Spark on the other: one topic, both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from e2e.danube_process import danube_client
from spark.topics import payloads, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from e2e.broker_process import BrokerProcess


def test_spark_reads_what_danubes_client_sent(
    spark: SparkSession, grpc_broker: BrokerProcess, topic: str
) -> None:
    with danube_client(grpc_broker.grpc_url) as theirs:
        theirs.do("open_producer", name="p", topic=topic, partitions=3)
        theirs.send("p", b"1000", key="k", attributes={"a": "b"})
        theirs.do("send_many", name="p", first=0, count=200, width=32)
    frame = read(spark, grpc_broker.url, topic=topic)
    [one] = frame.where("key IS NOT NULL").collect()
    assert (bytes(one.key), bytes(one.payload), one.attributes) == (b"k", b"1000", {"a": "b"})
    assert one.topic == topic
    assert payloads(frame) == [*range(200), 1000]
    assert frame.select("partition").distinct().count() == 3


def test_danubes_client_receives_what_spark_wrote(
    spark: SparkSession, grpc_broker: BrokerProcess, topic: str
) -> None:
    with danube_client(grpc_broker.grpc_url) as theirs:
        theirs.do("open_producer", name="p", topic=topic)
        theirs.do("subscribe", name="c", topic=topic, subscription="s")
        number = f.col("id").cast("string")
        rows = spark.range(200).select(
            number.alias("payload"),
            number.alias("key"),
            f.create_map(f.lit("n"), number).alias("attributes"),
        )
        writer = rows.write.format("danube").mode("append")
        writer.options(url=grpc_broker.url, topic=topic).save()
        taken = theirs.take("c", 200)
    assert sorted(int(one.payload) for one in taken) == list(range(200))
    assert all(one.key == one.payload.decode() == one.attributes["n"] for one in taken)
