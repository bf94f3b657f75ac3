"""Where a broker without a disk lives: who has it, what is found again, what is damage, what others may not touch."""

from __future__ import annotations

import pytest

from danubius.errors import (
    BrokerReplaced,
    DataDirectoryDamaged,
    DataDirectoryTooNew,
    TierMisconfigured,
)
from danubius.ledger.entry import LedgerRef
from danubius.record.ledger_file import LedgerHeader
from danubius.tier.core.journal_object import Author
from danubius.tier.core.slots import Claim, Group
from danubius.tier.listed_objects import ListedObjects
from danubius.tier.memory_objects import MemoryObjects
from danubius.tier.object_home import PREFIX, ObjectHome
from danubius.tier.object_ledgers import ObjectLedgerStore
from danubius.wal.core.format import record_bytes
from danubius.wal.writer import Entry
from faulty_objects import FaultyObjects


@pytest.fixture
def objects() -> FaultyObjects:
    return FaultyObjects(MemoryObjects())


def take(objects: FaultyObjects, process: int = 1) -> ObjectHome:
    return ObjectHome.open(objects, f"broker-{process}", process, 10.0)


def put(home: ObjectHome, slot: int, base: int, claim: Claim | None = None) -> int:
    """A slot with one record; returns where it ends."""
    body = b"%d" % slot
    size = record_bytes(len(body))
    entry = Entry(1, 7, (body,), len(body), size, True, 0)
    group = Group(slot, base, base + size, slot, [entry], claim or Claim(), 1)
    home.journal_objects.put_group(group, home.author)
    return base + size


def fill(home: ObjectHome, count: int) -> list[int]:
    first, base = home.found.next_slot, home.found.end
    for slot in range(first, first + count):
        base = put(home, slot, base)
    return list(range(first, first + count))


def test_identity_stays_and_epochs_rise(objects: FaultyObjects) -> None:
    first, second = take(objects, 1), take(objects, 2)
    assert first.broker_id == second.broker_id == "broker-1"
    assert (first.epoch, second.epoch) == (1, 2)
    assert first.later_start() == 2
    assert second.later_start() == 0


def test_what_was_stored_is_found_and_the_older_one_stores_nothing_more(
    objects: FaultyObjects,
) -> None:
    first = take(objects, 1)
    slots = fill(first, 3)
    second = take(objects, 2)
    assert [header.slot for header in second.found.valid] == slots
    bodies = [bytes(r.body) for r in second.journal_objects.read_all(second.found.valid)]
    assert bodies == [b"%d" % slot for slot in slots]
    with pytest.raises(BrokerReplaced, match="start 2 of this broker has taken over"):
        put(first, slots[-1] + 1, second.found.end)


def test_an_answer_that_was_lost_is_ones_own(objects: FaultyObjects) -> None:
    home = take(objects)
    slot = home.found.next_slot
    put(home, slot, 0)
    put(home, slot, 0)
    assert [header.slot for header in take(objects, 2).found.valid] == [slot]


def test_a_store_that_does_not_refuse_is_refused() -> None:
    with pytest.raises(TierMisconfigured, match="does not refuse to replace an object"):
        ObjectHome.open(ListedObjects(MemoryObjects()), "broker-1", 1, 10.0)


def test_a_home_of_the_future_is_refused(objects: FaultyObjects) -> None:
    objects.put(f"{PREFIX}identity.json", [b'{"format": 2, "broker_id": "b"}'])
    with pytest.raises(DataDirectoryTooNew, match="format 2"):
        take(objects)


def test_an_object_that_is_missing_below_a_promise_is_damage(objects: FaultyObjects) -> None:
    slots = fill(take(objects), 6)
    objects.delete(f"{PREFIX}journal/{slots[1]:016x}")
    with pytest.raises(DataDirectoryDamaged, match=f"{slots[1]:016x} is missing"):
        take(objects, 2)


def test_a_header_that_fails_its_checksum_is_damage_and_one_bad_answer_is_not(
    objects: FaultyObjects,
) -> None:
    fill(take(objects), 2)
    objects.flip_reads(100, times=1)
    assert len(take(objects, 2).found.valid) == 2
    objects.flip_reads(100)
    with pytest.raises(DataDirectoryDamaged, match="passes its checksum"):
        take(objects, 3)


def test_a_record_that_fails_its_checksum_is_damage_and_one_bad_answer_is_not(
    objects: FaultyObjects,
) -> None:
    fill(take(objects), 1)
    home = take(objects, 2)
    objects.flip_reads(128 + 48, times=1)
    assert len(list(home.journal_objects.read_all(home.found.valid))) == 1
    objects.flip_reads(128 + 48)
    with pytest.raises(DataDirectoryDamaged, match="checksum"):
        list(home.journal_objects.read_all(home.found.valid))


def test_snapshots_hold_once_the_journal_has_announced_them(objects: FaultyObjects) -> None:
    first = take(objects, 1)
    assert first.snapshots.load_latest() is None
    assert first.snapshots.save(0, b"zero") == 0
    assert take(objects, 2).snapshots.load_latest() is None
    third = take(objects, 3)
    third.snapshots.save(0, b"three")
    end = put(third, third.found.next_slot, 0, Claim(0, third.snapshots.kept))
    third.snapshots.save(end, b"more")
    fourth = take(objects, 4)
    loaded = fourth.snapshots.load_latest()
    assert loaded is not None
    assert loaded.data == b"three"
    assert {ref.epoch for ref in fourth.snapshots.needless(fourth.found.kept)} == {1}


def test_a_snapshot_that_may_hold_is_not_replaced_and_may_be_the_only_one(
    objects: FaultyObjects,
) -> None:
    home = take(objects)
    home.snapshots.save(0, b"first")
    end = put(home, home.found.next_slot, 0)
    home.snapshots.save(end, b"second")
    assert home.snapshots.save(end, b"other") == 0
    assert home.snapshots.load_latest() == (end, b"second")
    assert home.snapshots.save(end, b"other", is_sole=True) == end
    assert home.snapshots.oldest_position() == end


def test_a_damaged_snapshot_has_one_before_it(objects: FaultyObjects) -> None:
    home = take(objects, 1)
    home.snapshots.save(0, b"older")
    end = put(home, home.found.next_slot, 0)
    assert home.snapshots.save(end, b"newer") == 0
    put(home, home.found.next_slot + 1, end, Claim(0, home.snapshots.kept))
    name = f"{PREFIX}snapshots/{end:020d}-00000001"
    objects.put(name, [b"x" + objects.get(name, 1, 1000)], replace=True)
    second = take(objects, 2)
    loaded = second.snapshots.load_latest()
    assert loaded is not None
    assert loaded == (0, b"older")
    objects.put(f"{PREFIX}snapshots/{0:020d}-00000001", [b""], replace=True)
    with pytest.raises(DataDirectoryDamaged, match="no snapshot"):
        take(objects, 3).snapshots.load_latest()


def test_a_replaced_broker_neither_sees_nor_deletes_the_ledgers_of_the_next(
    objects: FaultyObjects,
) -> None:
    def ledgers(epoch: int) -> ObjectLedgerStore:
        return ObjectLedgerStore(objects, "ledgers/", epoch_max=epoch)

    ref = LedgerRef(3, 0)
    older, newer = ledgers(1), ledgers(2)
    older.create(ref, LedgerHeader(3, 0, 0, 1, 0), [b"older"])
    newer.create(ref, LedgerHeader(3, 0, 0, 2, 0), [b"newer"])
    before = [info.name for info in objects.list("ledgers/") if "/00000002." in info.name]
    older.delete(ref)
    older.delete_topic(3)
    older.create(ref, LedgerHeader(3, 0, 0, 1, 0), [b"again"])
    assert older.read(ref, 0, 1000).endswith(b"again")
    assert newer.read(ref, 0, 1000).endswith(b"newer")
    after = [info.name for info in objects.list("ledgers/") if "/00000002." in info.name]
    assert after == before


def test_starts_at_once_have_numbers_of_their_own(objects: FaultyObjects) -> None:
    homes = [take(objects, process) for process in range(1, 6)]
    assert [home.author for home in homes] == [Author(n, n) for n in range(1, 6)]
