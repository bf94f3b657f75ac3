"""Brokers whose ledgers are on a storage server: either may be killed at any time, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import pytest

import danubius
from e2e.broker_process import BrokerNotReady
from e2e.storage_server_process import StorageServerProcess
from e2e.traffic import read_all
from patience import HANG_S, LOOK_S, SOON_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from danubius import Producer
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

SMALL: Final = (
    "--cache-bytes", "4MiB",
    "--set", "broker.checkpoint_interval_ms=300",
)  # fmt: skip
"""Little memory, so that readers reach the store, and many checkpoints."""
SERVER_KILLS: Final = 3
AWAY_MS: Final = 5000
"""A broker finds after this that its server hangs; a start on a slow machine has as long."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StorageServerProcess]:
    process = StorageServerProcess("local", f"path={tmp_path / 'ledgers'}")
    yield process.start()
    process.end()


def remote(server: StorageServerProcess) -> tuple[str, ...]:
    return ("--ledger-store", "remote", "--ledger-store-url", server.url, *SMALL)


def payload(number: int) -> bytes:
    return b"%08d" % number + bytes(992)


async def publish(producer: Producer, first: int, count: int) -> None:
    receipts = await producer.send_many([payload(n) for n in range(first, first + count)])
    assert [receipt.offset for receipt in receipts] == list(range(first, first + count))


async def wait_until_logged(broker: BrokerProcess, words: str) -> None:
    limit = time.monotonic() + HANG_S
    while words not in broker.log():
        assert time.monotonic() < limit, f"the broker never said {words!r}"
        await asyncio.sleep(LOOK_S)


async def check_all(broker: BrokerProcess, topic: str, count: int) -> None:
    async with danubius.connect(broker.url) as client:
        messages = await read_all(client, topic)
    assert [message.offset for message in messages] == list(range(count))
    assert all(message.payload == payload(n) for n, message in enumerate(messages))


async def test_all_is_there_after_the_broker_was_killed(
    server: StorageServerProcess, start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker(*remote(server))
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        for first in range(0, 20_000, 1000):
            await publish(producer, first, 1000)
    broker.kill()
    broker.start()
    await check_all(broker, topic, 20_000)
    assert not list((broker.data_dir / "ledgers").rglob("*.ledger"))
    assert broker.stop() == 0
    assert server.stop() == 0
    assert "Traceback" not in server.log()


async def test_a_server_killed_under_load_loses_nothing(
    server: StorageServerProcess, start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker(*remote(server))
    sent = 0
    is_over = asyncio.Event()
    moved = asyncio.Event()

    async def load(producer: Producer) -> None:
        nonlocal sent
        while not is_over.is_set():
            await publish(producer, sent, 250)
            sent += 250
            moved.set()

    async def wait_for(more: int) -> None:
        goal = sent + more
        while sent < goal:
            moved.clear()
            await moved.wait()

    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        asyncio.timeout(HANG_S),
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(load(producer))
        for _ in range(SERVER_KILLS):
            await wait_for(4000)
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(4 * SOON_S)  # publishing goes on while the server is away
            await asyncio.to_thread(server.start)
        await wait_for(2000)
        is_over.set()
    await check_all(broker, topic, sent)
    server.kill()
    server.start()
    broker.kill()
    broker.start()
    await check_all(broker, topic, sent)
    assert broker.stop() == 0


@pytest.mark.parametrize("trouble", ["killed", "hanging"])
async def test_publishing_goes_on_while_the_server_is_away(
    server: StorageServerProcess, start_broker: StartBroker, topic: str, trouble: str
) -> None:
    broker = start_broker(*remote(server), "--set", f"ledger_store.deadline_ms={AWAY_MS}")
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        await publish(producer, 0, 100)
        if trouble == "killed":
            server.kill()
        else:
            server.hang()
        await publish(producer, 100, 500)
        if trouble == "killed":
            await asyncio.to_thread(server.start)
        else:
            await wait_until_logged(broker, "ledgers cannot be written")
            server.go_on()
        await publish(producer, 600, 10_000)
    await check_all(broker, topic, 10_600)
    assert broker.stop() == 0


def test_a_broker_says_that_its_server_is_not_there(
    start_broker: StartBroker, server: StorageServerProcess
) -> None:
    server.kill()
    with pytest.raises(BrokerNotReady, match=r"the storage server 127\.0\.0\.1:\d+: "):
        start_broker(*remote(server), "--set", "ledger_store.deadline_ms=500")
