"""Topics read and written by Spark: against Parquet, against rows one by one, streaming, micro-batches, latency.

    make bench-spark                    # writes docs/benchmarks.md
    make bench-spark BENCH_ARGS=--quick # a trial: small counts, and nothing is written

Everything runs on this machine: a broker process, a local Spark. Runs of a group alternate, the best of each counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader
from report import Figure, keep, rate, share, show

import danubius
from danubius.record.arrow import constant_of
from danubius.record.scan import iter_batches
from danubius.spark import session
from danubius.spark.connection.fetching import Wanted, client_of
from danubius.spark.source.batch_reader import plan_batch
from danubius.spark.source.columns import schema_of
from danubius.spark.source.options import read_options
from danubius.spark.source.tasks import RangePartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from danubius.record.batch import RecordBatch
    from danubius.spark.source.planning import Range

_READY: Final = re.compile(r"danubius ready: (danube://\S+)")
_CHUNK: Final = 50_000
_DOCUMENT: Final = Path(__file__).parent.parent / "docs" / "benchmarks.md"
_FEW_COLUMNS: Final = "topic,partition,offset,key,payload"
_SINK_BAR: Final = 500_000
_MICRO_BAR_MS: Final = 100


class RowReader(DataSourceReader):
    """What the same source costs if it makes a tuple of every record, of the same columns."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = read_options(options, "batch")
        self._names = schema_of(self._options).names

    def partitions(self) -> list[Any]:
        return [RangePartition(range_) for range_ in plan_batch(self._options)]

    def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
        range_ = partition.range
        client = client_of(self._options.url, self._options.patience, is_known=True)
        for payload in client.fetch(Wanted(range_.name, range_.begin, range_.end, 4 << 20)):
            for batch in iter_batches(payload.data, verify=not payload.is_proven):
                offsets = batch.offsets()
                columns = [self._values(name, range_, batch) for name in self._names]
                for offset, row in zip(offsets, zip(*columns, strict=True), strict=True):
                    if range_.begin <= offset < range_.end:
                        yield row

    @staticmethod
    def _values(name: str, range_: Range, batch: RecordBatch) -> Sequence[Any]:
        match name:
            case "offset":
                return batch.offsets()
            case "publish_time":
                return [datetime.fromtimestamp(us / 1e6, UTC) for us in batch.publish_times_us()]
            case "key":
                return batch.keys()
            case "payload":
                return batch.payloads()
            case "attributes":
                return batch.attributes()
            case _:
                value = constant_of(name, batch.header, range_.topic, range_.partition)
                return [value] * len(batch)


class RowSource(DataSource):
    """`danube_rows`, for comparison only."""

    @classmethod
    def name(cls) -> str:
        return "danube_rows"

    def schema(self) -> StructType:
        return schema_of(read_options(dict(self.options), "batch"))

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
            "--grpc-port",
            "0",
            "--admin-port",
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


class Turns:
    """Runs that alternate; the best of each counts."""

    def __init__(self, rounds: int, **actions: Callable[[], None]) -> None:
        self._taken: dict[str, list[float]] = {name: [] for name in actions}
        for _ in range(rounds):
            for name, action in actions.items():
                self._taken[name].append(seconds(action))

    def rates(self, count: int) -> dict[str, float]:
        return {name: count / min(times) for name, times in self._taken.items()}

    def in_the_middle(self, name: str, base: str) -> float:
        """The median of how fast one was beside another in the same turn."""
        pairs = zip(self._taken[name], self._taken[base], strict=True)
        return statistics.median(other / own for own, other in pairs)


class Group:
    """A topic and the same rows as Parquet: who reads them how fast."""

    def __init__(self, spark: SparkSession, url: str, count: int, size: int, work: Path) -> None:
        self.spark = spark
        self.url = url
        self.count = count
        self.size = size
        self.work = work
        self.topic = f"/default/rows-{size}"
        self.folder = str(work / f"rows-{size}.parquet")
        self.batch_ms: list[int] = []
        self.copies = 0

    def fill(self) -> None:
        taken = seconds(lambda: publish(self.url, self.topic, self.count, self.size))
        print(f"\n{self.count:,} x {self.size} B (published in {taken:.1f} s)", flush=True)
        self.read().write.mode("overwrite").parquet(self.folder)

    def read(self, format_: str = "danube", **options: Any) -> DataFrame:
        reader = self.spark.read.format(format_)
        return reader.options(url=self.url, topic=self.topic, **options).load()

    def parquet(self) -> None:
        noop(self.spark.read.parquet(self.folder))

    def batch(self) -> None:
        noop(self.read())

    def parquet_payload(self) -> None:
        noop(self.spark.read.parquet(self.folder).select("payload"))

    def payload(self) -> None:
        noop(self.read(columns="payload"))

    def rows(self) -> None:
        noop(self.read("danube_rows"))

    def few(self) -> None:
        noop(self.read(columns=_FEW_COLUMNS))

    def few_rows(self) -> None:
        noop(self.read("danube_rows", columns=_FEW_COLUMNS))

    def stream(self) -> None:
        frame = self._follow()
        self.batch_ms.append(self._run(frame.writeStream.format("noop")))

    def sink(self) -> None:
        """From Parquet, which is the fastest source there is."""
        writer = self.spark.read.parquet(self.folder).select("payload").write.format("danube")
        writer.mode("append").options(url=self.url, topic=self._copy()).save()

    def copy(self) -> None:
        frame = self._follow(columns="key,payload", maxOffsetsPerTrigger=1_000_000)
        self._run(frame.writeStream.format("danube").options(url=self.url, topic=self._copy()))

    def _copy(self) -> str:
        self.copies += 1
        return f"/default/copy-{self.size}-{self.copies}"

    def _follow(self, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("danube").options(startingOffsets="earliest")
        return reader.options(url=self.url, topic=self.topic, **options).load()

    def _run(self, writer: Any) -> int:
        """Everything that is there, once; the milliseconds that its batches took."""
        with tempfile.TemporaryDirectory(dir=self.work) as checkpoint:
            ready = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
            query = ready.start()
            query.awaitTermination()
        return sum(progress["batchDuration"] for progress in query.recentProgress)


def by_tuple(group: Group, batch: float) -> list[Figure]:
    """What it would cost to make a tuple of every record."""
    size, label = group.size, f"{group.size} B"
    turns = Turns(2, rows=group.rows, few=group.few, few_rows=group.few_rows)
    rows, few, few_rows = turns.rates(group.count).values()
    is_small = size == 100
    return [
        Figure(
            f"batch read, a tuple for each row, all columns, {label}",
            rate(rows, size),
            f"batch read is {batch / rows:.1f} x",
            "4 x" if is_small else "-",
            batch / rows >= 4 if is_small else None,
        ),
        Figure(f"batch read, five columns, {label}", rate(few, size)),
        Figure(
            f"batch read, a tuple for each row, five columns, {label}",
            rate(few_rows, size),
            f"batch read is {few / few_rows:.1f} x",
        ),
    ]


def reading(group: Group, rounds: int) -> list[Figure]:
    turns = Turns(
        rounds,
        parquet=group.parquet,
        batch=group.batch,
        parquet_payload=group.parquet_payload,
        payload=group.payload,
        stream=group.stream,
    )
    size, label = group.size, f"{group.size} B"
    rates = turns.rates(group.count)
    steady = group.count / min(group.batch_ms) * 1000
    base, batch = rates["parquet"], rates["batch"]
    stream = rates["stream"]
    middle = turns.in_the_middle("batch", "parquet")
    return [
        Figure(f"spark.read.parquet, {label}", rate(base, size)),
        share(
            f"batch read, all columns, {label}",
            rate(batch, size),
            f"Parquet (turn by turn {middle:.0%})",
            batch / base,
            0.7,
        ),
        Figure(f"spark.read.parquet, payload only, {label}", rate(rates["parquet_payload"], size)),
        share(
            f"batch read, payload only, {label}",
            rate(rates["payload"], size),
            "Parquet, payload only",
            rates["payload"] / rates["parquet_payload"],
            None,
        ),
        *by_tuple(group, batch),
        share(
            f"streaming, availableNow, {label}",
            rate(stream, size),
            "the batch read",
            stream / batch,
            0.6,
        ),
        share(
            f"streaming, without starting the query, {label}",
            rate(steady, size),
            "the batch read",
            steady / batch,
            None,
        ),
    ]


def writing(group: Group, rounds: int) -> list[Figure]:
    size, label = group.size, f"{group.size} B"
    rates = Turns(rounds, sink=group.sink, copy=group.copy).rates(group.count)
    sink = rates["sink"]
    is_small = size == 100
    return [
        Figure(
            f"sink, batch, from Parquet, {label}",
            rate(sink, size),
            f"{sink / _SINK_BAR:.0%} of the bar" if is_small else "-",
            f"{_SINK_BAR:,} rows/s" if is_small else "-",
            sink >= _SINK_BAR if is_small else None,
        ),
        Figure(f"topic to topic, streaming, exactly once, {label}", rate(rates["copy"], size)),
    ]


def timing(url: str) -> list[Figure]:
    """Each in a process of its own: settings of a JVM cannot be changed."""

    def run(kind: str) -> dict[str, float]:
        file = Path(__file__).with_name("spark_latency.py")
        command = [sys.executable, str(file), kind, url]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        return json.loads(done.stdout.splitlines()[-1])

    plain, tuned, through = run("micro-plain"), run("micro-tuned"), run("latency")
    return [
        Figure("micro-batch, Spark's defaults", f"median {plain['median']:.0f} ms"),
        Figure(
            "micro-batch, danubius.spark.session()",
            f"median {tuned['median']:.0f} ms",
            f"{plain['median'] / tuned['median']:.1f} x as quick",
            f"{_MICRO_BAR_MS} ms",
            tuned["median"] < _MICRO_BAR_MS,
        ),
        Figure(
            "latency, source to map to sink, 1,000 messages/s",
            f"p50 {through['p50']:.0f} ms, p99 {through['p99']:.0f} ms",
        ),
    ]


def measure(arguments: argparse.Namespace, work: Path) -> list[Figure]:
    figures: list[Figure] = []

    def add(found: list[Figure]) -> None:
        for figure in found:
            show(figure)
        figures.extend(found)

    broker = Broker(work / "broker")
    try:
        spark = session("bench", master="local[2]")
        spark.dataSource.register(RowSource)
        for count, size in ((arguments.rows, 100), (arguments.large, 1024)):
            if count:
                group = Group(spark, broker.url, count, size, work)
                group.fill()
                if "read" in arguments.only:
                    add(reading(group, arguments.rounds))
                if "write" in arguments.only:
                    add(writing(group, -(-arguments.rounds // 2)))
        spark.stop()
        if "time" in arguments.only:
            print(
                "\na micro-batch of 4 messages in two tasks; one message through a query",
                flush=True,
            )
            add(timing(broker.url))
    finally:
        broker.stop()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000, help="records of 100 B")
    parser.add_argument("--large", type=int, default=1_000_000, help="records of 1 KB")
    parser.add_argument("--rounds", type=int, default=9, help="of reads; writes half as many")
    parser.add_argument("--only", default="read,write,time", help="parts of these, with commas")
    parser.add_argument("--quick", action="store_true", help="small counts, nothing is kept")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.large, arguments.rounds = 500_000, 100_000, 2
    work = Path(tempfile.mkdtemp(prefix="danubius-bench-spark-"))
    try:
        figures = measure(arguments, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if not arguments.quick and arguments.only == parser.get_default("only"):
        given = shlex.join(sys.argv[1:])
        keep(_DOCUMENT, figures, "bench-spark", given, ["danubius", "pyspark", "pyarrow"])
        print(f"\nwritten to {_DOCUMENT.name}")


if __name__ == "__main__":
    main()
