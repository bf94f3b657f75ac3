"""A store of small and large ledgers against a model, on a disk that fills, fails and loses what was not synced.

The model does what the storage thread and recovery do: a failed write is repeated where it was, after a failed sync
everything since the last good one is written again, and a start goes back to the ledgers as of the last good sync.
Whatever happens between, these read as they were written.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from danubius.errors import DanubiusError, StorageFailed, StorageFull
from danubius.ledger.entry import LedgerMeta, LedgerRef
from danubius.ledger.local import LocalLedgerStore
from danubius.ledger.pool import LedgerPool
from danubius.ledger.store import Append
from danubius.record.ledger_file import LedgerHeader, encode_header
from danubius.sim.disk import PowerLost, SimFiles
from proving import sized

if TYPE_CHECKING:
    from collections.abc import Callable

DIRECTORY = Path("/data/ledgers")
TRIES_MAX = 20
HISTORIES = sized(25, 1000)
"""Of each of four tests."""


class Model:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.files = SimFiles(seed=seed)
        self.files.mkdir(DIRECTORY, sync=True)
        self.epoch = 0
        self.next_ledger = 0
        self.content: dict[LedgerRef, bytes] = {}
        self.epochs: dict[LedgerRef, int] = {}
        self.saved: dict[LedgerRef, int] = {}
        """Lengths as of the last good sync."""
        self.must_rewrite = False
        self.boot()

    # ------------------------------------------------------------ processes

    def boot(self) -> None:
        self.epoch += 1
        self.files.capacity_bytes = None
        pool = LedgerPool(self.files, DIRECTORY / "pool", file_bytes=4000)
        self.extents = pool.extents
        small_bytes = self.dice.choice([0, 300, 300, 5000])
        self.store = LocalLedgerStore(
            self.files, DIRECTORY, open_files_max=3, small_bytes=small_bytes, pool=pool
        )
        self.content = {ref: self.content[ref][:length] for ref, length in self.saved.items()}
        self.open: set[LedgerRef] = set()
        self.must_rewrite = False
        known = {
            ref: LedgerMeta(
                ref.ledger_id, self.epochs[ref], 0, 0, length, 0, 0, 0, 0, is_sealed=True
            )
            for ref, length in self.saved.items()
        }
        self.store.recover(known)
        for ref in self.store.list():
            if ref in known:
                self.store.truncate(ref, self.saved[ref], 0)
            else:
                self.store.delete(ref)
        # The names of what a crash took are used again, by another process.
        self.next_ledger = max((ref.ledger_id for ref in self.saved), default=-1) + 1
        self.check()

    def crash(self) -> None:
        if self.dice.random() < 0.5:
            self.files.crash()
        else:
            self.files.kill()
        self.boot()

    def check(self) -> None:
        for ref, content in self.content.items():
            assert self.store.read(ref, 0, len(content)) == content, ref
            start = self.dice.randrange(len(content))
            assert self.store.read(ref, start, 100) == content[start : start + 100]
        self.extents.check()

    # ------------------------------------------------------------ what the storage thread does

    def until_done(self, work: Callable[[], None]) -> None:
        for _ in range(TRIES_MAX):
            try:
                work()
            except DanubiusError:
                continue
            return
        self.files.heal()
        self.files.capacity_bytes = None
        work()

    def write(self) -> None:
        appends: list[Append] = []
        changed: dict[LedgerRef, bytes] = {}
        for _ in range(self.dice.randint(1, 6)):
            data = self.dice.randbytes(8 * self.dice.choice([1, 5, 20, 60, 200]))
            if not self.open or self.dice.random() < 0.4:
                ref = LedgerRef(self.dice.randint(1, 3), self.next_ledger)
                self.next_ledger += 1
                header = LedgerHeader(*ref, 0, self.epoch, 5)
                appends.append(Append(ref, header, 0, [data], len(data)))
                changed[ref] = encode_header(header) + data
                self.epochs[ref] = self.epoch
            else:
                ref = self.dice.choice(sorted(self.open))
                if ref in changed:
                    continue
                before = self.content[ref]
                half = len(data) // 2
                appends.append(Append(ref, None, len(before), [data[:half], data[half:]], 2 * half))
                changed[ref] = before + data
        self.until_done(lambda: self.store.append_many(appends))
        self.content |= changed
        self.open.update(changed)

    def sync(self) -> None:
        try:
            if self.must_rewrite:
                self.rewrite()
            self.must_rewrite = True
            self.store.sync(self.open)
        except DanubiusError:
            return
        self.must_rewrite = False
        self.saved = {ref: len(content) for ref, content in self.content.items()}
        for ref in self.dice.sample(sorted(self.open), len(self.open) // 4):
            self.store.seal(ref)
            self.open.discard(ref)

    def rewrite(self) -> None:
        for ref in self.open:
            start = self.saved.get(ref, 0)
            if start == 0:
                self.store.append(ref, 0, [self.store.read(ref, 0, 64)])
                start = 64
            while start < len(self.content[ref]):
                data = self.store.read(ref, start, self.dice.choice([100, 700, 5000]))
                assert data == self.content[ref][start : start + len(data)]
                self.store.append(ref, start, [data])
                start += len(data)

    def delete(self) -> None:
        for ref in self.dice.sample(sorted(self.content), len(self.content) // 3):
            self.until_done(lambda ref=ref: self.store.delete(ref))
            # As with trimming: the journal knows of it.
            del self.content[ref]
            self.saved.pop(ref, None)
            self.open.discard(ref)
            assert ref not in self.store.list()

    def tidy(self) -> None:
        for _ in range(self.dice.randint(1, 4)):
            try:
                self.store.tidy()
            except DanubiusError:
                self.must_rewrite = True

    def break_disk(self) -> None:
        match self.dice.randrange(4):
            case 0:
                operation = self.dice.choice(
                    ["write", "sync", "open", "truncate", "remove", "sync_dir"]
                )
                self.files.fail(
                    operation,
                    after=self.dice.randint(0, 3),
                    times=self.dice.randint(1, 3),
                    error=self.dice.choice([StorageFull, StorageFailed]),
                )
            case 1:
                self.files.capacity_bytes = self.files.used_bytes() + self.dice.randint(0, 3000)
            case 2:
                self.files.lose_power_after(self.dice.randint(0, 15))
            case _:
                self.files.heal()
                self.files.capacity_bytes = None

    def run(self, steps: int) -> None:
        works = [self.write, self.sync, self.delete, self.tidy, self.break_disk, self.crash]
        for _ in range(steps):
            [work] = self.dice.choices(works, [8, 4, 2, 4, 2, 1])
            try:
                work()
            except PowerLost:
                self.files.crash()
                self.boot()
        self.files.heal()
        self.files.capacity_bytes = None
        self.check()


@pytest.mark.grows
@pytest.mark.parametrize("block", range(4))
def test_what_was_synced_reads_as_it_was_written(block: int) -> None:
    for seed in range(block * HISTORIES, (block + 1) * HISTORIES):
        try:
            Model(seed).run(50)
        except BaseException as error:
            error.add_note(f"history {seed}")
            raise
