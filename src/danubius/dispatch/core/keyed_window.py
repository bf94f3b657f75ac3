"""The window of a Key-Shared subscription: every open message by itself, grouped by its key.

An open message is *flying* (delivered, not acknowledged) or *held* (read, not delivered). All flying
messages of a key are at one consumer, its *holder*. Order per key follows from these rules:

1. held messages of a key go out in the order of their offsets, new ones behind them;
2. a key goes to the consumer that the ring names, its *owner*, and while messages are flying at
   another holder, to nobody: a key that moved waits until its old holder has none left;
3. a key with a message that was given back with a delay waits for the end of the delay;
4. a key with a *condemned* message, one that failed too often, waits until somebody decided about it.
   It stays among the held ones, so it keeps its place;
5. a message that can neither go nor be held is *passed by*, with all later ones of its key (`stragglers`).

A key that has to wait never stops the others: they are read and delivered beyond it. Held messages are read again
when they may go; only offsets are kept, of `held_max` messages in all and of an eighth of that for one key.
What is beyond is passed by. Messages of a key that nobody takes are always passed by: they take no place.
What stops the read at the log's end is that nobody has room, or one of the bounds of `_may_read_on`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.dispatch.core.keyed_state import KeyedState
from danubius.dispatch.core.keys import NEVER_NS, Key, runs_of
from danubius.dispatch.core.load import Load
from danubius.dispatch.core.window import Chunk, Wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.dispatch.core.consumers import Consumer
    from danubius.dispatch.core.effects import Deliver
    from danubius.dispatch.core.load import Lane


class KeyedWindow(KeyedState):
    """See the module."""

    __slots__ = ()

    # ------------------------------------------------------------ what to read

    def wanted(self, end: int, *, may_open: bool) -> Wanted | None:
        able = [one for one, _ in self._takers()]
        if not able:
            return None
        sources = (
            self._wanted_held(able),
            self._wanted_again(able) if may_open and self._stragglers else None,
            self._wanted_new(end) if may_open else None,
        )
        for step in (1, 2, 3):
            turn = (self._turn + step) % 3
            source = sources[turn]
            if source is not None:
                self._turn = turn
                return source
        return None

    def _wanted_held(self, able: list[Consumer]) -> Wanted | None:
        heads = [self._ready.first(one.consumer_id) for one in able]
        first = min((one for one in heads if one is not None), default=None)
        if first is None:
            return None
        most = min(self._held_count, self._next - first)
        return Wanted(first, self._next, most, is_new=False)

    def _wanted_again(self, able: list[Consumer]) -> Wanted | None:
        """Where stragglers seek, if it is for somebody with room."""
        stragglers = self._stragglers
        for one in able:
            if self._ready.first(one.consumer_id) is None:
                stragglers.seek(one.consumer_id)
        if not any(stragglers.seeks_for(one.consumer_id) for one in able):
            return None
        stragglers.at = self._cursor.next_unacked(stragglers.at)
        if stragglers.at >= self._next:
            self._caught_up()
            return None
        return Wanted(stragglers.at, self._next, self._next - stragglers.at, is_new=True)

    def _wanted_new(self, end: int) -> Wanted | None:
        self._next = self._cursor.next_unacked(self._next)
        if self._next >= end or not self._may_read_on:
            return None
        return Wanted(self._next, end, end - self._next, is_new=True)

    @property
    def _may_read_on(self) -> bool:
        """Whether others may overtake what waits any further; a read goes beyond the bounds by what it finds."""
        return (
            len(self._stragglers) < self._stragglers_max
            and len(self._cursor.above) < self._gaps_max
        )

    def _takers(self) -> list[tuple[Consumer, int]]:
        """Who has room, and for how many messages."""
        takers: list[tuple[Consumer, int]] = []
        for one in self._selector.active():
            if one.has_room:
                room = min(one.messages, self._share - self.in_flight_of(one.consumer_id))
                if room > 0:
                    takers.append((one, room))
        return takers

    def take(self, chunk: Chunk, now_ns: int, *, open_max: int, flying_max: int) -> list[Deliver]:
        load = Load(self._takers(), now_ns, room=flying_max - self._flying_count)
        self._take_held(chunk, load)
        if chunk.keys is not None:
            if self._stragglers.is_seeking:
                self._take_again(chunk, chunk.keys, load, open_max)
            self._take_new(chunk, chunk.keys, load, open_max)
        deliveries = load.deliveries()
        if self._auto_ack:
            for one in deliveries:
                runs = ((one.first, one.end),) if one.offsets is None else runs_of(one.offsets)
                self._cursor.ack(runs)
            if self._unwanted:
                self._dropped += len(self._unwanted)
                self._cursor.ack(runs_of(self._unwanted))
                self._unwanted.clear()
        return deliveries

    def take_dropped(self) -> int:
        """With `auto_ack`: how many messages of keys that nobody takes went by since this was last asked."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    # ------------------------------------------------------------ out

    def _take_held(self, chunk: Chunk, load: Load) -> None:
        ready = self._ready
        for consumer in list(load.able.values()):
            consumer_id = consumer.consumer_id
            below: list[Key] = []
            while consumer_id in load.able:
                offset = ready.first(consumer_id)
                if offset is None or offset >= chunk.end:
                    break
                key = ready.pop(consumer_id)
                if offset < chunk.first:  # became ready during the read; it needs one of its own
                    below.append(key)
                    continue
                key.held.popleft()
                self._fly(key, offset, load, consumer)
                self._tidy(key)
            for key in below:
                ready.put(key)

    def _take_again(self, chunk: Chunk, names: Sequence[bytes], load: Load, open_max: int) -> None:
        """Take what stragglers look for: the messages of keys that seek, and that are not open."""
        stragglers = self._stragglers
        at, end = self._cursor.next_unacked(stragglers.at), min(chunk.end, self._next)
        if not chunk.first <= at < end:
            return
        lanes, room = load.open_lanes(), min(open_max - len(self._open), load.room)
        for first, last in self._cursor.unacked(at, end):
            for offset in range(first, last):
                key = self._keys.get(names[offset - chunk.first])
                if key is None or not key.is_seeking or offset in self._open:
                    continue
                if not lanes or room <= 0:
                    stragglers.at = offset
                    self._flew(load)
                    return
                room -= 1
                self._take_one(key, offset, lanes)
        self._flew(load)
        stragglers.at = end
        if end >= self._next:
            self._caught_up()

    def _take_one(self, key: Key, offset: int, lanes: dict[int, Lane]) -> None:
        """The next message of a key that seeks: it goes, is held, or stays behind from here on."""
        assert key.owner is not None
        restored = self._restored.overlap(offset, offset + 1) if self._restored.count else None
        owner_id = key.owner.consumer_id
        is_free = not key.held and not restored and key.may_go
        lane = lanes.get(owner_id) if is_free else None
        if lane is not None:
            key.passed -= 1
            self._board(key, offset, lane, lanes)
        elif restored:
            key.passed -= 1
            self._hold_restored(key, offset, restored[0].value)
        elif self._has_place(key):
            key.passed -= 1
            self._hold(key, offset)
            if is_free:
                self._offer(key)
        else:
            self._stragglers.fall_behind(key, offset)
            self._offer(key)

    def _caught_up(self) -> None:
        for key in self._stragglers.catch_up():
            self._tidy(key)

    def _take_new(self, chunk: Chunk, names: Sequence[bytes], load: Load, open_max: int) -> None:
        start = self._cursor.next_unacked(self._next)
        if not chunk.first <= start < chunk.end:
            return
        for first, end in self._cursor.unacked(start, chunk.end):
            at = first
            while at < end:
                # Each message takes one place at the most, so the bounds are looked at once for many.
                room = min(open_max - len(self._open), load.room)
                stop = min(end, at + max(0, room))
                if self._restored.count and at < stop:
                    stop = self._meet_restored(at, stop, names[at - chunk.first])
                    if stop < 0:
                        at += 1
                        continue
                if at < stop:
                    stop = self._admit(names, chunk.first, range(at, stop), load)
                if at == stop:
                    self._next = at
                    return
                at = stop
        self._next = chunk.end

    def _meet_restored(self, at: int, stop: int, name: bytes) -> int:
        """Where the messages end that never failed; negative: the first one did, and is taken care of."""
        restored = self._restored.overlap(at, stop)
        if not restored:
            return stop
        if restored[0].first > at:
            return restored[0].first
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = Key(name, self._selector.owner_of(name))
        if key.owner is None or key.passed_from >= 0:
            self._pass_by(key, at)
        else:
            self._hold_restored(key, at, restored[0].value)
        return -1

    def _admit(self, names: Sequence[bytes], base: int, offsets: range, load: Load) -> int:
        """Deliver new messages, hold them or pass them by, while anyone has room; returns where that ended."""
        # Once a message: what most of them need is spelled out here, which halves the cost.
        keys, opened, lanes = self._keys, self._open, load.open_lanes()
        keeps, stop = not self._auto_ack, offsets.stop
        for offset in offsets:
            if not lanes:
                stop = offset
                break
            name = names[offset - base]
            key = keys.get(name)
            if key is None:
                key = keys[name] = Key(name, self._selector.owner_of(name))
            owner = key.owner
            if owner is None or key.passed_from >= 0:
                self._pass_by(key, offset)
                continue
            owner_id = owner.consumer_id
            is_free = not key.held and (key.holder is None or key.holder == owner_id)
            lane = lanes.get(owner_id) if is_free else None
            if lane is None:
                self._hold_or_pass_by(key, offset, is_free=is_free)
                continue
            lane.offsets.append(offset)
            if keeps:
                opened[offset] = key
                key.holder = owner_id
                key.flying += 1
            else:
                del keys[name]
            lane.room -= 1
            if not lane.room:
                del lanes[owner_id]
        self._flew(load)
        return stop

    def _hold_or_pass_by(self, key: Key, offset: int, *, is_free: bool) -> None:
        if not self._has_place(key):
            self._pass_by(key, offset)
            return
        self._hold(key, offset)
        if is_free:
            self._offer(key)

    def _pass_by(self, key: Key, offset: int) -> None:
        """A message at the log's end waits unremembered, and so do all behind it that have its key."""
        if key.owner is None and self._auto_ack:
            self._unwanted.append(offset)  # nothing waits on a topic that keeps nothing
            self._tidy(key)
            return
        key.passed += 1
        if key.passed_from < 0:
            self._stragglers.fall_behind(key, offset)
            self._offer(key)

    def _board(self, key: Key, offset: int, lane: Lane, lanes: dict[int, Lane]) -> None:
        """Deliver a message that was passed by before."""
        owner_id = lane.flight.consumer_id
        lane.offsets.append(offset)
        if not self._auto_ack:
            self._open[offset] = key
            key.holder = owner_id
            key.flying += 1
        lane.room -= 1
        if not lane.room:
            del lanes[owner_id]

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
        self._held_count -= 1
        if self._auto_ack:
            self._open.pop(offset, None)
            self._cursor.ack(((offset, offset + 1),))  # at once: stragglers look at the same chunk
            return
        key.holder = consumer.consumer_id
        key.flying += 1
        self._flying_count += 1
        self._flying.setdefault(consumer.consumer_id, {})[offset] = flight
        if flight.due_ns and flight.due_ns < self._due_ns.get(consumer.consumer_id, NEVER_NS):
            self._due_ns[consumer.consumer_id] = flight.due_ns
