"""Ledgers in shared files: when they leave, what a restart finds, what damage costs, and how space comes back."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from danubius.errors import DanubiusError, StorageFailed, StorageFull
from danubius.ledger.entry import LedgerMeta, LedgerRef
from danubius.ledger.local import EXTENTS_MAX, POOLED_BYTES_MAX, LocalLedgerStore
from danubius.ledger.pool import LedgerPool
from danubius.ledger.store import SMALL_BYTES, Append
from danubius.record.ledger_file import LedgerHeader, encode_header
from danubius.runtime.files import LocalFiles
from danubius.sim.disk import SimFiles

if TYPE_CHECKING:
    from collections.abc import Iterable

DIRECTORY = Path("/data/ledgers")
POOL = DIRECTORY / "pool"


@pytest.fixture
def files() -> SimFiles:
    files = SimFiles(seed=1)
    files.mkdir(DIRECTORY, sync=True)
    return files


def open_store(files: SimFiles, file_bytes: int = 1 << 26) -> LocalLedgerStore:
    return LocalLedgerStore(files, DIRECTORY, pool=LedgerPool(files, POOL, file_bytes=file_bytes))


def new(ref: LedgerRef, data: bytes, epoch: int = 1) -> Append:
    return Append(ref, header_of(ref, epoch), 0, [data], len(data))


def header_of(ref: LedgerRef, epoch: int = 1) -> LedgerHeader:
    return LedgerHeader(*ref, 0, epoch, 5)


def meta(ref: LedgerRef, data_bytes: int, epoch: int = 1) -> LedgerMeta:
    return LedgerMeta(ref.ledger_id, epoch, 0, 0, data_bytes, 0, 0, 0, 0, is_sealed=True)


def content(number: int, size: int = 1000) -> bytes:
    return bytes([number % 251]) * size


def fill(store: LocalLedgerStore, numbers: Iterable[int], size: int = 1000) -> list[LedgerRef]:
    refs = [LedgerRef(number, 0) for number in numbers]
    store.append_many([new(ref, content(ref.topic_id, size)) for ref in refs])
    return refs


def check(store: LocalLedgerStore, refs: Iterable[LedgerRef], size: int = 1000) -> None:
    for ref in refs:
        assert store.read(ref, 64, size) == content(ref.topic_id, size), ref


def pool_files(files: SimFiles) -> list[Path]:
    return [POOL / name for name in files.listdir(POOL)]


def own_files(files: SimFiles) -> list[str]:
    return [
        name
        for group in files.listdir(DIRECTORY)
        if group != "pool"
        for name in files.listdir(DIRECTORY / group)
    ]


def tidy_all(store: LocalLedgerStore) -> None:
    for _ in range(20):
        store.tidy()


# ---------------------------------------------------------------- writing


def test_many_small_ledgers_cost_one_write_and_one_file(files: SimFiles) -> None:
    store = open_store(files)
    files.counts.clear()
    refs = fill(store, range(300))
    assert files.counts["write"] == 2, "the file's header, and everything else"
    assert files.counts["open"] == 1
    store.append_many([Append(ref, None, 1064, [b"more"], 4) for ref in refs])
    assert files.counts["write"] == 3
    store.sync(refs)
    assert files.counts["sync"] == 1
    assert own_files(files) == []
    check(store, refs)
    assert store.read(refs[7], 1000, 100) == content(7, 64) + b"more"


def test_a_ledger_that_gets_much_at_once_has_its_own_file_from_the_start(files: SimFiles) -> None:
    store = open_store(files)
    refs = fill(store, [1], SMALL_BYTES)
    assert own_files(files) == ["0000000000000001-00000000.ledger"]
    assert pool_files(files) == []
    check(store, refs, SMALL_BYTES)


@pytest.mark.parametrize("reason", ["much at once", "much in all", "often"])
def test_a_ledger_that_grows_goes_on_in_a_file_of_its_own(files: SimFiles, reason: str) -> None:
    store = open_store(files)
    ref = LedgerRef(1, 0)
    pieces = {
        "much at once": [b"a" * 1000, b"b" * SMALL_BYTES, b"c" * 10],
        "much in all": [
            bytes([n]) * (SMALL_BYTES - 8) for n in range(POOLED_BYTES_MAX // SMALL_BYTES + 3)
        ],
        "often": [bytes([n]) * 8 for n in range(EXTENTS_MAX + 5)],
    }[reason]
    written = encode_header(header_of(ref))
    store.create(ref, header_of(ref))
    for piece in pieces:
        store.append(ref, len(written), [piece])
        written += piece
        assert store.read(ref, 0, len(written) + 10) == written
    assert own_files(files) == ["0000000000000001-00000000.ledger"]
    store.sync([ref])
    files.crash()
    again = open_store(files)
    again.recover({ref: meta(ref, len(written))})
    assert again.list() == [ref]
    assert again.read(ref, 0, len(written) + 10) == written
    for at in range(0, len(written), 7777):
        assert again.read(ref, at, 9000) == written[at : at + 9000]
    again.truncate(ref, 500, 0)
    assert again.read(ref, 0, 9000) == written[:500]
    again.delete_topic(1)
    assert again.list() == []
    assert own_files(files) == []


# ---------------------------------------------------------------- starting


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_restart_finds_everything_with_and_without_footers(
    files: SimFiles, is_clean: bool
) -> None:
    store = open_store(files, file_bytes=10_000)
    refs = [ref for first in range(0, 40, 4) for ref in fill(store, range(first, first + 4))]
    store.sync(refs)
    if is_clean:
        tidy_all(store)
        store.close()
    files.crash()
    files.counts.clear()
    again = open_store(files, file_bytes=10_000)
    assert again.list() == refs
    check(again, refs)
    fill(again, [77])
    check(again, refs)


def test_a_finished_file_is_known_by_two_small_reads(files: SimFiles) -> None:
    store = open_store(files)
    refs = fill(store, range(500))
    store.sync(refs)
    store.close()
    files.counts.clear()
    assert open_store(files).list() == refs
    assert files.counts["read"] == 3, "its header, its trailer, its rows"


def test_what_another_process_left_under_a_name_is_not_taken_for_it(files: SimFiles) -> None:
    """Names come again after a crash; the epoch tells whose the bytes are, whichever file they are in."""
    pooled, own = LedgerRef(1, 0), LedgerRef(2, 0)
    first = open_store(files)
    first.append_many([new(own, b"stale" * 8), new(pooled, b"stale" * SMALL_BYTES)])
    first.sync([pooled, own])
    stale_own = files.read_bytes(DIRECTORY / "01" / "0000000000000001-00000000.ledger")
    files.kill()
    second = open_store(files)
    second.recover({})
    for ref in second.list():
        second.delete(ref)
    second.append_many([new(pooled, b"fresh" * 8, 2), new(own, b"fresh" * SMALL_BYTES, 2)])
    second.sync([pooled, own])
    # A power loss may undo the removal of a file.
    file = files.open(DIRECTORY / "01" / "0000000000000001-00000000.ledger", create=True)
    file.pwritev([stale_own], 0)
    files.kill()
    third = open_store(files)
    third.recover({pooled: meta(pooled, 104, 2), own: meta(own, 64 + 5 * SMALL_BYTES, 2)})
    assert third.read(pooled, 64, 1000) == b"fresh" * 8
    assert third.read(own, 64, 40) == b"fresh" * 8


def test_only_the_bytes_of_the_snapshot_count(files: SimFiles) -> None:
    store = open_store(files)
    refs = fill(store, range(3))
    store.sync(refs)
    store.append(refs[1], 1064, [b"behind the snapshot"])
    files.kill()
    again = open_store(files)
    assert again.size_of(refs[1]) == 1083
    again.recover({ref: meta(ref, 1064) for ref in refs})
    check(again, refs)
    assert again.read(refs[1], 1064, 100) == b""


# ---------------------------------------------------------------- a bad disk


def test_a_full_disk_in_the_middle_of_a_frame_leaves_nothing_behind(files: SimFiles) -> None:
    store = open_store(files)
    refs = fill(store, range(3))
    size = files.used_bytes()
    for room in range(1, 3000, 101):
        files.capacity_bytes = size + room
        with pytest.raises(StorageFull):
            fill(store, range(3, 9))
        assert files.used_bytes() == size
        check(store, refs)
        assert store.list() == refs
    files.capacity_bytes = None
    refs += fill(store, range(3, 9))
    store.sync(refs)
    files.crash()
    check(open_store(files), refs)


def test_what_cannot_be_cut_off_is_left_and_written_elsewhere(files: SimFiles) -> None:
    """A frame that failed must not come back in place of the one that took its place."""
    store = open_store(files)
    refs = fill(store, [1])
    files.fail("write")
    files.fail("truncate")
    with pytest.raises(StorageFailed):
        store.append(refs[0], 1064, [b"x" * 500])
    store.append(refs[0], 1064, [b"y" * SMALL_BYTES])
    store.append_many([new(LedgerRef(2, 0), b"z")])
    assert len(pool_files(files)) == 2
    store.sync([refs[0], LedgerRef(2, 0)])
    files.crash()
    again = open_store(files)
    again.recover({refs[0]: meta(refs[0], 1064 + SMALL_BYTES)})
    assert again.read(refs[0], 1064, SMALL_BYTES) == b"y" * SMALL_BYTES


def test_every_write_may_be_the_last(files: SimFiles) -> None:
    """The power fails in each step of a history with a move to an own file, deletions and compaction."""
    from danubius.sim.disk import PowerLost

    for steps in range(60):
        disk = SimFiles(seed=steps)
        disk.mkdir(DIRECTORY, sync=True)
        store = open_store(disk, file_bytes=6000)
        refs = fill(store, range(4)) + fill(store, range(4, 8))
        store.sync(refs)
        disk.lose_power_after(steps)
        kept = refs[1::2]
        try:
            for ref in refs[::2]:
                store.delete(ref)
            tidy_all(store)
            store.append(kept[0], 1064, [b"b" * SMALL_BYTES])
            store.sync(kept[:1])
            tidy_all(store)
        except PowerLost:
            pass
        disk.crash()
        again = open_store(disk)
        again.recover({ref: meta(ref, 1064) for ref in kept})
        check(again, kept)


@pytest.mark.parametrize("seed", range(6))
def test_moved_bytes_are_synced_before_their_origin_is_removed(seed: int, files: SimFiles) -> None:
    """Also by a process that finds them moved, and cannot know whether that was synced, or a sync had failed."""
    store = open_store(files, file_bytes=6000)
    refs = fill(store, range(5)) + fill(store, range(5, 10))
    store.sync(refs)
    kept = refs[4:]
    for ref in refs[:4]:
        store.delete(ref)
    origin = pool_files(files)[0]
    store.tidy()
    if seed % 2:
        files.fail("sync")
        with pytest.raises(DanubiusError):
            store.tidy()
    assert origin in pool_files(files)
    files.kill()
    again = open_store(files)
    again.recover({ref: meta(ref, 1064) for ref in kept})
    for ref in again.list():
        if ref not in kept:
            again.delete(ref)
    tidy_all(again)
    assert origin not in pool_files(files)
    files.sync_dir(POOL)
    files.crash(seed)
    check(open_store(files), kept)


def test_damage_costs_the_ledger_it_strikes(files: SimFiles) -> None:
    store = open_store(files)
    refs = fill(store, range(20))
    store.sync(refs)
    [path] = pool_files(files)
    entry = store._pool.extents.get(refs[7])
    assert entry is not None
    files.rot(path, entry.extents[0].offset - 20)
    files.rot(path, 3)
    files.kill()
    again = open_store(files)
    assert again.list() == refs[:7] + refs[8:]
    check(again, refs[:7] + refs[8:])
    assert again.read(refs[7], 0, 1064) == b""


def test_a_damaged_footer_costs_nothing(files: SimFiles) -> None:
    store = open_store(files)
    refs = fill(store, range(20))
    store.sync(refs)
    store.close()
    tidy_all(open_store(files))  # the next process writes the footer
    [path] = pool_files(files)
    files.rot(path, len(files.read_bytes(path)) - 50)
    files.kill()
    again = open_store(files)
    assert again.list() == refs
    tidy_all(again)
    check(again, refs)
    files.counts.clear()
    assert open_store(files).list() == refs
    assert files.counts["read"] == 3, "the footer was written again"


def test_a_lost_piece_reads_as_zeros_if_something_follows(files: SimFiles) -> None:
    store = open_store(files, file_bytes=1500)
    [ref] = fill(store, [1])
    store.append(ref, 1064, [b"b" * 1000])
    store.append(ref, 2064, [b"c" * 1000])
    paths = pool_files(files)
    assert len(paths) == 3
    files.remove(paths[1])
    assert store.read(ref, 64, 9000) == content(1) + bytes(1000) + b"c" * 1000
    files.remove(paths[2])
    assert store.read(ref, 64, 1000) == content(1)


def test_an_unreadable_file_does_not_keep_a_broker_from_starting(files: SimFiles) -> None:
    store = open_store(files, file_bytes=2000)
    refs = fill(store, [1]) + fill(store, [2])
    store.sync(refs)
    files.kill()
    files.fail("read")
    again = open_store(files)
    assert again.list() == refs[1:]
    tidy_all(again)
    assert len(pool_files(files)) >= 2, "it is kept for whoever repairs the disk"
    files.kill()
    check(open_store(files), refs)


# ---------------------------------------------------------------- space


def test_a_file_without_live_bytes_goes(files: SimFiles) -> None:
    store = open_store(files, file_bytes=5000)
    refs = fill(store, range(4)) + fill(store, range(4, 8))
    assert len(pool_files(files)) == 2
    store.sync(refs)
    for ref in refs[:4]:
        store.delete(ref)
    store.tidy()
    assert len(pool_files(files)) == 1
    store.delete_topic(4)
    for ref in refs[4:]:
        store.delete(ref)
    store.tidy()
    assert pool_files(files) == []
    refs = fill(store, range(2))
    check(store, refs)


def test_a_wasteful_file_is_compacted(files: SimFiles) -> None:
    store = open_store(files, file_bytes=40_000)
    refs = fill(store, range(30)) + fill(store, range(30, 60))
    store.sync(refs)
    assert len(pool_files(files)) == 2
    kept = refs[:30:5] + refs[30:]
    for ref in set(refs) - set(kept):
        store.delete(ref)
    tidy_all(store)
    assert files.used_bytes() < 50_000
    check(store, kept)
    files.crash()
    check(open_store(files), kept)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_complete_ledger_is_put_together(files: SimFiles, is_restarted: bool) -> None:
    """By the process that sealed it, or by the next."""
    store = open_store(files)
    refs = [LedgerRef(number, 0) for number in range(40)]
    written = {ref: encode_header(header_of(ref)) for ref in refs}
    for ref in refs:
        store.create(ref, header_of(ref))
        for number in range(10):
            store.append(ref, len(written[ref]), [content(number, 80)])
            written[ref] += content(number, 80)
    store.sync(refs)
    if is_restarted:
        files.kill()
        store = open_store(files)
        store.recover({ref: meta(ref, len(written[ref])) for ref in refs})
    else:
        for ref in refs:
            store.seal(ref)
    tidy_all(store)
    for _ in range(2):
        for ref in refs:
            entry = store._pool.extents.get(ref)
            assert entry is not None
            assert len(entry) == 1
            assert store.read(ref, 0, 9999) == written[ref]
        store._pool.extents.check()
        files.crash()
        store = open_store(files)
        store.recover({ref: meta(ref, len(written[ref])) for ref in refs})
        tidy_all(store)


def test_the_small_files_of_many_starts_are_merged(files: SimFiles) -> None:
    refs: list[LedgerRef] = []
    for number in range(20):
        store = open_store(files)
        new_refs = fill(store, [number])
        store.sync(new_refs)
        refs += new_refs
        tidy_all(store)
        check(store, refs)
        files.kill()
    assert len(pool_files(files)) <= 5


@pytest.mark.parametrize("seed", range(12))
def test_a_failed_sync_of_moved_bytes_leaves_them_where_they_were(seed: int) -> None:
    """Though their copies may be there after a crash, in part."""
    files = SimFiles(seed=seed)
    files.mkdir(DIRECTORY, sync=True)
    store = open_store(files, file_bytes=6000)
    refs = fill(store, range(5)) + fill(store, range(5, 7))
    store.sync(refs)
    for ref in refs[:4]:
        store.delete(ref)
    store.tidy()
    files.fail("sync")
    with pytest.raises(DanubiusError):
        store.tidy()
    for _ in range(3):
        store._pool._remove_dead()
    files.crash()
    check(open_store(files), refs[4:])


def test_readers_and_compaction_do_not_disturb_each_other(tmp_path: Path) -> None:
    """A reader that finds a file removed looks again."""
    pool = LedgerPool(LocalFiles(), tmp_path / "pool", file_bytes=20_000)
    store = LocalLedgerStore(LocalFiles(), tmp_path, pool=pool)
    kept = fill(store, range(1, 4))
    failures: list[BaseException] = []
    is_over = threading.Event()

    def read() -> None:
        try:
            while not is_over.is_set():
                check(store, kept)
        except BaseException as error:  # noqa: BLE001  the main thread raises it
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(60):
            refs = fill(store, range(100 * turn + 1000, 100 * turn + 1020))
            for ref in refs:
                store.delete(ref)
            tidy_all(store)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert pool._next_number > 30, "files came and went"
