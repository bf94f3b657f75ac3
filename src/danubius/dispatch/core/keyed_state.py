"""Open keys of a Key-Shared subscription, key by key, and what becomes of it: see `keyed_window` for what goes out.

Invariants: an open message is flying or held, never both; the flying ones of a key are at one consumer; held ones rise.
Whoever changes a key offers it again, so that nobody has to look for keys that may go.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from danubius.ack.core.failure import NO_RULE, Condemned, join_segments
from danubius.ack.core.ranges import RangeMap, Segment, merge_ranges
from danubius.dispatch.core.keys import NEVER_NS, Key, flights_in, overdue_of
from danubius.dispatch.core.ready_keys import SLACK, ReadyKeys
from danubius.dispatch.core.stragglers import Stragglers
from danubius.model.subscription import SubscriptionType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from danubius.ack.core.cursor import Cursor
    from danubius.ack.core.failure import FailureRule
    from danubius.ack.core.in_flight import Flight
    from danubius.ack.core.ranges import Range
    from danubius.dispatch.core.key_selector import KeySelector
    from danubius.dispatch.core.limits import WindowLimits


class KeyedState:
    """See the module. With `auto_ack` nothing ever flies, but messages may be held."""

    __slots__ = (
        "_attempts",
        "_auto_ack",
        "_condemned",
        "_cursor",
        "_delays",
        "_dropped",
        "_due_ns",
        "_flying",
        "_flying_count",
        "_gaps_max",
        "_held_count",
        "_held_max",
        "_key_held_max",
        "_keys",
        "_mixed",
        "_next",
        "_open",
        "_open_max",
        "_ready",
        "_restored",
        "_rule",
        "_selector",
        "_share",
        "_stragglers",
        "_stragglers_max",
        "_turn",
        "_unwanted",
        "counted",
        "fresh",
        "reason",
    )

    def __init__(
        self, cursor: Cursor, selector: KeySelector, limits: WindowLimits, *, auto_ack: bool
    ) -> None:
        self._cursor = cursor
        self._selector = selector
        self._auto_ack = auto_ack
        open_max = limits.open_max(SubscriptionType.KEY_SHARED)
        self._open_max = self._gaps_max = open_max
        self._held_max = min(limits.held_messages_max, open_max // 2)
        """Of what may be open, half is never held, so that keys that wait stop nobody."""
        self._key_held_max = max(1, self._held_max // 8)
        self._share = open_max
        """How many messages one consumer may have, so that the others have room in any case."""
        self._stragglers_max = limits.keys_behind_max
        self._next = cursor.floor
        self._turn = 0
        """What was wanted last: held messages, those of stragglers, new ones. Each gets its turn."""
        self._keys: dict[bytes, Key] = {}
        self._open: dict[int, Key] = {}
        self._flying: dict[int, dict[int, Flight]] = {}
        """Per consumer, in the order of delivery: with one timeout each, also of deadlines."""
        self._flying_count: int = 0
        self._held_count: int = 0
        self._attempts: dict[int, int] = {}
        """Of held messages that were delivered before."""
        self._ready = ReadyKeys(self._keys)
        self._stragglers = Stragglers()
        self._delays: list[tuple[int, bytes]] = []
        """Heap of (due_ns, key), with entries that are no longer true."""
        self._due_ns: dict[int, int] = {}
        """Per consumer with an ack timeout and flying messages: nothing is overdue before."""
        self._mixed: set[int] = set()
        """Consumers whose timeout changed: their deadlines are not in the order of delivery."""
        self._rule = NO_RULE
        self._condemned: dict[int, Condemned] = {}
        self._restored: RangeMap[int] = RangeMap()
        """How often messages failed before a restart, until they are taken."""
        self._unwanted: list[int] = []
        self._dropped = 0
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
    def unmatched(self) -> int:
        """Messages that were read and wait for a consumer that takes their key; looks at every key."""
        if not self._selector.has_filters:
            return 0
        return sum(len(one.held) + one.passed for one in self._keys.values() if one.owner is None)

    @property
    def next_due_ns(self) -> int | None:
        due_ns = min(self._due_ns.values(), default=None)
        if self._delays and (due_ns is None or self._delays[0][0] < due_ns):
            return self._delays[0][0]
        return due_ns

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
                    self._unhold(key, offset)
                    continue
                landed += 1
                key.flying -= 1
                if not key.flying:
                    key.holder = None
                    if key.held or key.passed_from >= 0:
                        self._offer(key)
                    else:
                        del keys[key.name]
        self._flying_count -= landed
        if self._restored.count or self._stragglers:
            self._drop_settled()

    def _unhold(self, key: Key, offset: int) -> None:
        """A held message was acknowledged."""
        key.held.remove(offset)
        self._held_count -= 1
        self._attempts.pop(offset, None)
        if self._condemned and self._condemned.pop(offset, None):
            key.condemned -= 1
        self._tidy(key)

    def _drop_settled(self) -> None:
        floor = self._cursor.floor
        self._restored.cut(0, floor)
        if floor >= self._next:
            for key in self._stragglers.forgive():
                self._tidy(key)

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
        self._divide()
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

    def _hold_restored(self, key: Key, offset: int, attempts: int) -> None:
        """It failed before a restart: it is held, with its count, whether there is a place or not."""
        self._restored.cut(offset, offset + 1)
        self._hold(key, offset)
        self._attempts[offset] = attempts
        if self._rule.is_exhausted(attempts):
            self._condemn(key, offset, Condemned(attempts, ""))
        self._offer(key)

    def _divide(self) -> None:
        """What may be in flight is shared alike."""
        consumers = len(self._selector.active())
        most = self._rule.flying_max(self._open_max - self._held_max)
        self._share = max(1, most // consumers) if consumers > 1 else self._open_max

    def rebalance(self) -> None:
        active = self._selector.active()
        self._divide()
        self._stragglers.regroup()
        self._ready.reset(one.consumer_id for one in active)
        owner_of = self._selector.owner_of
        for key in self._keys.values():
            key.owner = owner_of(key.name)
            self._offer(key)

    def check(self, end: int) -> None:
        assert self._next <= end, "taken beyond the log"
        unacked = {
            offset
            for first, last in self._cursor.unacked(0, self._next)
            for offset in range(first, last)
        }
        assert self._open.keys() <= unacked, "acknowledged and open"
        passed = sum(key.passed for key in self._keys.values())
        assert len(unacked) - len(self._open) <= passed, "a message is nowhere"
        flying = {offset: cid for cid, flights in self._flying.items() for offset in flights}
        assert len(flying) == self._flying_count == sum(map(len, self._flying.values()))
        assert not (self._auto_ack and flying), "auto-ack leaves nothing in flight"
        held = {offset for key in self._keys.values() for offset in key.held}
        assert held.isdisjoint(flying)
        assert len(held) == self._held_count == sum(len(key.held) for key in self._keys.values())
        assert held | flying.keys() == self._open.keys(), (
            "an open message is neither held nor flying"
        )
        assert self._attempts.keys() <= held, "attempts of a message that is not held"
        exhausted = {one for one, n in self._attempts.items() if self._rule.is_exhausted(n)}
        assert self._condemned.keys() == exhausted
        self._stragglers.check(self._keys.values())
        for key in self._keys.values():
            mine = [offset for offset in flying if self._open[offset] is key]
            key.check({offset: flying[offset] for offset in mine})
            assert key.condemned == sum(offset in self._condemned for offset in key.held)
            assert key.owner is self._selector.owner_of(key.name)
            if key.held and key.may_go:
                self._ready.check(key)

    # ------------------------------------------------------------ what waits

    def _has_place(self, key: Key) -> bool:
        return self._held_count < self._held_max and len(key.held) < self._key_held_max

    def _hold(self, key: Key, offset: int) -> None:
        self._open[offset] = key
        key.held.append(offset)
        self._held_count += 1

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
            key.flying -= 1
            if not key.flying:
                key.holder = None
            returned.setdefault(key, []).append(offset)
        self._flying_count -= len(offsets)
        self._held_count += len(offsets)
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
                heappush(self._delays, (key.due_ns, key.name))
            self._offer(key)
        if len(self._delays) > 2 * len(self._keys) + SLACK:
            self._delays = [(one.due_ns, one.name) for one in self._keys.values() if one.due_ns]
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
        """Something of the key went: forget the key if it was the last, else see what may go."""
        if key.held:
            self._offer(key)
            return
        key.due_ns = 0
        if key.passed_from >= 0:
            self._offer(key)
        elif not key.flying:
            del self._keys[key.name]

    def _offer(self, key: Key) -> None:
        """Let the key's owner know of it, if it may go."""
        if not key.may_go:
            return
        if key.held:
            self._ready.put(key)
        elif key.passed_from >= 0 and not key.is_seeking:
            self._stragglers.offer(key)
