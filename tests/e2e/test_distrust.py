"""A broker that no longer trusts its own state: it ends at once, saves nothing of it, and the next start has it all."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import danubius
from e2e.broker_process import READY, BrokerProcess, environment, free_port
from e2e.traffic import numbered, payloads, read_all, take
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e.conftest import StartBroker

PROGRAM = Path(__file__).with_name("distrustful_broker.py")


@contextmanager
def distrustful(bug: str, data_dir: Path) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A running broker with a bug that waits for its signal, and the URL of it."""
    port, http_port = free_port(), free_port()
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), bug, str(data_dir), str(port), str(http_port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if READY.match(line.rstrip("\n")):
                break
        yield process, f"danube://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


def snapshots(data_dir: Path) -> dict[str, bytes]:
    found = sorted((data_dir / "snapshots").iterdir())
    assert found, "one is made at the start"
    return {path.name: path.read_bytes() for path in found}


async def publish_and_ack(client: danubius.Client, topic: str) -> None:
    """A hundred messages, the first half acknowledged; closing the consumer waits until that is journaled."""
    async with (
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        await producer.send_many(numbered(100))
        half = await take(consumer, 50)
        await consumer.ack_cumulative(half[-1])


@pytest.mark.parametrize("bug", ["timer", "commit"])
async def test_a_broker_that_distrusts_itself_ends_and_saves_nothing(
    start_broker: StartBroker, data_dir: Path, topic: str, bug: str
) -> None:
    with distrustful(bug, data_dir) as (process, url):
        async with danubius.connect(url) as client:
            await publish_and_ack(client, topic)
            before = snapshots(data_dir)
            answered = 0
            async with client.producer(topic, send_timeout=1.0) as producer:
                process.send_signal(signal.SIGUSR1)
                with pytest.raises(danubius.DanubiusError) as caught:
                    while True:
                        await producer.send(b"late")
                        answered += 1
                assert caught.value.is_retryable
        said, _ = await asyncio.to_thread(process.communicate, timeout=HANG_S)
    assert process.returncode == 1
    assert "unexpected error" in said
    assert "BugError" in said
    assert snapshots(data_dir) == before, "a checkpoint would have saved a state that may be wrong"

    broker: BrokerProcess = start_broker()
    async with danubius.connect(broker.url) as client:
        stored = payloads(await read_all(client, topic))
        assert stored[:100] == numbered(100)
        assert set(stored[100:]) <= {b"late"}
        assert len(stored) - 100 >= answered
        async with client.consumer(topic, subscription="s") as consumer:
            rest = await take(consumer, len(stored) - 50)
        assert rest[0].offset == 50, "what was acknowledged stays acknowledged"
    assert broker.stop() == 0
