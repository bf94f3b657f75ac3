"""Brokers without a disk, in processes of their own, over a directory and a real S3 server.

Killed with -9 again and again, each time started with an empty data directory, as another machine would; two of them
on one store; one that sleeps through its replacement; a store that goes away.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import TYPE_CHECKING, Final

import pytest

import danubius
from danubius.errors import StorageFailed
from e2e.broker_process import BrokerNotReady, BrokerProcess
from e2e.lossy_proxy import LossyProxy
from e2e.test_crash import (
    Story,
    check_log,
    consume_exclusive,
    consume_shared,
    produce_concurrently,
    produce_in_order,
    wait_all_delivered,
    wait_progress,
)
from e2e.traffic import eventually, read_all
from object_servers import PATIENCE_MS, ObjectPlace, redis_server, s3_by_moto, s3_by_seaweedfs
from patience import HANG_S
from proving import IS_PROOF, sized

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.conftest import StartBroker

KILLS: Final = {"fs": 5, "seaweedfs": 4}
KILLS_TO_PROVE: Final = 40
SEED: Final = 33
STORES: Final = sized(["fs", "seaweedfs"], ["fs", "seaweedfs", "moto"])
SMALL: Final = (
    "--group-ms", "20",
    "--cache-bytes", "4MiB",
    "--set", "broker.checkpoint_interval_ms=300",
    "--set", "diskless.watch_ms=200",
)  # fmt: skip
"""Little memory, so that readers reach the store, and many checkpoints."""
AWAY_MS: Final = 6000
"""Publishers are told after this that the store refuses; a start that finds it slow has it for each call."""


@pytest.fixture(scope="module")
def seaweedfs() -> Iterator[ObjectPlace]:
    with s3_by_seaweedfs() as place:
        yield place


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectPlace]:
    match request.param:
        case "fs":
            yield ObjectPlace(f"fs://{tmp_path / 'store'}", {})
        case "moto":
            with s3_by_moto() as moto:
                yield moto
        case _:
            seaweed: ObjectPlace = request.getfixturevalue("seaweedfs")
            yield seaweed.below(f"killed-{random.getrandbits(32):08x}")


def diskless(place: ObjectPlace, deadline_ms: int = PATIENCE_MS) -> list[str]:
    options = [("--tier-option", f"{name}={value}") for name, value in place.options.items()]
    words = [word for pair in options for word in pair]
    deadline = ("--set", f"diskless.deadline_ms={deadline_ms}")
    return ["--diskless", "--tier-url", place.url, *words, *SMALL, *deadline]


async def kill_again_and_again(
    broker: BrokerProcess, folder: Path, kills: int, ordered: Story, spread: Story
) -> None:
    """Every start is on an empty directory."""
    dice = random.Random(SEED)
    for number in range(kills):
        await wait_progress(ordered)
        await wait_progress(spread)
        await asyncio.sleep(dice.uniform(0.0, 0.4))
        if number % 4 == 1:
            broker.ask_to_stop()
            await asyncio.sleep(dice.uniform(0.0, 0.3))
        await asyncio.to_thread(broker.kill)
        if number % 4 == 2:
            await asyncio.to_thread(broker.launch)
            await asyncio.sleep(dice.uniform(0.3, 1.2))
            await asyncio.to_thread(broker.kill)
        assert not broker.data_dir.exists(), "nothing was kept on the disk"
        broker.data_dir = folder / f"machine-{number}"
        await asyncio.to_thread(broker.start)
    await wait_progress(ordered)
    await wait_progress(spread)


@pytest.mark.grows
@pytest.mark.parametrize(("place", "store"), [(x, x) for x in STORES], indirect=["place"])
async def test_kills_lose_nothing_though_each_start_is_on_an_empty_disk(
    start_broker: StartBroker, place: ObjectPlace, store: str, tmp_path: Path, topic: str
) -> None:
    kills = KILLS_TO_PROVE if IS_PROOF else KILLS[store]
    broker = start_broker(*diskless(place), data_dir=tmp_path / "machine")
    ordered_topic, spread_topic = f"{topic}-ordered", f"{topic}-spread"
    ordered, spread = Story(), Story()
    stop = asyncio.Event()
    async with danubius.connect(broker.url) as client:
        async with (
            client.producer(ordered_topic, name="ordered") as first,
            client.producer(spread_topic, name="spread") as second,
            client.consumer(ordered_topic, subscription="s", start="earliest") as exclusive,
            client.consumer(spread_topic, subscription="s", type="shared", start="earliest") as one,
            asyncio.TaskGroup() as tasks,
        ):
            producing = [
                tasks.create_task(produce_in_order(first, ordered, stop)),
                *(tasks.create_task(produce_concurrently(second, spread, stop)) for _ in range(4)),
            ]
            consuming = [
                tasks.create_task(consume_exclusive(exclusive, ordered)),
                tasks.create_task(consume_shared(one, spread)),
            ]
            await kill_again_and_again(broker, tmp_path, kills, ordered, spread)
            stop.set()
            async with asyncio.timeout(HANG_S):
                for task in producing:
                    await task
            await wait_all_delivered(ordered, len(ordered.acked), "exclusive")
            await wait_all_delivered(spread, len(spread.acked), "shared")
            for task in consuming:
                task.cancel()
        assert ordered.problems + spread.problems == []
        await asyncio.to_thread(broker.kill)
        broker.data_dir = tmp_path / "last-machine"
        await asyncio.to_thread(broker.start)
        await check_log(client, ordered_topic, ordered, is_ordered=True)
        await check_log(client, spread_topic, spread, is_ordered=False)
    assert "Traceback" not in broker.log()
    assert broker.stop() == 0


@pytest.mark.grows
@pytest.mark.parametrize("place", sized(["fs"], STORES), indirect=True)
async def test_the_newer_of_two_brokers_has_the_store_and_all_that_the_older_acknowledged(
    start_broker: StartBroker, place: ObjectPlace, tmp_path: Path, topic: str
) -> None:
    older = start_broker(*diskless(place), data_dir=tmp_path / "older")
    acknowledged: dict[int, int] = {}

    async def publish() -> None:
        async with (
            danubius.connect(older.url) as client,
            client.producer(topic, name="p") as producer,
        ):
            for number in range(1_000_000):
                receipt = await producer.send(b"%d" % number)
                acknowledged[number] = receipt.offset

    async with asyncio.TaskGroup() as tasks:
        publishing = tasks.create_task(publish())
        await eventually(lambda: len(acknowledged) > 10, "it publishes")
        newer = await asyncio.to_thread(start_broker, *diskless(place), data_dir=tmp_path / "newer")
        assert await asyncio.to_thread(older.wait_exit) == 1
        publishing.cancel()
    assert "this broker was replaced and ends" in older.log()
    assert "Traceback" not in older.log()
    async with danubius.connect(newer.url) as client:
        messages = await read_all(client, topic)
        assert [message.offset for message in messages] == list(range(len(messages)))
        numbers = [int(message.payload) for message in messages]
        assert numbers == list(range(len(numbers)))
        assert all(numbers[offset] == number for number, offset in acknowledged.items())
        # The producer goes on there, where its last batch was stored.
        async with client.producer(topic, name="p") as producer:
            receipt = await producer.send(b"%d" % len(numbers))
            assert receipt.offset == len(numbers)
    assert newer.stop() == 0


async def test_a_broker_that_slept_through_its_replacement_harms_nothing(
    start_broker: StartBroker, tmp_path: Path, topic: str
) -> None:
    place = ObjectPlace(f"fs://{tmp_path / 'store'}", {})
    older = start_broker(*diskless(place), data_dir=tmp_path / "older")
    async with danubius.connect(older.url) as client, client.producer(topic) as producer:
        await producer.send_many([b"%d" % number + bytes(5000) for number in range(500)])
        await producer.send_many([b"%d" % number + bytes(5000) for number in range(500, 900)])
    # Batches in memory, a checkpoint due: what it does when it wakes up must not be seen.
    os.kill(older.pid, signal.SIGSTOP)
    newer = await asyncio.to_thread(start_broker, *diskless(place), data_dir=tmp_path / "newer")
    async with danubius.connect(newer.url) as client, client.producer(topic) as producer:
        for first in range(900, 2900, 500):
            chunk = [b"%d" % number + bytes(5000) for number in range(first, first + 500)]
            await producer.send_many(chunk)
        os.kill(older.pid, signal.SIGCONT)
        assert await asyncio.to_thread(older.wait_exit) == 1
        assert "this broker was replaced and ends" in older.log()
        await producer.send_many([b"2900"])
    newer.kill()
    newer.data_dir = tmp_path / "third"
    await asyncio.to_thread(newer.start)
    async with danubius.connect(newer.url) as client:
        messages = await read_all(client, topic)
    assert [int(m.payload.rstrip(b"\0")) for m in messages] == list(range(2901))
    assert newer.stop() == 0


async def test_a_store_that_goes_away_fails_publishers_until_it_is_back(
    start_broker: StartBroker, seaweedfs: ObjectPlace, tmp_path: Path, topic: str
) -> None:
    port = int(seaweedfs.options["endpoint"].rpartition(":")[2])
    async with LossyProxy(port) as proxy:
        endpoint = {"endpoint": f"http://127.0.0.1:{proxy.port}"}
        place = seaweedfs.below("away")._replace(options=seaweedfs.options | endpoint)
        broker = await asyncio.to_thread(
            start_broker, *diskless(place, AWAY_MS), data_dir=tmp_path / "machine"
        )
        async with (
            danubius.connect(broker.url, request_timeout=HANG_S) as client,
            client.producer(topic, name="p") as producer,
        ):
            await producer.send(b"0")
            with proxy.refusing():
                with pytest.raises(StorageFailed):
                    async with client.producer(f"{topic}-2", name="q"):
                        pass
                await eventually(lambda: "journal failed" in broker.log(), "it says so")
                assert broker.is_running
            receipt = await producer.send(b"1")
            assert receipt.offset == 1
            await eventually(lambda: "the journal goes on" in broker.log(), "it says so")
        broker.kill()
        broker.data_dir = tmp_path / "another"
        await asyncio.to_thread(broker.start)
        async with danubius.connect(broker.url) as client:
            assert [message.payload for message in await read_all(client, topic)] == [b"0", b"1"]
        assert broker.stop() == 0


def test_a_store_that_replaces_what_is_there_is_refused(start_broker: StartBroker) -> None:
    with (
        redis_server() as place,
        pytest.raises(BrokerNotReady, match="does not refuse to replace an object"),
    ):
        start_broker(*diskless(place))


def test_the_data_of_a_broker_with_a_disk_is_not_passed_over(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    assert start_broker().stop() == 0
    with pytest.raises(BrokerNotReady, match="has the data of a broker with a disk"):
        start_broker(*diskless(ObjectPlace(f"fs://{tmp_path / 'store'}", {})))
