"""The storage server over real backends: the suite of LedgerStore, and brokers that keep their ledgers there."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.conformance.checks import report
from danubius.conformance.ledger_checks import run_ledger_checks
from danubius.storage_service.remote_ledgers import RemoteLedgerStore
from e2e.storage_server_process import StorageServerProcess
from e2e.traffic import read_all
from object_servers import PATIENCE_MS, PATIENCE_S, redis_server, s3_by_seaweedfs

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from danubius.ledger.store import LedgerStore
    from e2e.conftest import StartBroker
    from object_servers import ObjectPlace

COUNT = 3000
SMALL = (
    "--cache-bytes", "2MiB",
    "--set", "broker.checkpoint_interval_ms=300",
    "--set", f"ledger_store.deadline_ms={PATIENCE_MS}",
)  # fmt: skip


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectPlace]:
    with s3_by_seaweedfs() as place:
        yield place


@pytest.fixture(scope="module")
def redis() -> Iterator[ObjectPlace]:
    with redis_server() as place:
        yield place


@contextlib.contextmanager
def serving(place: ObjectPlace) -> Generator[StorageServerProcess]:
    options = [f"{name}={value}" for name, value in place.options.items()]
    server = StorageServerProcess(place.url, *options)
    try:
        yield server.start()
        assert server.stop() == 0
    finally:
        server.end()


@pytest.mark.parametrize("backend", ["redis", "s3"])
def test_the_suite_over(backend: str, request: pytest.FixtureRequest) -> None:
    place: ObjectPlace = request.getfixturevalue(backend)
    epochs = itertools.count(1)
    with serving(place.below("suite")) as server:
        opened: list[RemoteLedgerStore] = []

        def connect() -> LedgerStore:
            opened.append(
                RemoteLedgerStore(server.url, "suite", next(epochs), deadline_s=PATIENCE_S)
            )
            return opened[-1]

        lines: list[str] = []
        assert report(run_ledger_checks(connect(), connect), lines.append), "\n".join(lines)
        for store in opened:
            store.close()
    assert "Traceback" not in server.log()


def payload(number: int) -> bytes:
    return b"%08d" % number + bytes(1500)


async def publish_kill_and_read(start_broker: StartBroker, topic: str, *options: str) -> None:
    broker = start_broker(*options, *SMALL)
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        for first in range(0, COUNT, 500):
            await producer.send_many([payload(n) for n in range(first, first + 500)])
    broker.kill()
    broker.start()
    async with danubius.connect(broker.url) as client:
        messages = await read_all(client, topic)
    assert [message.payload for message in messages] == [payload(n) for n in range(COUNT)]
    assert broker.stop() == 0
    assert not list((broker.data_dir / "ledgers").rglob("*.*"))


async def test_a_broker_over_a_storage_server_over_redis(
    redis: ObjectPlace, start_broker: StartBroker, topic: str
) -> None:
    with serving(redis.below("served")) as server:
        await publish_kill_and_read(
            start_broker, topic, "--ledger-store", "remote", "--ledger-store-url", server.url
        )


async def test_a_broker_over_an_object_store(
    s3: ObjectPlace, start_broker: StartBroker, topic: str
) -> None:
    options = [
        word
        for name, value in s3.options.items()
        for word in ("--ledger-store-option", f"{name}={value}")
    ]
    url = s3.below("direct").url
    await publish_kill_and_read(
        start_broker, topic, "--ledger-store", "object", "--ledger-store-url", url, *options
    )
