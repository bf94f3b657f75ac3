"""Transactions: what waits for a commit, and which were committed.

Invariants:
- A transaction is OPEN, then COMMITTING, then COMMITTED or ABORTED; from OPEN it may be ABORTED at once. Only an open
  one takes anything, and an aborted one holds nothing.
- What is staged has no offset and is in no log: nobody sees it, and nothing has to be undone.
- A number is given once in the life of the broker's data: the epoch (one for each start) is in its high bits.
- Of committed transactions the numbers are remembered as ranges, so that a commit may be asked for again.
"""

from __future__ import annotations

import enum
import itertools
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from danubius.ack.core.ranges import RangeSet
from danubius.errors import InvalidArgument, TransactionTooLarge

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from danubius.ack.core.ranges import Range

StagedT = TypeVar("StagedT")
KeyT = TypeVar("KeyT", bound="Hashable")

PARTS_MAX: Final = 40_000
"""Batches and ranges of acknowledged offsets in one transaction: they are listed in the head of its record."""
PART_BYTES: Final = 256
"""What a batch or a range costs in memory beside its own bytes, rounded up."""
RANGES_MAX: Final = 10_000
"""Ranges of committed numbers that are remembered; the oldest go first."""

_EPOCH_SHIFT: Final = 40
_COUNT_MAX: Final = (1 << _EPOCH_SHIFT) - 1


class TransactionState(enum.Enum):
    """Where a transaction is in its life."""

    OPEN = "open"
    COMMITTING = "committing"
    """On its way through the journal: it can no longer be changed or taken back."""
    COMMITTED = "committed"
    ABORTED = "aborted"


class Transaction(Generic[StagedT, KeyT]):
    """What one transaction will publish and acknowledge."""

    __slots__ = ("_bytes_max", "acks", "bytes", "id", "staged", "state")

    def __init__(self, transaction_id: int, bytes_max: int) -> None:
        self.id = transaction_id
        self.state = TransactionState.OPEN
        self.staged: list[StagedT] = []
        """In the order of the commit."""
        self.acks: dict[KeyT, RangeSet] = {}
        self.bytes = 0
        """What it holds in memory, about."""
        self._bytes_max = bytes_max

    @property
    def parts(self) -> int:
        return len(self.staged) + sum(len(ranges) for ranges in self.acks.values())

    def stage(self, staged: StagedT, size: int) -> int:
        """Take a batch of so many bytes; returns by how much the transaction grew."""
        self._check_open()
        self._check_parts(1)
        grown = size + PART_BYTES
        if self.bytes + grown > self._bytes_max:
            raise TransactionTooLarge(
                f"transaction {self.id} holds {self.bytes:,} bytes, {grown:,} more would be over the limit of "
                f"{self._bytes_max:,}: commit smaller transactions"
            )
        self.staged.append(staged)
        self.bytes += grown
        return grown

    def ack(self, key: KeyT, ranges: Sequence[Range]) -> int:
        """Acknowledge ranges, once however often they are named; returns by how much the transaction grew."""
        self._check_open()
        self._check_parts(len(ranges))
        mine = self.acks.get(key)
        if mine is None:
            mine = self.acks[key] = RangeSet()
        before = len(mine)
        mine.add_all(ranges)
        grown = (len(mine) - before) * PART_BYTES
        self.bytes += grown
        return grown

    def begin_commit(self) -> None:
        self._check_open()
        self.state = TransactionState.COMMITTING

    def end(self, state: TransactionState) -> int:
        """It is over; returns how much it held."""
        assert state in (TransactionState.COMMITTED, TransactionState.ABORTED)
        assert self.state is TransactionState.COMMITTING or (
            self.state is TransactionState.OPEN and state is TransactionState.ABORTED
        ), f"from {self.state} to {state}"
        held = self.bytes
        self.state = state
        self.bytes = 0
        self.staged, self.acks = [], {}
        return held

    def _check_open(self) -> None:
        if self.state is not TransactionState.OPEN:
            raise InvalidArgument(
                f"transaction {self.id} is {self.state.value}: nothing can be added to it, begin another"
            )

    def _check_parts(self, more: int) -> None:
        # Summing up is for those that come near the bound: every part counts for bytes as well.
        if (
            self.bytes + more * PART_BYTES > PARTS_MAX * PART_BYTES
            and self.parts + more > PARTS_MAX
        ):
            raise TransactionTooLarge(
                f"transaction {self.id} has {self.parts:,} batches and ranges of acknowledged messages, at most "
                f"{PARTS_MAX:,} are allowed: commit smaller transactions"
            )


class TransactionIds:
    """Numbers for the transactions of one epoch."""

    __slots__ = ("_epoch", "_next")

    def __init__(self, epoch: int) -> None:
        assert 0 < epoch < 1 << (64 - _EPOCH_SHIFT), "the number would not fit 64 bits"
        self._epoch = epoch
        self._next = 1

    def draw(self) -> int:
        assert self._next < _COUNT_MAX
        number = self._epoch << _EPOCH_SHIFT | self._next
        self._next += 1
        return number

    def pass_over(self, transaction_id: int) -> None:
        """This number was given before; one of an earlier epoch, as it must be, changes nothing."""
        epoch, count = transaction_id >> _EPOCH_SHIFT, transaction_id & _COUNT_MAX
        if epoch == self._epoch:
            self._next = max(self._next, count + 1)

    def was_given(self, transaction_id: int) -> bool:
        """Whether this number may have been given, by this epoch or one before."""
        epoch, count = transaction_id >> _EPOCH_SHIFT, transaction_id & _COUNT_MAX
        if not count:
            return False
        return 0 < epoch < self._epoch or (epoch == self._epoch and count < self._next)


def epoch_of(transaction_id: int) -> int:
    """Who gave a number."""
    return transaction_id >> _EPOCH_SHIFT


class CommittedIds:
    """The numbers of the transactions that were committed, as ranges: nearly one an epoch if few are aborted.

    The ranges are the broker's own state, that facts change and snapshots keep; here they are asked and kept short.
    """

    __slots__ = ("_ranges",)

    def __init__(self, ranges: RangeSet) -> None:
        self._ranges = ranges

    def trim(self) -> None:
        """Forget the lowest beyond the bound."""
        excess = len(self._ranges) - RANGES_MAX
        if excess > 0:
            kept_from = next(itertools.islice(self._ranges, excess, None))[0]
            self._ranges.remove(0, kept_from)

    @property
    def last(self) -> int:
        """The highest number; 0: there is none."""
        return max((end - 1 for _, end in self._ranges), default=0)

    def __contains__(self, transaction_id: int) -> bool:
        return transaction_id in self._ranges
