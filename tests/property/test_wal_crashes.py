"""The journal against a list, on a disk that tears writes, loses syncs, fills and loses power.

What holds after any of it: everything reported synced is recovered, in order, exactly once; what
was only written survives the death of the process; no byte is recovered that was not appended.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from danubius.errors import StorageFailed, StorageFull
from danubius.sim.disk import PowerLost, SimFiles
from danubius.sim.threads import SimThreads
from danubius.wal.config import JournalConfig
from danubius.wal.journal import Journal
from proving import sized

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.errors import DanubiusError

DIRECTORY = Path("/data/journal")
CONFIG = JournalConfig(
    file_bytes=16384,
    files_max=6,
    group_bytes_max=4096,
    fill_bytes=4096,
    sync_interval_ms=10,
)
SIZES = (0, 1, 7, 8, 100, 500, 513, 2000, 5000, 12000, 20000)


def body_of(number: int, size: int) -> bytes:
    """A body that names its record and cannot be mistaken for another's."""
    head = f"{number}:{size}:".encode()
    stream = hashlib.shake_128(head).digest(size)
    return head + stream


class World:
    """A journal, the disk under it, and what its owner was told."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.files = SimFiles(seed=seed)
        self.next_number = 0
        self.sizes: dict[int, int] = {}
        self.committed: list[int] = []
        self.ends: dict[int, int] = {}
        self.durable_count = 0
        self.wants_sync: set[int] = set()
        self.reported: set[int] = set()
        self.from_position = 0
        self.now_ns = 0
        self.boot()

    # ---------------------------------------------------------------- life

    def boot(self) -> None:
        self.threads = SimThreads()
        self.journal = Journal(CONFIG, self.files, DIRECTORY, spawn=self.threads, clock=self)
        self.check_recovered()
        self.posts: list[Callable[[], None]] = []
        self.journal.start(self.posts.append, self.on_committed, self.on_failed)

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_us(self) -> int:
        return self.now_ns // 1000

    def check_recovered(self) -> None:
        position = None
        numbers: list[int] = []
        ends: dict[int, int] = {}
        for record in self.journal.recover(self.from_position):
            assert position is None or record.position == position, "positions have no gaps"
            position = record.end_position
            number = int(bytes(record.body).split(b":", 1)[0])
            assert bytes(record.body) == body_of(number, self.sizes[number])
            assert (record.kind, record.topic_id) == (number % 256, number * 7)
            assert self.ends.get(number, position) == position
            numbers.append(number)
            ends[number] = position
        expected = [n for n in self.committed if self.ends_behind(n)]
        durable = [n for n in self.committed[: self.durable_count] if self.ends_behind(n)]
        assert numbers == sorted(set(numbers)), "in order, exactly once"
        common = numbers[: len(expected)]
        assert common == expected[: len(common)], "what was reported comes first"
        assert len(common) >= len(durable), "nothing durable is lost"
        if len(numbers) > len(expected):
            assert not set(numbers[len(expected) :]) & self.reported
        self.committed = [n for n in self.committed if not self.ends_behind(n)] + numbers
        self.durable_count = len(self.committed)
        self.reported.update(numbers)
        self.ends.update(ends)

    def ends_behind(self, number: int) -> bool:
        """Whether recovery must show it; ends are known for the last of each report only."""
        index = self.committed.index(number)
        for later in self.committed[index:]:
            if later in self.ends:
                return self.ends[later] > self.from_position
        return True

    # ---------------------------------------------------------------- reports

    def on_committed(self, tokens: list[object], end: int) -> None:
        numbers = [token for token in tokens if isinstance(token, int)]
        assert numbers == sorted(numbers)
        assert not self.reported & set(numbers), "a record is reported once"
        self.committed += numbers
        self.reported.update(numbers)
        if numbers:
            self.ends[numbers[-1]] = end
        if self.wants_sync & set(numbers):
            self.durable_count = len(self.committed)

    def on_failed(self, tokens: list[object], error: DanubiusError) -> None:
        assert isinstance(error, StorageFull | StorageFailed)
        numbers = {token for token in tokens if isinstance(token, int)}
        assert not self.reported & numbers, "a record is reported once"
        # Failed records may still be found if nothing was committed behind them.

    # ---------------------------------------------------------------- steps

    def append(self) -> None:
        number = self.next_number
        self.next_number += 1
        self.sizes[number] = self.dice.choice(SIZES)
        is_sync = self.dice.random() < 0.4
        if is_sync:
            self.wants_sync.add(number)
        body = body_of(number, self.sizes[number])
        cut = self.dice.randint(0, len(body))
        parts = body if self.dice.random() < 0.5 else [body[:cut], memoryview(body)[cut:]]
        self.journal.append(number % 256, number * 7, parts, number, sync=is_sync)

    def turn(self) -> None:
        self.now_ns += self.dice.choice([0, 1_000_000, 20_000_000, 200_000_000])
        self.threads.turn(self.now_ns)
        if self.dice.random() < 0.8:
            self.deliver()

    def deliver(self) -> None:
        posts, self.posts[:] = list(self.posts), []
        for post in posts:
            post()

    def trim(self) -> None:
        self.from_position = self.journal.end_position
        self.journal.trim(self.from_position)

    def fault(self) -> None:
        operation = self.dice.choice(["write", "sync", "open", "rename", "sync_dir", "read"])
        error = self.dice.choice([StorageFull, StorageFailed])
        after = self.dice.randint(0, 3)
        self.files.fail(operation, after=after, times=self.dice.choice([1, 1, 3]), error=error)

    def fill_disk(self) -> None:
        self.files.capacity_bytes = self.files.used_bytes() + self.dice.choice([0, 100, 5000])

    def free_disk(self) -> None:
        self.files.capacity_bytes = None

    def power_off(self) -> None:
        """The reports that were on their way to the loop die with it."""
        self.files.heal()
        self.free_disk()
        self.files.crash(self.dice.randrange(2**32))
        self.forget_undelivered()
        self.boot()

    def kill(self) -> None:
        self.files.heal()
        self.files.kill()
        self.durable_count = len(self.committed)
        self.free_disk()
        self.boot()

    def power_off_inside(self) -> None:
        for _ in range(self.dice.randint(1, 6)):
            self.append()
        self.files.lose_power_after(self.dice.randint(0, 5))
        with contextlib.suppress(PowerLost):
            self.turn()
        self.power_off()

    def forget_undelivered(self) -> None:
        self.posts.clear()

    def restart(self) -> None:
        self.files.heal()
        self.free_disk()
        self.journal.close()
        self.durable_count = len(self.committed)
        self.boot()


STEPS = {
    "append": 10,
    "turn": 8,
    "trim": 2,
    "fault": 2,
    "fill_disk": 1,
    "free_disk": 2,
    "power_off": 1,
    "power_off_inside": 2,
    "kill": 1,
    "restart": 1,
}


def live(seed: int, steps: list[str]) -> None:
    world = World(seed)
    for step in steps:
        getattr(world, step)()
    world.kill()
    # It goes on by itself: with the disk well again, the next records are committed.
    world.trim()
    world.append()
    number = world.next_number - 1
    for _ in range(2):
        world.threads.turn(world.now_ns)
        world.deliver()
    assert number in world.reported
    world.power_off()


@pytest.mark.grows
@given(
    seed=st.integers(0, 2**32),
    steps=st.lists(
        st.sampled_from([name for name, weight in STEPS.items() for _ in range(weight)]),
        max_size=60,
    ),
)
@settings(max_examples=sized(80, 300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_committed_is_lost_and_nothing_else_is_found(seed: int, steps: list[str]) -> None:
    live(seed, steps)


@pytest.mark.grows
@pytest.mark.parametrize("seed", range(sized(50, 150)))
def test_long_lives_keep_every_promise(seed: int) -> None:
    dice = random.Random(seed)
    live(seed, dice.choices(list(STEPS), weights=list(STEPS.values()), k=300))
