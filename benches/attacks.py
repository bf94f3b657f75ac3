"""`make bench-attacks`: what attacks on a broker's ports cost it, and those who mean well.

For each attack a broker is started, and while it lasts a native producer and consumer, a publisher over HTTP, a gRPC
call and a prober of /health measure how long they take. The memory of the broker and of its gRPC front is read all the
time; "after" is five seconds behind the attack's end. Attacks are bounded in number and time, and go to loopback only.
`--src DIRECTORY` measures another checkout with the same program, so that before and after come from one command:

    make bench-attacks BENCH_ARGS="--src ../older/src"

A call that fails or takes longer than ten seconds counts as ten seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import random
import re
import resource
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

_ROOT = Path(__file__).parent.parent
sys.path[0] = str(_ROOT / "tests")  # and not this folder, in which there is a grpc.py

import danubius  # noqa: E402
from danubius.wire.commands import Opcode  # noqa: E402
from e2e.raw_http2 import SEND_MESSAGE, Http2Peer  # noqa: E402  # tests are not installed
from e2e.raw_wire import PeerClosed, RawPeer, frame  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

MIB = 1024 * 1024
LIMIT_S = 10.0
SETTLE_S = 5.0
_READY = re.compile(r"ready: danube://\S+")


class Ports(NamedTuple):
    """Of one broker."""

    native: int
    http: int
    grpc: int
    admin: int


class Broker:
    """A broker of some checkout, in a process of its own."""

    def __init__(self, source: Path, folder: Path) -> None:
        self._source = source
        self._folder = folder
        self.ports = Ports(*random.sample(range(12_000, 31_000), 4))
        self.front_pid = 0

    async def __aenter__(self) -> Broker:
        ports = self.ports
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "danubius", "standalone", "--data-dir", str(self._folder)),
            *("--port", str(ports.native), "--http-port", str(ports.http)),
            *("--grpc-port", str(ports.grpc), "--admin-port", str(ports.admin)),
            *("--log-level", "error"),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(self._source)},
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            while not _READY.search((await self._process.stdout.readline()).decode()):
                if self._process.returncode is not None:
                    raise SystemExit("the broker does not start")
        self.front_pid = (await asyncio.to_thread(self.health))["grpc_front_pid"]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            async with asyncio.timeout(15):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def health(self) -> dict[str, int]:
        url = f"http://127.0.0.1:{self.ports.http}/health"
        with urllib.request.urlopen(url, timeout=LIMIT_S) as page:  # ours
            return json.loads(page.read())

    def rss_mib(self) -> tuple[float, float]:
        """Of the broker and its front; 0 of one that is gone."""
        return _rss_mib(self._process.pid), _rss_mib(self.front_pid)


def _rss_mib(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return int(found[1]) / 1024 if found else 0.0


# ---------------------------------------------------------------- those who mean well


async def _native(broker: Broker, took: list[float]) -> None:
    async with (
        danubius.connect(f"danube://127.0.0.1:{broker.ports.native}") as client,
        client.producer("/default/honest") as producer,
        client.consumer("/default/honest", subscription="s", start="earliest") as consumer,
    ):

        async def once() -> None:
            await producer.send(b"x")
            await consumer.ack(await consumer.receive())

        await _repeat(once, took)


async def _health(broker: Broker, took: list[float]) -> None:
    async def once() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.ports.http)
        try:
            writer.write(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
            if b" 200 " not in await reader.read():
                raise ConnectionError
        finally:
            writer.close()

    await _repeat(once, took)


async def _post(broker: Broker, took: list[float]) -> None:
    body = b'{"messages": [{"text": "x"}]}'
    head = (
        "POST /api/v1/topics/default/posted/messages HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )

    async def once() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.ports.http)
        try:
            writer.write(head.encode() + body)
            if b" 201 " not in await reader.read():
                raise ConnectionError
        finally:
            writer.close()

    await _repeat(once, took)


async def _grpc(broker: Broker, took: list[float]) -> None:
    from grpc import aio

    async with aio.insecure_channel(f"127.0.0.1:{broker.ports.grpc}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")

        async def once() -> None:
            await check(b"", timeout=LIMIT_S)

        await _repeat(once, took)


async def _repeat(once: Callable[[], Awaitable[None]], took: list[float]) -> None:
    """Again and again until it is cancelled."""
    while True:
        began = time.monotonic()
        try:
            async with asyncio.timeout(LIMIT_S):
                await once()
            took.append(time.monotonic() - began)
        except Exception:  # noqa: BLE001  # whatever it is, it was not served
            took.append(LIMIT_S)
        await asyncio.sleep(0.01)


_WELL = {"native": _native, "health": _health, "post": _post, "grpc": _grpc}

# ---------------------------------------------------------------- attacks


async def nothing(_ports: Ports, seconds: float) -> None:
    await asyncio.sleep(seconds)


async def grpc_unfinished(
    ports: Ports, seconds: float, streams: int, size: int, connections: int = 1
) -> None:
    """Messages without their last byte, held open."""
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        for _ in range(connections):
            peer = await stack.enter_async_context(Http2Peer(ports.grpc))
            tasks.create_task(_within(seconds, peer.leave_unfinished(SEND_MESSAGE, streams, size)))
        await asyncio.sleep(seconds)


async def _within(seconds: float, work: Awaitable[None]) -> None:
    with contextlib.suppress(TimeoutError, OSError, PeerClosed):
        async with asyncio.timeout(seconds):
            await work


async def sockets(port: int, seconds: float, count: int, said: bytes) -> None:
    """Connections that say so much and no more; whoever is cut off comes again, as far as `count` are enough."""
    open_: dict[asyncio.StreamWriter, asyncio.StreamReader] = {}
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            for writer, reader in list(open_.items()):
                if reader.at_eof() or reader.exception() is not None:
                    writer.close()
                    del open_[writer]
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    while len(open_) < count:
                        reader, writer = await asyncio.open_connection("127.0.0.1", port)
                        writer.write(said)
                        open_[writer] = reader
            await asyncio.sleep(0.2)
    finally:
        for writer in open_:
            writer.close()


def _post_head(length: int) -> bytes:
    return (
        "POST /api/v1/topics/default/attacked/messages HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        f"content-type: application/octet-stream\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


async def native_unfinished(ports: Ports, seconds: float, count: int, size: int) -> None:
    """Large frames without their last bytes, after a proper greeting."""

    async def one() -> None:
        async with RawPeer(ports.native) as peer:
            await peer.hello()
            await peer.send(frame(Opcode.PRODUCE, (1,), 9, bytes(size))[:-100], within_s=seconds)
            await asyncio.sleep(seconds)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(_within(seconds, one()))


_ATTACKS: dict[str, Callable[[Ports, float], Awaitable[None]]] = {
    "none": nothing,
    "gRPC: 64 unfinished messages of 16 MiB": functools.partial(
        grpc_unfinished, streams=64, size=16 * MIB
    ),
    "gRPC: 4 x 32 unfinished messages of 10 MiB": functools.partial(
        grpc_unfinished, streams=32, size=10 * MIB, connections=4
    ),
    "gRPC: 1,000 silent connections": lambda ports, s: sockets(ports.grpc, s, 1_000, b""),
    "HTTP: 8 announced bodies of 8 MiB": lambda ports, s: sockets(
        ports.http, s, 8, _post_head(8 * MIB)
    ),
    "HTTP: 1,100 announced bodies": lambda ports, s: sockets(
        ports.http, s, 1_100, _post_head(8 * MIB)
    ),
    "HTTP: 12 bodies of 8 MiB that stall": lambda ports, s: sockets(
        ports.http, s, 12, _post_head(8 * MIB) + bytes(8 * MIB - 1)
    ),
    "HTTP: 2,100 idle connections": lambda ports, s: sockets(ports.http, s, 2_100, b""),
    "native: 64 unfinished frames of 15 MiB": functools.partial(
        native_unfinished, count=64, size=15 * MIB
    ),
    "native: 1,000 silent connections": lambda ports, s: sockets(ports.native, s, 1_000, b""),
}

# ---------------------------------------------------------------- measuring


class Row(NamedTuple):
    """Of one attack."""

    name: str
    took: dict[str, list[float]]
    peak: tuple[float, float]
    after: tuple[float, float]

    def render(self) -> str:
        cells = [_latency(self.took[name]) for name in _WELL]
        memory = [f"{p:,.0f} / {a:,.0f}" for p, a in zip(self.peak, self.after, strict=True)]
        return f"| {self.name} | {' | '.join(cells)} | {' | '.join(memory)} |"


def _latency(took: list[float]) -> str:
    if not took:
        return "no answer"
    ordered = sorted(took)
    picked = (ordered[int((len(ordered) - 1) * share)] for share in (0.5, 0.99, 1.0))
    failed = sum(one >= LIMIT_S for one in took)
    words = " / ".join(f"{1000 * one:,.1f}" for one in picked)
    return words + (f" ({failed} of {len(took)} failed)" if failed else "")


@contextlib.asynccontextmanager
async def _watched(broker: Broker, peak: list[float]) -> AsyncGenerator[None]:
    async def watch() -> None:
        while True:
            for at, now in enumerate(broker.rss_mib()):
                peak[at] = max(peak[at], now)
            await asyncio.sleep(0.02)

    watching = asyncio.get_running_loop().create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _measure(name: str, source: Path, seconds: float) -> Row:
    took: dict[str, list[float]] = {each: [] for each in _WELL}
    peak = [0.0, 0.0]
    with tempfile.TemporaryDirectory(prefix="danubius-attacks-") as folder:
        async with Broker(source, Path(folder)) as broker:
            loop = asyncio.get_running_loop()
            well = [loop.create_task(run(broker, took[each])) for each, run in _WELL.items()]
            await asyncio.sleep(1.0)
            for each in took.values():
                each.clear()
            async with _watched(broker, peak):
                # In a process of its own: the attacker's work must not be measured as the broker's.
                attacker = await asyncio.create_subprocess_exec(
                    *(sys.executable, __file__, "--attack", name, "--seconds", str(seconds)),
                    *("--ports", ",".join(map(str, broker.ports))),
                )
                await attacker.wait()
            for task in well:
                task.cancel()
            await asyncio.wait(well)
            await asyncio.sleep(SETTLE_S)
            return Row(name, took, (peak[0], peak[1]), broker.rss_mib())


def main() -> int:
    parser = argparse.ArgumentParser(description="What attacks on the ports cost.")
    parser.add_argument("--src", type=Path, default=_ROOT / "src", help="of the broker measured")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each attack")
    parser.add_argument("--only", default="", help="attacks with this in their name")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--ports", help=argparse.SUPPRESS)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.attack:
        ports = Ports(*map(int, options.ports.split(",")))
        asyncio.run(_ATTACKS[options.attack](ports, options.seconds))
        return 0
    print(f"Broker of {options.src}; attacks of {options.seconds:g} s; ms as p50 / p99 / max;")
    print(f"memory in MiB at its peak / {SETTLE_S:g} s after.\n")
    print(
        "| attack | native round trip | /health | HTTP publish | gRPC call | broker | gRPC front |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in _ATTACKS:
        if options.only in name:
            row = asyncio.run(_measure(name, options.src.resolve(), options.seconds))
            print(row.render(), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
