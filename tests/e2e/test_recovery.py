"""What a broker finds on its disk: torn tails, damage, another owner, another version."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.broker.data_directory import TIERED_VERSION
from e2e.broker_process import BrokerNotReady, BrokerProcess, run_command
from e2e.storage_files import find_batches, flip, overwrite
from e2e.traffic import Bystander, bystander, nothing_comes, numbered, payloads, read_all, take
from patience import HANG_S

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.conftest import StartBroker

LEDGER_DAMAGED = 601


async def fill(broker: BrokerProcess, topic: str, *groups: list[bytes]) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic, name="writer") as producer,
    ):
        for group in groups:
            await producer.send_many(group)


async def read(broker: BrokerProcess, topic: str) -> list[bytes]:
    async with danubius.connect(broker.url) as client:
        messages = await read_all(client, topic)
    assert [m.offset for m in messages] == list(range(len(messages)))
    return payloads(messages)


async def test_stop_and_start_keeps_everything(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()
    for life in range(3):
        await fill(broker, topic, numbered(100, life * 100))
        assert broker.stop() == 0
        broker.start()
        assert await read(broker, topic) == numbered(100 * (life + 1))


async def test_crash_loop_does_not_fill_the_journal(start_broker: StartBroker, topic: str) -> None:
    """Twenty kills in a row, each soon after the start: publishing goes on at once every time."""
    broker = start_broker()
    for life in range(20):
        async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
            async with asyncio.timeout(HANG_S):
                assert (await producer.send(b"message %d" % life)).offset == life
        broker.kill()
        broker.start()
    assert await read(broker, topic) == numbered(20)


async def test_clients_ride_through_a_clean_restart(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        for life in range(3):
            await producer.send(b"message %d" % life)
            [message] = await take(consumer, 1)
            await consumer.ack(message)
            assert message.payload == b"message %d" % life
            assert await asyncio.to_thread(broker.stop) == 0
            await asyncio.to_thread(broker.start)
        await producer.send(b"message 3")
        received = payloads(await take(consumer, 1))
    assert received[-1] == b"message 3"


async def test_damaged_newest_snapshot_loses_nothing(
    start_broker: StartBroker, data_dir: Path, topic: str
) -> None:
    """The older snapshot and the journal behind it are still there."""
    broker = start_broker()
    for life in range(3):
        await fill(broker, topic, numbered(100, life * 100))
        assert broker.stop() == 0
        if life < 2:
            broker.start()
    newest = max((data_dir / "snapshots").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    flip(newest, newest.stat().st_size // 2)
    broker.start()
    assert await read(broker, topic) == numbered(300)
    await fill(broker, topic, numbered(1, 300))
    assert await read(broker, topic) == numbered(301)


@pytest.mark.parametrize("kind", ["garbage", "zeros", "half a record"])
async def test_torn_journal_tail_is_cut(
    start_broker: StartBroker, data_dir: Path, topic: str, kind: str
) -> None:
    """What a crash left half-written behind the last acknowledged record is not taken for a message."""
    broker = start_broker()
    await fill(broker, topic, numbered(50), [b"the very last acknowledged message"])
    broker.kill()
    [place] = find_batches(data_dir, b"the very last acknowledged message")
    tail = {
        "garbage": random.Random(5).randbytes(5_000),
        "zeros": bytes(5_000),
        "half a record": (place.path.read_bytes()[place.start - 64 : place.end])[
            : -(place.end - place.start) // 2
        ],
    }[kind]
    overwrite(place.path, place.end, tail)
    broker.start()
    expected = [*numbered(50), b"the very last acknowledged message"]
    assert await read(broker, topic) == expected
    await fill(broker, topic, [b"next"])
    broker.kill()
    broker.start()
    assert await read(broker, topic) == [*expected, b"next"]


async def test_damaged_last_record_costs_that_record_alone(
    start_broker: StartBroker, data_dir: Path, topic: str
) -> None:
    broker = start_broker()
    await fill(broker, topic, numbered(50), [b"the record that the disk damaged"])
    broker.kill()
    [place] = find_batches(data_dir, b"the record that the disk damaged")
    flip(place.path, place.marker)
    broker.start()
    assert await read(broker, topic) == numbered(50)
    await fill(broker, topic, [b"next"])
    assert await read(broker, topic) == [*numbered(50), b"next"]


async def test_damage_in_the_middle_of_the_journal_is_refused(
    start_broker: StartBroker, data_dir: Path, topic: str
) -> None:
    """Acknowledged records behind the damage would be lost in silence: the broker says so instead of starting."""
    broker = start_broker()
    await fill(broker, topic, numbered(20), [b"the damaged one"])
    for number in range(20):
        await fill(broker, topic, [b"behind the damage %d" % number])
    broker.kill()
    [place] = find_batches(data_dir, b"the damaged one")
    flip(place.path, place.marker)
    with pytest.raises(BrokerNotReady) as caught:
        broker.start()
    assert broker.exit_code == 1
    said = str(caught.value)
    assert place.path.name in said, "the message names the damaged file"
    assert "Traceback" not in said


async def damaged_topic(broker: BrokerProcess, data_dir: Path, topic: str) -> None:
    """Three batches on disk, the middle one damaged: offsets 100 to 110 of 210."""
    middle = [b"in the damaged range %d" % number for number in range(10)]
    await fill(broker, topic, numbered(100), middle, numbered(100, 110))
    assert broker.stop() == 0
    places = [
        place
        for place in find_batches(data_dir, b"in the damaged range 5")
        if place.path.suffix in {".ledger", ".pool"}
    ]
    assert places, "after a clean stop everything is in ledger files"
    for place in places:
        flip(place.path, place.marker)
    broker.start()


async def test_damaged_ledger_is_reported_to_a_reader_with_its_range(
    start_broker: StartBroker, data_dir: Path, topic: str
) -> None:
    """The good prefix is served, then the damaged range is named; others are not disturbed."""
    broker = start_broker()
    await damaged_topic(broker, data_dir, topic)
    async with bystander(broker.url, topic) as other, danubius.connect(broker.url) as client:
        received: list[bytes] = []
        with pytest.raises(danubius.DanubiusError) as caught:
            async with client.reader(topic, start=0, stop_at_end=True) as reader:
                async for message in reader:
                    received.append(message.payload)  # noqa: PERF401 - what came before the error counts
        assert caught.value.code == LEDGER_DAMAGED
        assert "100" in str(caught.value)
        assert "110" in str(caught.value)
        assert "skip" in str(caught.value), "the message says how to go on"
        assert received == numbered(100)
        assert payloads(await read_all(client, topic, 110)) == numbered(100, 110)
        await other.check()


async def test_damaged_ledger_is_skipped_by_explicit_choice_only(
    start_broker: StartBroker, data_dir: Path, topic: str
) -> None:
    broker = start_broker()
    await damaged_topic(broker, data_dir, topic)
    async with bystander(broker.url, topic) as other, danubius.connect(broker.url) as client:
        async with client.reader(topic, start=0, stop_at_end=True, skip_damaged=True) as reader:
            assert [m.offset async for m in reader] == [*range(100), *range(110, 210)]
        async with client.consumer(topic, subscription="careful", start="earliest") as careful:
            assert payloads(await take(careful, 100)) == numbered(100)
            with pytest.raises(danubius.DanubiusError) as caught:
                async with asyncio.timeout(HANG_S):
                    await careful.receive()
            assert caught.value.code == LEDGER_DAMAGED
            assert "100" in str(caught.value)
        async with client.consumer(
            topic, subscription="bold", start="earliest", skip_damaged=True
        ) as bold:
            messages = await take(bold, 200)
            assert [m.offset for m in messages] == [*range(100), *range(110, 210)]
            await bold.ack_cumulative(messages[-1])
        async with client.consumer(topic, subscription="bold", skip_damaged=True) as bold:
            await nothing_comes(bold, 0.1)
        async with client.producer(topic) as producer:
            assert (await producer.send(b"the topic is still written to")).offset == 210
        await other.check()


async def test_data_directory_in_use_is_refused(
    start_broker: StartBroker, data_dir: Path, topic: str
) -> None:
    broker = start_broker()
    async with bystander(broker.url, topic) as other:
        second = await asyncio.to_thread(
            run_command,
            "standalone",
            "--data-dir",
            str(data_dir),
            "--port",
            "0",
            "--http-port",
            "0",
        )
        await check_refused(second.code, second.stdout + second.stderr, str(data_dir), other)


async def check_refused(code: int, said: str, directory: str, other: Bystander) -> None:
    assert code == 1
    assert directory in said
    assert "Traceback" not in said
    assert "danubius ready" not in said
    await other.check()


async def test_data_directory_of_a_newer_version_is_refused_and_untouched(
    start_broker: StartBroker, data_dir: Path, topic: str
) -> None:
    broker = start_broker()
    await fill(broker, topic, numbered(10))
    assert broker.stop() == 0
    pretend_newer(data_dir)
    before = all_files(data_dir)
    with pytest.raises(BrokerNotReady) as caught:
        broker.start()
    assert broker.exit_code == 1
    assert "newer" in str(caught.value)
    assert "Traceback" not in str(caught.value)
    after = all_files(data_dir)
    assert after == before


def all_files(data_dir: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in sorted(data_dir.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def pretend_newer(data_dir: Path) -> None:
    """Raise the version that the data directory says it has above all that are known."""
    path = data_dir / "danubius.json"
    identity = json.loads(path.read_bytes())
    identity["format"] = TIERED_VERSION + 1
    path.write_text(json.dumps(identity))


async def test_data_directory_must_be_writable(data_dir: Path) -> None:
    path = data_dir / "a-file"
    path.write_text("not a directory")
    done = await asyncio.to_thread(
        run_command, "standalone", "--data-dir", str(path), "--port", "0", "--http-port", "0"
    )
    assert done.code in {1, 2}
    assert "a-file" in done.stderr
    assert "Traceback" not in done.stderr
