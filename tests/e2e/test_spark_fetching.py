"""The blocking client of Spark's processes, against real brokers and against none."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest

import danubius
from danubius.client.core.address import parse_urls
from danubius.errors import BrokerUnavailable, OffsetOutOfRange, TopicNotFound
from danubius.spark.connection.blocking_link import Patience
from danubius.spark.connection.fetching import (
    FetchClient,
    Wanted,
    client_of,
    close_clients,
)
from danubius.spark.source.discovery import Extent, find_partitions, measure
from danubius.spark.source.following import Follower
from danubius.spark.source.offsets import Slot, from_json, incarnations_of
from danubius.spark.source.options import read_options
from danubius.spark.source.planning import Range
from danubius.spark.source.rows import ROWS_MAX, ROWS_MIN, read_rows
from danubius.wire.commands import Located, Lookup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    close_clients()


def _publish(url: str, topic: str, count: int, **options: Any) -> None:
    async def run() -> None:
        async with danubius.connect(url) as client, client.producer(topic, **options) as producer:
            await producer.send_many([b"%d" % number for number in range(count)])

    asyncio.run(run())


def _rows(client: FetchClient, topic: str, begin: int, end: int, **options: Any) -> list[Any]:
    range_ = Range(topic, 0, topic, begin, end)
    names = ("offset", "payload")
    return list(read_rows(client, range_, names, 64 * 1024, **{"lossy": False, **options}))


def _offsets(batches: list[Any]) -> list[int]:
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


def test_a_range_comes_whole_in_batches_of_a_good_size(broker: BrokerProcess, topic: str) -> None:
    _publish(broker.url, topic, 60_000, batch_records=300)
    client = client_of(broker.url, Patience())
    batches = _rows(client, topic, 17, 59_999)
    assert _offsets(batches) == list(range(17, 59_999))
    assert [int(value.as_py()) for value in batches[0].column(1)][:2] == [17, 18]
    assert all(ROWS_MIN <= batch.num_rows <= ROWS_MAX for batch in batches[:-1])
    # One large batch is cut.
    large = f"{topic}-large"
    _publish(broker.url, large, 50_000, batch_records=50_000, batch_bytes=8 << 20)
    cut = _rows(client, large, 0, 50_000)
    assert _offsets(cut) == list(range(50_000))
    assert all(batch.num_rows <= ROWS_MAX for batch in cut)


def test_an_abandoned_read_does_not_disturb_the_next(broker: BrokerProcess, topic: str) -> None:
    _publish(broker.url, topic, 30_000, batch_records=1000)
    client = client_of(broker.url, Patience())
    reading = client.fetch(Wanted(topic, 0, 30_000, 64 * 1024))
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    # Two reads that take turns on one connection get each their own.
    first = client.fetch(Wanted(topic, 0, 30_000, 64 * 1024))
    second = client.fetch(Wanted(topic, 0, 30_000, 64 * 1024))
    pairs = list(zip(first, second, strict=True))
    assert len(pairs) > 2
    assert all(bytes(one.data) == bytes(other.data) for one, other in pairs)
    assert _offsets(_rows(client, topic, 5, 10)) == [5, 6, 7, 8, 9]


def test_a_restart_in_the_middle_of_a_read_costs_nothing(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker()
    _publish(broker.url, topic, 40_000, batch_records=500)
    client = client_of(broker.url, Patience())
    reading = read_rows(
        client, Range(topic, 0, topic, 0, 40_000), ("offset",), 64 * 1024, lossy=False
    )
    batches = [next(reading)]
    broker.kill()
    broker.start()
    batches += reading
    assert _offsets(batches) == list(range(40_000))


def test_what_is_gone_is_said_or_passed_over(broker: BrokerProcess, topic: str) -> None:
    _publish(broker.url, topic, 10)
    client = client_of(broker.url, Patience())
    with pytest.raises(OffsetOutOfRange, match="made anew"):
        _rows(client, topic, 0, 20)
    assert _offsets(_rows(client, topic, 0, 20, lossy=True)) == list(range(10))
    with pytest.raises(OffsetOutOfRange, match="outside"):
        _rows(client, topic, 15, 20)
    assert _rows(client, topic, 15, 20, lossy=True) == []
    with pytest.raises(TopicNotFound):
        _rows(client, f"{topic}-none", 0, 1)
    assert _rows(client, f"{topic}-none", 0, 1, lossy=True) == []
    with pytest.raises(TopicNotFound):
        find_partitions(client, read_options({"topic": f"{topic}-none"}))


def _make_anew(url: str, topic: str, count: int) -> None:
    async def delete() -> None:
        async with danubius.connect(url) as client:
            await client.admin.delete_topic(topic)

    asyncio.run(delete())
    _publish(url, topic, count)


def test_a_topic_that_was_made_anew_has_nothing_of_the_old_one(
    broker: BrokerProcess, topic: str
) -> None:
    _publish(broker.url, topic, 10)
    client = client_of(broker.url, Patience())
    slots = {Slot(topic, 0): topic}
    lives: set[int] = set()
    for sizes in (False, True):
        (extent,) = measure(client, slots, sizes=sizes).values()
        assert isinstance(extent, Extent)
        lives.add(extent.incarnation)
    (life,) = lives
    assert life > 0
    range_ = Range(topic, 0, topic, 0, 10, incarnation=life)
    assert _offsets(list(read_rows(client, range_, ("offset",), 1 << 20, lossy=False))) == [
        *range(10)
    ]
    _make_anew(broker.url, topic, 20)
    with pytest.raises(OffsetOutOfRange, match="made anew"):
        list(read_rows(client, range_, ("offset",), 1 << 20, lossy=False))
    assert list(read_rows(client, range_, ("offset",), 1 << 20, lossy=True)) == []


def test_a_query_sees_that_its_topic_was_made_anew(broker: BrokerProcess, topic: str) -> None:
    """Past the offset that was reached, so that offsets alone would not tell."""
    _publish(broker.url, topic, 10)
    raw = {"url": broker.url, "topic": topic, "startingOffsets": "earliest"}
    strict = Follower(read_options(raw, "stream"))
    lossy = Follower(read_options(raw | {"failOnDataLoss": "false"}, "stream"))
    old = strict.advance(strict.beginning())
    assert [(one.begin, one.end) for one in strict.ranges({}, old)] == [(0, 10)]
    assert strict.advance(old) is old
    _make_anew(broker.url, topic, 30)
    with pytest.raises(OffsetOutOfRange, match="made anew after it had been read up to offset 10"):
        strict.advance(old)
    new = lossy.advance(old)
    assert from_json(new, "x") == {Slot(topic, 0): 30}
    (range_,) = lossy.ranges(old, new)
    assert (range_.begin, range_.end) == (0, 30)
    assert range_.incarnation == incarnations_of(new, "x")[Slot(topic, 0)]
    assert lossy.advance(new) is new
    # A batch of the old topic that is repeated, and a checkpoint that does not say which topic it is about.
    client = client_of(broker.url, Patience())
    (repeated,) = strict.ranges({topic: {"0": 0}}, old)
    with pytest.raises(OffsetOutOfRange, match="made anew since the read was planned"):
        list(read_rows(client, repeated, ("offset",), 1 << 20, lossy=False))
    with pytest.raises(OffsetOutOfRange, match="was deleted and made anew"):
        strict.ranges({}, old)
    bare = {topic: {"0": 10}}
    assert strict.advance(bare) == new
    assert [(one.begin, one.end) for one in strict.ranges(bare, new)] == [(10, 30)]


def test_nobody_there_is_one_sentence() -> None:
    client = FetchClient(parse_urls("danube://127.0.0.1:9"), Patience(connect_s=0.3))
    with pytest.raises(BrokerUnavailable, match=r"no broker answers at danube://127\.0\.0\.1:9"):
        client.request(Lookup("/default/t"), Located)


def test_somebody_who_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"danube://127.0.0.1:{silent.getsockname()[1]}"
        client = FetchClient(parse_urls(url), Patience(connect_s=0.3))
        with pytest.raises(BrokerUnavailable, match="no broker answers"):
            client.request(Lookup("/default/t"), Located)
