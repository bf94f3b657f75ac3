# pyright: reportUnknownVariableType=false
"""A driver: writes a topic, reads it, and streams it into another one, on a cluster; a file says what it saw."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from danubius.spark import session
from spark.processes import SMALL

ROWS = 2_000


def main(master: str, url: str, checkpoint: str, answer: str) -> None:
    settings = {
        **SMALL,
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    spark = session("cluster", master=master, config=settings)
    numbers = spark.range(0, ROWS, numPartitions=4)
    rows = numbers.selectExpr("CAST(id % 7 AS STRING) AS key", "CAST(id AS STRING) AS payload")
    rows.write.format("danube").mode("append").options(url=url, topic="/default/first").save()

    reader = spark.read.format("danube").options(url=url, topic="/default/first", minPartitions=4)
    (total,) = (
        reader.load()
        .selectExpr("count(*)", "sum(CAST(CAST(payload AS STRING) AS BIGINT))")
        .collect()
    )

    stream = spark.readStream.format("danube").options(
        url=url, topic="/default/first", startingOffsets="earliest", maxOffsetsPerTrigger="700"
    )
    query = (
        stream.load()
        .selectExpr("key", "CONCAT('seen ', CAST(payload AS STRING)) AS payload")
        .repartition(2)
        .writeStream.format("danube")
        .options(url=url, topic="/default/second", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    # Two tasks that wait for each other run on both executors: each has one core.
    spread = (
        spark.sparkContext.parallelize(range(2), 2)
        .barrier()
        .mapPartitions(lambda _: [_place()])
        .collect()
    )
    Path(answer).write_text(json.dumps({"read": list(total), "executors": spread}))
    spark.stop()


def _place() -> dict[str, str]:
    import danubius

    return {
        "executor": os.environ["SPARK_EXECUTOR_DIRS"],
        "package": danubius.__file__,
        "python": sys.executable,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
