# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Options of the Spark source and sink that are about requests and time: each changes what happens.

The data source is called as Spark calls it, without a Spark: what it does depends on the broker alone.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

import danubius
from danubius.errors import BrokerUnavailable, DeadlineExceeded
from danubius.record.scan import iter_batches
from danubius.spark.connection import fetching
from danubius.spark.connection.blocking_link import Patience
from danubius.spark.connection.fetching import Wanted, client_of
from danubius.spark.data_source import DanubeDataSource
from danubius.spark.sink import staging
from danubius.spark.sink.options import write_options
from e2e.lossy_proxy import LossyProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql.datasource import InputPartition

    from danubius.spark.source.batch_reader import DanubeBatchReader
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

R = TypeVar("R")

PAYLOADS = StructType([StructField("payload", BinaryType())])
LONG = "200s"
SHORT = "300ms"


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    fetching.close_clients()
    staging.close_clients()


def publish(url: str, topic: str, payloads: list[bytes], **options: Any) -> None:
    async def run() -> None:
        async with danubius.connect(url) as client, client.producer(topic, **options) as producer:
            await producer.send_many(payloads)

    asyncio.run(run())


def reader_of(url: str, topic: str, **options: str) -> DanubeBatchReader:
    source = DanubeDataSource({"url": url, "topic": topic, "columns": "payload", **options})
    return source.reader(source.schema())


def plan(url: str, topic: str, **options: str) -> list[InputPartition]:
    return reader_of(url, topic, **options).partitions()


def rows(reader: DanubeBatchReader, partitions: list[InputPartition]) -> int:
    return sum(batch.num_rows for partition in partitions for batch in reader.read(partition))


def writer_of(url: str, **options: str) -> Any:
    return DanubeDataSource({"url": url, **options}).writer(PAYLOADS, overwrite=False)


def write_with(writer: Any, payloads: list[bytes]) -> None:
    """One task with rows in batches of ten, and its commit."""
    batch: Any = pa.RecordBatch.from_arrays([pa.array(payloads, pa.binary())], ["payload"])
    writer.commit([writer.write(iter([batch.slice(at, 10) for at in range(0, len(payloads), 10)]))])


def write(url: str, payloads: list[bytes], **options: str) -> None:
    write_with(writer_of(url, **options), payloads)


def stored(url: str, topic: str) -> list[int]:
    """How many records each record batch of a topic has."""
    client = client_of(url, Patience())
    (partition,) = plan(url, topic)
    end: int = partition.value.end
    return [
        batch.header.count
        for payload in client.fetch(Wanted(topic, 0, end, 8 << 20))
        for batch in iter_batches(payload.data)
        if not batch.header.is_control
    ]


def begin(function: Callable[..., R], *args: Any, **options: Any) -> asyncio.Future[R]:
    """Call it in a thread and go on."""
    return asyncio.get_running_loop().run_in_executor(None, partial(function, *args, **options))


async def test_fetch_bytes_is_what_one_request_brings(broker: BrokerProcess, topic: str) -> None:
    payloads = [bytes(10_000)] * 400
    await begin(publish, broker.url, topic, payloads, batch_records=10)
    asked: dict[str, int] = {}
    for size in ("64k", "8m"):
        async with LossyProxy(broker.port) as proxy:
            reader = reader_of(proxy.url, topic, fetchBytes=size)
            partitions = await begin(reader.partitions)
            before = proxy.asked_bytes
            assert await begin(rows, reader, partitions) == 400
            asked[size] = proxy.asked_bytes - before
            await begin(fetching.close_clients)
    # Each of the 40 record batches is larger than 64 KiB and comes alone, or all of them come in one answer.
    assert asked["64k"] > 30 * asked["8m"]


async def test_an_answer_that_does_not_come_is_waited_for_as_long_as_the_option_says(
    broker: BrokerProcess, topic: str
) -> None:
    await begin(publish, broker.url, topic, [b"x"] * 5)
    for timeout in (SHORT, LONG):
        async with LossyProxy(broker.port) as proxy:
            partitions = await begin(plan, proxy.url, topic)
            proxy.mute()
            reading = begin(rows, reader_of(proxy.url, topic, requestTimeout=timeout), partitions)
            await proxy.swallowed.wait()
            if timeout == LONG:
                assert proxy.dialled == 1
                proxy.cut()
            # With the short one it gives up the connection and dials again by itself.
            assert await reading == 5
            assert proxy.dialled >= 2
            await begin(fetching.close_clients)


async def test_a_broker_that_nobody_has_reached_is_waited_for_as_long_as_the_option_says(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker()
    await begin(publish, broker.url, topic, [b"x"] * 5)
    broker.kill()
    with pytest.raises(BrokerUnavailable, match="no broker answers"):
        await begin(plan, broker.url, topic, connectTimeout=SHORT)
    with pytest.raises(BrokerUnavailable, match="no broker answers"):
        await begin(write, broker.url, [b"y"], topic=topic, connectTimeout=SHORT)
    planning = begin(plan, broker.url, topic, connectTimeout=LONG)
    await begin(broker.start)
    assert [partition.value.end for partition in await planning] == [5]
    await begin(fetching.close_clients)
    broker.kill()
    writing = begin(write, broker.url, [b"y"], topic=topic, connectTimeout=LONG)
    await begin(broker.start)
    await writing
    assert sum(await begin(stored, broker.url, topic)) == 6


async def test_a_broker_that_was_there_is_waited_for_as_long_as_the_option_says(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker()
    await begin(publish, broker.url, topic, [b"x"] * 5)
    partitions = await begin(plan, broker.url, topic)
    broker.kill()
    short = reader_of(broker.url, topic, reconnectTimeout=SHORT)
    with pytest.raises(BrokerUnavailable, match="no broker answers"):
        await begin(rows, short, partitions)
    long = reader_of(broker.url, topic, reconnectTimeout=LONG)
    reading = begin(rows, long, partitions)
    await begin(broker.start)
    assert await reading == 5


async def test_a_sink_waits_for_its_broker_as_long_as_the_option_says(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker()
    short = await begin(writer_of, broker.url, topic=topic, reconnectTimeout=SHORT)
    long = await begin(writer_of, broker.url, topic=topic, reconnectTimeout=LONG)
    broker.kill()
    with pytest.raises(BrokerUnavailable):
        await begin(write_with, short, [b"x"] * 5)
    writing = begin(write_with, long, [b"x"] * 5)
    await begin(broker.start)
    await writing
    assert sum(await begin(stored, broker.url, topic)) == 5


async def test_a_stage_is_asked_for_longer_than_one_request_may_take(
    start_broker: StartBroker,
) -> None:
    """A broker that restarts is away for longer than `requestTimeout`; `reconnectTimeout` is what counts."""
    broker = start_broker()
    options = write_options(
        {"url": broker.url, "topic": "t", "requestTimeout": SHORT, "reconnectTimeout": LONG}
    )
    client = await begin(staging.client_of, options)
    broker.kill()
    opening = begin(client.stage, "job", 0)
    await begin(broker.start)
    assert not (await opening).is_over


async def test_a_sink_waits_for_an_answer_as_long_as_the_option_says(
    broker: BrokerProcess, topic: str
) -> None:
    for timeout, patience in ((SHORT, "1s"), (LONG, LONG)):
        async with LossyProxy(broker.port) as proxy:
            raw = {
                "url": proxy.url,
                "topic": topic,
                "requestTimeout": timeout,
                "reconnectTimeout": patience,
                "connectTimeout": LONG,
            }
            writer = await begin(writer_of, **raw)
            await begin(staging.client_of, write_options(raw))
            proxy.mute()
            writing = begin(write_with, writer, [b"x"])
            await proxy.swallowed.wait()
            if timeout == SHORT:
                with pytest.raises(DeadlineExceeded, match="OPEN_STAGE was not answered"):
                    await writing
            else:
                proxy.cut()
                await writing
            await begin(fetching.close_clients)
            await begin(staging.close_clients)
    assert sum(await begin(stored, broker.url, topic)) == 1


async def test_compression_and_batch_bytes_shape_what_is_stored(
    broker: BrokerProcess, topic: str
) -> None:
    payloads = [b"%06d" % number + bytes(994) for number in range(200)]
    sizes: dict[str, int] = {}
    for codec in ("none", "lz4", "zstd"):
        name = f"{topic}-{codec}"
        await begin(write, broker.url, payloads, path=name, compression=codec)
        async with danubius.connect(broker.url) as client:
            sizes[codec] = (await client.admin.measure_topic(name)).stored_bytes
        counts = await begin(stored, broker.url, name)
        assert counts == [200]
    assert sizes["none"] > 200_000 > 10 * sizes["lz4"]
    assert sizes["none"] > 10 * sizes["zstd"]
    await begin(write, broker.url, payloads, topic=topic, batchBytes="50k")
    counts = await begin(stored, broker.url, topic)
    assert sum(counts) == 200
    assert len(counts) >= 3
