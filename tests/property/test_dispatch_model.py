"""The subscription core against a model of single messages, with any order of events.

The machine plays the shell: it keeps the log, completes or fails reads when hypothesis says so, and
checks every effect against a model that knows each message by itself. Failure policies change at any
moment, messages fail too often, and a crash leaves the core with the cursor and the counts that were
made durable.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from danubius.ack.core.cursor import Cursor
from danubius.dispatch.core.effects import (
    AckAdvanced,
    ActiveChanged,
    Replaced,
)
from danubius.dispatch.core.events import (
    Acked,
    ConsumerJoined,
    ConsumerLeft,
    LogExtended,
    Nacked,
    PolicyChanged,
    ReadFailed,
    Released,
    WritableChanged,
)
from danubius.model.subscription import SubscriptionType
from property.dispatch_shell import AMPLE, KEYS, DispatchShell, Peer, rules
from proving import sized

if TYPE_CHECKING:
    from danubius.ack.core.failure import FailureRule


class DispatchMachine(DispatchShell):
    """One subscription of one type; subclasses choose it."""

    @initialize(
        first_acks=st.lists(st.integers(0, 11), max_size=4), sizes=st.lists(st.integers(1, 6))
    )
    def begin(self, first_acks: list[int], sizes: list[int]) -> None:
        for size in sizes[:4]:
            self._grow(size)
        cursor = Cursor(0, [(offset, offset + 1) for offset in first_acks if offset < self.end])
        self.acked = {offset for offset in range(self.end) if offset in cursor}
        self._start_core(cursor)

    # ------------------------------------------------------------ what happens

    @rule(name=st.sampled_from("abc"), ack_timeout_ns=st.sampled_from([0, 30]))
    @precondition(lambda self: len(self.peers) < 4)
    def join(self, name: str, ack_timeout_ns: int) -> None:
        taken = [one for one, peer in self.peers.items() if peer.name == name]
        is_ordered = self.kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)
        may = self.kind is not SubscriptionType.EXCLUSIVE or not self.peers or bool(taken)
        assert self.core.can_join(name) == may
        if not may:
            return
        consumer_id = next(self.ids)
        if taken and is_ordered:
            self._forget_peer(taken[0], heir=consumer_id, is_clean=False)
        else:
            self.queue.append(consumer_id)
        self.peers[consumer_id] = Peer(name, ack_timeout_ns)
        self.owners.clear()
        effects = self._tell(ConsumerJoined(consumer_id, name, ack_timeout_ns))
        replaced = [one.consumer_id for one in effects if isinstance(one, Replaced)]
        assert replaced == (taken if is_ordered else [])
        self._grant(consumer_id, 8, 800)

    @rule(data=st.data(), is_clean=st.booleans())
    @precondition(lambda self: self.peers)
    def leave(self, data: st.DataObject, is_clean: bool) -> None:
        consumer_id = data.draw(st.sampled_from(sorted(self.peers)))
        was_active = self.core.is_active(consumer_id)
        self._forget_peer(consumer_id, is_clean=is_clean)
        self.owners.clear()
        effects = self._tell(ConsumerLeft(consumer_id, is_clean))
        promoted = [one for one in effects if isinstance(one, ActiveChanged)]
        if self.kind is SubscriptionType.FAILOVER and was_active and self.queue:
            assert promoted == [ActiveChanged(self.queue[0], is_active=True)]
        else:
            assert promoted == []

    @rule(data=st.data(), messages=st.integers(0, 15), size=st.integers(0, 1000))
    @precondition(lambda self: self.peers)
    def grant(self, data: st.DataObject, messages: int, size: int) -> None:
        self._grant(data.draw(st.sampled_from(sorted(self.peers))), messages, size)

    @rule(data=st.data(), is_writable=st.booleans())
    @precondition(lambda self: self.peers)
    def set_writable(self, data: st.DataObject, is_writable: bool) -> None:
        consumer_id = data.draw(st.sampled_from(sorted(self.peers)))
        self.peers[consumer_id].is_writable = is_writable
        self._tell(WritableChanged(consumer_id, is_writable))

    @rule(size=st.integers(1, 12), hashes=st.lists(st.integers(0, KEYS - 1), max_size=12))
    def publish(self, size: int, hashes: list[int]) -> None:
        self._grow(size, hashes)
        self._tell(LogExtended(self.end))
        if self.auto_ack and not self.peers:
            assert self.core.backlog == 0, "nobody is there, so everything goes by"

    @rule(size=st.integers(1, 3))
    def publish_to_who_is_caught_up(self, size: int) -> None:
        first = self.end
        self._grow(size)
        if not self._offer(first):
            self._tell(LogExtended(self.end))

    @rule(count=st.integers(1, 3))
    @precondition(lambda self: self.auto_ack and len(self.batches) > 1)
    def ring_drops(self, count: int) -> None:
        del self.batches[: min(count, len(self.batches) - 1)]
        self.start = self.batches[0][0]

    @rule(batches=st.integers(1, 3), fate=st.integers(0, 9))
    @precondition(lambda self: self.reading)
    def read_ends(self, batches: int, fate: int) -> None:
        if fate == 9:
            self.reading = None
            self._tell(ReadFailed())
        elif fate == 8 and not self.auto_ack:
            self._find_damage(batches)
        else:
            self._complete_read(batches)

    @rule(data=st.data(), stray=st.integers(0, 40))
    def ack(self, data: st.DataObject, stray: int) -> None:
        some = data.draw(
            st.lists(st.sampled_from(sorted({*self.flying, *self.delayed}) or [0]), max_size=8)
        )
        ranges = [(offset, offset + 1) for offset in some]
        if stray > 37:  # also what was never delivered, and what is not there
            ranges.append((stray, stray + 3))
        elif stray < 3 and some:
            ranges = [(0, min(some) + 1)]  # cumulative
        self._ack(ranges)

    @rule(data=st.data(), delay_ns=st.sampled_from([0, 0, 15, 50]), width=st.integers(1, 5))
    @precondition(lambda self: self.flying)
    def nack(self, data: st.DataObject, delay_ns: int, width: int) -> None:
        first = data.draw(st.sampled_from(sorted(self.flying)))
        by = data.draw(st.sampled_from(sorted(self.peers)))
        returned = [
            offset
            for offset in range(first, first + width)
            if offset in self.flying and self.flying[offset].consumer_id == by
        ]
        self._fail(returned)
        self._put_off(returned, delay_ns)
        self._tell(Nacked(by, [(first, first + width)], delay_ns, "it says no"))

    @rule(another=rules)
    @precondition(lambda self: not self.auto_ack)
    def change_policy(self, another: FailureRule) -> None:
        self.rule = another
        self._judge_all()
        self._tell(PolicyChanged(another))

    @rule(count=st.integers(1, 4))
    @precondition(lambda self: self.core.condemned_count)
    def bury(self, count: int) -> None:
        """What the shell does with dead letters; also what an acknowledgement that comes late does."""
        condemned = [o for one in self.core.condemned() for o in range(one.first, one.end)]
        assert all(self.failed[offset] for offset in condemned)
        ranges = [(offset, offset + 1) for offset in condemned[:count]]
        self._expect_acked(set(condemned[:count]))
        effects = self._tell(Acked(ranges, is_durable=True))
        assert [one.is_durable for one in effects if isinstance(one, AckAdvanced)] == [True]

    @rule()
    @precondition(lambda self: self.core.condemned_count)
    def release(self) -> None:
        for one in self.core.condemned():
            for offset in range(one.first, one.end):
                self.condemned.discard(offset)
                self.failed[offset] = 0
        self._tell(Released())

    @rule()
    @precondition(lambda self: not self.auto_ack)
    def crash(self) -> None:
        """All that is left is the cursor, and the counts that were made durable."""
        self.peers.clear()
        self.queue.clear()
        self.owners.clear()
        self.flying.clear()
        self.delayed.clear()
        self.reading = self.armed_ns = None
        self.failed = dict(self.counts)
        self._judge_all()
        self._start_core(Cursor(0, [(offset, offset + 1) for offset in sorted(self.acked)]))

    @rule(step_ns=st.integers(1, 25))
    def time_passes(self, step_ns: int) -> None:
        self._pass_time(step_ns)

    # ------------------------------------------------------------ what must hold

    @invariant()
    def the_core_is_sound_and_agrees(self) -> None:
        if not hasattr(self, "core"):
            return
        self.core.check()
        cursor = self.core.cursor
        assert {o for o in range(self.end + 5) if o in cursor} == self.acked
        assert self.core.unacked == len(self.flying)
        assert self.core.backlog == self.end - len(self.acked)
        assert self.core.dropped == self.dropped
        condemned = {o for one in self.core.condemned() for o in range(one.first, one.end)}
        assert condemned <= self.condemned
        if (
            self.kind is not SubscriptionType.KEY_SHARED
        ):  # which finds them as it reads, after a crash
            assert condemned == self.condemned

    @invariant()
    def every_deadline_has_an_alarm(self) -> None:
        dues = [one.due_ns for one in self.flying.values() if one.due_ns]
        if self.kind is not SubscriptionType.KEY_SHARED:
            dues += self.delayed.values()
        if dues:
            assert self.armed_ns is not None
            assert self.armed_ns <= min(dues)

    def teardown(self) -> None:  # noqa: C901, PLR0912  whatever is left, in turn
        """Nothing is lost: with willing consumers, everything ends up acknowledged."""
        if not hasattr(self, "core"):
            return
        if not self.peers:
            self.join("a", 0)
        for _ in range(1000):
            for consumer_id, peer in self.peers.items():
                if not peer.is_writable:
                    peer.is_writable = True
                    self._tell(WritableChanged(consumer_id, is_writable=True))
                if peer.messages < 100 or peer.bytes < 100:
                    self._grant(consumer_id, AMPLE, AMPLE)
            if self.flying:
                self._ack([(offset, offset + 1) for offset in sorted(self.flying)])
            elif self.core.condemned_count:
                self.bury(100)
            elif self.reading is not None:
                self._complete_read(2)
            elif self.core.backlog == 0:
                break
            else:
                self._pass_time(50)
        assert self.acked == set(range(self.end)), "messages never came"
        self.the_core_is_sound_and_agrees()


CASES = list(itertools.product(SubscriptionType, [False, True]))
HISTORIES = sized(130, 260)
"""Of each type of a reliable topic: 1,040 in all at full size. Without acknowledgements nothing can fail."""


@pytest.mark.grows
@pytest.mark.parametrize(("kind", "auto_ack"), CASES, ids=lambda one: str(one))
def test_any_order_of_events_keeps_the_promises(kind: SubscriptionType, auto_ack: bool) -> None:
    machine = type("Machine", (DispatchMachine,), {"kind": kind, "auto_ack": auto_ack})
    examples = HISTORIES // 4 if auto_ack else HISTORIES
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=50, deadline=None)
    )
