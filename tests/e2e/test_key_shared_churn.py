"""Key-Shared while 16 consumers come and go at random, some of them killed: no key out of order, none lost, none stuck.

Out of order means exactly this. When a consumer is given a message, each older message of its key has been
acknowledged, or was given to the same consumer before; no other consumer that is still there has any of the key; and
while it stays, a consumer gets a key's messages in rising order. Messages may come twice, but
only after a consumer left that had them.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import danubius
from e2e.broker_process import environment
from e2e.key_shared_worker import work
from patience import HANG_S
from proving import sized

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import StartBroker

MESSAGES = sized(30_000, 1_000_000)
KEYS = sized(300, 10_000)
CONSUMERS = 16
PROCESSES = sized(3, 6)
"""Of the consumers: in processes of their own, which are killed."""
WORKER = Path(__file__).with_name("key_shared_worker.py")


class Crowd:
    """Sixteen consumers, now and then replaced by new ones."""

    def __init__(
        self,
        url: str,
        topic: str,
        directory: Path,
        dice: random.Random,
        group: asyncio.TaskGroup,
    ) -> None:
        self.url, self.topic, self.directory, self.dice = url, topic, directory, dice
        self.group = group
        self.lines: list[str] = []
        self.tasks: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.count = 0

    def join(self, *, in_process: bool) -> None:
        self.count += 1
        name = f"c{self.count}"
        seed = f"{self.dice.random()}"
        if in_process:
            with (self.directory / name).open("wb") as out:
                self.processes[name] = subprocess.Popen(
                    [sys.executable, str(WORKER), self.url, self.topic, name, seed],
                    stdout=out,
                    env=environment(),
                )
            return
        stop = asyncio.Event()
        job = work(self.url, self.topic, name, seed, self.lines.append, stop)
        self.tasks[name] = (self.group.create_task(job), stop)

    async def leave(self) -> None:
        """One goes, and another comes."""
        if self.dice.randrange(CONSUMERS) < PROCESSES:
            name = self.dice.choice(sorted(self.processes))
            self.kill(name)
            self.join(in_process=True)
        else:
            name = self.dice.choice(sorted(self.tasks))
            task, stop = self.tasks.pop(name)
            stop.set()
            async with asyncio.timeout(HANG_S):
                await task
            self.join(in_process=False)

    def kill(self, name: str) -> None:
        self.lines.append(f"{time.monotonic_ns()} {name} gone")
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(HANG_S)

    def end(self) -> None:
        for name in list(self.processes):
            self.kill(name)
        for _, stop in self.tasks.values():
            stop.set()

    def events(self) -> Iterator[tuple[int, str, str, list[int]]]:
        """All that happened, in order."""
        lines = list(self.lines)
        for path in self.directory.iterdir():
            # What was being written when a process was killed had no consequences.
            lines += path.read_text().split("\n")[:-1]
        split = [line.split(" ") for line in lines]
        for time_ns, name, kind, *rest in sorted(
            (one for one in split if len(one) >= 3), key=lambda one: int(one[0])
        ):
            numbers = [int(n) for n in rest[0].split(",")] if rest else []
            yield int(time_ns), name, kind, numbers


async def publish(client: danubius.Client, topic: str, dice: random.Random) -> list[int]:
    """Each message's payload is its number; returns the key of each. One key has a tenth of all."""
    keys = [0 if dice.random() < 0.1 else dice.randrange(KEYS) for _ in range(MESSAGES)]
    async with client.producer(topic) as producer:
        for first in range(0, MESSAGES, 5000):
            numbers = range(first, min(first + 5000, MESSAGES))
            await producer.send_many(
                [b"%d" % n for n in numbers], keys=[b"key-%d" % keys[n] for n in numbers]
            )
    return keys


def check(crowd: Crowd, keys: list[int]) -> dict[str, int]:
    """Every rule, for every message that came; see the module."""
    ages: dict[int, int] = {}  # of each message among those of its key
    counts: dict[int, int] = defaultdict(int)
    for number, key in enumerate(keys):
        ages[number] = counts[key]
        counts[key] += 1
    acked: set[int] = set()
    low: dict[int, int] = defaultdict(int)  # below it, all of the key is acknowledged
    by_age = {(key, ages[number]): number for number, key in enumerate(keys)}
    have: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    last: dict[str, dict[int, int]] = defaultdict(dict)
    holders: dict[int, str] = {}
    gone: set[str] = set()
    got = 0
    for _, name, kind, numbers in crowd.events():
        if kind == "gone":
            gone.add(name)
            continue
        for number in numbers:
            key = keys[number]
            if kind == "ack":
                acked.add(number)
                have[name][key].discard(number)
                while by_age.get((key, low[key])) in acked:
                    low[key] += 1
                continue
            if name in gone:
                continue
            got += 1
            assert ages[number] > last[name].get(key, -1), f"{name} got {number} behind a newer one"
            last[name][key] = ages[number]
            holder = holders.get(key)
            if holder is not None and holder != name and holder not in gone:
                assert not have[holder][key], (
                    f"{name} got {number}, and {holder} has some of its key"
                )
            holders[key] = name
            for age in range(low[key], ages[number]):
                older = by_age[key, age]
                assert older in acked or older in have[name][key], f"{number} overtook {older}"
            have[name][key].add(number)
    assert acked == set(range(len(keys))), "messages are missing"
    return {"received": got, "repeated": got - len(keys), "consumers": crowd.count}


async def churn(
    client: danubius.Client, topic: str, crowd: Crowd, publishing: asyncio.Task[list[int]]
) -> None:
    """Until all is published and acknowledged, one consumer after the other is replaced."""
    async with asyncio.timeout(sized(120, 1200)):
        while True:
            await asyncio.sleep(crowd.dice.random() * 0.2)
            figures = (await client.admin.describe_subscription(topic, "s")).statistics
            if publishing.done() and not figures.backlog_messages:
                return
            await crowd.leave()


@pytest.mark.grows
async def test_no_key_out_of_order_lost_or_stuck(
    start_broker: StartBroker, topic: str, tmp_path: Path
) -> None:
    seed = os.environ.get("DANUBIUS_SEED") or os.urandom(4).hex()
    sys.stdout.write(f"seed {seed}: DANUBIUS_SEED={seed} repeats the choices\n")
    dice = random.Random(seed)
    broker = start_broker()
    began = time.monotonic()
    async with danubius.connect(broker.url, request_timeout=60) as client:
        await client.create_topic(topic)
        await client.admin.create_subscription(topic, "s", type="key-shared", start="earliest")
        async with asyncio.TaskGroup() as group:
            crowd = Crowd(broker.url, topic, tmp_path, dice, group)
            try:
                for n in range(CONSUMERS):
                    crowd.join(in_process=n < PROCESSES)
                publishing = group.create_task(publish(client, topic, dice))
                await churn(client, topic, crowd, publishing)
            finally:
                crowd.end()
        took = time.monotonic() - began
    result = check(crowd, await publishing)
    sys.stdout.write(f"{MESSAGES} messages, {KEYS} keys, {took:.1f} s, {result}\n")
