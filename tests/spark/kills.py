"""Driver, executors and broker killed with -9, again and again, while a query goes through a topic.

Between two kills the query must get on, so a run ends however slow the machine is; when in a batch a kill comes is left
to dice.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import danubius
from patience import LOOK_S, PROGRAM_HANG_S
from proving import IS_PROOF, sized
from spark.processes import EXECUTOR, PYTHON_WORKER, descendants, kill

if TYPE_CHECKING:
    from collections.abc import Callable

    from e2e.broker_process import BrokerProcess
    from spark.processes import Cluster, Program

MESSAGES: Final = sized(12_000, 1_000_000)
ROUNDS: Final = int(os.environ.get("DANUBIUS_ROUNDS", sized("1", "6")))
"""In each one driver, one executor, one Python worker and the broker are killed."""
HARMS: Final = ("driver", "executor", "worker", "broker")
BATCH: Final = MESSAGES // (len(HARMS) * ROUNDS * 3)
"""Enough batches for all kills, if each costs two."""
KEYS: Final = 97


async def publish(url: str, topic: str) -> None:
    async with danubius.connect(url) as client, client.producer(topic) as producer:
        for start in range(0, MESSAGES, 5000):
            numbers = range(start, min(start + 5000, MESSAGES))
            await producer.send_many(
                [b"m-%d" % n for n in numbers], keys=[b"key-%d" % (n % KEYS) for n in numbers]
            )


@dataclass
class Torment:
    """One run. `start` makes a driver, `done` says how many messages are through."""

    broker: BrokerProcess
    cluster: Cluster
    start: Callable[[], Program]
    done: Callable[[], int]
    kills: Counter[str] = field(default_factory=Counter[str])

    def run(self) -> None:
        dice = random.Random(os.environ.get("DANUBIUS_DICE", "4"))
        self._driver = self.start()
        try:
            for _ in range(ROUNDS):
                for harm in dice.sample(HARMS, len(HARMS)):
                    self._get_on()
                    time.sleep(dice.uniform(0, 0.5))
                    self._harm(harm, dice)
            self._wait(lambda found: found >= MESSAGES)
        finally:
            self._driver.kill()

    def _get_on(self) -> None:
        done = self.done()
        if done < MESSAGES:
            self._wait(lambda found: found > done)

    def _harm(self, harm: str, dice: random.Random) -> None:
        if harm == "driver":
            self._driver.kill()
            self._driver = self.start()
        elif harm == "broker":
            self.broker.kill()
            self.broker.start()
        else:
            pids = self._find(EXECUTOR if harm == "executor" else PYTHON_WORKER)
            kill(dice.choice(pids))
        self.kills[harm] += 1

    def _find(self, named: str) -> list[int]:
        """There are some whenever the query gets on; between two of them it waits for the next."""
        limit = time.monotonic() + PROGRAM_HANG_S
        while not (found := descendants(self.cluster.pid, named=named)):
            assert time.monotonic() < limit, f"no {named} came: {self._driver.log()}"
            time.sleep(LOOK_S)
        return found

    def _wait(self, is_enough: Callable[[int], bool]) -> None:
        limit = time.monotonic() + PROGRAM_HANG_S
        while not is_enough(found := self.done()):
            assert self._driver.is_running, f"the query ended: {self._driver.log()}"
            assert time.monotonic() < limit, (
                f"{found} of {MESSAGES} are there: {self._driver.log()}"
            )
            time.sleep(LOOK_S)


def report(what: str, torment: Torment, begun: float) -> None:
    """For those who run the proof."""
    if IS_PROOF:
        kills = ", ".join(f"{name} {count}" for name, count in sorted(torment.kills.items()))
        sys.stdout.write(
            f"\n{what}: {MESSAGES:,} messages, killed: {kills}; {time.monotonic() - begun:.0f} s\n"
        )


async def read_all(url: str, topic: str) -> list[tuple[bytes | None, bytes]]:
    async with (
        danubius.connect(url) as client,
        client.reader(topic, start="earliest", stop_at_end=True) as reader,
    ):
        return [(message.key, message.payload) async for message in reader]


def published(url: str, topics: list[str]) -> int:
    """How many messages these topics hold."""

    async def ask() -> int:
        async with danubius.connect(url) as client:
            return sum([await client.resolve_offset(topic, "latest") for topic in topics])

    return asyncio.run(ask())
