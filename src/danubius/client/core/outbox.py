"""Encoded batches on their way to the broker, in sequence order, until each is stored or given up.

Invariants:
- Batches leave in the order of their sequences, and a batch is sent again only together with all behind it.
- At most `window` batches are under way at once. The broker remembers its answers to at least that many, so a batch
  sent twice after a lost answer is answered twice and stored once.
- A refusal counts only in the generation it was sent in: the refusals that a gap causes for the batches behind it
  are not taken for new trouble. A success counts always.
- After a gap (a batch was given up) the batches behind it get new sequences only under a new epoch, and only once
  every batch that the broker already has under the old epoch is settled: so none can be stored twice.
"""

from __future__ import annotations

from collections import deque
from itertools import chain, pairwise
from typing import Final, Generic, TypeVar

import msgspec

from danubius.record.encode import rewrite_producer

WINDOW_BATCHES: Final = 64

TokenT = TypeVar("TokenT")


class Parcel(msgspec.Struct, Generic[TokenT], eq=False):
    """One encoded batch and what waits for it."""

    buffer: bytes | bytearray
    ordinal: int
    """Its number in this outbox; unlike the sequence it never changes."""
    base_sequence: int
    count: int
    deadline_ns: int
    token: TokenT
    was_sent: bool = False
    is_settled: bool = False

    @property
    def end_sequence(self) -> int:
        return self.base_sequence + self.count


class Outbox(Generic[TokenT]):
    """The unacknowledged batches of one producer."""

    __slots__ = (
        "_in_flight",
        "_waiting",
        "barrier",
        "bytes",
        "generation",
        "next_ordinal",
        "next_sequence",
        "producer_epoch",
        "producer_id",
        "window",
    )

    def __init__(self, window: int = WINDOW_BATCHES) -> None:
        assert window > 0
        self.window = window
        self.producer_id = 0
        self.producer_epoch = 0
        self.next_sequence = 0
        self.next_ordinal = 0
        self.generation = 0
        self.bytes = 0
        self._waiting: deque[Parcel[TokenT]] = deque()
        self._in_flight: deque[Parcel[TokenT]] = deque()
        self.barrier: int | None = None
        """The sequence from which on batches are held back for a new epoch."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_flight)

    @property
    def has_window(self) -> bool:
        """Whether a batch added now could be sent now, or nothing is here whose end would bring it along."""
        if not self.bytes:
            return True  # behind a barrier too: here its time runs out, as everybody's
        return not self._waiting and self.barrier is None and len(self._in_flight) < self.window

    @property
    def has_waiting(self) -> bool:
        """Whether a batch is queued that is not under way."""
        return bool(self._waiting)

    @property
    def has_gap(self) -> bool:
        """Whether batches wait for a new epoch."""
        return self.barrier is not None

    @property
    def needs_epoch(self) -> bool:
        """Whether everything below the gap is settled, so that a new epoch may be asked for."""
        return self.barrier is not None and not any(
            not parcel.is_settled and parcel.base_sequence < self.barrier
            for parcel in chain(self._in_flight, self._waiting)
        )

    @property
    def oldest(self) -> Parcel[TokenT] | None:
        """The first batch that is still open."""
        for parcel in chain(self._in_flight, self._waiting):
            if not parcel.is_settled:
                return parcel
        return None

    def is_settled_below(self, ordinal: int) -> bool:
        """Whether every batch added before this number is settled."""
        oldest = self.oldest
        return oldest is None or oldest.ordinal >= ordinal

    def add(
        self, buffer: bytes | bytearray, count: int, deadline_ns: int, token: TokenT
    ) -> Parcel[TokenT]:
        """Queue a batch that was encoded with this outbox's id, epoch and next sequence."""
        assert count > 0
        parcel = Parcel(buffer, self.next_ordinal, self.next_sequence, count, deadline_ns, token)
        self.next_ordinal += 1
        self.next_sequence += count
        self.bytes += len(buffer)
        self._waiting.append(parcel)
        return parcel

    def pass_through(
        self, buffer: bytes | bytearray, count: int, deadline_ns: int, token: TokenT
    ) -> Parcel[TokenT]:
        """`add` a batch and `take` it in one step, when nothing is queued, under way or held back."""
        assert not self.bytes
        assert self.barrier is None
        ordinal, sequence = self.next_ordinal, self.next_sequence
        parcel = Parcel(buffer, ordinal, sequence, count, deadline_ns, token, was_sent=True)
        self.next_ordinal = ordinal + 1
        self.next_sequence = sequence + count
        self.bytes = len(buffer)
        self._in_flight.append(parcel)
        return parcel

    def take(self) -> list[Parcel[TokenT]]:
        """The batches to send now, in order; they are under way from here on."""
        ready: list[Parcel[TokenT]] = []
        waiting = self._waiting
        in_flight = self._in_flight
        while waiting and len(in_flight) < self.window:
            parcel = waiting[0]
            if self.barrier is not None and parcel.base_sequence >= self.barrier:
                break
            waiting.popleft()
            if not parcel.is_settled:
                parcel.was_sent = True
                in_flight.append(parcel)
                ready.append(parcel)
        return ready

    def settle(self, parcel: Parcel[TokenT]) -> bool:
        """The batch is stored or given up. False if that was known already."""
        if parcel.is_settled:
            return False
        parcel.is_settled = True
        self.bytes -= len(parcel.buffer)
        in_flight = self._in_flight
        while in_flight and in_flight[0].is_settled:
            in_flight.popleft()
        waiting = self._waiting
        while waiting and waiting[0].is_settled:
            waiting.popleft()
        return True

    def rewind(self) -> None:
        """Take back everything under way: it will be sent again, and old refusals no longer count."""
        self.generation += 1
        self._waiting.extendleft(reversed(self._in_flight))
        self._in_flight.clear()

    def opened(self, producer_id: int, producer_epoch: int, next_sequence: int) -> None:
        """The producer started a new life: what is left gets new sequences under the new epoch."""
        self.rewind()
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.barrier = None
        self._waiting = deque(parcel for parcel in self._waiting if not parcel.is_settled)
        sequence = next_sequence
        for parcel in self._waiting:
            # A copy: the transport may still hold the old bytes, on their way under the old epoch.
            parcel.buffer = buffer = bytearray(parcel.buffer)
            rewrite_producer(buffer, producer_id, producer_epoch, sequence)
            parcel.base_sequence = sequence
            sequence += parcel.count
        self.next_sequence = sequence

    def resumed(self, next_sequence: int) -> None:
        """The broker continues this epoch and expects `next_sequence`: everything below it is stored.

        Stored batches are sent again for their answers. If what follows does not start where the broker expects,
        the rest is held back behind a barrier until `needs_epoch` and `opened`.
        """
        self.rewind()
        self.barrier = None
        # New batches must never take sequences that the broker has seen: it would take them for repeats.
        self.next_sequence = max(self.next_sequence, next_sequence)
        expected = self.next_sequence
        for parcel in self._waiting:
            if not parcel.is_settled and parcel.base_sequence >= next_sequence:
                expected = parcel.base_sequence
                break
        if expected != next_sequence:
            self.barrier = next_sequence

    def doubtful(self) -> list[Parcel[TokenT]]:
        """Behind a gap: the open batches that were sent once and that the broker knows nothing of."""
        barrier = self.barrier
        if barrier is None:
            return []
        return [
            parcel
            for parcel in self._waiting
            if parcel.was_sent and not parcel.is_settled and parcel.base_sequence >= barrier
        ]

    def not_taken(self, refused: Parcel[TokenT]) -> None:
        """The broker took neither this batch nor one behind it: nothing of that is in doubt."""
        for parcel in self._in_flight:
            if parcel.ordinal >= refused.ordinal:
                parcel.was_sent = False

    def expired(self, now_ns: int) -> list[Parcel[TokenT]]:
        """The open batches whose time is over; the caller settles them."""
        return [
            parcel
            for parcel in chain(self._in_flight, self._waiting)
            if not parcel.is_settled and parcel.deadline_ns <= now_ns
        ]

    def drain(self) -> list[Parcel[TokenT]]:
        """Settle everything that is left and return it: the producer ends."""
        left = [p for p in chain(self._in_flight, self._waiting) if not p.is_settled]
        for parcel in left:
            self.settle(parcel)
        self._in_flight.clear()
        self._waiting.clear()
        return left

    def check(self) -> None:
        """Assert every invariant; for tests."""
        parcels = [*self._in_flight, *self._waiting]
        live = [parcel for parcel in parcels if not parcel.is_settled]
        assert self.bytes == sum(len(parcel.buffer) for parcel in live)
        assert len(self._in_flight) <= self.window
        for before, after in pairwise(parcels):
            assert before.end_sequence <= after.base_sequence
        if parcels:
            assert parcels[-1].end_sequence <= self.next_sequence
