# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false
"""Spark's classes, read and verified once: an archive that Java maps instead of loading thousands of them anew.

A driver starts in half the time with it, and tests start many. `.ci/setup` makes it, in the environment that it is for:

    python tests/spark/class_archive.py .venv/spark-classes.jsa

Java passes over an archive that is missing, or of another Java or class path.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ARCHIVE: Final = Path(sys.prefix) / "spark-classes.jsa"
QUICK: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Short lives: compiling everything well would take more time than it saves."""
_SILENT: Final = "-Xlog:disable -Xlog:all=error:stderr"
"""What the archive does not have is nobody's concern."""


def java_options() -> str:
    """Of every Java that a test starts."""
    return f"{QUICK} {_SILENT} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else QUICK


def make(archive: Path) -> None:
    """Run a little of everything, so that its classes are known, and have Java write them down as it ends."""
    archive.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK} {_SILENT} -XX:ArchiveClassesAtExit={archive}"
    os.environ["SPARK_LAUNCHER_OPTS"] = QUICK
    from danubius.spark import session

    spark = session("classes", master="local[2]", config={"spark.sql.shuffle.partitions": "2"})
    with tempfile.TemporaryDirectory() as folder:
        table = f"{folder}/table"
        rows = spark.range(1000).selectExpr("id", "id % 7 AS key", "CAST(id AS STRING) AS text")
        rows.write.partitionBy("key").parquet(table)
        rows.mapInArrow(lambda batches: batches, rows.schema).write.json(f"{folder}/json")
        stored = spark.read.parquet(table)
        stored.join(rows, "id").groupBy(stored["key"]).count().orderBy("count").collect()
        stored.createOrReplaceTempView("stored")
        spark.sql(
            "SELECT key, collect_list(named_struct('a', text)) FROM stored GROUP BY 1"
        ).collect()
        windows = (
            spark.readStream.schema(stored.schema)
            .parquet(table)
            .selectExpr("id", "timestamp_millis(id) AS at")
            .withWatermark("at", "1 second")
            .dropDuplicates(["id", "at"])
            .groupBy("at")
            .count()
        )
        query = (
            windows.writeStream.format("noop")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .outputMode("append")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    java: Any = spark.sparkContext._gateway  # nobody else has its process
    spark.stop()
    java.proc.stdin.close()
    java.proc.wait()


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
