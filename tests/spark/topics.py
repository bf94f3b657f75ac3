"""Topics for the tests of Spark: filled in a line, read back in a line."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import danubius
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

WAIT_S = HANG_S


def publish(
    url: str,
    topic: str,
    payloads: Iterable[bytes],
    *,
    keys: Iterable[bytes] | None = None,
    attributes: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Publish and return when all are stored."""

    async def run() -> None:
        async with danubius.connect(url) as client, client.producer(topic, **options) as producer:
            if keys is None:
                for payload in payloads:
                    producer.send_nowait(payload, attributes=attributes)
            else:
                for payload, key in zip(payloads, keys, strict=True):
                    producer.send_nowait(payload, key=key, attributes=attributes)
            await producer.flush()

    asyncio.run(run())


def numbers(first: int, end: int) -> list[bytes]:
    """Payloads that say which they are."""
    return [b"%d" % number for number in range(first, end)]


def create(url: str, topic: str, **options: Any) -> None:
    async def run() -> None:
        async with danubius.connect(url) as client:
            await client.admin.create_topic(topic, **options)

    asyncio.run(run())


def administer(url: str, method: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of the client's administration."""

    async def run() -> Any:
        async with danubius.connect(url) as client:
            return await getattr(client.admin, method)(*args, **kwargs)

    return asyncio.run(run())


def read(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    """A batch read with these options."""
    return spark.read.format("danube").options(url=url, **options).load()


def stream(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    """A streaming read with these options."""
    return spark.readStream.format("danube").options(url=url, **options).load()


def payloads(frame: DataFrame) -> list[int]:
    """The numbers in the payloads, sorted."""
    return sorted(int(row.payload) for row in frame.select("payload").collect())


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that is sure to come."""
    limit = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit, f"not within {WAIT_S:g} s: {what}"
        time.sleep(LOOK_S)
