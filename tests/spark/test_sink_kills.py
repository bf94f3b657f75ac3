"""Topic to topic through Spark, with driver, executors and broker killed by -9: every input is there once.

Over a million messages on a standalone cluster; test_archive_kills.py has the small one.
The driver is this file run as a program.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import danubius
from spark.kills import (
    BATCH,
    HARMS,
    KEYS,
    MESSAGES,
    Torment,
    publish,
    published,
    read_all,
    report,
)
from spark.processes import SMALL, Program

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker
    from spark.processes import Cluster

SOURCE: Final = "/default/kills-in"
TARGET: Final = "/default/kills-out"
PARTITIONS: Final = 2


def drive(master: str, url: str, checkpoint: str, batch: str) -> None:
    """Run the query until killed."""
    from danubius.spark import session

    spark = session("kills", master=master, config=SMALL)
    rows = (
        spark.readStream.format("danube")
        .options(url=url, topic=SOURCE, startingOffsets="earliest", maxOffsetsPerTrigger=batch)
        .load()
    )
    query = (
        rows.selectExpr("key", "upper(CAST(payload AS STRING)) AS payload")
        .repartition(3)
        .writeStream.format("danube")
        .options(url=url, topic=TARGET)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    query.awaitTermination()


async def create(url: str) -> None:
    async with danubius.connect(url) as client:
        await client.create_topic(TARGET, partitions=PARTITIONS)


@pytest.mark.prove
def test_every_input_is_there_once(
    start_broker: StartBroker, cluster: Cluster, tmp_path: Path
) -> None:
    broker: BrokerProcess = start_broker()
    asyncio.run(create(broker.url))
    asyncio.run(publish(broker.url, SOURCE))
    topics = [f"{TARGET}-part-{index}" for index in range(PARTITIONS)]

    def start() -> Program:
        given = [cluster.master, broker.url, str(tmp_path / "checkpoint"), str(BATCH)]
        command = [sys.executable, __file__, *given]
        return Program(command, tmp_path / "driver.log", {"PYSPARK_PYTHON": cluster.python})

    torment = Torment(broker, cluster, start, lambda: published(broker.url, topics))
    begun = time.monotonic()
    torment.run()
    report("topic to topic", torment, begun)
    found = Counter(asyncio.run(read_all(broker.url, TARGET)))
    assert found == Counter((b"key-%d" % (n % KEYS), b"M-%d" % n) for n in range(MESSAGES))
    assert all(torment.kills[harm] for harm in HARMS)


if __name__ == "__main__":
    drive(*sys.argv[1:])
