# pyright: reportUnknownVariableType=false
"""A driver: writes a topic, reads it, streams it into another one, and archives that, on a cluster.

A file says what it saw. The pipeline runs in the same process to save it the start of another JVM.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from danubius.cli import main as command
from danubius.spark import session
from spark.processes import SMALL

ROWS = 2_000


def main(master: str, url: str, folder: str, pipeline: str) -> None:
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
        .options(url=url, topic="/default/second", checkpointLocation=f"{folder}/checkpoint")
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
    Path(folder, "answer.json").write_text(json.dumps({"read": list(total), "executors": spread}))
    spark.stop()
    run = ["pipeline", "run", pipeline, "--once", "--master", master, "--url", url]
    where = ["--checkpoint", f"{folder}/archive", "--set", f"table={folder}/table"]
    sys.exit(command([*run, *where, "--set", "topic=/default/second"]))


def _place() -> dict[str, str]:
    import danubius

    return {
        "executor": os.environ["SPARK_EXECUTOR_DIRS"],
        "package": danubius.__file__,
        "python": sys.executable,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
