"""RabbitMQ Streams as a system under test: its server, and its workers. `make bench-rabbitmq`.

It is the quickest peer for Python programs, because its protocol has batches too. Its client, rstream, sends and
confirms several batches at a time; consumers store their offset once a thousand messages, as its docs advise. Its one
durability is called `written` here: a message is confirmed when it is in the system's cache, and never synced.
Run as a program this file is a worker process of the harness.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rstream
import uvloop
from servers import Server, debian_program, free_port

from danubius.cli.bench.payloads import make, make_stamped
from danubius.cli.bench.side import Side, Sink, serve

if TYPE_CHECKING:
    from danubius.cli.bench.work import Job, Result, Work

_BATCH = 500
_BATCHES_UNDER_WAY = 4
_STORE_EVERY = 1_000
_CREDIT = 10
_STREAM = "bench"
_ANSWER_S = 10.0
_READ_S = 60.0
_PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_FIRST = rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST, None)


# ---------------------------------------------------------------- the server


class RabbitServer(Server):
    """RabbitMQ with the stream plug-in, and the port mapper that Erlang starts beside it."""

    name = "rabbitmq"
    scheme = "rabbitmq-stream"
    start_timeout_s = 60.0

    def __init__(self, folder: Path, durability: str) -> None:
        super().__init__(folder, durability)
        self._mapper_port = free_port()

    def arguments(self) -> list[str]:
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{free_port()}\n"
            f"stream.listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            "stream.advertised_host = 127.0.0.1\n"
            f"stream.advertised_port = {self.port}\n"
        )
        (self.folder / "enabled_plugins").write_text("[rabbitmq_stream].\n")
        return [find_rabbitmq()]

    def environment(self) -> dict[str, str]:
        loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": loopback,
        }

    def __enter__(self) -> RabbitServer:
        super().__enter__()
        # A shell script has started it; what computes is the process that it names.
        self.pid = int((self.folder / "pid").read_text())
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        mapper = {"PATH": os.environ["PATH"], "ERL_EPMD_PORT": str(self._mapper_port)}
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                ["epmd", "-kill"], env=mapper, capture_output=True, timeout=_ANSWER_S, check=False
            )

    def command(self) -> list[str]:
        return [sys.executable, str(Path(__file__).resolve())]

    def prepare(self, work: Work) -> None:
        async def create() -> None:
            async with rstream.Producer(**_address(work)) as producer:
                await producer.create_stream(_STREAM)

        asyncio.run(create())

    def stored(self, work: Work) -> int:
        """As many as a consumer gets: offsets count more, those that consumers stored lie among the messages."""

        async def ask() -> int:
            count = 0
            is_all = asyncio.Event()

            def receive(_payload: bytes, _context: Any) -> None:
                nonlocal count
                count += 1
                if count >= work.count:
                    is_all.set()

            consumer = rstream.Consumer(**_address(work))
            await consumer.start()
            await consumer.subscribe(_STREAM, receive, decoder=bytes, offset_specification=_FIRST)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_READ_S):
                    await is_all.wait()
            await consumer.close()
            return count

        return asyncio.run(ask())


def find_rabbitmq() -> str:
    """Debian's server itself, not the command that changes to a user of its own."""
    return debian_program(str(_PROGRAM), "rabbitmq-server")


def rabbitmq_version() -> str:
    asked = ["dpkg-query", "--show", "--showformat", "${Version}", "rabbitmq-server"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    return said or "unknown"


def _address(work: Work) -> dict[str, Any]:
    host, _, port = work.url.rpartition("/")[2].partition(":")
    return {
        "host": host,
        "port": int(port),
        "username": "guest",
        "password": "guest",
    }  # its default


# ---------------------------------------------------------------- workers


class _Confirmations:
    """How many messages the server has answered for."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = asyncio.Event()

    def add(self, status: rstream.ConfirmationStatus) -> None:
        if not status.is_confirmed:
            raise RuntimeError(f"RabbitMQ refused message {status.message_id}")
        self._count += 1
        self._changed.set()

    async def wait_for(self, count: int) -> None:
        while self._count < count:
            self._changed.clear()
            await self._changed.wait()


async def _open(side: Side, producer: rstream.Producer) -> int:
    """Wait for the start with a publisher that is open: this one opens with its first message."""
    await producer._get_or_create_publisher(_STREAM)  # noqa: SLF001  # there is no other way
    return await side.ready()


async def _produce(side: Side) -> Result:
    work, confirmed = side.work, _Confirmations()
    async with rstream.Producer(**_address(work)) as producer:
        await _open(side, producer)
        for first in range(0, work.count, _BATCH):
            payloads = make(first, min(_BATCH, work.count - first), work.size)
            await producer.send_batch(_STREAM, payloads, on_publish_confirm=confirmed.add)
            await confirmed.wait_for(first + len(payloads) - _BATCH * (_BATCHES_UNDER_WAY - 1))
        await confirmed.wait_for(work.count)
        return side.result()


async def _produce_paced(side: Side) -> Result:
    work, confirmed = side.work, _Confirmations()
    step_ns = 10**9 // work.rate
    async with rstream.Producer(**_address(work)) as producer:
        started_ns = await _open(side, producer)
        for sequence in range(work.count):
            wait_ns = started_ns + sequence * step_ns - time.monotonic_ns()
            if wait_ns > 0:
                await asyncio.sleep(wait_ns / 1e9)
            payload = make_stamped(sequence, time.monotonic_ns(), work.size)
            await producer.send_batch(_STREAM, [payload], on_publish_confirm=confirmed.add)
        await confirmed.wait_for(work.count)
        return side.result()


async def _produce_one_at_a_time(side: Side) -> Result:
    work = side.work
    sequences = iter(range(work.count))
    payload = make(0, 1, work.size)[0]
    async with rstream.Producer(**_address(work)) as producer:

        async def sender() -> None:
            for _ in sequences:
                await producer.send_wait(_STREAM, payload)

        await _open(side, producer)
        async with asyncio.TaskGroup() as group:
            for _ in range(work.tasks):
                group.create_task(sender())
        return side.result()


async def _consume(side: Side) -> Result:
    sink, done = Sink(side.job), asyncio.Event()
    is_paced = side.work.kind == "latency"
    name = f"consumer-{side.job.index}"
    waiting: list[bytes] = []
    consumer = rstream.Consumer(**_address(side.work))

    async def receive(payload: bytes, context: Any) -> None:
        if is_paced:
            sink.add_stamped(payload)
            is_due = sink.count % _STORE_EVERY == 0
        else:
            waiting.append(payload)
            is_due = len(waiting) >= min(_STORE_EVERY, sink.missing)
            if is_due:
                sink.add(waiting)
                waiting.clear()
        if is_due or sink.is_full:
            await consumer.store_offset(_STREAM, name, context.offset)
        if sink.is_full:
            done.set()

    await consumer.start()
    await side.ready()
    await consumer.subscribe(
        _STREAM, receive, decoder=bytes, subscriber_name=name,
        offset_specification=_FIRST, initial_credit=_CREDIT,
    )  # fmt: skip
    await done.wait()
    result = side.result(sink)
    await consumer.close()
    return result


def perform(job: Job) -> Result:
    """Do one job and report."""
    side = Side(job)
    if job.role == "consumer":
        return uvloop.run(_consume(side))
    match side.work.kind:
        case "latency":
            return uvloop.run(_produce_paced(side))
        case "send":
            return uvloop.run(_produce_one_at_a_time(side))
        case _:
            return uvloop.run(_produce(side))


if __name__ == "__main__":
    sys.exit(serve(perform))
