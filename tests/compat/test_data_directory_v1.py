"""Frozen data directories of format version 1: a broker takes them up with all that was in them.

`data-directory-v1/NAME.tar.xz` was written by the last version that wrote format 1, with small journal files and
ledgers: `stopped` ended in good order, `killed` is the same directory after a second life that ended with SIGKILL.
`NAME.json` is what the broker knew in that moment. The files never change.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import danubius
from danubius.ack.core.cursor import Cursor
from danubius.app.options import StandaloneOptions
from danubius.app.standalone import Standalone
from danubius.runtime.files import LocalFiles
from danubius.shard.state.snapshot import decode_snapshot
from danubius.wal.config import JournalConfig
from danubius.wal.snapshot import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from danubius.shard.state.snapshot import TopicState

FOLDER = Path(__file__).parent / "data-directory-v1"
NAMES = ["stopped", "killed"]
JOURNAL = JournalConfig(fill_bytes=0)


def payload(topic: str, number: int) -> bytes:
    digest = hashlib.sha256(f"{topic}{number}".encode()).hexdigest()
    return f"{topic} {number} {digest}{digest}".encode()


def key(number: int) -> bytes | None:
    return f"key-{number % 7}".encode() if number % 3 else None


def attributes(number: int) -> dict[str, str]:
    return {"n": str(number)} if number % 2 else {}


def unpack(name: str, path: Path) -> dict[str, Any]:
    """Lay the directory out and return what it held."""
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        for (
            member
        ) in archive:  # Python 3.11.2 knows no filter for extractall, later ones ask for one
            file = archive.extractfile(member)
            if file is not None:
                target = path / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read())
    told: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    assert json.loads((path / "danubius.json").read_text())["format"] == 1
    return told


@contextlib.asynccontextmanager
async def running(path: Path) -> AsyncGenerator[Standalone]:
    broker = Standalone(StandaloneOptions(path, port=0, http_port=0), journal_config=JOURNAL)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def seen(state: TopicState) -> dict[str, Any]:
    """A recovered topic in the words of the JSON files."""
    retention = state.spec.retention
    assert retention is not None, "what was explicit stays so"
    return {
        "topic_id": state.topic_id,
        "name": state.name,
        "created_ms": state.created_ms,
        "spec": {
            "dispatch": state.spec.dispatch,
            "durability": state.spec.durability,
            "retention": {"age_ms": retention.age_ms, "size_bytes": retention.size_bytes},
        },
        "start_offset": state.start_offset,
        "next_offset": state.next_offset,
        "producers": [
            {
                "producer_id": each.producer_id,
                "name": each.name,
                "epoch": each.epoch,
                "next_sequence": each.next_sequence,
                "runs": [list(run) for run in each.runs],
            }
            for each in state.producers
        ],
        "subscriptions": [
            {
                "subscription_id": each.subscription_id,
                "name": each.name,
                "type": each.type,
                "unacked": [
                    list(part) for part in Cursor.decode(each.cursor).unacked(0, state.next_offset)
                ],
            }
            for each in state.subscriptions
        ],
    }


@pytest.mark.parametrize("name", NAMES)
async def test_topics_producers_and_cursors_are_taken_up(name: str, tmp_path: Path) -> None:
    told = unpack(name, tmp_path)
    for lives in (1, 2):  # the second one reads what the first made of it
        async with running(tmp_path):
            pass
        identity = json.loads((tmp_path / "danubius.json").read_text())
        assert identity["epoch"] == told["epoch"] + lives
        stored = SnapshotStore(LocalFiles(), tmp_path / "snapshots").load_latest()
        assert stored is not None
        snapshot = decode_snapshot(stored.data)
        assert snapshot.next_id == told["next_id"]
        assert [seen(topic) for topic in snapshot.topics] == told["topics"]


@pytest.mark.parametrize("name", NAMES)
async def test_every_message_can_be_read(name: str, tmp_path: Path) -> None:
    told = unpack(name, tmp_path)
    async with running(tmp_path) as broker, danubius.connect(broker.url) as client:
        for topic in told["topics"]:
            wanted = range(topic["next_offset"])
            async with client.reader(topic["name"], start="earliest", stop_at_end=True) as reader:
                messages = [message async for message in reader] if wanted else []
            assert [message.offset for message in messages] == list(wanted)
            assert [message.payload for message in messages] == [
                payload(topic["name"], number) for number in wanted
            ]
            assert [message.key for message in messages] == [key(number) for number in wanted]
            assert [message.attributes for message in messages] == [
                attributes(number) for number in wanted
            ]


@pytest.mark.parametrize("name", NAMES)
async def test_subscriptions_go_on_where_they_were(name: str, tmp_path: Path) -> None:
    told = unpack(name, tmp_path)
    async with running(tmp_path) as broker, danubius.connect(broker.url) as client:
        for topic in told["topics"]:
            for subscription in topic["subscriptions"]:
                owed = [n for first, end in subscription["unacked"] for n in range(first, end)]
                async with (
                    client.producer(topic["name"], name="after") as producer,
                    client.consumer(
                        topic["name"],
                        subscription=subscription["name"],
                        type=subscription["type"],
                    ) as consumer,
                ):
                    receipt = await producer.send(b"the end")
                    received: list[int] = []
                    while receipt.offset not in received:
                        batch = await consumer.receive_batch()
                        received += batch.offsets
                    old = [offset for offset in received if offset < topic["next_offset"]]
                    assert sorted(old) == owed
