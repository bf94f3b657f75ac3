"""Topic to topic through Spark, with driver, Python workers and broker killed by -9: every input is there once.

The driver is this file run as a program. With DANUBIUS_PROVE=1 at full size.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import danubius

if TYPE_CHECKING:
    from collections.abc import Callable

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

IS_PROOF: Final = os.environ.get("DANUBIUS_PROVE") == "1"
MESSAGES: Final = 1_000_000 if IS_PROOF else 12_000
ROUNDS: Final = 10 if IS_PROOF else 1
"""In each the driver, a worker and the broker are killed once."""
BATCH: Final = MESSAGES // (15 * ROUNDS)
SOURCE: Final = "/default/kills-in"
TARGET: Final = "/default/kills-out"
WAIT_S: Final = 240.0


def drive(url: str, checkpoint: str) -> None:
    """Run the query until killed."""
    from danubius.spark import session

    spark = session("kills", master="local[2,20]")
    rows = (
        spark.readStream.format("danube")
        .options(url=url, topic=SOURCE, startingOffsets="earliest", maxOffsetsPerTrigger=str(BATCH))
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


class Driver:
    """The program and everything that it starts."""

    def __init__(self, url: str, checkpoint: Path) -> None:
        self._log = (checkpoint.parent / "driver.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, __file__, url, str(checkpoint)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def descendants(self) -> list[int]:
        """All processes below it, the nearest first."""
        parents: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
        found = [self._process.pid]
        for pid in found:
            found += parents.get(pid, [])
        return found[1:]

    def kill_a_worker(self) -> None:
        """The last one is a Python worker, if there is any yet."""
        pids = self.descendants()
        if len(pids) > 2:
            _kill(pids[-1])

    def kill(self) -> None:
        """The driver and its JVM at once. Workers notice later, like executors of a driver that died."""
        pids = self.descendants()
        _kill(self._process.pid)
        for pid in pids:
            _kill(pid)
        self._process.wait()
        self._log.close()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def publish(url: str) -> None:
    async with danubius.connect(url) as client:
        await client.create_topic(TARGET, partitions=2)
        async with client.producer(SOURCE) as producer:
            for start in range(0, MESSAGES, 5000):
                numbers = range(start, min(start + 5000, MESSAGES))
                await producer.send_many(
                    [b"m-%d" % n for n in numbers], keys=[b"key-%d" % (n % 97) for n in numbers]
                )


async def count(url: str) -> int:
    async with danubius.connect(url) as client:
        topics = [f"{TARGET}-part-{index}" for index in range(2)]
        return sum([await client.resolve_offset(topic, "latest") for topic in topics])


async def read_all(url: str) -> list[tuple[bytes | None, bytes]]:
    async with (
        danubius.connect(url) as client,
        client.reader(TARGET, start="earliest", stop_at_end=True) as reader,
    ):
        return [(message.key, message.payload) async for message in reader]


def wait_for(url: str, is_enough: Callable[[int], bool], driver: Driver) -> int:
    limit = time.monotonic() + WAIT_S
    while not is_enough(found := asyncio.run(count(url))):
        assert driver.is_running, "the query ended: see driver.log"
        assert time.monotonic() < limit, f"{found} of {MESSAGES} messages came"
        time.sleep(0.05)
    return found


@pytest.mark.timeout(7200 if IS_PROOF else 1200)
def test_every_input_is_there_once(start_broker: StartBroker, tmp_path: Path) -> None:
    broker: BrokerProcess = start_broker()
    asyncio.run(publish(broker.url))
    dice = random.Random(4)
    checkpoint = tmp_path / "checkpoint"
    driver = Driver(broker.url, checkpoint)
    try:
        for _ in range(ROUNDS):
            for harm in dice.sample(("driver", "worker", "broker"), 3):
                done = asyncio.run(count(broker.url))
                if done >= MESSAGES:
                    break
                wait_for(broker.url, lambda found, done=done: found > done, driver)
                time.sleep(dice.uniform(0, 0.3))
                if harm == "driver":
                    driver.kill()
                    driver = Driver(broker.url, checkpoint)
                elif harm == "worker":
                    driver.kill_a_worker()
                else:
                    broker.kill()
                    broker.start()
        wait_for(broker.url, lambda found: found >= MESSAGES, driver)
    finally:
        driver.kill()
    found = Counter(asyncio.run(read_all(broker.url)))
    assert found == Counter((b"key-%d" % (n % 97), b"M-%d" % n) for n in range(MESSAGES))


if __name__ == "__main__":
    drive(sys.argv[1], sys.argv[2])
