# pyright: reportUnknownVariableType=false
"""Tasks that run twice: by speculation, both at once, and after a failure. What they write is there once.

The driver is this file run as a program, on a standalone cluster: a local master does not speculate.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import danubius
from patience import HANG_S, LOOK_S, PROGRAM_HANG_S
from spark.processes import SMALL, Program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from e2e.broker_process import BrokerProcess
    from spark.processes import Cluster

ROWS: Final = 4_000
SCHEMA: Final = "key STRING, payload STRING"
SETTINGS: Final = {
    # Both hosts are there before the first task: one is free for the second attempt.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    # Small pieces, so that some are staged before a task waits or fails.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
}


def twice_at_once(folder: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Both attempts of the first task wait, half through, until the other one is there; then both go on."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if number == 5 and context.partitionId() == 0:
                attempt = context.attemptNumber()
                Path(folder, f"speculative-{attempt}").touch()
                limit = time.monotonic() + PROGRAM_HANG_S
                while len(list(Path(folder).glob("speculative-*"))) < 2:
                    assert time.monotonic() < limit, "no second attempt came"
                    time.sleep(LOOK_S)
            yield batch

    return run


def fails_first(folder: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The first attempt of the second task fails when most of it is staged."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if number == 15 and context.partitionId() == 1:
                mark = Path(folder, "failed-once")
                if not mark.exists():
                    mark.touch()
                    raise RuntimeError("this attempt fails")
            yield batch

    return run


def drive(master: str, url: str, folder: str) -> None:
    """The same for batch and streaming writes, each into a topic of its own."""
    from danubius.spark import session

    spark = session("twice", master=master, config={**SMALL, **SETTINGS})
    rows = spark.range(0, ROWS, numPartitions=2).selectExpr(
        "CAST(id % 97 AS STRING) AS key", "CAST(id AS STRING) AS payload"
    )
    rows.write.format("danube").mode("append").options(url=url, topic="/default/plain").save()

    for kind, made in (("speculated", twice_at_once), ("failed", fails_first)):
        marks = Path(folder, f"batch-{kind}")
        marks.mkdir()
        # The slow part and the sink are one stage, so that attempts write while they wait.
        frame = rows.mapInArrow(made(str(marks)), SCHEMA)
        to_topic = frame.write.format("danube").mode("append")
        to_topic.options(url=url, topic=f"/default/batch-{kind}", batchBytes="1k").save()

        marks = Path(folder, f"stream-{kind}")
        marks.mkdir()
        _stream(spark.readStream, url, folder, kind, made(str(marks)))
    spark.stop()


def _stream(reader: Any, url: str, folder: str, kind: str, slow: Callable[..., Any]) -> None:
    options = {"url": url, "topic": "/default/plain", "startingOffsets": "earliest"}
    frame: DataFrame = reader.format("danube").options(minPartitions="2", **options).load()
    halves = frame.selectExpr("CAST(key AS STRING) AS key", "CAST(payload AS STRING) AS payload")
    query = (
        halves.mapInArrow(slow, SCHEMA)
        .writeStream.format("danube")
        .options(url=url, topic=f"/default/stream-{kind}", batchBytes="1k")
        .option("checkpointLocation", str(Path(folder, f"checkpoint-of-{kind}")))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


async def read_all(url: str, topic: str) -> list[tuple[bytes | None, bytes]]:
    async with (
        danubius.connect(url) as client,
        client.reader(topic, start="earliest", stop_at_end=True) as reader,
    ):
        return [(message.key, message.payload) async for message in reader]


@pytest.mark.prove
def test_a_task_that_runs_twice_writes_once(
    broker: BrokerProcess, cluster: Cluster, tmp_path: Path
) -> None:

    folder = tmp_path / "marks"
    folder.mkdir()
    command = [sys.executable, __file__, cluster.master, broker.url, str(folder)]
    driver = Program(command, tmp_path / "driver.log", {"PYSPARK_PYTHON": cluster.python})
    try:
        assert driver.wait(HANG_S) == 0, driver.log()
    finally:
        driver.kill()
    for way in ("batch", "stream"):
        assert len(list((folder / f"{way}-speculated").iterdir())) == 2
        assert (folder / f"{way}-failed" / "failed-once").exists()
    wanted = Counter((b"%d" % (n % 97), b"%d" % n) for n in range(ROWS))
    for topic in ("batch-speculated", "stream-speculated", "batch-failed", "stream-failed"):
        assert Counter(asyncio.run(read_all(broker.url, f"/default/{topic}"))) == wanted, topic


if __name__ == "__main__":
    drive(*sys.argv[1:])
