"""A topic moved to cold storage whole, its files gone, and read back exactly: by consumer, by reader, by Spark.

In files by default. In `make prove` it is a million messages, in every kind of store there is a server for (Azure with
`make test-azure`), and it prints what it saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions

import danubius
from e2e.storage_server_process import StorageServerProcess
from e2e.test_cold_storage import SMALL, cold_lines, files_of
from object_servers import (
    ObjectPlace,
    azure_by_azurite,
    gcs_by_fake,
    redis_server,
    s3_by_moto,
    s3_by_seaweedfs,
)
from patience import LOOK_S, PROGRAM_HANG_S
from proving import IS_PROOF, sized
from spark.topics import read, stream

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

MESSAGES: Final = sized(20_000, 1_000_000)
GROUP: Final = 5_000
FILLING: Final = "x" * 80
SUMS: Final = ("bit_xor(hash)", "sum(CAST(hash AS DECIMAL(38)))")
"""The second tells also of a message that is there three times."""
SIZES: Final = (
    "--set",
    "ledgers.ledger_bytes_max=16MiB",
    "--set",
    "tier.segment_bytes=4MiB",
)
"""Of a million messages: six ledgers, read as brokers read them by default."""


def payload(number: int) -> bytes:
    return b"%d/%s" % (number, FILLING.encode())


class Place(NamedTuple):
    """Where a topic goes: what a broker is told of it, and what Spark is told."""

    broker: list[str]
    spark: dict[str, str] | None
    """None: only the broker can read it."""


def _objects(place: ObjectPlace) -> Place:
    options = [f"{name}={value}" for name, value in place.options.items()]
    told = [word for option in options for word in ("--tier-option", option)]
    given = {f"tierOption.{name}": value for name, value in place.options.items()}
    return Place(["--tier-url", place.url, *told], given)


def _files(folder: Path) -> contextlib.AbstractContextManager[Place]:
    return contextlib.nullcontext(Place(["--tier-url", f"fs://{folder}"], {}))


def _memory(_: Path) -> contextlib.AbstractContextManager[Place]:
    return contextlib.nullcontext(Place(["--tier-url", "memory://cold"], None))


def _server(
    start: Callable[[], contextlib.AbstractContextManager[ObjectPlace]],
) -> Callable[[Path], contextlib.AbstractContextManager[Place]]:
    @contextlib.contextmanager
    def running(_: Path) -> Generator[Place]:
        with start() as place:
            yield _objects(place)

    return running


@contextlib.contextmanager
def _redis_served(_: Path) -> Generator[Place]:
    """No cold storage at all: every ledger is in Redis from the beginning."""
    with redis_server() as place:
        options = [f"{name}={value}" for name, value in place.options.items()]
        server = StorageServerProcess(place.url, *options).start()
        try:
            yield Place(["--ledger-store", "remote", "--ledger-store-url", server.url], None)
        finally:
            server.end()


STORES: Final[dict[str, Callable[[Path], contextlib.AbstractContextManager[Place]]]] = {
    "fs": _files,
    "memory": _memory,
    "s3-seaweedfs": _server(s3_by_seaweedfs),
    "s3-moto": _server(s3_by_moto),
    "gcs-fake": _server(gcs_by_fake),
    "redis": _server(redis_server),
    "redis-storage-server": _redis_served,
}
CHOSEN: Final = sized(["fs"], list(STORES))
AZURE: Final = pytest.param(_server(azure_by_azurite), marks=pytest.mark.azure, id="azure-azurite")


class Run:
    """One topic in one place."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        self.middle = datetime.now(UTC)
        """After the first half was published, and before the second."""
        self._begun = time.monotonic()

    def say(self, what: str) -> None:
        if IS_PROOF:
            now = time.monotonic()
            sys.stderr.write(f"\n  {what}: {now - self._begun:.1f} s")
            self._begun = now

    async def publish(self) -> None:
        async with (
            danubius.connect(self.broker.url) as client,
            client.producer(self.topic) as producer,
        ):
            for first in range(0, MESSAGES, GROUP):
                if first == MESSAGES // 2:
                    await asyncio.sleep(LOOK_S)  # a time that no message has
                    self.middle = datetime.now(UTC)
                    await asyncio.sleep(LOOK_S)
                await producer.send_many([payload(n) for n in range(first, first + GROUP)])

    async def offload(self) -> int:
        """Move it and wait until its files are gone; how many objects it has."""
        async with danubius.connect(self.broker.url) as client, asyncio.timeout(PROGRAM_HANG_S):
            until: dict[str, int] = {}
            while not (reply := await client.admin.offload_topic(self.topic, until)).is_done:
                until = reply.until
                await asyncio.sleep(LOOK_S)
            # That files are not needed is known before they are gone.
            while not await cold_lines(client, self.topic) or files_of(self.broker):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        return reply.ledgers

    async def consume(self) -> None:
        expected = 0
        async with (
            danubius.connect(self.broker.url) as client,
            client.consumer(self.topic, subscription="all", start="earliest") as consumer,
            asyncio.timeout(PROGRAM_HANG_S),
        ):
            while expected < MESSAGES:
                batch = await consumer.receive_batch()
                for found in batch.payloads:
                    assert bytes(found) == payload(expected)
                    expected += 1
                await consumer.ack(batch)
        assert expected == MESSAGES

    async def read_from_the_middle(self) -> None:
        expected = MESSAGES // 2
        async with (
            danubius.connect(self.broker.url) as client,
            client.reader(self.topic, start=self.middle) as reader,
            asyncio.timeout(PROGRAM_HANG_S),
        ):
            async for message in reader:
                assert (message.offset, message.payload) == (expected, payload(expected))
                expected += 1
                if expected == MESSAGES:
                    return


def expected(spark: SparkSession) -> tuple[int, ...]:
    """What the hashes of all messages add up to, by the rule that made them."""
    sent = f"CAST(concat(id, '/{FILLING}') AS BINARY)"
    hashes = spark.range(MESSAGES).selectExpr(f"xxhash64(id, {sent}) AS hash")
    sums: Any = hashes.selectExpr(*SUMS).first()
    return tuple(sums)


def check_rows(spark: SparkSession, frame: DataFrame) -> None:
    """All messages, each once, rising within a task, with the payloads that were sent: by count and sums of hashes."""
    # The number that Spark gives to each row counts within a task from 0 on.
    placed = frame.selectExpr(
        "spark_partition_id() AS task",
        "offset",
        f"offset - (monotonically_increasing_id() & {(1 << 33) - 1}) AS base",
        "xxhash64(offset, payload) AS hash",
    )
    tasks = placed.groupBy("task").agg(
        *map(functions.expr, ("min(base)", "max(base)", "min(offset)", "count(*)", *SUMS))
    )
    at = xor = total = 0
    rows: list[Any] = tasks.collect()
    for row in sorted(rows, key=lambda row: row[3]):
        _, lowest, highest, first, count, hashes, sum_ = row
        assert lowest == highest == first == at, "one by one, from where the task before ended"
        at, xor, total = at + count, xor ^ hashes, total + sum_
    assert at == MESSAGES
    assert (xor, total) == expected(spark)


def check_spark(spark: SparkSession, run: Run, place: Place) -> None:
    url, topic, broker = run.broker.url, run.topic, run.broker
    options: dict[str, str] = {"topic": topic, "minPartitions": "3"}
    check_rows(spark, read(spark, url, **options, readFrom="broker"))
    run.say("Spark, through the broker")
    given = options | (place.spark or {})
    if place.spark is None:
        with pytest.raises(PySparkException, match=r"readFrom is tier|memory of the broker"):
            read(spark, url, **given, readFrom="tier").count()
        check_rows(spark, read(spark, url, **given))
        run.say("Spark, by itself through the broker")
        return
    frame = read(spark, url, **given, readFrom="tier")
    frame.rdd.getNumPartitions()  # plans it
    broker.kill()
    check_rows(spark, frame)
    run.say("Spark, from objects, with the broker killed")
    broker.start()
    if IS_PROOF:
        check_stream(spark, run, given)


def check_stream(spark: SparkSession, run: Run, given: dict[str, str]) -> None:
    """All that is there, in two batches, from objects alone."""
    given = given | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(MESSAGES // 2 + 7)}
    counted = stream(spark, run.broker.url, **given, readFrom="tier").groupBy().count()
    writing = counted.writeStream.format("memory").queryName("counted").outputMode("complete")
    query = writing.trigger(availableNow=True).start()
    assert query.awaitTermination(int(PROGRAM_HANG_S))
    assert spark.table("counted").collect() == [(MESSAGES,)]
    run.say("Spark, a stream with availableNow, from objects")


@pytest.mark.grows
@pytest.mark.parametrize(
    "store", [*(pytest.param(STORES[name], id=name) for name in CHOSEN), AZURE]
)
def test_a_topic_is_read_back_exactly_from_cold_storage(
    spark: SparkSession, start_broker: StartBroker, store: Any, tmp_path: Path, topic: str
) -> None:
    with store(tmp_path / "cold") as place:
        broker = start_broker(*place.broker, *SMALL, *sized((), SIZES))
        run = Run(broker, topic)
        asyncio.run(run.publish())
        run.say(f"{MESSAGES} messages published")
        if "--tier-url" in place.broker:
            objects = asyncio.run(run.offload())
            assert objects > 3
            run.say(f"{objects} ledgers moved, no file left")
        if place.broker[1] != "memory://cold":
            broker.kill()  # so that nothing is read from its memory
            broker.start()
            run.say("restarted")
        asyncio.run(run.consume())
        run.say("consumed")
        asyncio.run(run.read_from_the_middle())
        run.say("half of it read from a time on")
        check_spark(spark, run, place)
        assert broker.stop() == 0
        assert "Traceback" not in broker.log()
