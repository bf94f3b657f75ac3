"""Ledgers in an object store: the suite, other processes, answers that are lost, and pieces that are joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from danubius.conformance.ledger_checks import run_ledger_checks
from danubius.errors import StorageFailed, TierMisconfigured
from danubius.ledger.entry import LedgerMeta, LedgerRef
from danubius.ledger.local import LocalLedgerStore
from danubius.ledger.memory import MemoryLedgerStore
from danubius.ledger.store import Append
from danubius.record.ledger_file import INDEX_ROW_BYTES, BlockRow, LedgerHeader, encode_row
from danubius.runtime.files import LocalFiles
from danubius.tier.file_objects import FileObjects
from danubius.tier.memory_objects import MemoryObjects
from danubius.tier.object_ledgers import ObjectLedgerStore
from faulty_objects import FaultyObjects
from unit.tier.ledgers_made import EPOCH, REF

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from danubius.ledger.store import LedgerStore

HEADER = LedgerHeader(*REF, 100, EPOCH, 1_700_000_000_000)


def row(number: int) -> bytes:
    return encode_row(BlockRow(number, 64 + number, 1, 0, 0, 1))


def meta(data_bytes: int, epoch: int = EPOCH) -> LedgerMeta:
    return LedgerMeta(REF.ledger_id, epoch, 100, 101, data_bytes, 1, 0, 0, 0, is_sealed=True)


@pytest.mark.parametrize("kind", ["memory", "local", "object in memory", "object in files"])
def test_every_driver_passes_the_suite(kind: str, tmp_path: Path) -> None:
    objects = FileObjects(tmp_path) if kind == "object in files" else MemoryObjects()

    def make() -> LedgerStore:
        if kind == "memory":
            return MemoryLedgerStore()
        if kind == "local":
            return LocalLedgerStore(LocalFiles(), tmp_path)
        return ObjectLedgerStore(objects, "ledgers/")

    reopen: Callable[[], LedgerStore] | None = None if kind == "memory" else make
    findings = list(run_ledger_checks(make(), reopen))
    assert [finding for finding in findings if not finding.is_good] == []
    if kind.startswith("object"):
        assert [finding.note for finding in findings if finding.note] == []
        assert list(objects.list("")) == []


class Hasty(MemoryLedgerStore):
    def append(self, ref: LedgerRef, at: int, buffers: object) -> None:
        super().append(ref, at, [b"x"])


class Keeping(MemoryLedgerStore):
    def delete(self, ref: LedgerRef) -> None:
        pass


class Lengthening(MemoryLedgerStore):
    def truncate(self, ref: LedgerRef, data_bytes: int, index_rows: int) -> None:
        pass


class Lenient(MemoryLedgerStore):
    def sync(self, refs: object) -> None:
        pass


@pytest.mark.parametrize("driver", [Hasty, Keeping, Lengthening, Lenient])
def test_a_wrong_driver_does_not_pass(driver: type[MemoryLedgerStore]) -> None:
    assert not all(finding.is_good for finding in run_ledger_checks(driver()))


def test_another_process_goes_on_with_an_open_ledger() -> None:
    objects = MemoryObjects()
    ObjectLedgerStore(objects).create(REF, HEADER, [b"one "])
    second = ObjectLedgerStore(objects)
    second.append(REF, 68, [b"two "])
    second.append_index(REF, HEADER, 0, row(0))
    third = ObjectLedgerStore(objects)
    third.append(REF, 72, [b"three"])
    third.sync([REF])
    assert ObjectLedgerStore(objects).read(REF, 64, 99) == b"one two three"
    assert ObjectLedgerStore(objects).read_index(REF, 0, 9) == row(0)


def test_two_stores_below_prefixes_know_nothing_of_each_other() -> None:
    objects = MemoryObjects()
    one, two = ObjectLedgerStore(objects, "one/"), ObjectLedgerStore(objects, "two/")
    one.create(REF, HEADER, [b"one"])
    two.create(REF, HEADER, [b"two"])
    one.delete_topic(REF.topic_id)
    assert (one.list(), two.list()) == ([], [REF])
    assert two.read(REF, 64, 9) == b"two"


def test_an_append_whose_answer_was_lost_is_repeated_in_other_pieces() -> None:
    faulty = FaultyObjects(MemoryObjects())
    store = ObjectLedgerStore(faulty)
    store.create(REF, HEADER)
    faulty.keep_next_put_and_fail()
    with pytest.raises(StorageFailed):
        store.append(REF, 64, [b"abcdef"])
    assert store.read(REF, 64, 9) == b""
    store.append(REF, 64, [b"abc"])
    store.append(REF, 67, [b"DEFGH"])
    assert store.read(REF, 64, 99) == b"abcDEFGH"
    assert ObjectLedgerStore(faulty).read(REF, 64, 99) == b"abcDEFGH"


def test_what_only_a_lost_answer_left_is_cut_by_the_next_process() -> None:
    faulty = FaultyObjects(MemoryObjects())
    store = ObjectLedgerStore(faulty)
    store.create(REF, HEADER, [b"abc"])
    faulty.keep_next_put_and_fail()
    with pytest.raises(StorageFailed):
        store.append(REF, 67, [b"def"])
    after = ObjectLedgerStore(faulty)
    after.recover({REF: meta(67)})
    after.truncate(REF, 67, 0)
    assert ObjectLedgerStore(faulty).read(REF, 64, 99) == b"abc"


def test_a_covered_piece_does_not_come_to_light_behind_a_cut() -> None:
    objects = MemoryObjects()
    store = ObjectLedgerStore(objects)
    store.create(REF, HEADER)
    store.append(REF, 64, [b"a long old piece"])
    store.append(REF, 68, [b"NEW"])
    store.truncate(REF, 69, 0)
    for reader in (store, ObjectLedgerStore(objects)):
        assert reader.read(REF, 64, 99) == b"a loN"


def test_a_store_that_is_down_fails_and_goes_on() -> None:
    faulty = FaultyObjects(MemoryObjects())
    store = ObjectLedgerStore(faulty)
    store.create(REF, HEADER, [b"abc"])
    faulty.go_down()
    for call in (
        lambda: store.append(REF, 67, [b"def"]),
        lambda: store.read(REF, 64, 9),
        lambda: store.create(REF, HEADER),
        lambda: store.delete(REF),
        lambda: store.list(),
    ):
        with pytest.raises(StorageFailed):
            call()
    faulty.come_up()
    assert store.read(REF, 64, 9) == b"abc"
    store.append(REF, 67, [b"def"])
    assert store.read(REF, 64, 9) == b"abcdef"


def test_a_store_that_is_set_up_wrongly_is_a_failed_store_to_who_writes_ledgers() -> None:
    faulty = FaultyObjects(MemoryObjects())
    faulty.failure = lambda: TierMisconfigured("wrong credentials")
    faulty.go_down()
    with pytest.raises(StorageFailed, match="wrong credentials"):
        ObjectLedgerStore(faulty).create(REF, HEADER)


def test_ledgers_of_one_call_do_not_wait_for_each_other_and_one_failure_is_told() -> None:
    faulty = FaultyObjects(MemoryObjects())
    store = ObjectLedgerStore(faulty)
    refs = [LedgerRef(topic, 0) for topic in range(1, 10)]
    appends = [Append(ref, HEADER._replace(topic_id=ref.topic_id), 0, [b"abc"], 3) for ref in refs]
    faulty.fail_at(4, "put")
    with pytest.raises(StorageFailed):
        store.append_many(appends)
    store.append_many(appends)
    assert {store.read(ref, 64, 9) for ref in refs} == {b"abc"}
    store.close()


def test_pieces_of_a_sealed_ledger_are_joined_step_by_step() -> None:
    objects = MemoryObjects()
    store = ObjectLedgerStore(objects, join_bytes=1000)
    store.create(REF, HEADER)
    data = bytes(range(250)) * 10
    for at in range(0, len(data), 100):
        store.append(REF, 64 + at, [data[at : at + 100]])
        store.append_index(REF, HEADER, at // 100, row(at // 100))
    store.tidy()
    assert len(list(objects.list(""))) == 51
    store.seal(REF)
    for _ in range(10):
        store.tidy()
        assert store.read(REF, 64, 9999) == data
        assert ObjectLedgerStore(objects).read(REF, 64, 9999) == data
    sizes = sorted(info.size for info in objects.list(""))
    assert sizes == sorted([64 + 900, 1000, 600, 25 * INDEX_ROW_BYTES])
    assert store.read_index(REF, 0, 99) == b"".join(map(row, range(25)))


@pytest.mark.parametrize("number", range(1, 40))
def test_joining_may_fail_at_any_call(number: int) -> None:
    faulty = FaultyObjects(MemoryObjects())
    store = ObjectLedgerStore(faulty)
    store.create(REF, HEADER)
    for at in range(6):
        store.append(REF, 64 + at, [b"%d" % at])
    store.seal(REF)
    faulty.fail_at(number)
    for _ in range(4):
        store.tidy()
        assert ObjectLedgerStore(faulty.inner).read(REF, 64, 99) == b"012345"
    faulty.heal()
    for _ in range(4):
        store.tidy()
    assert store.read(REF, 64, 99) == b"012345"
    assert len(list(faulty.inner.list(""))) == 1


@pytest.mark.parametrize("number", range(1, 12))
def test_a_ledger_that_is_deleted_half_way_is_listed_and_deleted_again(number: int) -> None:
    faulty = FaultyObjects(MemoryObjects())
    store = ObjectLedgerStore(faulty)
    store.create(REF, HEADER)
    for at in range(6):
        store.append(REF, 64 + at, [b"%d" % at])
    faulty.fail_at(number, "delete")
    if number <= 7:
        with pytest.raises(StorageFailed):
            store.delete(REF)
        faulty.heal()
        after = ObjectLedgerStore(faulty)
        assert after.list() == [REF]
        after.delete(REF)
    else:
        store.delete(REF)
    assert list(faulty.inner.list("")) == []


def test_only_the_epoch_of_the_snapshot_counts_and_the_rest_is_removed() -> None:
    objects = MemoryObjects()
    ObjectLedgerStore(objects).create(REF, HEADER, [b"ours"])
    late = ObjectLedgerStore(MemoryObjects())
    late.create(REF, HEADER._replace(epoch=EPOCH + 1), [b"of another"])
    stray = next(iter(late_names(late)))
    objects.put(stray, [b"of another"])
    store = ObjectLedgerStore(objects)
    store.recover({REF: meta(68)})
    assert store.read(REF, 64, 9) == b"ours"
    store.tidy()
    assert objects.stat(stray) is None
    assert store.read(REF, 64, 9) == b"ours"


def late_names(store: ObjectLedgerStore) -> list[str]:
    return [piece.name for piece, _ in store._pieces.below("")]


def test_an_older_epoch_may_create_what_an_undone_one_left() -> None:
    objects = MemoryObjects()
    ObjectLedgerStore(objects).create(REF, HEADER._replace(epoch=9), [b"undone"])
    store = ObjectLedgerStore(objects)
    store.create(REF, HEADER, [b"ours"])
    assert ObjectLedgerStore(objects).read(REF, 64, 9) == b"ours"


def test_few_maps_are_kept_of_ledgers_that_nobody_writes() -> None:
    objects = MemoryObjects()
    writer = ObjectLedgerStore(objects)
    refs = [LedgerRef(topic, 0) for topic in range(20)]
    for ref in refs:
        writer.create(ref, HEADER, [b"abc"])
    reader = ObjectLedgerStore(objects, read_ledgers_max=3)
    for _ in range(2):
        assert {reader.read(ref, 64, 3) for ref in refs} == {b"abc"}
        assert len(reader._read) == 3
