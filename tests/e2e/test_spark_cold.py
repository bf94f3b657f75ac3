# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The Spark source reads cold ledgers from their objects: what it reads where, and what it does when they go.

The data source is called as Spark calls it, without a Spark; tests/spark/test_cold_source.py has one with.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import tempfile
import urllib.request
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import danubius
from danubius.errors import (
    BrokerUnavailable,
    DanubiusError,
    InvalidArgument,
    LedgerDamaged,
    ObjectNotFound,
    OffsetOutOfRange,
    TierMisconfigured,
)
from danubius.spark import explain
from danubius.spark.connection import fetching
from danubius.spark.data_source import DanubeDataSource
from danubius.spark.source import cold_stores
from e2e.broker_process import STARTED, BrokerProcess
from e2e.spark_reads import Read
from e2e.test_cold_storage import SMALL, fill, objects_of, offloaded, told
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from collections.abc import Iterator

ARCHIVE = "/default/archive"
COLD, ALL = 3000, 3500
"""Offsets of the archive in objects, and all of them."""


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    fetching.close_clients()
    cold_stores.close_stores()


@pytest.fixture(scope="module")
def cold() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="danubius-cold-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def archive(cold: Path) -> Iterator[BrokerProcess]:
    """A broker with a topic of which the older part is in objects alone."""
    data_dir = Path(tempfile.mkdtemp(prefix="danubius-e2e-"))
    broker = BrokerProcess(data_dir, ["--tier-url", f"fs://{cold}", *SMALL]).start()

    async def prepare() -> None:
        await fill(broker, ARCHIVE, 0, COLD)
        await offloaded(broker, ARCHIVE)
        await fill(broker, ARCHIVE, COLD, ALL - COLD)

    asyncio.run(prepare())
    # So that nothing of it is in the broker's memory.
    broker.kill()
    broker.start()
    yield broker
    broker.kill()
    STARTED.remove(broker)
    shutil.rmtree(data_dir, ignore_errors=True)


def until(topic: str, offset: int) -> str:
    return json.dumps({topic: {"0": offset}})


def cold_bytes_read(broker: BrokerProcess) -> int:
    with urllib.request.urlopen(broker.http_url + "/metrics", timeout=HANG_S) as answer:
        text = answer.read().decode()
    found = re.search(r"^danubius_tier_read_bytes_total (\S+)", text, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


async def moved(
    broker: BrokerProcess, topic: str, *, stays: bool = True, count: int = 2000
) -> None:
    """A topic in objects; `stays`: and on disk."""
    await told(broker, "topics", "create", topic, "--local-age", "forever" if stays else "0")
    await fill(broker, topic, 0, count)
    if stays:
        await told(broker, "topics", "offload", topic)
    else:
        await offloaded(broker, topic)


def test_rows_are_those_of_the_broker_and_it_is_not_asked_for_what_is_cold(
    archive: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "danubius.spark")
    before = cold_bytes_read(archive)
    auto = Read(archive, ARCHIVE, minPartitions="3")
    table = auto.table()
    assert cold_bytes_read(archive) == before
    [planned] = [line for line in caplog.messages if line.startswith("planned: 3 ranges")]
    assert f" {COLD} from " in planned
    done = [line for line in caplog.messages if " bytes) from objects of fs://" in line]
    assert len(done) == 3, "each task says what it read where"
    assert ", 1 from the broker, 0 of them because an object failed" in done[-1]
    assert auto.numbers() == list(range(ALL))
    asked = Read(archive, ARCHIVE, minPartitions="3", readFrom="broker")
    assert not any(range_.segments for range_ in asked.ranges)
    assert table.equals(asked.table()), "all columns of all rows"
    assert cold_bytes_read(archive) > before
    # Ranges begin and end within objects, and go on where the broker has the rest.
    segments = [segment for range_ in auto.ranges for segment in range_.segments]
    assert len(auto.ranges) == 3
    assert len({s.object.name for s in segments if s.object is not None}) > 3
    assert [(s.begin, s.end) for s in segments if s.object is None] == [(COLD, ALL)]


def test_a_plan_is_read_from_objects_while_there_is_no_broker(
    archive: BrokerProcess,
) -> None:
    tier = Read(archive, ARCHIVE, readFrom="tier", endingOffsets=until(ARCHIVE, COLD))
    auto = Read(archive, ARCHIVE, endingOffsets=until(ARCHIVE, COLD - 1))
    both = Read(archive, ARCHIVE, reconnectTimeout="300ms")
    asked = Read(archive, ARCHIVE, readFrom="broker", reconnectTimeout="300ms")
    archive.kill()
    try:
        assert tier.numbers() == list(range(COLD))
        assert auto.numbers() == list(range(COLD - 1))
        for read in (both, asked):
            with pytest.raises(BrokerUnavailable):
                read.numbers()
    finally:
        archive.start()
    assert both.numbers() == list(range(ALL))


def test_with_tier_what_is_in_no_object_is_named_before_anything_is_read(
    archive: BrokerProcess,
) -> None:
    with pytest.raises(OffsetOutOfRange, match=f"offsets {COLD} to {ALL - 1} of {ARCHIVE}"):
        Read(archive, ARCHIVE, readFrom="tier")
    with pytest.raises(OffsetOutOfRange, match="topics offload"):
        Read(archive, ARCHIVE, readFrom="tier", startingOffsets=until(ARCHIVE, COLD))


def test_a_plan_can_be_looked_at(archive: BrokerProcess) -> None:
    told_ = explain(url=archive.url, topic=ARCHIVE)
    first, second, *lines = told_.splitlines()
    assert re.fullmatch(
        rf"1 ranges, {ALL} offsets: {COLD} from \d+ objects of fs://\S+, {ALL - COLD} from the broker",
        first,
    )
    assert second == f"task 0: offsets 0 to {ALL - 1} of {ARCHIVE}"
    assert lines[-1] == f"  {COLD} to {ALL - 1} from the broker"
    assert all(line.endswith(".ledger") for line in lines[:-1])
    plain = explain(url=archive.url, topic=ARCHIVE, readFrom="broker")
    assert plain.endswith("\n  all from the broker")


def test_an_address_given_by_options_is_where_objects_are_read(
    archive: BrokerProcess, cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(cold, copy)
    spoilt = objects_of(copy)[0]
    spoilt.write_bytes(b"")
    at = {"readFrom": "tier", "endingOffsets": until(ARCHIVE, COLD)}
    with pytest.raises(LedgerDamaged, match="cut short"):
        Read(archive, ARCHIVE, tierUrl=f"fs://{copy}", **at).numbers()
    monkeypatch.setenv("DANUBIUS_TIER_URL", f"fs://{copy}")
    with pytest.raises(LedgerDamaged, match="cut short"):
        Read(archive, ARCHIVE, **at).numbers()
    assert Read(archive, ARCHIVE, tierUrl=f"fs://{cold}", **at).numbers() == list(range(COLD))
    # What cannot be is told of, also where the broker could do without.
    for url, says in [("fss:///x", "did you mean 'fs'"), (f"fs://{tmp_path}/none", "no directory")]:
        with pytest.raises(TierMisconfigured, match=says):
            Read(archive, ARCHIVE, tierUrl=url)
    assert not (tmp_path / "none").exists()
    with pytest.raises(TierMisconfigured, match="has no options"):
        Read(archive, ARCHIVE, **{"tierOption.region": "x"})
    with pytest.raises(TierMisconfigured, match="memory of the broker's process"):
        Read(archive, ARCHIVE, tierUrl="memory://x")


async def test_what_an_object_does_not_give_comes_from_the_broker_each_offset_once(
    archive: BrokerProcess, cold: Path, topic: str
) -> None:
    known = set(objects_of(cold))
    await moved(archive, topic)
    objects = sorted(set(objects_of(cold)) - known)
    assert len(objects) > 2
    reads = [partial(Read, archive, topic, readFrom=word) for word in ("auto", "tier")]
    auto, tier = [await asyncio.to_thread(read) for read in reads]
    content = bytearray(objects[1].read_bytes())
    content[len(content) // 2] ^= 1
    objects[1].write_bytes(content)
    assert await asyncio.to_thread(auto.numbers) == list(range(2000))
    with pytest.raises(LedgerDamaged, match=r"could not be read from fs://.*checksum.*readFrom"):
        await asyncio.to_thread(tier.numbers)
    objects[0].unlink()
    objects[-1].write_bytes(objects[-1].read_bytes()[:-100])
    assert await asyncio.to_thread(auto.numbers) == list(range(2000))
    with pytest.raises(ObjectNotFound, match="could not be read from fs://"):
        await asyncio.to_thread(tier.numbers)
    shutil.rmtree(objects[0].parent)
    assert await asyncio.to_thread(auto.numbers) == list(range(2000))


async def test_what_was_deleted_after_planning_is_told_by_the_broker_or_passed_over(
    archive: BrokerProcess, cold: Path, topic: str
) -> None:
    known = set(objects_of(cold))
    await moved(archive, topic, stays=False)
    reads = [
        await asyncio.to_thread(partial(Read, archive, topic, **options))
        for options in ({}, {"readFrom": "tier"}, {"failOnDataLoss": "false"})
    ]
    strict, tier, lossy = reads
    await told(archive, "topics", "delete", topic, "--yes")
    async with asyncio.timeout(HANG_S):
        while set(objects_of(cold)) - known:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
    with pytest.raises(ObjectNotFound):
        await asyncio.to_thread(tier.numbers)
    assert await asyncio.to_thread(lossy.numbers) == []
    # Another topic of the same name is another topic, in objects too.
    await moved(archive, topic, stays=False, count=2500)
    for read in (strict, tier):
        with pytest.raises(DanubiusError):
            await asyncio.to_thread(read.numbers)
    assert await asyncio.to_thread(lossy.numbers) == []
    fresh = await asyncio.to_thread(partial(Read, archive, topic, readFrom="tier"))
    assert await asyncio.to_thread(fresh.numbers) == list(range(2500))


async def test_larger_messages_and_partitions_come_from_objects_too(
    archive: BrokerProcess, topic: str
) -> None:
    large = bytes(range(256)) * 2400
    await told(archive, "topics", "create", topic, "--partitions", "2", "--local-age", "0")
    async with danubius.connect(archive.url) as client:
        async with client.producer(f"{topic}-part-0", chunk_bytes=100_000) as producer:
            await producer.send(b"before")
            receipt = await producer.send(large)
            await producer.send(b"after")
        async with client.producer(f"{topic}-part-1") as producer:
            await producer.send_many([b"%d/" % number for number in range(500)])
    await offloaded(archive, topic)
    both = await asyncio.to_thread(partial(Read, archive, topic, readFrom="tier"))
    table = await asyncio.to_thread(both.table)
    assert set(table.column("partition").to_pylist()) == {0, 1}
    columns = (table.column(name).to_pylist() for name in ("partition", "payload"))
    rows = zip(*columns, strict=True)
    assert [payload for partition, payload in rows if not partition] == [b"before", large, b"after"]
    # A range that begins at the last piece finds the others where they lie.
    start = json.dumps({topic: {"0": receipt.offset, "1": 500}})
    last = await asyncio.to_thread(
        partial(Read, archive, topic, readFrom="tier", startingOffsets=start)
    )
    before = cold_bytes_read(archive)
    table = await asyncio.to_thread(last.table)
    assert table.column("payload").to_pylist() == [large, b"after"]
    assert cold_bytes_read(archive) == before


def test_streams_read_objects_when_all_that_is_there_is_all_they_read(
    archive: BrokerProcess,
) -> None:
    def stream(**options: str) -> Any:
        given = {"url": archive.url, "topic": ARCHIVE, "startingOffsets": "earliest", **options}
        source = DanubeDataSource(given)
        return source.streamReader(source.schema())

    following, available = stream(), stream(maxOffsetsPerTrigger="1000")
    available.prepareForTriggerAvailableNow()
    for reader, is_cold in ((following, False), (available, True)):
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        partitions = reader.partitions(start, end)
        assert any(partition.value.segments for partition in partitions) == is_cold
        rows = sum(b.num_rows for partition in partitions for b in reader.read(partition))
        assert rows == (1000 if is_cold else ALL)
        reader.stop()
    strict = stream(readFrom="tier")
    start = strict.initialOffset()
    end = strict.latestOffset(start, strict.getDefaultReadLimit())
    with pytest.raises(InvalidArgument, match="availableNow=True"):
        strict.partitions(start, end)


async def test_where_there_is_no_cold_storage_the_broker_gives_all(
    broker: BrokerProcess, topic: str
) -> None:
    await fill(broker, topic, 0, 500)
    auto = await asyncio.to_thread(partial(Read, broker, topic))
    assert not any(range_.segments for range_ in auto.ranges)
    assert await asyncio.to_thread(auto.numbers) == list(range(500))
    with pytest.raises(TierMisconfigured, match="the broker has no cold storage"):
        await asyncio.to_thread(partial(Read, broker, topic, readFrom="tier"))
