"""The journal of a broker without a disk, without threads: groups, order, failures, and what it says of itself."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

import pytest

from danubius.errors import BrokerReplaced, DataDirectoryDamaged, StorageFailed
from danubius.sim.threads import SimThreads
from danubius.tier.core.journal_object import PUTS_AT_ONCE
from danubius.tier.diskless_config import DisklessConfig
from danubius.tier.memory_objects import MemoryObjects
from danubius.tier.object_home import PREFIX, ObjectHome
from danubius.tier.object_journal import ObjectJournal
from faulty_objects import FaultyObjects

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.errors import DanubiusError

CONFIG = DisklessConfig(enabled=True, group_ms=100, group_bytes=64 * 1024, deadline_ms=1000)


class Owner:
    """Whoever uses the journal: appends, lets time pass, hears its reports."""

    def __init__(self, objects: FaultyObjects, process: int = 1) -> None:
        self.objects = objects
        self.now_ns = 1
        self.numbers = count()
        self.timers: list[tuple[int, int, Callable[[], None]]] = []
        self.posts: list[Callable[[], None]] = []
        self.threads = SimThreads()
        self.home = ObjectHome.open(objects, "broker-1", process, 10.0)
        self.journal = ObjectJournal(
            CONFIG,
            self.home.journal_objects,
            self.home.snapshots,
            self.home.author,
            self.home.found,
            self.call_later,
            spawn=self.threads,
            clock=self,
        )
        self.journal.on_replaced = self.on_replaced
        snapshot = self.home.snapshots.load_latest()
        position = snapshot.position if snapshot else 0
        self.recovered = [bytes(record.body) for record in self.journal.recover(position)]
        self.committed: list[object] = []
        self.failed: list[object] = []
        self.errors: list[DanubiusError] = []
        self.replaced: list[DanubiusError] = []
        self.journal.start(self.posts.append, self.on_committed, self.on_failed)

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_us(self) -> int:
        return self.now_ns // 1000

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        heapq.heappush(
            self.timers, (self.now_ns + int(delay_s * 1e9), next(self.numbers), callback)
        )

    def on_committed(self, tokens: list[object], end: int) -> None:
        assert end == self.journal.end_position
        self.committed += tokens

    def on_failed(self, tokens: list[object], error: DanubiusError) -> None:
        self.failed += tokens
        self.errors.append(error)

    def on_replaced(self, error: DanubiusError) -> None:
        self.replaced.append(error)

    def append(self, *tokens: str, size: int = 10) -> None:
        for token in tokens:
            self.journal.append(1, 7, token.encode().ljust(size, b"."), token, sync=True)

    def turn(self) -> None:
        """Let the threads and the loop do what they can now."""
        self.threads.turn(self.now_ns)
        while self.posts:
            self.posts.pop(0)()

    def after(self, milliseconds: int) -> None:
        self.now_ns += milliseconds * 1_000_000
        while self.timers and self.timers[0][0] <= self.now_ns:
            heapq.heappop(self.timers)[2]()
        self.turn()
        self.turn()

    def commit(self, *tokens: str) -> None:
        self.append(*tokens)
        self.after(100)
        assert self.committed[-len(tokens) :] == list(tokens)

    def journal_names(self) -> list[str]:
        return [info.name for info in self.objects.list(f"{PREFIX}journal/")]


def never(delay_s: float, callback: Callable[[], None]) -> None:
    """A loop that stands still."""


@pytest.fixture
def objects() -> FaultyObjects:
    return FaultyObjects(MemoryObjects())


@pytest.fixture
def owner(objects: FaultyObjects) -> Owner:
    return Owner(objects)


def test_appends_are_gathered_into_one_object(owner: Owner) -> None:
    puts = owner.objects.calls["put"]
    owner.append("a", "b")
    owner.after(99)
    assert owner.committed == []
    owner.append("c")
    owner.after(1)
    assert owner.committed == ["a", "b", "c"]
    assert owner.objects.calls["put"] == puts + 1
    assert owner.journal.counters.groups == 1
    assert Owner(owner.objects, 2).recovered == [b"a".ljust(10, b"."), b"b.........", b"c........."]


def test_a_large_group_does_not_wait(owner: Owner) -> None:
    owner.append("a", size=70_000)
    owner.turn()
    assert owner.committed == ["a"]


def test_no_more_than_a_few_puts_are_under_way_and_all_is_committed_in_order(owner: Owner) -> None:
    owner.append(*"abcdefgh", size=70_000)
    assert owner.journal.puts_under_way == PUTS_AT_ONCE
    first = owner.home.found.next_slot
    # The last one first: nothing is committed before those ahead of it are stored.
    for slot in reversed(range(first, first + PUTS_AT_ONCE)):
        assert owner.committed == []
        owner.threads.workers[slot % PUTS_AT_ONCE].turn(owner.now_ns)
        while owner.posts:
            owner.posts.pop(0)()
    assert owner.committed == list("abcd")
    owner.turn()
    assert owner.committed == list("abcdefgh")
    assert owner.journal.queued_bytes == 0


def test_a_store_that_fails_for_a_while_costs_nothing(owner: Owner) -> None:
    owner.append("a")
    owner.objects.go_down()
    owner.after(100)
    owner.after(500)
    owner.objects.come_up()
    owner.after(400)
    assert (owner.committed, owner.failed) == (["a"], [])


def test_past_the_deadline_everything_fails_and_then_never_happened(owner: Owner) -> None:
    owner.commit("before")
    owner.objects.keep_next_put_and_fail()
    owner.append("a")
    owner.after(100)
    owner.objects.go_down()
    owner.append("b")
    for _ in range(20):
        owner.after(100)
    assert owner.failed == ["a", "b"]
    assert isinstance(owner.errors[0], StorageFailed)
    owner.append("c")
    owner.after(100)
    owner.after(100)
    assert owner.failed[:3] == ["a", "b", "c"], "while it is down, so does what comes"
    owner.objects.come_up()
    owner.append("d")
    for _ in range(20):
        owner.after(100)
    assert owner.committed == ["before", "d"]
    assert owner.journal.fenced_again == 1
    assert owner.journal.author == (2, 1)
    # The object with "a" was stored, and is void.
    bodies = [body.rstrip(b".") for body in Owner(owner.objects, 2).recovered]
    assert bodies == [b"before", b"d"]


def test_a_replaced_broker_fails_what_it_has_says_so_and_takes_no_more(owner: Owner) -> None:
    owner.commit("a")
    newer = Owner(owner.objects, 2)
    owner.append("b")
    owner.after(100)
    assert owner.failed == ["b"]
    assert isinstance(owner.errors[0], BrokerReplaced)
    owner.append("c")
    owner.after(100)
    assert owner.failed == ["b", "c"]
    assert len(owner.replaced) == 1
    newer.commit("d")
    assert [body.rstrip(b".") for body in Owner(owner.objects, 3).recovered] == [b"a", b"d"]


def test_a_quiet_broker_hears_of_its_replacement_when_it_looks(owner: Owner) -> None:
    owner.journal.watch()
    owner.turn()
    assert owner.replaced == []
    Owner(owner.objects, 2)
    owner.journal.watch()
    owner.turn()
    assert len(owner.replaced) == 1


def test_one_that_slept_until_everything_of_its_time_was_trimmed_stores_nothing(
    owner: Owner,
) -> None:
    owner.commit("a")
    newer = Owner(owner.objects, 2)
    for token in "bcdef":
        newer.commit(token)
        position = newer.home.snapshots.save(newer.journal.end_position, b"")
        newer.journal.trim(position)
        newer.after(100)
    assert newer.journal.objects_live <= 3
    owner.append("x")
    owner.after(100)
    assert owner.committed == ["a"]
    assert owner.failed == ["x"]
    assert len(owner.replaced) == 1


def test_what_snapshots_make_needless_is_deleted_once_that_is_announced(owner: Owner) -> None:
    for token in "abcdef":
        owner.commit(token)
    owner.home.snapshots.save(owner.journal.end_position, b"1")
    owner.commit("g")
    before = owner.journal_names()
    position = owner.home.snapshots.save(owner.journal.end_position, b"2")
    owner.objects.fail_at(1, "put")
    owner.journal.trim(position)
    owner.turn()
    assert owner.journal_names() == before, "it was not announced"
    owner.after(200)
    owner.after(5000)
    owner.turn()
    fences = owner.home.found.next_slot
    assert owner.journal.objects_live == 2
    assert len(owner.journal_names()) == fences + 2, "fences stay"
    assert owner.journal.size_bytes < 200
    again = Owner(owner.objects, 2)
    assert again.recovered == []
    assert again.home.snapshots.load_latest() == (owner.journal.end_position, b"2")


def test_close_commits_what_was_appended(objects: FaultyObjects) -> None:
    home = ObjectHome.open(objects, "broker-1", 1, 10.0)
    journal = ObjectJournal(
        CONFIG, home.journal_objects, home.snapshots, home.author, home.found, never
    )
    assert list(journal.recover(0)) == []
    committed: list[object] = []
    failed: list[object] = []
    journal.start(
        lambda _: None,
        lambda tokens, _: committed.extend(tokens),
        lambda tokens, _: failed.extend(tokens),
    )
    for number in range(40):
        journal.append(1, 7, bytes(30_000), number, sync=True)
    journal.close()
    assert committed == list(range(40))
    journal.append(1, 7, b"late", "late", sync=True)
    assert "late" not in committed


def test_a_journal_that_ends_before_its_snapshot_is_damage(owner: Owner) -> None:
    owner.commit("a")
    newer = ObjectHome.open(owner.objects, "broker-1", 2, 10.0)
    journal = ObjectJournal(
        CONFIG, newer.journal_objects, newer.snapshots, newer.author, newer.found, owner.call_later
    )
    with pytest.raises(DataDirectoryDamaged, match="a snapshot expects it at 5000"):
        list(journal.recover(5000))
