"""`make bench-grpc`: Danube's own client against this broker, beside the native client on the same work, in one run.

Messages a second, and for each the CPU of the broker and that of its gRPC front, which is a process of its own: one
sender that waits for every answer, 64 of them, and one consumer that acknowledges one by one. Then the native client,
alone, beside 64 senders of gRPC to the same broker, and beside 64 senders of gRPC to another broker on this machine.
The last is the control: whoever shares a machine has less of it, and what the edge itself keeps from the native path is
the difference between the two. Each repetition takes all turns, so that a slow minute of the machine hits all of them;
the median counts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import danubius
from danubius.cli.broker_process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_ROOT = Path(__file__).parent.parent
_CLIENT = _ROOT / ".venv" / "danube-client" / "bin" / "python"
_WORKER = Path(__file__).with_name("grpc_worker.py")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_SIZE = 100
_topics = itertools.count()


class Cpu(NamedTuple):
    """Of one broker."""

    broker: float
    front: float


class Figure(NamedTuple):
    """One measurement: messages a second, and microseconds of CPU for each."""

    rate: float
    cpu_us: Cpu


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


class Bench:
    """A broker, another one for the control, and what is measured on the first."""

    def __init__(self, broker: BrokerProcess, urls: tuple[str, str], share: int) -> None:
        self._broker = broker
        self._grpc_url, self._other_url = urls
        self._share = share

        with urllib.request.urlopen(f"{broker.http_url}/health") as page:  # noqa: S310  # ours
            self._front_pid: int = json.loads(page.read())["grpc_front_pid"]

    def _cpu_s(self) -> Cpu:
        return Cpu(_cpu_s(self._broker.pid), _cpu_s(self._front_pid))

    def _measure(self, count: int, work: Callable[[int], float]) -> Figure:
        count = max(100, count // self._share)
        before = self._cpu_s()
        seconds = work(count)
        used = (now - then for now, then in zip(self._cpu_s(), before, strict=True))
        return Figure(count / seconds, Cpu(*(one / count * 1e6 for one in used)))

    def _client(self, *arguments: object) -> subprocess.Popen[str]:
        # Without -P it would take this very file for the package `grpc`.
        command = [str(_CLIENT), "-P", str(_WORKER), *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def _topic(self) -> str:
        return f"/default/bench-{next(_topics)}"

    def grpc_send(self, senders: int, count: int) -> Figure:
        def work(count: int) -> float:
            client = self._client("send", self._grpc_url, self._topic(), senders, count, _SIZE)
            return json.loads(client.communicate()[0])["seconds"]

        return self._measure(count, work)

    def grpc_receive(self, count: int) -> Figure:
        def work(count: int) -> float:
            topic = self._topic()
            with danubius.blocking.connect(self._broker.url) as native:
                native.create_topic(topic)
                client = self._client("receive", self._grpc_url, topic, 1, count, 0)
                assert client.stdout is not None
                client.stdout.readline()
                with native.producer(topic) as producer:
                    producer.send_many([bytes(_SIZE)] * count)
                return json.loads(client.communicate()[0])["seconds"]

        return self._measure(count, work)

    def native_send(self, senders: int, count: int) -> Figure:
        async def work(count: int) -> float:
            async with (
                danubius.connect(self._broker.url) as client,
                client.producer(self._topic()) as producer,
            ):
                left = iter(range(count))

                async def send() -> None:
                    for _ in left:
                        await producer.send(bytes(_SIZE))

                started = time.perf_counter()
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(senders):
                        tasks.create_task(send())
                return time.perf_counter() - started

        return self._measure(count, lambda count: asyncio.run(work(count)))

    def native_bulk(self, count: int) -> Figure:
        """Whole batches, as fast as they go."""

        async def work(count: int) -> float:
            payloads = [bytes(_SIZE)] * 1000
            async with (
                danubius.connect(self._broker.url) as client,
                client.producer(self._topic()) as producer,
            ):
                started = time.perf_counter()
                for _ in range(count // 1000):
                    await producer.send_many(payloads)
                return time.perf_counter() - started

        return self._measure(count, lambda count: asyncio.run(work(count)))

    @contextlib.contextmanager
    def load(self, *, elsewhere: bool = False) -> Generator[None]:
        """64 senders of gRPC do what they can; `elsewhere`: with the other broker."""
        url = self._other_url if elsewhere else self._grpc_url
        client = self._client("send", url, self._topic(), 64, 10**9, _SIZE)
        try:
            time.sleep(2)  # it has begun
            yield
        finally:
            client.kill()
            client.communicate()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _start(stack: contextlib.ExitStack, folder: Path) -> tuple[BrokerProcess, str]:
    """A broker, and where it serves gRPC."""
    port = _free_port()
    arguments = (
        "--set",
        "server.grpc=true",
        "--grpc-port",
        str(port),
        "--admin-port",
        str(_free_port()),
    )
    broker = stack.enter_context(BrokerProcess(folder, arguments=arguments))
    return broker, f"http://127.0.0.1:{port}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Danube's own client beside the native one.")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the messages, once")
    options = parser.parse_args()
    repeat, share = (1, 20) if options.quick else (options.repeat, 1)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="danubius-bench-"))
        broker, url = _start(stack, Path(folder) / "one")
        bench = Bench(broker, (url, _start(stack, Path(folder) / "other")[1]), share)

        def beside(measure: Callable[[], Figure], *, elsewhere: bool) -> Figure:
            with bench.load(elsewhere=elsewhere):
                return measure()

        bulk = functools.partial(bench.native_bulk, 1_000_000)
        one_by_one = functools.partial(bench.native_send, 1, 4_000)
        rows: dict[str, Callable[[], Figure]] = {
            "gRPC, 1 sender": lambda: bench.grpc_send(1, 4_000),
            "native, 1 sender": one_by_one,
            "gRPC, 64 senders": lambda: bench.grpc_send(64, 20_000),
            "native, 64 senders": lambda: bench.native_send(64, 100_000),
            "gRPC, receive and ack": lambda: bench.grpc_receive(10_000),
            "native batches, alone": bulk,
            "native batches, 64 senders of gRPC at another broker": lambda: beside(
                bulk, elsewhere=True
            ),
            "native batches, 64 senders of gRPC at this broker": lambda: beside(
                bulk, elsewhere=False
            ),
            "native, 1 sender, 64 senders of gRPC at another broker": lambda: beside(
                one_by_one, elsewhere=True
            ),
            "native, 1 sender, 64 senders of gRPC at this broker": lambda: beside(
                one_by_one, elsewhere=False
            ),
        }
        figures: dict[str, list[Figure]] = {name: [] for name in rows}
        for _ in range(repeat):
            for name, measure in rows.items():
                figures[name].append(measure())
    print("| what | messages/s | broker CPU a message | front CPU a message |")
    print("|---|--:|--:|--:|")
    for name, some in figures.items():
        rate = statistics.median(one.rate for one in some)
        broker_us = statistics.median(one.cpu_us.broker for one in some)
        front_us = statistics.median(one.cpu_us.front for one in some)
        print(f"| {name} | {rate:,.0f} | {broker_us:,.1f} us | {front_us:,.1f} us |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
