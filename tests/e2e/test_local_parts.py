"""Readers on the broker's machine: told where batches lie, they read files, and get what all others get."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import danubius
from danubius.errors import LedgerDamaged
from danubius.model.subscription import AtOffset
from danubius.record.scan import iter_batches
from danubius.spark.connection import file_parts
from danubius.spark.connection.blocking_link import Patience
from danubius.spark.connection.fetching import Wanted, client_of, close_clients
from danubius.spark.source.batch_reader import DanubeBatchReader
from danubius.spark.source.columns import schema_of
from danubius.spark.source.options import read_options
from danubius.wire.commands import Fetch, Fetched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

COUNT, SIZE = 4_000, 1_000


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    close_clients()


def _publish(url: str, topic: str, count: int = COUNT, size: int = SIZE) -> None:
    async def run() -> None:
        async with danubius.connect(url) as client, client.producer(topic) as producer:
            await producer.send_many([b"%*d" % (size, number) for number in range(count)])

    asyncio.run(run())


def _stored(start_broker: StartBroker, topic: str, **options: Any) -> BrokerProcess:
    """A broker that has the topic on its disk, and nothing of it in its memory."""
    broker = start_broker()
    _publish(broker.url, topic, **options)
    broker.stop()
    return broker.start()


def _read(
    url: str, topic: str, end: int = COUNT, *, lossy: bool = False
) -> tuple[list[int], list[bool]]:
    """The numbers that messages have, and of each payload whether it came from a file."""
    numbers: list[int] = []
    are_proven: list[bool] = []
    payloads = client_of(url, Patience()).fetch(Wanted(topic, 0, end, 512 * 1024, lossy))
    for payload in payloads:
        are_proven.append(payload.is_proven)
        for batch in iter_batches(payload.data):
            numbers += map(int, batch.payloads())
    return numbers, are_proven


def test_what_is_on_disk_is_read_there(start_broker: StartBroker, topic: str) -> None:
    broker = _stored(start_broker, topic)
    numbers, are_proven = _read(broker.url, topic)
    assert numbers == [*range(COUNT)]
    assert len(are_proven) > 2
    assert all(are_proven)


def test_read_from_broker_sends_everything(start_broker: StartBroker, topic: str) -> None:
    broker = _stored(start_broker, topic)
    for read_from, from_files in (("auto", True), ("broker", False)):
        options = read_options({"url": broker.url, "topic": topic, "readFrom": read_from})
        reader = DanubeBatchReader(options, schema_of(options))
        rows = sum(batch.num_rows for each in reader.partitions() for batch in reader.read(each))
        assert rows == COUNT
        # The process's one client reads as the last task told it.
        assert _read(broker.url, topic)[1][0] is from_files


def test_whoever_does_not_ask_for_places_gets_batches(
    start_broker: StartBroker, topic: str
) -> None:
    broker = _stored(start_broker, topic)
    client = client_of(broker.url, Patience())
    for command in (
        Fetch(topic, AtOffset(0), 1 << 20),
        Fetch(topic, AtOffset(0), 1 << 20, skip_damaged=True, may_point=True),
    ):
        (answer,) = client.request_all([command])
        assert client.check(command, answer, Fetched).part is None
        assert not isinstance(answer, Exception)
        assert len(answer[1]) > 0


def test_a_reader_elsewhere_gets_batches(
    start_broker: StartBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = _stored(start_broker, topic)
    monkeypatch.setattr(file_parts, "running_machine", lambda: "another")
    numbers, are_proven = _read(broker.url, topic)
    assert numbers == [*range(COUNT)]
    assert not any(are_proven)


def test_what_shares_a_file_with_others_or_is_in_memory_is_sent(
    start_broker: StartBroker, topic: str
) -> None:
    broker = _stored(start_broker, topic, count=10, size=10)
    assert _read(broker.url, topic, 10) == ([*range(10)], [False])
    _publish(broker.url, f"{topic}-new", 10, 10)
    assert _read(broker.url, f"{topic}-new", 10) == ([*range(10)], [False])


def test_damage_is_said_by_the_broker_and_passed_over_on_request(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker()
    _publish(broker.url, topic)
    broker.stop()
    (ledger,) = (broker.data_dir / "ledgers").rglob("*.ledger")
    with ledger.open("r+b") as file:
        file.seek(ledger.stat().st_size // 2)
        file.write(b"damage")
    broker.start()
    with pytest.raises(LedgerDamaged):
        _read(broker.url, topic)
    numbers, are_proven = _read(broker.url, topic, lossy=True)
    assert 0 < len(numbers) < COUNT
    assert numbers[0] == 0
    assert numbers[-1] == COUNT - 1
    assert not any(are_proven)
