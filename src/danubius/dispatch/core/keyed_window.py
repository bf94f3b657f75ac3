"""The window of a Key-Shared subscription: every open message by itself, grouped by its key's hash.

An open message is *flying* (delivered, not acknowledged) or *held* (read, not delivered). All flying
messages of a key are at one consumer, its *holder*. Order per key follows from three rules:

1. held messages of a key go out in the order of their offsets, new ones behind them;
2. a key goes to the consumer that the ring names, its *owner*, and while messages are flying at
   another holder, to nobody: a key that moved waits until its old holder has none left;
3. a key with a message that was given back with a delay waits for the end of the delay.

A key that has to wait never stops the others: they are read and delivered beyond it, until
`held_max` messages are held. Held messages are read again when they may go; only offsets are kept.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from danubius.ack.core.ranges import RangeSet, merge_ranges
from danubius.dispatch.core.load import Load
from danubius.dispatch.core.window import Chunk, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from danubius.ack.core.cursor import Cursor
    from danubius.ack.core.in_flight import Flight
    from danubius.ack.core.ranges import Range
    from danubius.dispatch.core.consumers import Consumer
    from danubius.dispatch.core.effects import Deliver
    from danubius.dispatch.core.selectors import KeySelector

_SLACK: Final = 64
"""Stale heap entries that are cheaper to keep than to look for."""


class _Key:
    """One key with open messages."""

    __slots__ = ("due_ns", "flying", "held", "holder", "key_hash", "owner")

    def __init__(self, key_hash: int, owner: Consumer) -> None:
        self.key_hash = key_hash
        self.owner = owner
        """Whom the ring names; out of date only while nobody is there."""
        self.holder: int | None = None
        """The consumer that has all the flying messages; None if and only if there are none."""
        self.flying = 0
        self.held: deque[int] = deque()
        """Offsets, rising."""
        self.due_ns = 0
        """The key waits until then; 0 if it does not."""


class KeyedWindow:
    """See the module. With `auto_ack` nothing ever flies, but messages may be held."""

    __slots__ = (
        "_attempts",
        "_auto_ack",
        "_cursor",
        "_delays",
        "_due_ns",
        "_flying",
        "_flying_count",
        "_held_max",
        "_keys",
        "_next",
        "_open",
        "_ready",
        "_selector",
    )

    def __init__(
        self, cursor: Cursor, selector: KeySelector, *, auto_ack: bool, held_max: int
    ) -> None:
        self._cursor = cursor
        self._selector = selector
        self._auto_ack = auto_ack
        self._held_max = held_max
        self._next = cursor.floor
        self._keys: dict[int, _Key] = {}
        self._open: dict[int, _Key] = {}
        self._flying: dict[int, dict[int, Flight]] = {}
        """Per consumer, in the order of delivery: with one timeout each, also of deadlines."""
        self._flying_count = 0
        self._attempts: dict[int, int] = {}
        """Of held messages that were delivered before."""
        self._ready: dict[int, list[tuple[int, int]]] = {}
        """Per consumer, a heap of (offset, hash) of the first held message of keys that may go.

        It may hold entries that are no longer true, but misses none that is.
        """
        self._delays: list[tuple[int, int]] = []
        """Heap of (due_ns, hash), with entries that are no longer true."""
        self._due_ns: dict[int, int] = {}
        """Per consumer with an ack timeout and flying messages: nothing is overdue before."""

    @property
    def open_messages(self) -> int:
        return len(self._open)

    @property
    def in_flight(self) -> int:
        return self._flying_count

    def in_flight_of(self, consumer_id: int) -> int:
        return len(self._flying.get(consumer_id, ()))

    @property
    def next_due_ns(self) -> int | None:
        due_ns = min(self._due_ns.values(), default=None)
        if self._delays and (due_ns is None or self._delays[0][0] < due_ns):
            return self._delays[0][0]
        return due_ns

    def wanted(self, end: int, *, may_open: bool) -> Wanted | None:
        heads = [
            self._first_ready(one.consumer_id) for one in self._selector.active() if one.has_room
        ]
        first = min((one for one in heads if one is not None), default=None)
        held = len(self._open) - self._flying_count
        if first is not None:
            return Wanted(first, self._next, min(held, self._next - first), is_new=False)
        self._next = self._cursor.next_unacked(self._next)
        if not may_open or held >= self._held_max or self._next >= end:
            return None
        return Wanted(self._next, end, end - self._next, is_new=True)

    def take(self, chunk: Chunk, now_ns: int, *, open_max: int) -> list[Deliver]:
        load = Load(self._selector.active(), now_ns)
        self._take_held(chunk, load)
        if chunk.key_hashes is not None:
            self._take_new(chunk, load, open_max)
        deliveries = load.deliveries()
        if self._auto_ack:
            for one in deliveries:
                runs = ((one.first, one.end),) if one.offsets is None else _runs_of(one.offsets)
                self._cursor.ack(runs)
        return deliveries

    def forget(self, acked: Sequence[Range]) -> None:
        # Once a message: what most of them need is spelled out here, which halves the cost.
        forget, keys, flying = self._open.pop, self._keys, self._flying
        landed = 0
        for first, end in acked:
            for offset in range(first, min(end, self._next)):
                key = forget(offset, None)
                if key is None:
                    continue
                holder = key.holder
                if holder is None or flying[holder].pop(offset, None) is None:
                    key.held.remove(offset)
                    self._attempts.pop(offset, None)
                else:
                    landed += 1
                    key.flying -= 1
                    if not key.flying:
                        key.holder = None
                if key.held:
                    self._offer(key)
                    continue
                key.due_ns = 0
                if not key.flying:
                    del keys[key.key_hash]
        self._flying_count -= landed

    def give_back(self, consumer_id: int) -> None:
        flights = self._flying.get(consumer_id, {})
        self._land(consumer_id, list(flights))
        self._flying.pop(consumer_id, None)
        self._due_ns.pop(consumer_id, None)

    def nack(self, consumer_id: int, ranges: Sequence[Range], due_ns: int, now_ns: int) -> None:
        flights = self._flying.get(consumer_id)
        if not flights:
            return
        merged = merge_ranges(ranges)
        if sum(end - first for first, end in merged) > len(flights):
            wanted = RangeSet(merged)
            returned = [offset for offset in flights if offset in wanted]
        else:
            returned = [
                offset for first, end in merged for offset in range(first, end) if offset in flights
            ]
        for key in self._land(consumer_id, returned):
            if due_ns > now_ns:
                key.due_ns = max(key.due_ns, due_ns)
                heappush(self._delays, (key.due_ns, key.key_hash))
            self._offer(key)
        if len(self._delays) > 2 * len(self._keys) + _SLACK:
            self._delays = [(one.due_ns, one.key_hash) for one in self._keys.values() if one.due_ns]
            heapify(self._delays)

    def expire(self, now_ns: int) -> None:
        for consumer_id, due_ns in list(self._due_ns.items()):
            if due_ns <= now_ns:
                self._expire(consumer_id, now_ns)
        while self._delays and self._delays[0][0] <= now_ns:
            key = self._keys.get(heappop(self._delays)[1])
            if key is not None and key.due_ns and key.due_ns <= now_ns:
                key.due_ns = 0
                self._offer(key)

    def rebalance(self) -> None:
        self._ready = {one.consumer_id: [] for one in self._selector.active()}
        if self._ready:
            for key in self._keys.values():
                key.owner = self._selector.owner_of(key.key_hash)
                self._offer(key)

    def check(self, end: int) -> None:
        assert self._next <= end, "taken beyond the log"
        unacked = {
            offset
            for first, last in self._cursor.unacked(0, self._next)
            for offset in range(first, last)
        }
        assert unacked == self._open.keys(), "a message is nowhere, or acknowledged and open"
        flying = {offset: cid for cid, flights in self._flying.items() for offset in flights}
        assert len(flying) == self._flying_count == sum(map(len, self._flying.values()))
        assert not (self._auto_ack and flying), "auto-ack leaves nothing in flight"
        held = {offset for key in self._keys.values() for offset in key.held}
        assert held.isdisjoint(flying)
        assert held | flying.keys() == unacked, "an open message is neither held nor flying"
        assert self._attempts.keys() <= held, "attempts of a message that is not held"
        for key in self._keys.values():
            self._check_key(key, flying)

    def _check_key(self, key: _Key, flying: dict[int, int]) -> None:
        assert key.held or key.flying, "a key without open messages"
        assert sorted(set(key.held)) == list(key.held), "held messages are out of order"
        mine = [offset for offset in flying if self._open[offset] is key]
        assert len(mine) == key.flying
        assert (key.holder is None) == (key.flying == 0)
        assert all(flying[offset] == key.holder for offset in mine), "a key flies at two consumers"
        assert not key.due_ns or key.held, "a key waits for nothing"
        if self._ready:
            assert key.owner is self._selector.owner_of(key.key_hash)
        if self._may_go(key):
            assert (key.held[0], key.key_hash) in self._ready[key.owner.consumer_id]

    # ------------------------------------------------------------ out

    def _take_held(self, chunk: Chunk, load: Load) -> None:
        for consumer in list(load.able.values()):
            heap = self._ready[consumer.consumer_id]
            below: list[tuple[int, int]] = []
            while consumer.messages:
                offset = self._first_ready(consumer.consumer_id)
                if offset is None or offset >= chunk.end:
                    break
                entry = heappop(heap)
                if offset < chunk.first:  # became ready during the read; it needs one of its own
                    below.append(entry)
                    continue
                key = self._keys[entry[1]]
                key.held.popleft()
                self._fly(key, offset, load, consumer)
                self._tidy(key)
            for entry in below:
                heappush(heap, entry)

    def _take_new(self, chunk: Chunk, load: Load, open_max: int) -> None:
        hashes = chunk.key_hashes
        assert hashes is not None
        start = self._cursor.next_unacked(self._next)
        if not chunk.first <= start < chunk.end:
            return
        for first, end in self._cursor.unacked(start, chunk.end):
            at = first
            while at < end:
                # Each message takes one place at the most, so the bounds are looked at once for many.
                stop = min(end, at + self._room(open_max))
                if at < stop:
                    stop = self._admit(hashes, chunk.first, range(at, stop), load)
                if at == stop:
                    self._next = at
                    return
                at = stop
        self._next = chunk.end

    def _room(self, open_max: int) -> int:
        """How many more messages may be opened, and held, in any case."""
        messages = len(self._open)
        held = messages - self._flying_count
        return max(0, min(open_max - messages, self._held_max - held))

    def _admit(self, hashes: Sequence[int], base: int, offsets: range, load: Load) -> int:
        """Deliver new messages, or hold them, while anyone has room; returns where that ended."""
        # Once a message: what most of them need is spelled out here, which halves the cost.
        keys, opened, lanes = self._keys, self._open, load.open_lanes()
        keeps, stop = not self._auto_ack, offsets.stop
        for offset in offsets:
            if not lanes:
                stop = offset
                break
            key_hash = hashes[offset - base]
            key = keys.get(key_hash)
            if key is None:
                key = keys[key_hash] = _Key(key_hash, self._selector.owner_of(key_hash))
            owner_id = key.owner.consumer_id
            is_free = not key.held and (key.holder is None or key.holder == owner_id)
            lane = lanes.get(owner_id) if is_free else None
            if lane is None:
                opened[offset] = key
                key.held.append(offset)
                if is_free:
                    self._offer(key)
                continue
            lane.offsets.append(offset)
            if keeps:
                opened[offset] = key
                key.holder = owner_id
                key.flying += 1
            elif not key.held:
                del keys[key_hash]
            lane.room -= 1
            if not lane.room:
                del lanes[owner_id]
        self._flew(load)
        return stop

    def _flew(self, load: Load) -> None:
        for lane in load.close_lanes():
            if self._auto_ack:
                continue
            offsets, flight = lane.offsets, lane.flight
            self._flying_count += len(offsets)
            self._flying.setdefault(flight.consumer_id, {}).update(dict.fromkeys(offsets, flight))
            if flight.due_ns:
                self._due_ns.setdefault(flight.consumer_id, flight.due_ns)

    def _fly(self, key: _Key, offset: int, load: Load, consumer: Consumer) -> None:
        """Deliver a message that was held."""
        flight = load.add(consumer, offset, self._attempts.pop(offset, 0))
        if self._auto_ack:
            self._open.pop(offset, None)
            return
        key.holder = consumer.consumer_id
        key.flying += 1
        self._flying_count += 1
        self._flying.setdefault(consumer.consumer_id, {})[offset] = flight
        if flight.due_ns:
            self._due_ns.setdefault(consumer.consumer_id, flight.due_ns)

    # ------------------------------------------------------------ back

    def _land(self, consumer_id: int, offsets: list[int]) -> Iterable[_Key]:
        """Messages come back undone: they are held again, one attempt older. Offers nothing."""
        flights = self._flying.get(consumer_id, {})
        returned: dict[_Key, list[int]] = {}
        for offset in offsets:
            self._attempts[offset] = flights.pop(offset).attempts + 1
            key = self._open[offset]
            self._landed(key)
            returned.setdefault(key, []).append(offset)
        for key, ones in returned.items():
            key.held = deque(sorted([*ones, *key.held]))
        return returned.keys()

    def _landed(self, key: _Key) -> None:
        self._flying_count -= 1
        key.flying -= 1
        if not key.flying:
            key.holder = None

    def _expire(self, consumer_id: int, now_ns: int) -> None:
        overdue: list[int] = []
        next_ns = 0
        for offset, flight in self._flying[consumer_id].items():
            if flight.due_ns > now_ns:
                next_ns = flight.due_ns
                break
            overdue.append(offset)
        if next_ns:
            self._due_ns[consumer_id] = next_ns
        else:
            del self._due_ns[consumer_id]
        for key in self._land(consumer_id, overdue):
            self._offer(key)

    # ------------------------------------------------------------ which keys may go

    def _tidy(self, key: _Key) -> None:
        """A message of the key went: forget the key if it was the last, else see what may go."""
        if key.held:
            self._offer(key)
            return
        key.due_ns = 0
        if not key.flying:
            del self._keys[key.key_hash]

    def _may_go(self, key: _Key) -> bool:
        if not key.held or key.due_ns or not self._ready:
            return False
        return key.holder is None or key.holder == key.owner.consumer_id

    def _offer(self, key: _Key) -> None:
        """Let the key's owner know of it, if it may go."""
        if not self._may_go(key):
            return
        heap = self._ready[key.owner.consumer_id]
        heappush(heap, (key.held[0], key.key_hash))
        if len(heap) > 2 * len(self._keys) + _SLACK:
            heap[:] = sorted(set(filter(self._is_true, heap)))

    def _first_ready(self, consumer_id: int) -> int | None:
        """The lowest offset that may go to this consumer; drops entries that are no longer true."""
        heap = self._ready[consumer_id]
        while heap and not self._is_true(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def _is_true(self, entry: tuple[int, int]) -> bool:
        # The heaps are built anew when owners change, so the entry's consumer is the owner.
        key = self._keys.get(entry[1])
        return key is not None and self._may_go(key) and key.held[0] == entry[0]


def _runs_of(offsets: Sequence[int]) -> list[Range]:
    """Rising offsets as ranges."""
    runs: list[Range] = []
    first = before = offsets[0]
    for offset in offsets[1:]:
        if offset != before + 1:
            runs.append((first, before + 1))
            first = offset
        before = offset
    runs.append((first, before + 1))
    return runs
