"""What a whole broker says of itself on its HTTP port."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from danubius.app.options import StandaloneOptions
from danubius.app.ports import Ports
from danubius.app.standalone import Standalone
from danubius.shard.state.checkpoint import FAILURES_MAX
from danubius.shard.state.facts import BARRIER
from danubius.sim.disk import SimFiles
from danubius.wal.config import JournalConfig
from patience import HANG_S


def get_health(url: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=HANG_S) as page:
            return page.status, json.load(page)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


async def test_health_is_503_while_every_checkpoint_fails_and_200_once_one_succeeds() -> None:
    files = SimFiles()
    server = Standalone(
        StandaloneOptions(Path("/data"), port=0, http_port=0),
        ports=Ports(files=files),
        journal_config=JournalConfig(fill_bytes=0),
    )
    await server.start()
    try:
        assert (await asyncio.to_thread(get_health, server.http_url))[0] == 200
        files.fail("rename", times=10**6)
        written = asyncio.get_running_loop().create_future()
        server.shard.commit(BARRIER, written.set_result)
        assert await written is None  # two checkpoints of the same position would be one
        for _ in range(FAILURES_MAX):
            await server._checkpoint()
        status, body = await asyncio.to_thread(get_health, server.http_url)
        assert (status, body["status"]) == (503, "failing")
        assert "checkpoints failed" in body["problems"][0]
        files.heal()
        await server._checkpoint()
        assert (await asyncio.to_thread(get_health, server.http_url))[0] == 200
    finally:
        await server.abandon()
