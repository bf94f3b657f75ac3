"""Topics read by Spark, against Parquet and against rows one by one; streaming; and what a micro-batch costs.

    make bench-spark                    # or: python benches/spark.py --rows 1000000 --large 200000

Everything runs on this machine: a broker process, a local Spark. Runs of a group alternate, the best of each counts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader

import danubius
from danubius.record.scan import iter_batches
from danubius.spark import session
from danubius.spark.batch_reader import plan_batch
from danubius.spark.fetching import client_of
from danubius.spark.options import read_options
from danubius.spark.tasks import RangePartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

_READY: Final = re.compile(r"danubius ready: (danube://\S+)")
_CHUNK: Final = 50_000


class RowReader(DataSourceReader):
    """What the same source costs if it makes a tuple of every record."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = read_options(options, "batch")

    def partitions(self) -> list[Any]:
        return [RangePartition(range_) for range_ in plan_batch(self._options)]

    def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
        range_ = partition.range
        client = client_of(self._options.url, self._options.patience, is_known=True)
        for payload in client.fetch(range_.name, range_.begin, range_.end, 4 << 20):
            for batch in iter_batches(payload):
                columns = zip(batch.offsets(), batch.keys(), batch.payloads(), strict=True)
                for offset, key, value in columns:
                    if range_.begin <= offset < range_.end:
                        yield (range_.topic, range_.partition, offset, key, value)


class RowSource(DataSource):
    """`danube_rows`, for comparison only."""

    @classmethod
    def name(cls) -> str:
        return "danube_rows"

    def schema(self) -> str:
        return "topic STRING, partition INT, offset BIGINT, key BINARY, payload BINARY"

    def reader(self, schema: Any) -> RowReader:  # noqa: ARG002  # Spark passes it
        return RowReader(dict(self.options))


class Broker:
    """A broker process on a directory of its own."""

    def __init__(self, folder: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "danubius",
            "standalone",
            "--port",
            "0",
            "--http-port",
            "0",
        ]
        self._process = subprocess.Popen(
            [*command, "--data-dir", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := _READY.search(line):
                self.url = found[1]
                return
        raise SystemExit("the broker did not start")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


def publish(url: str, topic: str, count: int, size: int) -> None:
    """Random payloads, so that Parquet cannot save itself the reading."""

    async def run() -> None:
        async with (
            danubius.connect(url) as client,
            client.producer(topic, durability="written") as producer,
        ):
            for first in range(0, count, _CHUNK):
                number = min(_CHUNK, count - first)
                data = os.urandom(number * size)
                await producer.send_many(
                    [data[at : at + size] for at in range(0, number * size, size)]
                )

    asyncio.run(run())


def seconds(action: Callable[[], None]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def best_of(rounds: int, **actions: Callable[[], None]) -> dict[str, float]:
    """The best of each, in runs that alternate."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            taken[name].append(seconds(action))
    return {name: min(times) for name, times in taken.items()}


def compare(spark: SparkSession, url: str, count: int, size: int, work: Path, rounds: int) -> None:
    topic, folder = f"/default/rows-{size}", str(work / f"rows-{size}.parquet")
    filled = seconds(lambda: publish(url, topic, count, size))
    print(f"\n{count:,} x {size} B (published in {filled:.1f} s)", flush=True)

    def read(format_: str = "danube", **options: Any) -> DataFrame:
        return spark.read.format(format_).options(url=url, topic=topic, **options).load()

    batch_ms: list[int] = []

    def stream() -> None:
        reader = spark.readStream.format("danube").options(
            url=url, topic=topic, startingOffsets="earliest"
        )
        writer = reader.load().writeStream.format("noop").trigger(availableNow=True)
        with tempfile.TemporaryDirectory(dir=work) as checkpoint:
            query = writer.option("checkpointLocation", checkpoint).start()
            query.awaitTermination()
        batch_ms.append(sum(progress["batchDuration"] for progress in query.recentProgress))

    read().write.mode("overwrite").parquet(folder)
    some = {"endingOffsets": f'{{"{topic}": {{"0": {min(count, 500_000)}}}}}'}
    times = best_of(
        rounds,
        parquet=lambda: noop(spark.read.parquet(folder)),
        danube=lambda: noop(read()),
        payload=lambda: noop(read(columns="payload")),
        stream=stream,
    )
    rows = best_of(1, rows=lambda: noop(read("danube_rows", **some)))["rows"]
    rates = {name: count / taken for name, taken in times.items()} | {
        "rows": min(count, 500_000) / rows
    }
    rates["batches"] = count / min(batch_ms) * 1000
    says = {
        "parquet": "spark.read.parquet into noop",
        "danube": "danube, batch, all columns",
        "payload": "danube, batch, payload only",
        "stream": "danube, streaming, availableNow",
        "batches": "  the same without starting a query",
        "rows": "danube, a tuple for each row",
    }
    for name, rate in rates.items():
        megabytes, part = rate * size / 1e6, rate / rates["parquet"]
        print(f"  {says[name]:36} {rate / 1e6:6.2f} M rows/s {megabytes:7.0f} MB/s  {part:5.0%}")
    by_row, of_batch = rates["danube"] / rates["rows"], rates["stream"] / rates["danube"]
    print(
        f"  batch against rows {by_row:.1f} x; streaming against batch {of_batch:.0%}", flush=True
    )


def micro_batches(url: str, work: Path, *, tuned: bool, batches: int = 40) -> None:
    """One process, one session: what a batch of a few messages takes from trigger to commit."""
    spark = session(
        "micro",
        master="local[2]",
        tuned=tuned,
        config={"spark.log.level": "FATAL", "spark.ui.enabled": "false"},
    )
    topic = f"/default/micro-{tuned}".lower()
    publish(url, topic, 10, 100)
    frame = (
        spark.readStream.format("danube")
        .options(url=url, topic=topic, minPartitions=2, startingOffsets="earliest")
        .load()
    )
    writer = frame.writeStream.format("noop").option(
        "checkpointLocation", str(work / f"micro-{tuned}")
    )
    query = writer.trigger(processingTime="0 seconds").start()
    seen = 0
    durations: list[int] = []
    while len(durations) < batches:
        publish(url, topic, 4, 100)
        while (
            query.lastProgress is None
            or query.lastProgress["batchId"] < seen
            or not query.lastProgress["numInputRows"]
        ):
            time.sleep(0.01)
        durations.append(query.lastProgress["batchDuration"])
        seen = query.lastProgress["batchId"] + 1
    query.stop()
    spark.stop()
    warm = sorted(durations[batches // 4 :])
    name = "danubius.spark.session()" if tuned else "Spark's defaults"
    print(f"  {name:34} median {statistics.median(warm):4.0f} ms, best {warm[0]} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000, help="records of 100 B")
    parser.add_argument("--large", type=int, default=1_000_000, help="records of 1 KB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--micro", choices=["tuned", "plain"], help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="danubius-bench-spark-"))
    if arguments.micro:
        micro_batches(arguments.url, work, tuned=arguments.micro == "tuned")
        shutil.rmtree(work, ignore_errors=True)
        return
    broker = Broker(work / "broker")
    try:
        spark = session("bench", master="local[2]")
        spark.dataSource.register(RowSource)
        for count, size in ((arguments.rows, 100), (arguments.large, 1024)):
            if count:
                compare(spark, broker.url, count, size, work, arguments.rounds)
        spark.stop()
        print("\na micro-batch of 4 messages in two tasks, trigger 0", flush=True)
        for kind in ("plain", "tuned"):
            command = [sys.executable, __file__, "--micro", kind, "--url", broker.url]
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    finally:
        broker.stop()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
