"""The shell of the dispatch model: the log, the reads, and a model that knows each message by itself."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
)
from msgspec import UNSET

from danubius.ack.core.failure import NO_RULE, FailureRule, join_segments
from danubius.dispatch.core.effects import (
    AckAdvanced,
    Blocked,
    Condemned,
    Counted,
    Deliver,
    Discarded,
    Dropped,
    Effect,
    Read,
    TimedOut,
    WakeAt,
)
from danubius.dispatch.core.events import (
    Acked,
    BytesSent,
    CreditGranted,
    Event,
    ReadCompleted,
    Ticked,
)
from danubius.dispatch.core.limits import WindowLimits
from danubius.dispatch.core.subscription import SubscriptionCore
from danubius.model.policy import Exhausted, FailurePolicy
from danubius.model.subscription import SubscriptionType

if TYPE_CHECKING:
    from danubius.ack.core.cursor import Cursor

LIMITS = WindowLimits(
    unacked_messages_max=24,
    unacked_bytes_max=2000,
    keyed_messages_max=20,
    held_messages_max=8,
    read_bytes_max=1000,
    retry_ns_min=10,
    retry_ns_max=40,
)
MESSAGE_BYTES = 50
KEYS = 5
AMPLE = 1_000_000


class SmallRule(FailureRule):
    """A rule in the model's small times: policies count milliseconds."""

    __slots__ = ("_wait_ns",)

    def __init__(self, policy: FailurePolicy, timeout_ns: int, wait_ns: int) -> None:
        super().__init__(policy)
        self.ack_timeout_ns = timeout_ns
        self.backs_off = wait_ns > 0
        self._wait_ns = wait_ns

    def delay_ns(self, attempts: int, offset: int) -> int:
        del offset
        return self._wait_ns * attempts


rules = st.builds(
    SmallRule,
    st.builds(
        FailurePolicy,
        redeliveries_max=st.sampled_from([None, 0, 1, 1, 2, 3]),
        then=st.sampled_from(Exhausted),
        unacked_messages_max=st.sampled_from([UNSET, UNSET, 1, 2, 7, 1000]),
    ),
    st.sampled_from([0, 0, 20, 45]),
    st.sampled_from([0, 0, 10]),
)


class Out(NamedTuple):
    """A message in flight, as the model knows it."""

    consumer_id: int
    due_ns: int


class Peer:
    """A consumer, as the model knows it."""

    def __init__(self, name: str, ack_timeout_ns: int) -> None:
        self.name = name
        self.ack_timeout_ns = ack_timeout_ns
        self.messages = 0
        self.bytes = 0
        self.is_writable = True


class DispatchShell(RuleBasedStateMachine):
    """Plays the shell of one subscription, and checks every effect; what happens is up to its heir."""

    kind = SubscriptionType.EXCLUSIVE
    auto_ack = False
    core: SubscriptionCore

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 1
        self.batches: list[tuple[int, int]] = []
        self.start = self.end = 0
        self.hashes: list[int] = []
        self.acked: set[int] = set()
        self.flying: dict[int, Out] = {}
        self.delayed: dict[int, int] = {}
        self.rule: FailureRule = NO_RULE
        self.failed: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        """What of it is durable."""
        self.condemned: set[int] = set()
        self.peers: dict[int, Peer] = {}
        self.queue: list[int] = []
        self.reading: Read | None = None
        self.armed_ns: int | None = None
        self.owners: dict[int, int] = {}
        self.dropped = 0
        self.ids = itertools.count(1)

    def _start_core(self, cursor: Cursor) -> None:
        self.core = SubscriptionCore(
            self.kind,
            cursor,
            end=self.end,
            auto_ack=self.auto_ack,
            limits=LIMITS,
            rule=self.rule,
            attempts=join_segments(self.counts.items()),
        )

    # ------------------------------------------------------------ the shell

    def _tell(self, event: Event) -> list[Effect]:
        effects = self.core.handle(event, self.now_ns)
        self._take_verdicts(effects)
        chunk = event if isinstance(event, ReadCompleted) else None
        able = {one for one, peer in self.peers.items() if peer.bytes > 0 and peer.is_writable}
        for effect in effects:
            if isinstance(effect, Deliver):
                assert chunk is not None
                assert effect.consumer_id in able, "delivered to a consumer without room"
                self._check_delivery(effect, chunk)
        assert not [one for one in effects if isinstance(one, AckAdvanced)] or not self.auto_ack
        for effect in effects:
            if isinstance(effect, Deliver):
                self._spend_bytes(effect.consumer_id, effect.messages * MESSAGE_BYTES)
            elif isinstance(effect, Dropped):
                self.dropped += effect.count
                self.acked |= {o for o in range(self.end) if o in self.core.cursor}
        for effect in self.core.poll(self.now_ns):
            if isinstance(effect, Read):
                assert self.reading is None, "two reads at once"
                assert effect.first not in self.acked
                assert effect.first < effect.end <= self.end
                assert effect.bytes_max > 0
                self.reading = effect
            else:
                assert isinstance(effect, WakeAt)
                self.armed_ns = effect.now_ns
        return effects

    def _take_verdicts(self, effects: list[Effect]) -> None:
        """What failed too often goes the way of the policy, and every failure under a bound is counted."""
        for place, effect in enumerate(effects):
            match effect:
                case Counted(segments=segments):
                    for first, end, attempts in segments:
                        for offset in range(first, end):
                            assert self.failed[offset] == attempts
                            self.counts[offset] = attempts
                            if not attempts:
                                del self.counts[offset]
                case Condemned():
                    assert self.rule.then is Exhausted.DEAD_LETTER
                case Blocked():
                    assert self.rule.then is Exhausted.BLOCK
                case Discarded(count=count):
                    assert self.rule.then is Exhausted.DROP
                    said = effects[place - 1]
                    assert isinstance(said, AckAdvanced)
                    gone = {o for first, end in said.ranges for o in range(first, end)}
                    assert len(gone) == count
                    assert gone <= self.condemned, "dropped too early"
                    self._expect_acked(gone)
                case _:
                    pass
        if self.rule.then is Exhausted.DROP and self.peers:
            assert not self.core.condemned_count

    def _fail(self, offsets: list[int], *, is_clean: bool = False) -> None:
        """Messages in flight come back undone."""
        for offset in offsets:
            del self.flying[offset]
            if not (is_clean and self.rule.is_bounded):
                self.failed[offset] = self.failed.get(offset, 0) + 1
            if self.rule.is_exhausted(self.failed.get(offset, 0)):
                self.condemned.add(offset)

    def _put_off(self, offsets: list[int], delay_ns: int) -> None:
        for offset in offsets:
            if offset in self.condemned:
                continue
            if self.rule.backs_off:
                wait_ns = max(delay_ns, self.rule.delay_ns(self.failed[offset], offset))
            else:
                wait_ns = delay_ns
            if wait_ns:
                self.delayed[offset] = self.now_ns + wait_ns

    def _judge_all(self) -> None:
        """By the rule of now: what waits may have failed too often, and the condemned may not have."""
        self.condemned = {
            offset
            for offset, attempts in self.failed.items()
            if self.rule.is_exhausted(attempts)
            and offset not in self.acked
            and offset not in self.flying
        }
        self.delayed = {o: due for o, due in self.delayed.items() if o not in self.condemned}

    def _spend_bytes(self, consumer_id: int, size: int) -> None:
        self.peers[consumer_id].bytes -= size
        assert self.core.handle(BytesSent(consumer_id, size), self.now_ns) == []

    def _grant(self, consumer_id: int, messages: int, size: int) -> None:
        self.peers[consumer_id].messages += messages
        self.peers[consumer_id].bytes += size
        self._tell(CreditGranted(consumer_id, messages, size))

    def _grow(self, size: int, hashes: list[int] | None = None) -> None:
        self.batches.append((self.end, self.end + size))
        self.end += size
        self.hashes += [*(hashes or []), *range(size)][:size]
        self.hashes[-size:] = [one % KEYS for one in self.hashes[-size:]]

    def _offer(self, first: int) -> bool:
        """The last batch without a read; whether it was delivered."""
        size = (self.end - first) * MESSAGE_BYTES
        able = {one for one, peer in self.peers.items() if peer.bytes > 0 and peer.is_writable}
        delivery = self.core.offer(first, self.end, size, self.now_ns)
        if delivery is None:
            return False
        assert self.reading is None, "delivered while something before it is being read"
        assert delivery.consumer_id in able, "delivered to a consumer without room"
        assert (delivery.first, delivery.end) == (first, self.end), "a batch is offered as a whole"
        self._check_delivery(delivery, ReadCompleted(first, self.end, size))
        self.peers[delivery.consumer_id].bytes -= size
        assert self.core.poll(self.now_ns) == [], "there is more to do"
        return True

    def _complete_read(self, count: int) -> None:
        asked, self.reading = self.reading, None
        assert asked is not None
        found = [one for one in self.batches if one[1] > asked.first][:count]
        first, end = found[0][0], found[-1][1]
        keys = [b"%d" % one for one in self.hashes[first:end]] if asked.wants_keys else None
        if not self.auto_ack:
            assert first <= asked.first
        self._tell(ReadCompleted(first, end, (end - first) * MESSAGE_BYTES, keys))

    def _find_damage(self, length: int) -> None:
        assert self.reading is not None
        first, end = self.reading.first, min(self.end, self.reading.first + length)
        self.reading = None
        self._expect_acked(set(range(first, end)) - self.acked)
        self._tell(ReadCompleted(end, end, 0))

    def _ack(self, ranges: list[tuple[int, int]]) -> None:
        known = {o for first, end in ranges for o in range(first, min(end, self.end))}
        fresh = known - self.acked
        self._expect_acked(fresh)
        effects = self._tell(Acked(ranges))
        if not self.auto_ack:
            said = [one for one in effects if isinstance(one, AckAdvanced)]
            journaled = [o for one in said for first, end in one.ranges for o in range(first, end)]
            assert sorted(journaled) == sorted(fresh)

    def _expect_acked(self, offsets: set[int]) -> None:
        self.acked |= offsets
        for offset in offsets:
            self.flying.pop(offset, None)
            self.delayed.pop(offset, None)
            self.condemned.discard(offset)
            self.counts.pop(offset, None)

    def _forget_peer(self, consumer_id: int, heir: int | None = None, *, is_clean: bool) -> None:
        del self.peers[consumer_id]
        had = [o for o, one in self.flying.items() if one.consumer_id == consumer_id]
        self._fail(had, is_clean=is_clean)
        place = self.queue.index(consumer_id)
        self.queue[place : place + 1] = [] if heir is None else [heir]

    def _pass_time(self, step_ns: int) -> None:
        self.now_ns += step_ns
        if self.armed_ns is None or self.armed_ns > self.now_ns:
            return
        self.armed_ns = None
        overdue = [o for o, one in self.flying.items() if 0 < one.due_ns <= self.now_ns]
        self.delayed = {o: due for o, due in self.delayed.items() if due > self.now_ns}
        self._fail(overdue)
        self._put_off(overdue, 0)
        effects = self._tell(Ticked())
        said = [one.count for one in effects if isinstance(one, TimedOut)]
        assert said == ([len(overdue)] if overdue else [])

    # ------------------------------------------------------------ the rules of delivery

    def _check_delivery(self, effect: Deliver, chunk: ReadCompleted) -> None:
        offsets = list(effect.offsets or range(effect.first, effect.end))
        assert offsets == sorted(set(offsets))
        assert effect.first == offsets[0]
        assert effect.end == offsets[-1] + 1
        assert chunk.first <= effect.first < effect.end <= chunk.end, "not of the chunk just read"
        peer = self.peers[effect.consumer_id]
        assert effect.messages == len(offsets) <= peer.messages, "more than the credit"
        peer.messages -= len(offsets)
        if self.kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER):
            assert effect.consumer_id == self.queue[0], "a standby was served"
        timeout_ns = peer.ack_timeout_ns or self.rule.ack_timeout_ns
        due_ns = self.now_ns + timeout_ns if timeout_ns else 0
        if self.kind is not SubscriptionType.KEY_SHARED and self.rule.blocks:
            assert not self.condemned, "delivered past a message that blocks"
        for offset in offsets:
            assert offset not in self.acked, "acknowledged, and delivered again"
            assert offset not in self.flying, "delivered twice"
            assert self.delayed.get(offset, 0) <= self.now_ns, "delivered before its time"
            assert offset not in self.condemned, "failed too often, and delivered again"
            assert effect.redelivery_count == self.failed.get(offset, 0)
            if self.kind is SubscriptionType.KEY_SHARED:
                self._check_key_order(offset, effect.consumer_id)
            else:
                self._check_order(offset)
            if self.auto_ack:
                self.acked.add(offset)
            else:
                self.flying[offset] = Out(effect.consumer_id, due_ns)
            self.delayed.pop(offset, None)
        assert len(self.flying) <= LIMITS.unacked_messages_max
        bound = self.rule.unacked_messages_max or LIMITS.unacked_messages_max
        assert len(self.flying) <= bound, "more is in flight than the policy allows"

    def _check_order(self, offset: int) -> None:
        """What goes is always the lowest that may go."""
        overtaken = [
            o
            for o in range(self.start, offset)
            if not (o in self.acked or o in self.flying or o in self.delayed or o in self.condemned)
        ]
        assert overtaken == []

    def _check_key_order(self, offset: int, consumer_id: int) -> None:
        key = self.hashes[offset]
        assert self.owners.setdefault(key, consumer_id) == consumer_id, "a key has two owners"
        for older in range(self.start, offset):
            if self.hashes[older] != key or older in self.acked:
                continue
            assert older in self.flying, "a newer message of the key overtook one that waits"
            assert self.flying[older].consumer_id == consumer_id, "a key moved while it was open"
