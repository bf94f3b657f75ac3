"""Frozen data directories of format versions 2 and 3: a broker takes them up with all that was in them, and goes on.

`data-directory-vN/NAME.tar.xz` was written by a version that wrote format N: for 2 the last one before small ledgers
shared files. `stopped` ended in good order, `killed` is the same directory after a second life that ended with SIGKILL.
`NAME.json` is what the broker told in that moment: namespaces, partitions, policies, transactions, dead letters and
delayed messages had their part in it; in 3, messages with a time to live and in pieces too. The files never change.

The broker's clock stands where it stood then, or retention and delays would depend on when these tests run.
"""

from __future__ import annotations

import contextlib
import json
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import danubius
from danubius.app.options import StandaloneOptions
from danubius.app.ports import Ports
from danubius.app.standalone import Standalone
from danubius.broker.data_directory import FORMAT_VERSION
from danubius.wal.config import JournalConfig
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

FOLDER = Path(__file__).parent
JOURNAL = JournalConfig(fill_bytes=0)
MONTH_US = 31 * 24 * 3600 * 1_000_000

stored = pytest.mark.parametrize(
    ("version", "name"), [(version, name) for version in (2, 3) for name in ("stopped", "killed")]
)


class OldClock:
    """Goes on from a moment in the past."""

    def __init__(self, wall_us: int) -> None:
        self._ahead_us = wall_us - time.monotonic_ns() // 1000

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_us(self) -> int:
        return time.monotonic_ns() // 1000 + self._ahead_us


def unpack(version: int, name: str, path: Path) -> dict[str, Any]:
    """Lay the directory out and return what it held."""
    folder = FOLDER / f"data-directory-v{version}"
    with tarfile.open(folder / f"{name}.tar.xz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                target = path / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read())
    assert json.loads((path / "danubius.json").read_text())["format"] == version
    return json.loads((folder / f"{name}.json").read_text())


@contextlib.asynccontextmanager
async def running(path: Path, wall_us: int) -> AsyncGenerator[danubius.Client]:
    broker = Standalone(
        StandaloneOptions(path, port=0, http_port=0),
        journal_config=JOURNAL,
        ports=Ports(clock=OldClock(wall_us)),
    )
    await broker.start()
    try:
        async with danubius.connect(broker.url) as client:
            yield client
    finally:
        await broker.stop()


async def seen(client: danubius.Client, topic: str) -> dict[str, Any]:
    """A topic in the words of the JSON files."""
    described = await client.admin.describe_topic(topic)
    [line] = [one for one in await client.admin.list_topics() if one.topic == topic]
    found: dict[str, Any] = {
        "name": topic,
        "dispatch": described.dispatch,
        "partitions": line.partitions,
        "producers_max": described.effective.producers_max,
        "consumers_max": described.effective.consumers_max,
        "retention_age_ms": described.effective.retention_age_ms,
        "delayed_messages": (await client.admin.measure_topic(topic)).delayed_messages,
        "messages": [],
        "subscriptions": [],
    }
    if described.dispatch == "reliable":
        async with client.reader(topic, start="earliest", stop_at_end=True) as reader:
            found["messages"] = sorted([shown(message) async for message in reader], key=place)
    for one in await client.admin.list_subscriptions(topic):
        owed = await client.admin.peek(topic, one.subscription, 1000)
        found["subscriptions"].append(
            {
                "name": one.subscription,
                "type": one.type,
                "owed": sorted([message.topic, message.offset] for message in owed),
            }
        )
    return found


def shown(message: danubius.Message) -> list[Any]:
    key = None if message.key is None else message.key.decode()
    return [message.topic, message.offset, message.payload.decode(), key, message.attributes]


def place(line: list[Any]) -> tuple[str, int]:
    return line[0], line[1]


@stored
async def test_everything_is_there_and_stays(version: int, name: str, tmp_path: Path) -> None:
    told = unpack(version, name, tmp_path)
    for lives in (1, 2):  # the second one reads what the first made of it
        async with running(tmp_path, told["wall_us"]) as client:
            assert (await client.admin.describe_broker()).epoch == told["epoch"] + lives
            for topic in told["topics"]:
                assert await seen(client, topic["name"]) == topic
            names = [line.topic for line in await client.admin.list_topics()]
            assert names == [topic["name"] for topic in told["topics"]]
            letters = await client.admin.list_dead_letters("/default/bad", "s")
            assert len(letters) == len(told["dead_letters"]) == 1
        assert json.loads((tmp_path / "danubius.json").read_text())["format"] == FORMAT_VERSION


@stored
async def test_topics_and_subscriptions_go_on(version: int, name: str, tmp_path: Path) -> None:
    told = unpack(version, name, tmp_path)
    async with running(tmp_path, told["wall_us"]) as client:
        for topic in told["topics"]:
            if topic["dispatch"] == "reliable":
                await go_on(client, topic["name"], topic["subscriptions"])
        assert await client.admin.redrive("/default/bad", "s") == 1
        async with client.consumer("/default/bad", subscription="s") as consumer:
            again = await consumer.receive(timeout=HANG_S)
            assert again.payload == b"/default/bad 0"


async def go_on(client: danubius.Client, topic: str, subscriptions: list[dict[str, Any]]) -> None:
    """Publish one more: to each subscription comes what was owed, and that, and nothing else."""
    # The name of a producer of then: its sequence goes on.
    async with client.producer(topic, name="loader") as producer:
        receipt = await producer.send(b"the end", key=b"key-1")
    for subscription in subscriptions:
        name, kind = subscription["name"], subscription["type"]
        expected = [*map(tuple, subscription["owed"]), (receipt.topic, receipt.offset)]
        async with client.consumer(topic, subscription=name, type=kind) as consumer:
            came: list[tuple[str, int]] = []
            while len(came) < len(expected):
                message = await consumer.receive(timeout=HANG_S)
                came.append((message.topic, message.offset))
                await consumer.ack(message)
        assert sorted(came) == sorted(expected)


@stored
async def test_a_month_later_delays_are_over(version: int, name: str, tmp_path: Path) -> None:
    told = unpack(version, name, tmp_path)
    [delayed] = [one["delayed_messages"] for one in told["topics"] if one["delayed_messages"]]
    async with running(tmp_path, told["wall_us"] + MONTH_US) as client:
        async with client.consumer(
            "/default/later", subscription="s", start="earliest"
        ) as consumer:
            for _ in range(delayed):
                message = await consumer.receive(timeout=HANG_S)
                assert message.payload == b"in a month"
        if version > 2:
            await client.admin.create_subscription("/default/short", "s", start="earliest")
            async with client.producer("/default/short") as producer:
                await producer.send(b"new")
            async with client.consumer("/default/short", subscription="s") as consumer:
                message = await consumer.receive(timeout=HANG_S)
                assert message.payload == b"new", "those of then have expired"
