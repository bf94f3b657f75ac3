"""The window of a Key-Shared subscription: every open message by itself, grouped by its key's hash.

An open message is *flying* (delivered, not acknowledged) or *held* (read, not delivered). All flying
messages of a key are at one consumer, its *holder*. Order per key follows from three rules:

1. held messages of a key go out in the order of their offsets, new ones behind them;
2. a key goes to the consumer that the ring names, its *owner*, and while messages are flying at
   another holder, to nobody: a key that moved waits until its old holder has none left;
3. a key with a message that was given back with a delay waits for the end of the delay;
4. a key with a *condemned* message, one that failed too often, waits until somebody decided about it.
   It stays among the held ones, so it keeps its place.

A key that has to wait never stops the others: they are read and delivered beyond it, until
`held_max` messages are held. Held messages are read again when they may go; only offsets are kept.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from danubius.ack.core.failure import NO_RULE, Condemned, join_segments
from danubius.ack.core.ranges import RangeMap, Segment, merge_ranges
from danubius.dispatch.core.keys import NEVER_NS, Key, flights_in, overdue_of, runs_of
from danubius.dispatch.core.load import Load
from danubius.dispatch.core.window import Chunk, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from danubius.ack.core.cursor import Cursor
    from danubius.ack.core.failure import FailureRule
    from danubius.ack.core.in_flight import Flight
    from danubius.ack.core.ranges import Range
    from danubius.dispatch.core.consumers import Consumer
    from danubius.dispatch.core.effects import Deliver
    from danubius.dispatch.core.selectors import KeySelector

_SLACK: Final = 64
"""Stale heap entries that are cheaper to keep than to look for."""


class KeyedWindow:
    """See the module. With `auto_ack` nothing ever flies, but messages may be held."""

    __slots__ = (
        "_attempts",
        "_auto_ack",
        "_condemned",
        "_cursor",
        "_delays",
        "_due_ns",
        "_flying",
        "_flying_count",
        "_held_max",
        "_keys",
        "_mixed",
        "_next",
        "_open",
        "_ready",
        "_restored",
        "_rule",
        "_selector",
        "counted",
        "fresh",
        "reason",
    )

    def __init__(
        self, cursor: Cursor, selector: KeySelector, *, auto_ack: bool, held_max: int
    ) -> None:
        self._cursor = cursor
        self._selector = selector
        self._auto_ack = auto_ack
        self._held_max = held_max
        self._next = cursor.floor
        self._keys: dict[int, Key] = {}
        self._open: dict[int, Key] = {}
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
        self._mixed: set[int] = set()
        """Consumers whose timeout changed: their deadlines are not in the order of delivery."""
        self._rule = NO_RULE
        self._condemned: dict[int, Condemned] = {}
        self._restored: RangeMap[int] = RangeMap()
        """How often messages failed before a restart, until they are taken."""
        self.counted: list[Segment[int]] = []
        self.fresh: list[Range] = []
        self.reason = ""

    @property
    def condemned_count(self) -> int:
        return len(self._condemned)

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
                runs = ((one.first, one.end),) if one.offsets is None else runs_of(one.offsets)
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
                    if self._condemned and self._condemned.pop(offset, None):
                        key.condemned -= 1
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

    def give_back(self, consumer_id: int, *, is_clean: bool) -> None:
        flights = self._flying.get(consumer_id, {})
        self._land(consumer_id, list(flights), is_failure=not is_clean)
        self._flying.pop(consumer_id, None)
        self._due_ns.pop(consumer_id, None)
        self._mixed.discard(consumer_id)

    def nack(self, consumer_id: int, ranges: Sequence[Range], delay_ns: int, now_ns: int) -> None:
        flights = self._flying.get(consumer_id)
        if not flights:
            return
        returned = flights_in(flights, merge_ranges(ranges))
        self._put_off(self._land(consumer_id, returned), delay_ns, now_ns)

    def expire(self, now_ns: int) -> int:
        overdue = 0
        for consumer_id, due_ns in list(self._due_ns.items()):
            if due_ns <= now_ns:
                overdue += self._expire(consumer_id, now_ns)
        while self._delays and self._delays[0][0] <= now_ns:
            key = self._keys.get(heappop(self._delays)[1])
            if key is not None and key.due_ns and key.due_ns <= now_ns:
                key.due_ns = 0
                self._offer(key)
        return overdue

    # ------------------------------------------------------------ what failed too often

    def set_rule(self, rule: FailureRule) -> None:
        if rule.ack_timeout_ns != self._rule.ack_timeout_ns:
            self._mixed.update(self._flying)
        self._rule = rule
        before, self._condemned, self.fresh = self._condemned, {}, []  # fresh: by the old rule
        for offset in before:
            self._open[offset].condemned -= 1
        for offset, attempts in sorted(self._attempts.items()):
            if rule.is_exhausted(attempts):
                reason = before[offset].reason if offset in before else ""
                self._condemn(self._open[offset], offset, Condemned(attempts, reason))
        for offset in before:
            self._offer(self._open[offset])

    def release(self) -> None:
        released, self._condemned = self._condemned, {}
        self.fresh.clear()
        self.counted += join_segments((offset, 0) for offset in released)
        for offset in released:
            del self._attempts[offset]
            self._open[offset].condemned -= 1
            self._offer(self._open[offset])

    def restore(self, attempts: Iterable[Segment[int]], end: int, *, open_max: int) -> None:
        del open_max  # each is opened when it is read
        self._restored.put_all([one for one in attempts if one.end <= end])

    def condemned(self) -> list[Segment[Condemned]]:
        return [Segment(one, one + 1, self._condemned[one]) for one in sorted(self._condemned)]

    def _condemn(self, key: Key, offset: int, condemned: Condemned) -> None:
        self._condemned[offset] = condemned
        key.condemned += 1
        self.fresh.append((offset, offset + 1))

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
        exhausted = {one for one, n in self._attempts.items() if self._rule.is_exhausted(n)}
        assert self._condemned.keys() == exhausted
        for key in self._keys.values():
            mine = [offset for offset in flying if self._open[offset] is key]
            key.check({offset: flying[offset] for offset in mine})
            assert key.condemned == sum(offset in self._condemned for offset in key.held)
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
                if self._restored.count and self._ready and at < stop:
                    stop = self._meet_restored(at, stop, hashes[at - chunk.first])
                    if stop < 0:
                        at += 1
                        continue
                if at < stop:
                    stop = self._admit(hashes, chunk.first, range(at, stop), load)
                if at == stop:
                    self._next = at
                    return
                at = stop
        self._next = chunk.end

    def _meet_restored(self, at: int, stop: int, key_hash: int) -> int:
        """Where the messages end that never failed; negative: the first one did, and is held now, with its count."""
        restored = self._restored.overlap(at, stop)
        if not restored:
            return stop
        if restored[0].first > at:
            return restored[0].first
        self._restored.cut(0, at + 1)
        key = self._keys.get(key_hash)
        if key is None:
            key = self._keys[key_hash] = Key(key_hash, self._selector.owner_of(key_hash))
        self._open[at] = key
        key.held.append(at)
        attempts = self._attempts[at] = restored[0].value
        if self._rule.is_exhausted(attempts):
            self._condemn(key, at, Condemned(attempts, ""))
        self._offer(key)
        return -1

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
                key = keys[key_hash] = Key(key_hash, self._selector.owner_of(key_hash))
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
            if flight.due_ns and flight.due_ns < self._due_ns.get(flight.consumer_id, NEVER_NS):
                self._due_ns[flight.consumer_id] = flight.due_ns

    def _fly(self, key: Key, offset: int, load: Load, consumer: Consumer) -> None:
        """Deliver a message that was held."""
        flight = load.add(consumer, offset, self._attempts.pop(offset, 0))
        if self._auto_ack:
            self._open.pop(offset, None)
            return
        key.holder = consumer.consumer_id
        key.flying += 1
        self._flying_count += 1
        self._flying.setdefault(consumer.consumer_id, {})[offset] = flight
        if flight.due_ns and flight.due_ns < self._due_ns.get(consumer.consumer_id, NEVER_NS):
            self._due_ns[consumer.consumer_id] = flight.due_ns

    # ------------------------------------------------------------ back

    def _land(
        self, consumer_id: int, offsets: list[int], *, is_failure: bool = True
    ) -> dict[Key, list[int]]:
        """Messages come back undone: they are held again, one attempt older. Offers nothing."""
        flights = self._flying.get(consumer_id, {})
        returned: dict[Key, list[int]] = {}
        is_bounded = self._rule.is_bounded
        older = 1 if is_failure or not is_bounded else 0
        for offset in offsets:
            self._attempts[offset] = flights.pop(offset).attempts + older
            key = self._open[offset]
            self._landed(key)
            returned.setdefault(key, []).append(offset)
        for key, ones in returned.items():
            key.held = deque(sorted([*ones, *key.held]))
        if is_bounded and older:
            self._count(offsets)
        return returned

    def _count(self, failed: list[int]) -> None:
        counts = [(offset, self._attempts[offset]) for offset in failed]
        self.counted += join_segments(counts)
        for offset, attempts in sorted(counts):
            if self._rule.is_exhausted(attempts):
                self._condemn(self._open[offset], offset, Condemned(attempts, self.reason))

    def _landed(self, key: Key) -> None:
        self._flying_count -= 1
        key.flying -= 1
        if not key.flying:
            key.holder = None

    def _put_off(self, returned: dict[Key, list[int]], delay_ns: int, now_ns: int) -> None:
        """Let keys wait for this long, or for the rule's delay if that is longer."""
        rule = self._rule
        for key, offsets in returned.items():
            wait_ns = delay_ns
            if rule.backs_off:
                attempts = max(self._attempts[offset] for offset in offsets)
                wait_ns = max(delay_ns, rule.delay_ns(attempts, min(offsets)))
            if wait_ns > 0:
                key.due_ns = max(key.due_ns, now_ns + wait_ns)
                heappush(self._delays, (key.due_ns, key.key_hash))
            self._offer(key)
        if len(self._delays) > 2 * len(self._keys) + _SLACK:
            self._delays = [(one.due_ns, one.key_hash) for one in self._keys.values() if one.due_ns]
            heapify(self._delays)

    def _expire(self, consumer_id: int, now_ns: int) -> int:
        flights = self._flying[consumer_id]
        overdue, next_ns = overdue_of(flights, now_ns, is_rising=consumer_id not in self._mixed)
        if next_ns < NEVER_NS:
            self._due_ns[consumer_id] = next_ns
        else:
            del self._due_ns[consumer_id]
        self._put_off(self._land(consumer_id, overdue), 0, now_ns)
        if not flights:
            self._mixed.discard(consumer_id)
        return len(overdue)

    # ------------------------------------------------------------ which keys may go

    def _tidy(self, key: Key) -> None:
        """A message of the key went: forget the key if it was the last, else see what may go."""
        if key.held:
            self._offer(key)
            return
        key.due_ns = 0
        if not key.flying:
            del self._keys[key.key_hash]

    def _may_go(self, key: Key) -> bool:
        if not key.held or key.due_ns or key.condemned or not self._ready:
            return False
        return key.holder is None or key.holder == key.owner.consumer_id

    def _offer(self, key: Key) -> None:
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
