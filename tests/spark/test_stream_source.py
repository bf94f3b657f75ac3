"""`spark.readStream.format("danube")`: batches, limits, restarts, new partitions, data loss."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from spark.topics import WAIT_S, administer, create, numbers, publish, stream, until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker


class Sink:
    """A query into a list, with a checkpoint that outlives it."""

    def __init__(self, folder: Path) -> None:
        self.batches: list[list[int]] = []
        self._checkpoint = str(folder)

    @property
    def rows(self) -> list[int]:
        return [number for batch in self.batches for number in batch]

    def take(self, frame: DataFrame, _batch: int) -> None:
        self.batches.append(sorted(int(row.payload) for row in frame.select("payload").collect()))

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(self.take)
        return writer.option("checkpointLocation", self._checkpoint).trigger(**trigger).start()

    def run(self, frame: DataFrame) -> list[list[int]]:
        """All that is there; the batches of this run that were not empty."""
        before = len(self.batches)
        query = self.start(frame, availableNow=True)
        assert query.awaitTermination(int(2 * WAIT_S)), "the query did not end"
        return [batch for batch in self.batches[before:] if batch]

    def fail(self, frame: DataFrame) -> str:
        with pytest.raises(StreamingQueryException) as caught:
            self.run(frame)
        return str(caught.value)


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path / "checkpoint")


def test_available_now_keeps_to_the_limit_and_goes_on(
    spark: SparkSession, broker: BrokerProcess, topic: str, sink: Sink
) -> None:
    publish(broker.url, topic, numbers(0, 1000))
    options = {
        "topic": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 400,
        "subscription": "spark",
    }
    frame = stream(spark, broker.url, **options)
    assert list(map(len, sink.run(frame))) == [400, 400, 200]
    assert sink.rows == list(range(1000))
    publish(broker.url, topic, numbers(1000, 1010))
    assert sink.run(frame) == [list(range(1000, 1010))]
    assert sink.run(frame) == []
    # The subscription shows how far it came: all but the last batch, which Spark commits with the next.
    described = administer(broker.url, "describe_subscription", topic, "spark")
    assert 400 <= described.statistics.floor <= 1010
    # Bytes limit as well, by the average size of a record.
    size = administer(broker.url, "measure_topic", topic).stored_bytes
    by_bytes = Sink(sink_folder(sink, "bytes"))
    halves = by_bytes.run(
        stream(
            spark, broker.url, topic=topic, startingOffsets="earliest", maxBytesPerTrigger=size // 2
        )
    )
    assert len(halves) in {2, 3}
    assert by_bytes.rows == list(range(1010))


def test_where_a_new_query_begins(
    spark: SparkSession, broker: BrokerProcess, topic: str, sink: Sink
) -> None:
    publish(broker.url, topic, numbers(0, 10))
    latest = stream(spark, broker.url, topic=topic)
    assert sink.run(latest) == []
    publish(broker.url, topic, numbers(10, 15))
    assert sink.run(latest) == [list(range(10, 15))]
    for name, options, expected in [
        ("offsets", {"startingOffsets": json.dumps({topic: {"0": 12}})}, range(12, 15)),
        ("time", {"startingTimestamp": "2020-01-01T00:00:00Z"}, range(15)),
    ]:
        other = Sink(sink_folder(sink, name))
        other.run(stream(spark, broker.url, topic=topic, **options))
        assert other.rows == list(expected), name


def test_partitions_and_topics_that_come_later_join(
    spark: SparkSession, broker: BrokerProcess, topic: str, sink: Sink
) -> None:
    create(broker.url, topic, partitions=2)
    publish(broker.url, topic, numbers(0, 20), keys=[b"%d" % at for at in range(20)])
    frame = stream(spark, broker.url, subscribePattern=f"{topic}.*", startingOffsets="earliest")
    query = sink.start(frame, processingTime="0 seconds")
    try:
        until(lambda: len(sink.rows) >= 20, "the first messages")
        administer(broker.url, "update_topic", topic, partitions=4)
        publish(broker.url, topic, numbers(20, 60), keys=[b"%d" % at for at in range(40)])
        publish(broker.url, f"{topic}-new", numbers(60, 80))
        until(lambda: len(sink.rows) >= 80, "those of new partitions and topics")
        until(lambda: _newest(query) is not None, "the newest offsets")
    finally:
        query.stop()
    assert sorted(sink.rows) == list(range(80))


def test_small_batches_can_be_waited_for(
    spark: SparkSession, broker: BrokerProcess, topic: str, sink: Sink
) -> None:
    publish(broker.url, topic, numbers(0, 5))
    options = {"topic": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": 10}
    patient = stream(spark, broker.url, **options, maxTriggerDelay="1h")
    query = sink.start(patient, processingTime="0 seconds")
    try:
        until(lambda: query.status["message"].startswith("Waiting"), "a query that waits")
        publish(broker.url, topic, numbers(5, 12))
        until(lambda: len(sink.rows) >= 12, "enough for a batch")
    finally:
        query.stop()
    assert [batch for batch in sink.batches if batch] == [list(range(12))]
    hasty = Sink(sink_folder(sink, "hasty"))
    publish(broker.url, topic, [])
    query = hasty.start(
        stream(
            spark, broker.url, **options | {"minOffsetsPerTrigger": 1000}, maxTriggerDelay="500ms"
        ),
        processingTime="0 seconds",
    )
    try:
        until(lambda: len(hasty.rows) >= 12, "a batch that waited long enough")
    finally:
        query.stop()


def test_lost_data_ends_a_query_unless_it_may_be_lost(
    spark: SparkSession, broker: BrokerProcess, topic: str, sink: Sink
) -> None:
    publish(broker.url, topic, numbers(0, 30))
    options = {"topic": topic, "startingOffsets": "earliest"}
    strict = stream(spark, broker.url, **options)
    lossy = stream(spark, broker.url, **options, failOnDataLoss="false")
    sink.run(strict)
    administer(broker.url, "delete_topic", topic)
    publish(broker.url, topic, numbers(0, 3))
    gone = f"partition 0 of {topic} was deleted and made anew after it had been read up to offset"
    text = sink.fail(strict)
    assert f"{gone} 30" in text
    assert "Set failOnDataLoss to false" in text
    assert sink.run(lossy) == [[0, 1, 2]]
    # Also where it has grown past what was read of the old one.
    administer(broker.url, "delete_topic", topic)
    publish(broker.url, topic, numbers(0, 40))
    assert f"{gone} 3" in sink.fail(strict)
    assert sink.run(lossy) == [list(range(40))]
    other = f"{topic}-other"
    publish(broker.url, other, numbers(0, 3))
    assert f"the checkpoint is of a query that read {topic}" in sink.fail(
        stream(spark, broker.url, topic=other, startingOffsets="earliest")
    )


def test_a_topic_made_anew_under_a_running_query(
    spark: SparkSession, broker: BrokerProcess, topic: str, sink: Sink
) -> None:
    """It grows past what was read of the old one at once: only its incarnation tells them apart."""
    publish(broker.url, topic, numbers(0, 30))
    options = {"topic": topic, "startingOffsets": "earliest"}
    lossy = Sink(sink_folder(sink, "lossy"))
    ending = sink.start(stream(spark, broker.url, **options), processingTime="0 seconds")
    going = lossy.start(
        stream(spark, broker.url, **options, failOnDataLoss="false"), processingTime="0 seconds"
    )
    try:
        until(lambda: len(sink.rows) >= 30 and len(lossy.rows) >= 30, "the first messages")
        administer(broker.url, "delete_topic", topic)
        publish(broker.url, topic, numbers(100, 200))
        until(lambda: not ending.isActive, "the end of the query that may lose nothing")
        until(lambda: len(lossy.rows) >= 130, "the messages of the new topic")
    finally:
        ending.stop()
        going.stop()
    # It saw the topic either gone or made anew, as its triggers fell.
    says = str(ending.exception())
    assert topic in says
    assert "Set failOnDataLoss to false" in says
    assert sink.rows == list(range(30))
    assert sorted(lossy.rows) == [*range(30), *range(100, 200)]


def test_a_batch_that_failed_comes_again_with_the_same_rows(
    spark: SparkSession, broker: BrokerProcess, topic: str, sink: Sink
) -> None:
    create(broker.url, topic, partitions=2)
    publish(broker.url, topic, numbers(0, 40), keys=[b"%d" % at for at in range(40)])
    frame = stream(
        spark, broker.url, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger=25
    )
    seen: list[list[int]] = []

    def fail_once(batch: DataFrame, number: int) -> None:
        seen.append(sorted(int(row.payload) for row in batch.collect()))
        if len(seen) == 1:
            raise RuntimeError("this batch is to come again")

    writer = frame.writeStream.foreachBatch(fail_once).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(sink_folder(sink, "again")))
    with pytest.raises(StreamingQueryException, match="this batch is to come again"):
        writer.start().awaitTermination(int(2 * WAIT_S))
    # What is published now does not change the batch that was begun.
    publish(broker.url, topic, numbers(40, 50), keys=[b"%d" % at for at in range(10)])
    assert writer.start().awaitTermination(int(2 * WAIT_S))
    assert len(seen[0]) == 25
    assert seen[1] == seen[0]
    assert sorted(number for batch in seen[1:] for number in batch) == list(range(50))


def test_a_broker_that_is_killed_is_waited_for(
    spark: SparkSession, start_broker: StartBroker, topic: str, sink: Sink
) -> None:
    broker = start_broker()
    publish(broker.url, topic, numbers(0, 100))
    frame = stream(
        spark, broker.url, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger=7
    )
    query = sink.start(frame, processingTime="0 seconds")
    try:
        until(lambda: len(sink.rows) >= 7, "the first batch")
        broker.kill()
        broker.start()
        publish(broker.url, topic, numbers(100, 120))
        until(lambda: len(sink.rows) >= 120, "all, after the restart")
        assert query.exception() is None
    finally:
        query.stop()
    assert sink.rows == list(range(120))


def _newest(query: StreamingQuery) -> object:
    """Where the topics end, as Spark shows it beside where the query is."""
    progress = query.lastProgress
    return None if progress is None else progress["sources"][0]["latestOffset"]


def sink_folder(sink: Sink, name: str) -> Path:
    """A checkpoint beside this one."""
    from pathlib import Path

    return Path(sink._checkpoint).parent / name
