"""An older copy beside newer ledgers or newer cold storage is refused, and goes on once an operator has said so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

import pytest
from click.testing import CliRunner

import danubius
from damage.mistakes import MISTAKES
from damage.templates import template
from damage.worlds import World
from danubius.cli.commands.storage import storage
from danubius.errors import BrokerReplaced, DataDirectoryDamaged, StorageFailed
from danubius.model.ids import TopicName
from danubius.tier.memory_objects import MemoryObjects
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from damage.templates import Template
    from damage.worlds import Image

SMALL = TopicName("/default/small")


@pytest.fixture
def local() -> Template:
    return template("local", is_killed=True)


@pytest.fixture
def tier() -> Template:
    return template("tier", is_killed=True)


async def test_newer_ledgers_are_kept_aside_once_the_mark_of_the_journal_is_removed(
    local: Template,
) -> None:
    image = MISTAKES["`snapshots/` and `journal/` of an older copy, newer ledgers"].make(local)
    world = World("local", image)
    with pytest.raises(DataDirectoryDamaged, match="remove /data/journal/end"):
        async with world.broker():
            pass
    del image["data/journal/end"]
    world = World("local", image)
    async with world.broker() as broker:
        assert broker.shard.topics[SMALL].log.end_offset < len(local.known.messages[SMALL])
        await broker.end()
    assert any("nothing explains a ledger" in line for line in world.said)
    assert any(name.startswith("data/quarantine/") for name in world.image())


async def test_a_check_names_the_ledgers_that_nothing_explains(local: Template) -> None:
    image = MISTAKES["`snapshots/` and `journal/` of an older copy, newer ledgers"].make(local)
    del image["data/journal/end"]
    world = World("local", image)
    async with world.broker(listens=True) as broker:
        async with asyncio.timeout(HANG_S), danubius.connect(broker.url) as client:
            while True:
                if (await client.admin.describe_broker()).unexplained:
                    break
                await asyncio.sleep(LOOK_S)
        words = ["check", SMALL, "--url", broker.url]
        done = await asyncio.to_thread(CliRunner().invoke, storage, words)
    assert "not part of what was checked: /data/quarantine/" in done.output


async def two_moments(durability: Literal["synced", "written"]) -> Image:
    """A journal, and ledgers of the same life that are ahead of it."""
    world = World("local")
    async with world.broker(listens=True) as broker, danubius.connect(broker.url) as client:
        await client.create_topic(SMALL, durability=durability)
        async with client.producer(SMALL) as producer:
            await producer.send_many([b"before"] * 10)
            await broker.checkpoint()
            before = world.image()
            await producer.send_many([b"after"] * 10)
            await broker.checkpoint()
            after = world.image()
    ledgers = {name: data for name, data in after.items() if name.startswith("data/ledgers/")}
    return before | {"data/journal/end": b""} | ledgers


async def test_a_power_loss_that_took_what_was_not_synced_refuses_no_start() -> None:
    world = World("local", await two_moments("written"))
    async with world.broker() as broker:
        assert broker.shard.topics[SMALL].log.end_offset == 10


async def test_what_was_synced_and_is_in_a_ledger_alone_refuses_a_start() -> None:
    world = World("local", await two_moments("synced"))
    with pytest.raises(DataDirectoryDamaged, match=f"has message 19 of {SMALL}"):
        async with world.broker():
            pass


async def test_newer_cold_storage_is_taken_over_once_its_owner_is_removed(tier: Template) -> None:
    image = MISTAKES["the data directory of an older copy, newer cold storage"].make(tier)
    world = World("tier", image)
    with pytest.raises(BrokerReplaced, match=r"remove the object [0-9a-f]+/owner"):
        async with world.broker():
            pass
    (owner,) = [name for name in image if name.startswith("objects/") and name.endswith("/owner")]
    del image[owner]
    world = World("tier", image)
    async with world.broker() as broker:
        assert SMALL in broker.shard.topics
        await broker.end()


async def test_cold_storage_that_does_not_answer_refuses_no_start(
    tier: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World("tier", tier.image)

    def is_down(_self: MemoryObjects, _name: str, _at: int, _count: int) -> bytes:
        raise StorageFailed("the store is down")

    monkeypatch.setattr(MemoryObjects, "get", is_down)
    async with world.broker() as broker:
        assert broker.epoch == tier.known.epoch + 1
    assert any("does not say whose it is" in line for line in world.said)
