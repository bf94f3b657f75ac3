"""The whole broker on a simulated disk that loses power: what was acknowledged is there, and nothing else is wrong.

kill -9 leaves the page cache behind, so the crash test with real processes cannot see a missing sync. Here every byte
that was not synced may be lost or torn.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.app.options import StandaloneOptions
from danubius.app.ports import Ports
from danubius.app.standalone import Standalone
from danubius.broker.config import BrokerConfig
from danubius.errors import DanubiusError
from danubius.ledger.config import LedgerConfig
from danubius.model.limits import KIB, MIB
from danubius.sim.disk import SimFiles
from danubius.wal.config import JournalConfig
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

TOPICS = ("/default/one", "/default/two", "/default/three")
DATA = Path("/data")


def make_broker(files: SimFiles) -> Standalone:
    return Standalone(
        StandaloneOptions(DATA, port=0, http_port=0),
        ports=Ports(files=files),
        # Small bounds, so that a short run rolls files, seals ledgers, flushes and checkpoints.
        broker_config=BrokerConfig(
            checkpoint_bytes=MIB, ack_journal_interval_ms=5, checkpoint_interval_ms=300
        ),
        ledger_config=LedgerConfig(
            cache_bytes=512 * KIB,
            flush_bytes=64 * KIB,
            dirty_bytes_max=256 * KIB,
            flush_interval_ms=20,
            block_bytes=8 * KIB,
            ledger_bytes_max=128 * KIB,
        ),
        journal_config=JournalConfig(file_bytes=256 * KIB, files_max=64, fill_bytes=0),
    )


@contextlib.asynccontextmanager
async def running(files: SimFiles) -> AsyncGenerator[Standalone]:
    """A broker that is dropped, not stopped: whatever happens at its end happens to a dead disk."""
    broker = make_broker(files)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.abandon()


async def publish_until_power_loss(
    client: danubius.Client,
    topic: str,
    known: list[bytes],
    dice: random.Random,
    stop: asyncio.Event,
) -> None:
    """Remember a message once its receipt came; its offset must be its place in the list."""
    with contextlib.suppress(DanubiusError):
        async with client.producer(topic, name="writer", send_timeout=0.5) as producer:
            while not stop.is_set():
                payloads = [
                    dice.randbytes(dice.randrange(1, 2000)) for _ in range(dice.randrange(1, 40))
                ]
                receipts = await producer.send_many(payloads)
                assert receipts.first_offset == len(known)
                known.extend(payloads)


async def read_all(client: danubius.Client, topic: str) -> list[bytes]:
    found: list[bytes] = []
    async with client.reader(topic, start="earliest", stop_at_end=True) as reader:
        async for message in reader:
            assert message.offset == len(found)
            found.append(message.payload)
    return found


async def check_and_adopt(client: danubius.Client, known: dict[str, list[bytes]]) -> None:
    """Everything acknowledged is stored in its place. A tail that nobody was told of may be there too."""
    listed = {line.topic for line in await client.list_topics()}
    for topic, acknowledged in known.items():
        if topic not in listed:
            assert not acknowledged
            continue
        found = await read_all(client, topic)
        assert found[: len(acknowledged)] == acknowledged
        acknowledged[:] = found


async def consume_some(client: danubius.Client, topic: str, floor: int) -> int:
    """Acknowledge a few and return how far; what was confirmed before may come again, but nothing is skipped."""
    async with client.consumer(topic, subscription="s", start="earliest") as consumer:
        batch = await consumer.receive_batch(timeout=HANG_S)
        first = batch.offsets[0]
        assert first <= floor, "the cursor skipped messages"
        await consumer.ack(batch)
        return batch.offsets[-1] + 1


@pytest.mark.parametrize("seed", range(6))
async def test_nothing_acknowledged_is_lost_when_the_power_fails(seed: int) -> None:
    dice = random.Random(seed)
    files = SimFiles(seed=seed)
    known: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
    floor = 0
    for _ in range(4):
        async with running(files) as broker, danubius.connect(broker.url) as client:
            await check_and_adopt(client, known)
            if known[TOPICS[0]]:
                floor = max(floor, await consume_some(client, TOPICS[0], floor))
            stop = asyncio.Event()

            async with asyncio.TaskGroup() as group:
                for topic in TOPICS:
                    group.create_task(
                        publish_until_power_loss(client, topic, known[topic], dice, stop)
                    )
                before = sum(map(len, known.values()))
                async with asyncio.timeout(HANG_S):
                    while sum(map(len, known.values())) == before:  # noqa: ASYNC110 - any of three
                        await asyncio.sleep(LOOK_S)
                await asyncio.sleep(dice.uniform(0.05, 0.5))
                files.lose_power_after(dice.randrange(20))
                stop.set()
        files.crash(dice.randrange(1 << 30))
    async with running(files) as broker, danubius.connect(broker.url) as client:
        await check_and_adopt(client, known)
    assert sum(map(len, known.values())) >= 4
