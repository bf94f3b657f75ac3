"""A broker that ended with its journal at the bound: whoever is let in by the next start can write at once."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import danubius
from danubius.app.options import StandaloneOptions
from danubius.app.ports import Ports
from danubius.app.standalone import Standalone
from danubius.model.limits import KIB
from danubius.shard.state.checkpoint import Checkpointer
from danubius.sim.disk import SimFiles
from danubius.wal.config import JournalConfig
from patience import HANG_S

if TYPE_CHECKING:
    import pytest

TOPIC = "/default/t"


def _broker(files: SimFiles) -> Standalone:
    return Standalone(
        StandaloneOptions(Path("/data"), port=0, http_port=0),
        ports=Ports(files=files),
        journal_config=JournalConfig(file_bytes=64 * KIB, files_max=8, fill_bytes=0),
    )


async def _fill(files: SimFiles) -> None:
    broker = _broker(files)
    await broker.start()
    try:
        async with (
            asyncio.timeout(HANG_S),
            danubius.connect(broker.url) as client,
            client.producer(TOPIC, send_timeout=0.5) as producer,
        ):
            while broker.shard.journal_failure is None:
                with contextlib.suppress(danubius.DanubiusError):
                    await producer.send(bytes(10 * KIB))
    finally:
        await broker.abandon()


def _never(_checkpointer: Checkpointer) -> bool:
    """There are no checkpoints but those of a start."""
    return False


async def test_a_start_makes_room_before_it_lets_anybody_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Checkpointer, "_is_due", _never)
    files = SimFiles(seed=1)
    await _fill(files)
    broker = _broker(files)
    await broker.start()
    try:
        async with (
            danubius.connect(broker.url) as client,
            client.consumer(TOPIC, subscription="s", start="earliest") as consumer,
        ):
            assert (await consumer.receive()).offset == 0
    finally:
        await broker.abandon()
