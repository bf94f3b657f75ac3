"""Cold storage on a file system that is full: publishing goes on, nothing is left behind, and it all moves later."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import danubius
from e2e.cli_calls import call, run, run_json
from e2e.rest_client import Rest
from e2e.test_cold_storage import SMALL, cold_lines, fill, numbers, objects_of, offloaded, until
from e2e.test_full_disk import fill as take_all_room
from e2e.test_full_disk import small_disk
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker


def left_behind(cold: Path) -> list[Path]:
    """What is no object: files that a write began and did not end."""
    with contextlib.suppress(FileNotFoundError):
        return [path for path in cold.iterdir() if path.name.startswith(".new-")]
    return []


async def failures(broker: BrokerProcess) -> int:
    async with Rest(broker) as rest:
        text = (await rest.http.get("/metrics")).text
    lines = [x for x in text.splitlines() if x.startswith("danubius_tier_failures_total")]
    return sum(int(float(line.split()[-1])) for line in lines)


async def test_a_full_store_stops_nobody_and_takes_all_when_there_is_room(
    start_broker: StartBroker, topic: str
) -> None:
    with small_disk(16) as disk:
        cold = disk / "cold"
        broker = start_broker(
            "--tier-url", f"fs://{cold}", *SMALL, "--set", "tier.retry_max_ms=500ms"
        )
        await asyncio.to_thread(run, broker, "topics", "create", topic, "--offload-age", "0")
        await fill(broker, topic, 0, 2000)
        await offloaded(broker, topic)
        stored = objects_of(cold)
        filler = take_all_room(disk)
        await fill(broker, topic, 2000, 3000)
        await asyncio.to_thread(run, broker, "topics", "offload", topic, "--no-wait")
        before = await failures(broker)
        async with asyncio.timeout(HANG_S):
            while await failures(broker) < before + 2:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        # It says why it does not move, and goes on with everything else.
        done = await asyncio.to_thread(call, broker, "topics", "offload", topic, "--timeout", "1s")
        assert done.code == 1
        assert "No space left" in done.stderr
        await fill(broker, topic, 5000, 1000)
        assert await numbers(broker, topic) == list(range(6000))
        assert objects_of(cold) == stored
        await until(lambda: not left_behind(cold))
        broker.kill()
        broker.start()
        assert await numbers(broker, topic) == list(range(6000))
        lines = await asyncio.to_thread(run_json, broker, "topics", "ledgers", topic)
        assert {line["tier"] for line in lines if line["base_offset"] >= 2000} == {"local"}
        filler.unlink()
        # That it waits may be told once more: it has not tried again yet.
        done = await asyncio.to_thread(call, broker, "topics", "offload", topic)
        assert done.code == 0
        async with danubius.connect(broker.url) as client, asyncio.timeout(HANG_S):
            while not (cold_ledgers := await cold_lines(client, topic)):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        names = {line.object for line in cold_ledgers}
        assert {str(path.relative_to(cold)) for path in objects_of(cold)} == names
        await until(lambda: not left_behind(cold))
        assert await numbers(broker, topic) == list(range(6000))
        assert "Traceback" not in broker.log()
        broker.kill()
