"""A work queue through the public client against a real broker. Times to live: tests/simulation/test_ages.py."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

import danubius
from danubius.model.policy import Policies
from danubius.model.topic import TopicSpec
from e2e.storage_files import size_of
from e2e.traffic import collect, read_all
from patience import HANG_S, LOOK_S
from proving import sized

if TYPE_CHECKING:
    from pathlib import Path

    from danubius import Client
    from e2e.conftest import StartBroker

MIB: Final = 1024 * 1024
MESSAGE_BYTES: Final = 256 * 1024
QUEUE_BYTES: Final = sized(256 * MIB, 5120 * MIB)
ROUND_BYTES: Final = 4 * MIB
LEDGERS_BYTES_MAX: Final = 64 * MIB


@pytest.mark.grows
async def test_a_work_queue_holds_only_what_is_to_be_done(
    start_broker: StartBroker, data_dir: Path, topic: str
) -> None:
    """Much more goes through it than it ever has on the disk; a reader sees what is left."""
    process = start_broker()
    spec = TopicSpec(policies=Policies(delete_after_ack=True))
    count = ROUND_BYTES // MESSAGE_BYTES
    done = most = 0
    async with danubius.connect(process.url) as client:
        await client.admin.create_topic(topic, spec)
        async with (
            client.producer(topic) as producer,
            client.consumer(topic, subscription="s", start="earliest") as worker,
        ):
            while done * MESSAGE_BYTES < QUEUE_BYTES:
                await producer.send_many([bytes(MESSAGE_BYTES)] * count)
                await collect([worker], count)
                done += count
                most = max(most, ledger_bytes(data_dir))
                if most > LEDGERS_BYTES_MAX // 2:
                    await wait_for_room(data_dir)
            assert most <= LEDGERS_BYTES_MAX
            await producer.send_many([b"left"] * 3)
            await wait_for_start(client, topic, done)
        assert [m.payload for m in await read_all(client, topic, done)] == [b"left"] * 3


async def wait_for_start(client: Client, topic: str, start: int) -> None:
    async with asyncio.timeout(HANG_S):
        while True:
            if await client.resolve_offset(topic, "earliest") == start:
                return
            await asyncio.sleep(LOOK_S)


async def wait_for_room(data_dir: Path) -> None:
    async with asyncio.timeout(HANG_S):
        while True:
            if ledger_bytes(data_dir) <= LEDGERS_BYTES_MAX // 4:
                return
            await asyncio.sleep(LOOK_S)


def ledger_bytes(data_dir: Path) -> int:
    return sum(size_of(path) for path in (data_dir / "ledgers").rglob("*"))
