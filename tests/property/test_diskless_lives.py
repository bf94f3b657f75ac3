"""Journals of brokers without a disk against a list: starts that overtake each other, on a store that fails.

Puts are lost, or their answers are, or they arrive long after everybody has given them up; brokers are killed, go on
without knowing that they were replaced, and start at the same time, one call of the store at a time in any order. What
holds after any of it: everything that was reported committed, by whoever, is found by every later start, in order and
once; what was reported failed is not found once its writer has committed anything else; what one start found, all later
ones find.
"""

from __future__ import annotations

import heapq
import json
import random
from itertools import count
from typing import TYPE_CHECKING, Final

import pytest

from danubius.errors import BrokerReplaced, DanubiusError, DataDirectoryDamaged, StorageFailed
from danubius.sim.threads import SimThreads
from danubius.tier.core.fencing import ListEpochs, take_epoch, take_over
from danubius.tier.diskless_config import DisklessConfig
from danubius.tier.journal_objects import JournalObjects
from danubius.tier.memory_objects import MemoryObjects
from danubius.tier.object_journal import ObjectJournal
from danubius.tier.object_snapshots import ObjectSnapshots
from proving import sized

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from danubius.model.buffers import Buffer
    from danubius.tier.core.fencing import Answer, Call
    from danubius.tier.core.journal_object import Author, Walk

SEEDS: Final = sized(150, 3000)
STEPS: Final = 400
CONFIG: Final = DisklessConfig(group_ms=100, group_bytes=64 * 1024, deadline_ms=300)
PREFIX: Final = "p/"


class SimClock:
    def __init__(self) -> None:
        self.now_ns = 1

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_us(self) -> int:
        return self.now_ns // 1000


class LateObjects(MemoryObjects):
    """Fails as the dice say; a put that failed may arrive later, once or never."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.dice = dice
        self.trouble = 0.0
        self.late: list[tuple[str, bytes]] = []

    def _enter(self) -> None:
        if self.dice.random() < self.trouble / 2:
            raise StorageFailed("the store does not answer (this is a test)")

    def put(self, name: str, parts: Iterable[Buffer], *, replace: bool = False) -> bool:
        data = b"".join(parts)
        if self.dice.random() < self.trouble:
            match self.dice.choice(["kept", "late", "none", "twice"]):
                case "kept":
                    super().put(name, [data], replace=replace)
                case "twice":
                    super().put(name, [data], replace=replace)
                    self.late.append((name, data))
                case "late" if not replace:
                    self.late.append((name, data))
                case _:
                    pass
            raise StorageFailed("no answer (this is a test)")
        return super().put(name, [data], replace=replace)

    def arrive(self) -> None:
        if self.late:
            name, data = self.late.pop(self.dice.randrange(len(self.late)))
            super().put(name, [data])

    def get(self, name: str, at: int, count: int) -> bytes:
        self._enter()
        return super().get(name, at, count)

    def delete(self, name: str) -> None:
        self._enter()
        super().delete(name)


class Starting:
    """A start, a call of the store at a time."""

    def __init__(self, world: World, process: int) -> None:
        self.process = process
        self.objects = JournalObjects(world.store, PREFIX, world.clock, reads_at_once=1)
        self.author: Author | None = None
        self.found: Walk | None = None
        self._steps: Generator[Call, Answer, object] = take_epoch(process)
        self._answer: Answer | None = None

    def step(self) -> bool:
        """Whether it is done; raises what ends it."""
        try:
            call = next(self._steps) if self._answer is None else self._steps.send(self._answer)
        except StopIteration as stop:
            self._answer = None
            if self.author is None:
                self.author = stop.value
                assert self.author is not None
                self._steps = take_over(self.author)
                return False
            self.found = stop.value
            return True
        self._answer = self.objects.answer(call)
        return False


class Life:
    """A broker that has come through its start, as far as the journal goes."""

    def __init__(self, world: World, start: Starting) -> None:
        assert start.author is not None
        assert start.found is not None
        self.world = world
        self.author = start.author
        self.threads = SimThreads()
        self.posts: list[Callable[[], None]] = []
        self.timers: list[tuple[int, int, Callable[[], None]]] = []
        self.snapshots = ObjectSnapshots(world.store, PREFIX, self.author.epoch, start.found.kept)
        self.journal = ObjectJournal(
            CONFIG,
            start.objects,
            self.snapshots,
            self.author,
            start.found,
            self.call_later,
            spawn=self.threads,
            clock=world.clock,
        )
        self.journal.on_replaced = self.replaced
        self.is_over = False
        self.doubtful: set[int] = set()
        """Reported failed, with nothing committed since."""
        self.state = self.recover()
        self.found = list(self.state)
        self.journal.start(self.posts.append, self.on_committed, self.on_failed)

    def recover(self) -> list[int]:
        position, state = 0, list[int]()
        snapshot = self.snapshots.load_latest()
        if snapshot is not None:
            position, state = snapshot.position, json.loads(snapshot.data)
        end = position
        for record in self.journal.recover(position):
            assert record.position == end, "positions have no gaps"
            end = record.end_position
            number = int(bytes(record.body[:8]))
            assert bytes(record.body) == body_of(number)
            assert (record.kind, record.topic_id) == (number % 200, number * 7)
            state.append(number)
        assert self.journal.end_position == end
        return state

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        when = self.world.clock.now_ns + int(delay_s * 1e9)
        heapq.heappush(self.timers, (when, next(self.world.numbers), callback))

    def replaced(self, error: DanubiusError) -> None:
        self.is_over = True

    def append(self) -> None:
        number = next(self.world.numbers)
        self.journal.append(number % 200, number * 7, body_of(number), number, sync=True)

    def on_committed(self, tokens: list[object], end: int) -> None:
        numbers = [token for token in tokens if isinstance(token, int)]
        assert end == self.journal.end_position
        self.world.committed(self, numbers)
        self.state += numbers
        self.world.dead |= self.doubtful
        self.doubtful.clear()

    def on_failed(self, tokens: list[object], error: DanubiusError) -> None:
        numbers = {token for token in tokens if isinstance(token, int)}
        assert not numbers & self.world.reported, "a record is reported once"
        self.world.reported |= numbers
        self.doubtful |= numbers

    def turn(self) -> None:
        dice = self.world.dice
        worker = dice.choice(self.threads.workers)
        worker.turn(self.world.clock.now_ns)
        if dice.random() < 0.7:
            self.deliver()

    def deliver(self) -> None:
        posts, self.posts[:] = list(self.posts), []
        for post in posts:
            post()

    def tick(self) -> None:
        while self.timers and self.timers[0][0] <= self.world.clock.now_ns:
            heapq.heappop(self.timers)[2]()

    def checkpoint(self) -> None:
        try:
            is_sole = self.world.dice.random() < 0.2
            data = json.dumps(self.state).encode()
            position = self.snapshots.save(self.journal.end_position, data, is_sole=is_sole)
        except StorageFailed:
            return
        self.journal.trim(position)


class World:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.kills_often = self.dice.choice([0.0, 0.002, 0.02])
        """How often a broker is killed."""
        self.starts_often = self.dice.choice([0.0, 0.002, 0.01, 0.05])
        self.patience = self.dice.choice([0.0, 0.9, 0.99])
        """How often it is the same one's turn again."""
        self.troubles = self.dice.choice([[0.0], [0.0, 0.0, 0.1, 0.4, 0.9], [0.0, 1.0]])
        self.actor: Life | Starting | None = None
        self.clock = SimClock()
        self.store = LateObjects(self.dice)
        self.numbers = count(1)
        self.lives: list[Life] = []
        self.starts: list[Starting] = []
        self.begun: list[Life] = []
        """All lives that there were, in order of their epochs."""
        self.acknowledged: dict[int, int] = {}
        """By whom."""
        self.reported: set[int] = set()
        self.dead: set[int] = set()
        """Failed, and never to be found."""

    def committed(self, life: Life, numbers: list[int]) -> None:
        assert not set(numbers) & self.reported, "a record is reported once"
        self.reported |= set(numbers)
        self.acknowledged |= dict.fromkeys(numbers, life.journal.author.epoch)
        for later in self.begun:
            if later.author.epoch > life.journal.author.epoch:
                assert set(numbers) <= set(later.found), "a later start did not find it"

    def begin(self, start: Starting) -> None:
        life = Life(self, start)
        state = life.state
        assert len(state) == len(set(state)), "exactly once"
        epoch = life.author.epoch
        # A start that is overtaken between its last call and here does not know it yet.
        owed = {number for number, by in self.acknowledged.items() if by < epoch}
        assert owed <= set(state), "nothing acknowledged is lost"
        assert not self.dead & set(state), "what failed does not come back"
        for other in self.begun:
            if other.author.epoch < epoch:
                assert state[: len(other.state)] == other.state, "in the order of who came before"
            else:
                assert other.found[: len(state)] == state, "in the order of who came before"
        self.begun.append(life)
        self.lives.append(life)

    def step(self) -> None:
        dice = self.dice
        self.clock.now_ns += dice.choice([0, 1_000_000, 20_000_000, 120_000_000, 700_000_000])
        roll = dice.random()
        if roll < 0.03:
            self.store.trouble = dice.choice(self.troubles)
        elif roll < 0.08:
            self.store.arrive()
        elif len(self.starts) < 3 and (dice.random() < self.starts_often or not self.lives):
            self.starts.append(Starting(self, dice.getrandbits(63) | 1))
        actors = [*self.lives, *self.starts]
        if self.actor not in actors or dice.random() > self.patience:
            # The others sleep meanwhile, and may wake up much later in the middle of what they did.
            self.actor = dice.choice(actors) if actors else None
        if isinstance(self.actor, Starting):
            self.step_start(self.actor)
        elif self.actor is not None:
            self.step_life(self.actor)

    def step_start(self, start: Starting) -> None:
        if self.dice.random() < 0.01:
            self.starts.remove(start)  # killed
            return
        try:
            if start.step():
                self.begin(start)
                self.starts.remove(start)
        except (StorageFailed, BrokerReplaced):
            self.starts.remove(start)
        except DataDirectoryDamaged:
            # Overtaken while it read what it had found: a later start needs that no more, and has deleted it.
            assert start.author is not None
            assert start.found is not None
            assert max(start.objects.answer(ListEpochs()).numbers) > start.author.epoch
            self.starts.remove(start)

    def step_life(self, life: Life) -> None:
        roll = self.dice.random()
        life.tick()
        if roll < 0.35:
            life.append()
        elif roll < 0.8:
            life.turn()
        elif roll < 0.88:
            life.checkpoint()
        elif roll < 0.92:
            life.journal.watch()
        elif roll < 0.92 + self.kills_often or life.is_over:
            self.lives.remove(life)  # killed
        else:
            life.deliver()

    def finish(self) -> None:
        """A last start, without trouble: everything is there, and goes on."""
        self.store.trouble = 0.0
        start = Starting(self, self.dice.getrandbits(63) | 1)
        while not start.step():
            pass
        self.begin(start)
        life = self.lives[-1]
        for _ in range(3):
            life.append()
        while life.journal.queued_bytes:
            self.clock.now_ns += 200_000_000
            life.tick()
            life.threads.turn(self.clock.now_ns)
            life.deliver()
        assert life.journal.replaced is None


def body_of(number: int) -> bytes:
    return b"%08d" % number + b"x" * (number * 7919 % 3000)


@pytest.mark.grows
def test_starts_failures_and_late_puts_lose_and_revive_nothing() -> None:
    overtaken = healed = late_starts = 0
    for seed in range(SEEDS):
        world = World(seed)
        try:
            for _ in range(STEPS):
                world.step()
            world.finish()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        overtaken += sum(life.journal.replaced is not None for life in world.begun)
        healed += sum(life.journal.fenced_again for life in world.begun)
        late_starts += len(world.begun)
    # Otherwise the dice have shown nothing.
    assert overtaken > SEEDS // 4
    assert healed > SEEDS // 20
    assert late_starts > SEEDS
