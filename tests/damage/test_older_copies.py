"""An older copy beside newer ledgers or newer cold storage is refused, and goes on once an operator has said so."""

from __future__ import annotations

import pytest

from damage.mistakes import MISTAKES
from damage.templates import template
from damage.worlds import World
from danubius.errors import BrokerReplaced, DataDirectoryDamaged, StorageFailed
from danubius.model.ids import TopicName
from danubius.tier.memory_objects import MemoryObjects

SMALL = TopicName("/default/small")


async def test_newer_ledgers_are_kept_aside_once_the_mark_of_the_journal_is_removed() -> None:
    history = template("local", is_killed=True)
    image = MISTAKES["`snapshots/` and `journal/` of an older copy, newer ledgers"].make(history)
    world = World("local", image)
    with pytest.raises(DataDirectoryDamaged, match="remove /data/journal/end"):
        async with world.broker():
            pass
    del image["data/journal/end"]
    world = World("local", image)
    async with world.broker() as broker:
        assert broker.broker.topics[SMALL].log.end_offset < len(history.known.messages[SMALL])
        await broker.end()
    assert any("nothing explains a ledger" in line for line in world.said)
    assert any(name.startswith("data/quarantine/") for name in world.image())


async def test_newer_cold_storage_is_taken_over_once_its_owner_is_removed() -> None:
    history = template("tier", is_killed=True)
    image = MISTAKES["the data directory of an older copy, newer cold storage"].make(history)
    world = World("tier", image)
    with pytest.raises(BrokerReplaced, match=r"remove the object [0-9a-f]+/owner"):
        async with world.broker():
            pass
    (owner,) = [name for name in image if name.startswith("objects/") and name.endswith("/owner")]
    del image[owner]
    world = World("tier", image)
    async with world.broker() as broker:
        assert SMALL in broker.broker.topics
        await broker.end()


async def test_cold_storage_that_does_not_answer_refuses_no_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = template("tier", is_killed=True)
    world = World("tier", history.image)

    def is_down(_self: MemoryObjects, _name: str, _at: int, _count: int) -> bytes:
        raise StorageFailed("the store is down")

    monkeypatch.setattr(MemoryObjects, "get", is_down)
    async with world.broker() as broker:
        assert broker.epoch == history.known.epoch + 1
    assert any("does not say whose it is" in line for line in world.said)
