"""Whatever bytes of a ledger are damaged: batches are served where they were written, or named as damaged."""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danubius.ledger.config import LedgerConfig
from danubius.ledger.core.damage import DamagedRange
from danubius.ledger.entry import Chunk, Entry, LedgerRef
from danubius.ledger.memory import MemoryLedgerStore
from danubius.ledger.storage import LedgerStorage
from danubius.record.encode import encode
from danubius.record.header import stamp
from danubius.record.ledger_file import decode_rows
from danubius.record.scan import iter_batches
from danubius.sim.threads import SimThreads
from proving import sized

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.ledger.managed import ManagedLedger

REF = LedgerRef(1, 0)
Batches = list[list[bytes]]
Places = list[tuple[int, int]]


class World:
    """A store with one topic, and a process that reads it."""

    def __init__(self, store: MemoryLedgerStore) -> None:
        self.threads = SimThreads()
        self.posted: deque[Callable[[], None]] = deque()
        config = LedgerConfig(block_bytes=4096)
        self.storage = LedgerStorage(config, store, self.posted.append, None, self.threads)
        self.storage.start()

    def run(self) -> None:
        self.threads.turn()
        while self.posted:
            self.posted.popleft()()
            if not self.posted:
                self.threads.turn()

    def read(self, ledger: ManagedLedger, first: int, bytes_max: int) -> Any:
        got: list[Any] = []
        ledger.read(first, bytes_max, got.append)
        self.run()
        assert len(got) == 1
        return got[0]


def write(store: MemoryLedgerStore, batches: Batches) -> tuple[list[Any], Places]:
    """Store the batches; the topic's metas and where each batch lies in the file."""
    world = World(store)
    ledger = world.storage.open(1, 7, [], 0)
    places: Places = []
    position = 64
    for payloads in batches:
        batch = encode(payloads, publish_time_us=1)
        stamp(batch, ledger.end_offset, 7)
        end = ledger.end_offset + len(payloads)
        ledger.append(Entry(ledger.end_offset, end, memoryview(batch), 1))
        places.append((position, position + len(batch)))
        position += len(batch)
    metas = ledger.snapshot()
    done: list[Any] = []
    world.storage.flush(done.append)
    world.run()
    assert done == [None]
    return metas, places


class Wound(NamedTuple):
    """Bytes to be changed: in the stamped offset of some batch, or anywhere."""

    where: int
    mask: int
    length: int
    is_stamp: bool

    def place(self, places: Places) -> tuple[int, int]:
        if self.is_stamp:
            start = places[self.where % len(places)][0] + 8
            return start, start + 1
        start = 64 + self.where % (places[-1][1] - 64)
        return start, min(start + self.length, places[-1][1])


def inflict(data: bytearray, wounds: list[Wound], places: Places, *, is_cut: bool) -> None:
    for wound in wounds:
        start, stop = wound.place(places)
        for at in range(start, stop):
            data[at] ^= wound.mask
    if is_cut and wounds:
        del data[wounds[0].place(places)[0] :]


class State(enum.Enum):
    """What is left of a batch."""

    INTACT = enum.auto()
    RESTAMPED = enum.auto()
    """Its offset alone is wrong: it still tells how many records it has."""
    LEGIBLE = enum.auto()
    """Its header says, without proof, how many bytes and records it has."""
    LOST = enum.auto()

    @property
    def is_sound(self) -> bool:
        return self in {State.INTACT, State.RESTAMPED}


def state_of(before: bytes, after: bytes) -> State:
    if len(before) != len(after):
        return State.LOST
    if before[:8] + before[20:] == after[:8] + after[20:]:
        return State.INTACT if before[8:16] == after[8:16] else State.RESTAMPED
    # Magic and length, record count, stored length.
    told = (slice(0, 8), slice(28, 32), slice(84, 88))
    is_legible = all(before[field] == after[field] for field in told)
    return State.LEGIBLE if is_legible else State.LOST


def confirmed(states: list[State]) -> list[bool]:
    """Which batches have a witness, given all of a block, or of a ledger without its index.

    That is an end with only sound batches on the way to it; or both ends, if none is lost on the way.
    """
    is_covered = State.LOST not in states
    return [
        state is State.INTACT
        and (
            is_covered
            or all(before.is_sound for before in states[:number])
            or all(behind.is_sound for behind in states[number:])
        )
        for number, state in enumerate(states)
    ]


def split(places: Places, index: bytes | None) -> list[Places]:
    """The batches that lie between two known offsets: those of a block, and those that the index lacks."""
    blocks: list[Places] = []
    for row in decode_rows(index or b""):
        end = row.position + row.size
        blocks.append([place for place in places if place[0] < end])
        places = [place for place in places if place[0] >= end]
    return [*blocks, places]


def read_around_damage(world: World, metas: list[Any], bytes_max: int) -> dict[int, list[bytes]]:
    """What is still served, by offset; every answer is a chunk or the range to skip."""
    ledger = world.storage.open(1, 7, metas, metas[-1].end_offset)
    served: dict[int, list[bytes]] = {}
    first = 0
    while first < ledger.end_offset:
        result = world.read(ledger, first, bytes_max)
        assert isinstance(result, Chunk | DamagedRange), result
        assert result.first <= first < result.end
        if isinstance(result, Chunk):
            for buffer in result.buffers:
                for batch in iter_batches(buffer):
                    served[batch.base_offset] = batch.payloads()
        first = result.end
    return served


@pytest.mark.grows
@settings(max_examples=sized(120, 400))
@given(
    batches=st.lists(
        st.lists(st.sampled_from([b"", b"DNRB", b"x" * 90, b"y" * 1500]), min_size=1, max_size=4),
        min_size=1,
        max_size=25,
    ),
    wounds=st.lists(
        st.builds(
            Wound, st.integers(0, 2**32), st.integers(1, 255), st.integers(1, 200), st.booleans()
        ),
        max_size=4,
    ),
    is_index_lost=st.booleans(),
    is_cut=st.booleans(),
    bytes_max=st.sampled_from([1, 5000, 1 << 20]),
)
def test_damage_costs_the_batches_it_touches_and_those_without_a_witness(
    batches: Batches, wounds: list[Wound], is_index_lost: bool, is_cut: bool, bytes_max: int
) -> None:
    store = MemoryLedgerStore()
    metas, places = write(store, batches)
    before = bytes(store._data[REF])
    inflict(store._data[REF], wounds, places, is_cut=is_cut)
    after = bytes(store._data[REF])
    if is_index_lost:
        store._index.clear()
    index = None if is_index_lost else store.read_index(REF, 0, metas[-1].index_entries)
    wanted: list[bool] = []
    for block in split(places, index):
        wanted += confirmed([state_of(before[at:end], after[at:end]) for at, end in block])
    served = read_around_damage(World(store), metas, bytes_max)
    offset = 0
    for payloads, is_wanted in zip(batches, wanted, strict=True):
        if offset in served:
            assert served.pop(offset) == payloads
        else:
            assert not is_wanted, "a batch with a witness was lost"
        offset += len(payloads)
    assert served == {}, "a batch was served that was never written there"
