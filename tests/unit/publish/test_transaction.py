"""Transactions as a core: what they take, what they hold, and which numbers are remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danubius.ack.core.ranges import RangeSet
from danubius.errors import InvalidArgument, TransactionTooLarge
from danubius.shard.features.transactions.core import transaction as module
from danubius.shard.features.transactions.core.transaction import (
    PART_BYTES,
    PARTS_MAX,
    CommittedIds,
    Transaction,
    TransactionIds,
    TransactionState,
)


def begin(bytes_max: int = 1 << 20) -> Transaction[str, str]:
    return Transaction(7, bytes_max)


def test_it_keeps_the_order_and_counts_what_it_holds() -> None:
    one = begin()
    assert one.stage("a", 100) == 100 + PART_BYTES
    one.stage("b", 1)
    assert one.ack("s", [(0, 5), (7, 9)]) == 2 * PART_BYTES
    assert one.ack("s", [(5, 7)]) == -PART_BYTES
    assert one.ack("s", [(3, 4)]) == 0
    assert one.staged == ["a", "b"]
    assert list(one.acks["s"]) == [(0, 9)]
    assert one.parts == 3
    held = one.bytes
    one.begin_commit()
    assert one.end(TransactionState.COMMITTED) == held
    assert (one.bytes, one.parts) == (0, 0)


def test_too_many_bytes_are_refused_and_change_nothing() -> None:
    one = begin(bytes_max=1000 + PART_BYTES)
    with pytest.raises(TransactionTooLarge, match="1,257 more would be over the limit of 1,256"):
        one.stage("a", 1001)
    assert (one.staged, one.bytes) == ([], 0)
    one.stage("a", 1000)


def test_too_many_parts_are_refused() -> None:
    one = begin(bytes_max=1 << 30)
    one.ack("s", [(2 * n, 2 * n + 1) for n in range(PARTS_MAX - 1)])
    one.stage("a", 1)
    with pytest.raises(TransactionTooLarge, match="40,000 batches and ranges"):
        one.stage("b", 1)
    with pytest.raises(TransactionTooLarge):
        one.ack("t", [(0, 1)])
    assert one.parts == PARTS_MAX


@pytest.mark.parametrize("state", ["committing", "committed", "aborted"])
def test_nothing_is_added_to_one_that_is_not_open(state: str) -> None:
    one = begin()
    if state != "aborted":
        one.begin_commit()
    if state != "committing":
        one.end(TransactionState(state))
    with pytest.raises(InvalidArgument, match=f"transaction 7 is {state}"):
        one.stage("a", 1)
    with pytest.raises(InvalidArgument):
        one.ack("s", [(0, 1)])
    with pytest.raises(InvalidArgument):
        one.begin_commit()


def test_numbers_are_never_given_twice() -> None:
    first, second = TransactionIds(1), TransactionIds(2)
    numbers = [first.draw(), first.draw(), second.draw(), second.draw()]
    assert len(set(numbers)) == 4
    assert numbers == sorted(numbers)
    assert all(second.was_given(number) for number in numbers)
    assert not first.was_given(numbers[2])
    assert not second.was_given(numbers[3] + 1)
    assert not second.was_given(0)
    assert not second.was_given(5)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 60)), max_size=120))
def test_committed_numbers_are_remembered_up_to_the_bound(pairs: list[tuple[int, int]]) -> None:
    """Against a plain set: nothing is ever believed that was not committed, and the newest is there."""
    bound = 4
    ranges = RangeSet()
    ids, model = CommittedIds(ranges), set[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RANGES_MAX", bound)
        for epoch, count in pairs:
            number = epoch << 40 | count
            ranges.add(number, number + 1)
            ids.trim()
            model.add(number)
    assert len(ranges) <= bound
    known = {number for number in model if number in ids}
    assert sum(end - first for first, end in ranges) == len(known)
    assert not model or max(model) in ids
