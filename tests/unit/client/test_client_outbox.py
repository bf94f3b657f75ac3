"""Batches on their way: order, window, repeats after a loss, and new epochs past a gap."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from danubius.client.core.outbox import Outbox, Parcel
from danubius.record.batch import read_header
from danubius.record.encode import encode


def encoded(outbox: Outbox[str], count: int) -> bytearray:
    return encode(
        [b"x"] * count,
        publish_time_us=1,
        producer_id=outbox.producer_id,
        producer_epoch=outbox.producer_epoch,
        base_sequence=outbox.next_sequence,
    )


def add(
    outbox: Outbox[str], count: int = 1, token: str = "", deadline_ns: int = 100
) -> Parcel[str]:
    return outbox.add(encoded(outbox, count), count, deadline_ns, token)


def pass_through(
    outbox: Outbox[str], count: int = 1, token: str = "", deadline_ns: int = 100
) -> Parcel[str]:
    return outbox.pass_through(bytes(encoded(outbox, count)), count, deadline_ns, token)


@pytest.fixture
def outbox() -> Outbox[str]:
    box: Outbox[str] = Outbox(window=3)
    box.opened(7, 1, 0)
    return box


def test_batches_leave_in_order_up_to_the_window(outbox: Outbox[str]) -> None:
    parcels = [add(outbox, 2) for _ in range(5)]
    assert [p.base_sequence for p in parcels] == [0, 2, 4, 6, 8]
    assert outbox.take() == parcels[:3]
    assert outbox.take() == []
    outbox.settle(parcels[0])
    assert outbox.take() == [parcels[3]]
    outbox.check()


def test_passing_through_is_adding_and_taking(outbox: Outbox[str]) -> None:
    twin: Outbox[str] = Outbox(window=3)
    twin.opened(7, 1, 0)
    for count in (1, 2):
        passed, taken = pass_through(outbox, count, "t", 9), add(twin, count, "t", 9)
        assert twin.take() == [taken]
        assert msgspec.structs.astuple(passed) == msgspec.structs.astuple(taken)
        assert outbox.bytes == twin.bytes
        assert outbox.take() == []
        outbox.check()
        assert outbox.settle(passed)
        assert twin.settle(taken)
    assert (outbox.next_sequence, outbox.next_ordinal) == (3, 2)
    assert len(outbox) == outbox.bytes == 0


def test_what_passed_through_leaves_again_after_a_rewind(outbox: Outbox[str]) -> None:
    passed, behind = pass_through(outbox), add(outbox)
    outbox.opened(7, 2, 5)
    assert outbox.take() == [passed, behind]
    header = read_header(passed.buffer)
    assert (header.producer_epoch, header.base_sequence) == (2, 5)
    outbox.check()


def test_nothing_overtakes_by_passing_through(outbox: Outbox[str]) -> None:
    add(outbox)
    with pytest.raises(AssertionError):
        pass_through(outbox)
    outbox.drain()
    outbox.resumed(next_sequence=0)
    assert outbox.has_gap
    with pytest.raises(AssertionError):
        pass_through(outbox)


def test_an_answer_out_of_order_does_not_open_the_window(outbox: Outbox[str]) -> None:
    parcels = [add(outbox) for _ in range(4)]
    outbox.take()
    outbox.settle(parcels[1])
    assert outbox.take() == []
    outbox.settle(parcels[0])
    assert outbox.take() == [parcels[3]]


def test_a_batch_is_settled_once(outbox: Outbox[str]) -> None:
    parcel = add(outbox)
    outbox.take()
    assert outbox.bytes == len(parcel.buffer)
    assert outbox.settle(parcel)
    assert not outbox.settle(parcel)
    assert outbox.bytes == 0
    assert len(outbox) == 0


def test_after_a_rewind_everything_unsettled_leaves_again_in_order(outbox: Outbox[str]) -> None:
    parcels = [add(outbox) for _ in range(4)]
    outbox.take()
    outbox.settle(parcels[1])
    generation = outbox.generation
    outbox.rewind()
    assert outbox.generation == generation + 1
    assert outbox.take() == [parcels[0], parcels[2], parcels[3]]


def test_a_resume_without_a_gap_goes_on_in_the_same_epoch(outbox: Outbox[str]) -> None:
    parcels = [add(outbox, 2) for _ in range(3)]
    outbox.take()
    outbox.resumed(next_sequence=2)
    assert not outbox.has_gap
    assert outbox.take() == parcels
    assert outbox.producer_epoch == 1


def test_a_resume_after_everything_was_stored_sends_again_for_the_answers(
    outbox: Outbox[str],
) -> None:
    parcels = [add(outbox), add(outbox)]
    outbox.take()
    outbox.resumed(next_sequence=2)
    assert not outbox.has_gap
    assert outbox.take() == parcels


def test_past_a_gap_stored_batches_are_settled_before_a_new_epoch(outbox: Outbox[str]) -> None:
    stored, refused, behind = add(outbox, 2), add(outbox, 2), add(outbox, 2)
    outbox.take()
    outbox.settle(refused)
    outbox.resumed(next_sequence=2)
    assert outbox.has_gap
    assert not outbox.needs_epoch
    assert outbox.take() == [stored]
    assert not outbox.has_window
    outbox.settle(stored)
    assert outbox.needs_epoch
    assert outbox.take() == []
    outbox.opened(7, 2, 0)
    assert outbox.take() == [behind]
    header = read_header(behind.buffer)
    assert (header.producer_epoch, header.base_sequence) == (2, 0)
    assert outbox.next_sequence == 2
    outbox.check()


def test_a_gap_at_the_end_asks_for_a_new_epoch_too(outbox: Outbox[str]) -> None:
    refused = add(outbox, 2)
    outbox.take()
    outbox.settle(refused)
    outbox.resumed(next_sequence=0)
    assert outbox.needs_epoch
    outbox.opened(7, 2, 0)
    assert not outbox.has_gap
    assert add(outbox).base_sequence == 0


def test_a_broker_that_forgot_acknowledged_batches_leads_to_a_new_epoch(
    outbox: Outbox[str],
) -> None:
    acknowledged, open_one = add(outbox, 2), add(outbox, 2)
    outbox.take()
    outbox.settle(acknowledged)
    outbox.resumed(next_sequence=0)
    assert outbox.needs_epoch
    assert outbox.doubtful() == [open_one]


def test_new_batches_never_take_sequences_the_broker_has_seen(outbox: Outbox[str]) -> None:
    outbox.resumed(next_sequence=50)
    assert outbox.next_sequence == 50
    assert add(outbox).base_sequence == 50


def test_a_renumbered_batch_is_a_copy(outbox: Outbox[str]) -> None:
    parcel = add(outbox)
    outbox.take()
    old = parcel.buffer
    before = bytes(old)
    outbox.opened(7, 2, 0)
    assert parcel.buffer is not old
    assert bytes(old) == before


def test_only_what_is_too_old_expires(outbox: Outbox[str]) -> None:
    old = add(outbox, deadline_ns=10)
    new = add(outbox, deadline_ns=20)
    assert outbox.expired(9) == []
    assert outbox.expired(10) == [old]
    outbox.settle(old)
    assert outbox.oldest is new


def test_a_flush_marker_is_passed_when_all_before_it_are_settled(outbox: Outbox[str]) -> None:
    first, second = add(outbox), add(outbox)
    marker = outbox.next_ordinal
    add(outbox)
    outbox.take()
    outbox.settle(second)
    assert not outbox.is_settled_below(marker)
    outbox.settle(first)
    assert outbox.is_settled_below(marker)


def test_draining_returns_what_was_open(outbox: Outbox[str]) -> None:
    parcels = [add(outbox) for _ in range(4)]
    outbox.take()
    outbox.settle(parcels[0])
    assert outbox.drain() == parcels[1:]
    assert len(outbox) == 0
    assert outbox.bytes == 0


class AgainstABroker(RuleBasedStateMachine):
    """An outbox against a broker that stores in sequence, refuses, forgets connections and loses answers."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox: Outbox[str] = Outbox(window=4)
        self.outbox.opened(7, 1, 0)
        self.epoch = 1
        self.expected = 0
        self.stored: list[str] = []
        self.added: list[str] = []
        self.failed: set[str] = set()
        self.answered: set[str] = set()
        self.wire: list[tuple[Parcel[str], int, int, bytes]] = []
        self.is_stuck = False

    def _settle(self, parcel: Parcel[str], *, is_stored: bool) -> None:
        if self.outbox.settle(parcel):
            (self.answered if is_stored else self.failed).add(parcel.token)

    @rule(count=st.integers(1, 3))
    def add_batch(self, count: int) -> None:
        token = f"m{len(self.added)}"
        self.added.append(token)
        add(self.outbox, count, token)

    @precondition(lambda self: not self.is_stuck)
    @rule()
    def send(self) -> None:
        for parcel in self.outbox.take():
            self._put_on_wire(parcel)

    @precondition(lambda self: not self.outbox.bytes and not self.outbox.has_gap)
    @rule(count=st.integers(1, 3))
    def send_alone(self, count: int) -> None:
        token = f"m{len(self.added)}"
        self.added.append(token)
        self._put_on_wire(pass_through(self.outbox, count, token))

    def _put_on_wire(self, parcel: Parcel[str]) -> None:
        header = read_header(parcel.buffer)
        assert header.producer_epoch == self.epoch
        assert header.base_sequence == parcel.base_sequence
        self.wire.append((parcel, self.outbox.generation, self.epoch, bytes(parcel.buffer)))

    @precondition(lambda self: self.wire)
    @rule(is_refused=st.booleans(), is_heard=st.booleans())
    def broker_handles_one(self, is_refused: bool, is_heard: bool) -> None:
        parcel, generation, epoch, data = self.wire.pop(0)
        header = read_header(data)
        end = header.base_sequence + header.count
        if epoch != self.epoch:
            return
        if end <= self.expected:
            if is_heard:
                self._settle(parcel, is_stored=True)
        elif header.base_sequence == self.expected and not is_refused:
            self.stored.append(parcel.token)
            self.expected = end
            if is_heard:
                self._settle(parcel, is_stored=True)
        elif header.base_sequence == self.expected:
            if generation == self.outbox.generation:
                self._settle(parcel, is_stored=False)
        elif generation == self.outbox.generation and not parcel.is_settled:
            self.reopen()

    @rule()
    def reconnect(self) -> None:
        self.wire.clear()
        self.reopen()

    def reopen(self) -> None:
        self.outbox.resumed(self.expected)
        self.renew_if_needed()

    @invariant()
    def renew_if_needed(self) -> None:
        if self.outbox.needs_epoch:
            self.epoch += 1
            self.expected = 0
            self.outbox.opened(7, self.epoch, 0)

    @invariant()
    def nothing_is_stored_twice_or_out_of_order(self) -> None:
        self.outbox.check()
        assert len(set(self.stored)) == len(self.stored)
        order = [self.added.index(token) for token in self.stored]
        assert order == sorted(order)
        assert self.answered <= set(self.stored)
        assert not self.failed & set(self.stored)

    def teardown(self) -> None:
        for _ in range(3 * len(self.added) + 10):
            if not len(self.outbox):
                break
            self.reconnect()
            self.send()
            while self.wire:
                self.broker_handles_one(is_refused=False, is_heard=True)
            self.renew_if_needed()
        assert set(self.stored) | self.failed == set(self.added)


TestOutboxAgainstABroker = AgainstABroker.TestCase
TestOutboxAgainstABroker.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
