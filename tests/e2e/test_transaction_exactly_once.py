"""Consume, transform, produce with kill -9 of workers and broker: the output has every input exactly once.

Workers are processes of their own, this file run as a program. They share one subscription with an ack time-out that is
sometimes shorter than their work, so that now and then two of them hold the same messages and both try to commit.

In `make prove` at full size: 100,000 messages and 20 kills of each kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import danubius
from danubius.errors import TransactionAborted, TransactionConflict
from patience import LOOK_S
from proving import sized

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

MESSAGES: Final = sized(5_000, 100_000)
KILLS: Final = sized(3, 20)
"""Of workers, and as many of the broker."""
WORKERS: Final = 2
SEED: Final = 316
SECONDS_MAX: Final = sized(200.0, 900.0)
SOURCE: Final = "/default/transaction-source"
TARGET: Final = "/default/transaction-target"
ACK_TIMEOUT_S: Final = 0.3
SLOW_PART: Final = sized(0.1, 0.02)
"""Of the transactions: open for longer than the ack time-out, so that another worker gets the messages as well."""


# ------------------------------------------------------------ the worker


async def work(url: str, seed: int) -> None:
    """Move messages until killed. Every error of a transaction means: leave it, and go on with what comes."""
    dice = random.Random(seed)
    async with (
        danubius.connect(url) as client,
        client.producer(TARGET) as producer,
        client.consumer(
            SOURCE,
            subscription="work",
            type="shared",
            start="earliest",
            prefetch_messages=400,
            ack_timeout=ACK_TIMEOUT_S,
        ) as consumer,
    ):
        while True:
            batch = await consumer.receive_batch(max_messages=dice.randrange(1, 150))
            with contextlib.suppress(
                TransactionAborted, TransactionConflict, danubius.BrokerUnavailable
            ):
                async with client.transaction() as transaction:
                    for payload in batch.payloads:
                        await transaction.send(producer, b"done " + payload)
                    await transaction.ack(consumer, batch)
                    if dice.random() < SLOW_PART:
                        await asyncio.sleep(2 * ACK_TIMEOUT_S)


async def work_for_ever(url: str, seed: int) -> None:
    while True:
        try:
            await work(url, seed)
        except danubius.DanubiusError as error:
            if not error.is_retryable:
                raise
            await asyncio.sleep(LOOK_S)  # the broker is down, or too busy to answer in time


if __name__ == "__main__":
    asyncio.run(work_for_ever(sys.argv[1], int(sys.argv[2])))


# ------------------------------------------------------------ the test


class Workers:
    """Worker processes, killed and replaced."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._started = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._started += 1
        sources = [Path(danubius.__file__).parents[1], Path(__file__).parents[1]]
        arguments = [sys.executable, __file__, self._url, str(self._started)]
        path = os.pathsep.join(map(str, sources))
        process = subprocess.Popen(arguments, env={**os.environ, "PYTHONPATH": path})
        self._processes.append(process)

    def kill_one(self) -> None:
        process = self._processes.pop(0)
        assert process.poll() is None, f"a worker ended by itself with {process.returncode}"
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def running_workers(url: str) -> Generator[Workers]:
    workers = Workers(url)
    try:
        for _ in range(WORKERS):
            workers.start()
        yield workers
    finally:
        workers.kill_all()


async def until_done(client: danubius.Client, count: int) -> None:
    """Return when the target has so many messages; transactions that are not committed do not count."""
    async with client.reader(TARGET) as reader:
        while reader.position < count:
            await reader.read_batch()


async def kill_now_and_then(
    client: danubius.Client, process: BrokerProcess, workers: Workers
) -> None:
    dice = random.Random(SEED)
    kinds = ["worker", "broker"] * KILLS
    dice.shuffle(kinds)
    for number, kind in enumerate(kinds):
        await until_done(client, MESSAGES * number // (len(kinds) + 1) + 1)
        await asyncio.sleep(dice.random() * 0.1)  # any moment of a transaction
        if kind == "worker":
            workers.kill_one()
            workers.start()
        else:
            process.kill()
            await asyncio.to_thread(process.start)


@pytest.mark.grows
async def test_every_input_has_one_output(start_broker: StartBroker) -> None:
    process = start_broker()
    async with danubius.connect(process.url) as client:
        async with client.producer(SOURCE) as producer:
            await producer.send_many([b"%d" % number for number in range(MESSAGES)])
        await client.create_topic(TARGET)
        with running_workers(process.url) as workers:
            async with asyncio.timeout(SECONDS_MAX):
                await kill_now_and_then(client, process, workers)
                await until_done(client, MESSAGES)
                # Whoever was slow now tries to commit what others have done; that nothing comes of it has no event.
                await asyncio.sleep(4 * ACK_TIMEOUT_S)
        outputs: Counter[bytes] = Counter()
        async with client.reader(TARGET, stop_at_end=True) as reader:
            while (batch := await reader.read_batch()) is not None:
                outputs.update(batch.payloads)
        assert outputs == Counter(b"done %d" % number for number in range(MESSAGES))
        [subscription] = (await client.describe_topic(SOURCE)).subscriptions
        assert subscription.backlog == 0
