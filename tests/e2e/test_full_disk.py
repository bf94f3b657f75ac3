"""A disk that is full or fails: clear retryable errors, reading goes on, nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import resource
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import danubius
from danubius.errors import Retry
from danubius.wire.commands import Opcode
from e2e.raw_wire import RawPeer, RawProducer
from e2e.traffic import collect, payloads, read_all, take
from patience import HANG_S, LOOK_S, SOON_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

MIB: Final = 1024 * 1024
STORAGE_FULL = 502
STORAGE_FAILED = 503
DEADLINE_EXCEEDED = 504


@contextmanager
def failing_writes(broker: BrokerProcess) -> Generator[None]:
    """Let the kernel refuse every write of the broker beyond the first 4 KiB of any file."""
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (4_096, hard))
    try:
        yield
    finally:
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def small_disk(size_mib: int) -> Generator[Path]:
    """A file system of its own that can really be full."""
    path = Path(tempfile.mkdtemp(prefix="danubius-small-disk-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "none", str(path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        path.rmdir()
        pytest.skip("mounting a small file system is not permitted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
        path.rmdir()


def fill(directory: Path) -> Path:
    """Take all the room that is left."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(64 * 1024))
        except OSError:
            return filler


async def refuse(producer: danubius.Producer, payload: bytes, reason: str) -> int:
    """Send in vain, and return how often: the client retries until its deadline, and says what the broker said.

    A broker on a busy machine may not have said anything by then, so that there is nothing to say yet.
    """
    tries = 0
    async with asyncio.timeout(HANG_S):
        while True:
            tries += 1
            with pytest.raises(danubius.DanubiusError) as caught:
                await producer.send(payload)
            assert caught.value.code in {STORAGE_FULL, STORAGE_FAILED, DEADLINE_EXCEEDED}
            assert caught.value.is_retryable
            if reason in str(caught.value):
                return tries


def health(broker: BrokerProcess) -> int:
    """The status that a supervisor sees."""
    try:
        with urllib.request.urlopen(broker.http_url + "/health", timeout=HANG_S) as response:
            return response.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


async def eventually_healthy(broker: BrokerProcess) -> None:
    """What failed is tried again about once a second: health follows a moment behind the disk."""
    limit = time.monotonic() + HANG_S
    while await asyncio.to_thread(health, broker) != 200:
        assert time.monotonic() < limit, "the broker's disk works, and it has not noticed"
        await asyncio.sleep(LOOK_S)


class Impatient:
    """A producer without retries, which sees the broker's own answers."""

    def __init__(self, producer: RawProducer) -> None:
        self._producer = producer

    async def refused(self, code: int) -> None:
        answer = await self._producer.produce([b"x" * 1000], self._producer.next_sequence)
        assert answer.opcode == Opcode.ERROR
        assert answer.fields[0] == code, answer
        assert answer.fields[2] == Retry.AFTER_WAIT

    async def accepted(self) -> None:
        answer = await self._producer.produce([b"x" * 1000], self._producer.next_sequence)
        assert answer.opcode == Opcode.PRODUCED, answer
        self._producer.next_sequence += 1


@asynccontextmanager
async def impatient(broker: BrokerProcess, topic: str) -> AsyncGenerator[Impatient]:
    async with RawPeer(broker.port) as peer:
        await peer.hello()
        producer = Impatient(await peer.open_producer(f"{topic}-impatient", "impatient"))
        await producer.accepted()
        yield producer


async def test_failing_disk_is_survived(start_broker: StartBroker, topic: str) -> None:
    """Publishes fail with a retryable storage error; reads, live topics and old messages go on; then it recovers."""
    broker = start_broker()
    live = f"{topic}-live"
    async with danubius.connect(broker.url) as client, impatient(broker, topic) as raw:
        async with client.producer(topic, send_timeout=4.0, name="writer") as producer:
            for number in range(20):
                await producer.send(b"acknowledged %d" % number)
            acked = [b"acknowledged %d" % number for number in range(20)]
            async with client.consumer(topic, subscription="s", start="earliest"):
                pass  # Its place is stored before the disk fails; a new one could not be.
            async with (
                client.producer(live, dispatch="non-reliable") as live_producer,
                client.consumer(live, subscription="s") as live_consumer,
            ):
                with failing_writes(broker):
                    await refuse(producer, b"refused", "File too large")
                    await raw.refused(STORAGE_FAILED)
                    assert await asyncio.to_thread(health, broker) == 503
                    assert payloads(await read_all(client, topic)) == acked
                    await live_producer.send(b"live")
                    assert payloads(await take(live_consumer, 1)) == [b"live"]
                    async with client.consumer(topic, subscription="s") as consumer:
                        assert payloads(await take(consumer, 20)) == acked
        async with client.producer(topic, name="writer", send_timeout=60.0) as producer:
            receipts = [await producer.send(b"after %d" % number) for number in range(10)]
        await raw.accepted()
        # The ledgers' files may have failed too, and are tried again at a pace of their own.
        await eventually_healthy(broker)
        stored = payloads(await read_all(client, topic))
    assert [stored[receipt.offset] for receipt in receipts] == [b"after %d" % n for n in range(10)]
    assert stored[:20] == acked
    assert set(stored[20:-10]) <= {b"refused"}
    broker.kill()
    broker.start()
    async with danubius.connect(broker.url) as client:
        assert payloads(await read_all(client, topic)) == stored


async def test_producer_waits_out_a_short_failure(start_broker: StartBroker, topic: str) -> None:
    """The client's own retries carry a send over the failure: once, in order, without an error."""
    broker = start_broker()
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic, send_timeout=60.0) as producer,
    ):
        await producer.send(b"before")
        async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
            with failing_writes(broker):
                sends = [
                    tasks.create_task(producer.send(b"during %d" % number)) for number in range(5)
                ]
                await asyncio.sleep(10 * SOON_S)
                assert not any(send.done() for send in sends)
        messages = await read_all(client, topic)
    assert payloads(messages) == [b"before", *(b"during %d" % number for number in range(5))]


async def test_many_refused_publishes_leave_no_debt(start_broker: StartBroker, topic: str) -> None:
    """However often a publisher tried in vain, the first try after the repair succeeds."""
    broker = start_broker()
    async with impatient(broker, topic) as raw:
        with failing_writes(broker):
            for _ in range(40):
                await raw.refused(STORAGE_FAILED)
        await raw.accepted()
        await raw.accepted()


async def test_health_recovers_by_itself(start_broker: StartBroker, topic: str) -> None:
    """Nobody publishes any more: the broker finds out alone, and restarts over what it wrote for that."""
    broker = start_broker()
    async with impatient(broker, topic) as raw:
        with failing_writes(broker):
            await raw.refused(STORAGE_FAILED)
            assert await asyncio.to_thread(health, broker) == 503
    await eventually_healthy(broker)
    broker.kill()
    broker.start()
    async with danubius.connect(broker.url) as client:
        assert len(await read_all(client, f"{topic}-impatient")) == 1


async def test_full_disk_is_survived(start_broker: StartBroker, topic: str) -> None:
    """ENOSPC itself: StorageFull for publishers, reading goes on, and everything recovers when there is room."""
    with small_disk(512) as disk:
        broker = start_broker(data_dir=disk / "data")
        async with danubius.connect(broker.url) as client, impatient(broker, topic) as raw:
            async with client.producer(topic, send_timeout=4.0) as producer:
                first = [b"first %d" % number for number in range(100)]
                await producer.send_many(first)
                async with client.consumer(topic, subscription="s", start="earliest"):
                    pass  # Its place is stored before the disk is full; a new one could not be.
                filler = fill(disk)
                stored = list(first)
                with pytest.raises(danubius.DanubiusError):
                    for number in range(700):
                        payload = b"%d " % number + bytes(MIB)
                        await producer.send(payload)
                        stored.append(payload)
                tries = await refuse(producer, b"refused", "No space left")
                await raw.refused(STORAGE_FULL)
                async with client.consumer(topic, subscription="s") as consumer:
                    [received] = await collect(
                        [consumer], len(stored), within_s=HANG_S, is_acking=False
                    )
                assert payloads(received)[: len(stored)] == stored
                assert broker.is_running
                filler.unlink()
            async with client.producer(topic, send_timeout=60.0) as producer:
                receipt = await producer.send(b"there is room again")
            await raw.accepted()
            messages = await read_all(client, topic)
        assert payloads(messages)[: len(stored)] == stored
        assert messages[receipt.offset].payload == b"there is room again"
        assert [m.offset for m in messages] == list(range(len(messages)))
        assert len(messages) <= len(stored) + 2 + tries
        broker.kill()
        broker.start()
        async with danubius.connect(broker.url) as client:
            assert payloads(await read_all(client, topic)) == payloads(messages)
        broker.kill()
        shutil.rmtree(disk / "data")
