"""Offsets and idempotence of one topic: which offset a batch gets, and whether it was here before.

Invariants:
- offsets are handed out without gaps; what is pending follows directly on what is committed;
- a producer's sequences are stored without gaps and at most once;
- what the broker itself publishes (`assign`) takes offsets between them and is no producer's;
- `commit` happens in the order of `admit` and `assign`; `roll_back` forgets everything pending at once, because a
  journal that failed one append fails all later ones too.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Final, NamedTuple

from danubius.errors import InvalidArgument, OutOfSequence, ProducerFenced
from danubius.model.ids import Epoch, Offset, ProducerId

RUNS_MAX: Final = 1024
"""Remembered answers a producer, as runs of sequences with consecutive offsets. A producer that is alone on its topic
has one run whatever it sends; one that alternates with others needs one a batch, and never has more in flight."""

PRODUCERS_MAX: Final = 10_000
"""Detached producer names remembered a topic; the one opened first is forgotten first."""

ADOPT: Final = -1
"""Next sequence of a producer whose history is unknown: the first batch that arrives sets it."""


class Run(NamedTuple):
    """Sequences [first, end) were stored at consecutive offsets from `offset`."""

    first: int
    end: int
    offset: int


class Producer:
    """What the topic remembers of one producer name."""

    __slots__ = (
        "admitted_next",
        "committed_next",
        "epoch",
        "id",
        "is_attached",
        "is_newest",
        "is_opening",
        "is_undone",
        "name",
        "previous",
        "runs",
    )

    def __init__(
        self, producer_id: ProducerId, name: str, epoch: Epoch, next_sequence: int
    ) -> None:
        self.id = producer_id
        self.name = name
        self.epoch = epoch
        self.is_attached = False
        self.is_newest = False
        """Whether its sequencer knows it by its name; otherwise a newer one took over, or it is forgotten."""
        self.is_opening = False
        """Whether its life is not durable yet."""
        self.is_undone = False
        """Its `open` did not become durable while a newer one was under way."""
        self.previous: Producer | None = None
        """Of one that is opening or undone: the life before it."""
        self.committed_next = next_sequence
        self.admitted_next = next_sequence
        self.runs: list[Run] = []
        """The newest, at most `RUNS_MAX`."""

    def remember(self, sequence: int, count: int, offset: int) -> None:
        if self.runs:
            last = self.runs[-1]
            if last.end == sequence and last.offset + (last.end - last.first) == offset:
                self.runs[-1] = Run(last.first, sequence + count, last.offset)
                return
        self.runs.append(Run(sequence, sequence + count, offset))
        if len(self.runs) > RUNS_MAX:
            del self.runs[0]

    def find(self, sequence: int, count: int) -> int | None:
        for run in reversed(self.runs):
            if run.first <= sequence and sequence + count <= run.end:
                return run.offset + (sequence - run.first)
        return None


class Repeated(NamedTuple):
    """Seen before: answer with this offset, at once or when the pending append at `pending_at` is committed."""

    offset: Offset
    pending_at: Offset | None


class _Pending(NamedTuple):
    producer: Producer | None
    """None: the broker itself; `sequence` is then 0."""
    sequence: int
    end: int
    offset: int


class Sequencer:
    """Hands out the offsets of one topic."""

    __slots__ = ("_oldest", "_others", "_producers", "committed_offset", "next_offset")

    def __init__(self, next_offset: int = 0) -> None:
        self.next_offset = next_offset
        self.committed_offset = next_offset
        self._producers: dict[str, Producer] = {}
        self._oldest: _Pending | None = None
        self._others: deque[_Pending] | None = None
        """What is pending behind the oldest. Of most topics there is one batch at a time, or none, and ten thousand of
        them do without a queue."""

    @property
    def _pending(self) -> list[_Pending]:
        """In the order of their offsets."""
        return [] if self._oldest is None else [self._oldest, *(self._others or ())]

    @property
    def producers(self) -> list[Producer]:
        return list(self._producers.values())

    @property
    def durable_producers(self) -> list[Producer]:
        """The lives that a crash now would leave: of a name that is opening, the one before."""
        lives: list[Producer] = []
        for newest in self._producers.values():
            life: Producer | None = newest
            while life is not None and life.is_opening:
                life = life.previous
            if life is not None:
                lives.append(life)
        return lives

    def producer_or_none(self, name: str) -> Producer | None:
        return self._producers.get(name)

    def plan_open(self, name: str, resume_epoch: int) -> Epoch | None:
        """The epoch that opening this name gives, or None if the current life simply goes on."""
        known = self._producers.get(name)
        if not resume_epoch:
            return Epoch(known.epoch + 1 if known else 1)
        if known is None:
            return Epoch(resume_epoch)
        if known.epoch == resume_epoch:
            return None
        raise ProducerFenced(
            f"producer {name!r} was taken over: its epoch is {known.epoch}, this one holds {resume_epoch}; "
            "give each concurrent producer its own name"
        )

    def open(
        self,
        producer_id: ProducerId,
        name: str,
        epoch: Epoch,
        *,
        resumed: bool,
        next_sequence: int = 0,
        is_replay: bool = False,
    ) -> Producer:
        """Begin a life of a producer name; an older life is fenced from here on.

        Its first batch has `next_sequence`, or any if it is resumed: whoever resumes knows more than we remember.
        A replay forgets nobody: all seem detached there, also those who will be back at once.
        """
        known = self._forget(name)
        producer = Producer(producer_id, name, epoch, ADOPT if resumed else next_sequence)
        if known is not None:
            producer.id = known.id
        self.restore(producer)
        excess = len(self._producers) - PRODUCERS_MAX
        if excess > 0 and not is_replay:
            # Two for one lead back to the bound behind a replay.
            self._forget_detached(min(2, excess), producer)
        return producer

    def _forget_detached(self, count: int, newest: Producer) -> None:
        detached = (
            name
            for name, producer in self._producers.items()
            if not producer.is_attached and producer is not newest
        )
        for name in list(itertools.islice(detached, count)):
            self._forget(name)

    def _forget(self, name: str) -> Producer | None:
        known = self._producers.pop(name, None)
        if known is not None:
            known.is_newest = False
        return known

    def opened(self, producer_id: ProducerId, name: str, epoch: Epoch) -> bool:
        """The life that was begun by this is durable; False if none was begun here, as in a replay."""
        life = self._producers.get(name)
        while life is not None and not (
            life.is_opening and life.epoch == epoch and life.id == producer_id
        ):
            life = life.previous
        if life is None:
            return False
        life.is_opening, life.previous = False, None
        return True

    def close(self, producer: Producer, previous: Producer | None) -> None:
        """Take back an `open` that did not become durable: the life before it goes on.

        If a newer one came in between, that one is asked about next, and must not bring this one back.
        """
        if self._producers.get(producer.name) is not producer:
            producer.is_undone, producer.previous = True, previous
            return
        self._forget(producer.name)
        while previous is not None and previous.is_undone:
            previous = previous.previous
        if previous is not None:
            self.restore(previous)

    def restore(self, producer: Producer) -> None:
        """Know a producer by its name; none is known by it."""
        self._producers[producer.name] = producer
        producer.is_newest = True

    def admit(self, producer: Producer, sequence: int, count: int) -> Offset | Repeated:
        """Decide on a batch of `count` records that starts at `sequence`: where to store it, or that it was stored."""
        if not producer.is_newest:
            raise ProducerFenced(f"a newer producer named {producer.name!r} took over")
        expected = producer.admitted_next
        if sequence == expected or expected == ADOPT:
            offset = Offset(self.next_offset)
            producer.admitted_next = sequence + count
            self.next_offset += count
            self._await(_Pending(producer, sequence, sequence + count, offset))
            return offset
        if sequence > expected:
            raise OutOfSequence(
                f"producer {producer.name!r} sent sequence {sequence}, but {expected} comes next; "
                "send again from there"
            )
        return self._repeated(producer, sequence, count)

    def assign(self, count: int) -> Offset:
        """Where to store a batch of the broker's own: never a repetition, and no part of any producer's sequence."""
        offset = Offset(self.next_offset)
        self.next_offset += count
        self._await(_Pending(None, 0, count, offset))
        return offset

    def _await(self, pending: _Pending) -> None:
        if self._oldest is None:
            self._oldest = pending
        elif self._others is None:
            self._others = deque((pending,))
        else:
            self._others.append(pending)

    def _repeated(self, producer: Producer, sequence: int, count: int) -> Repeated:
        offset = producer.find(sequence, count)
        if offset is not None:
            return Repeated(Offset(offset), None)
        for pending in self._pending:
            if (
                pending.producer is producer
                and pending.sequence == sequence
                and pending.end == sequence + count
            ):
                return Repeated(Offset(pending.offset), Offset(pending.offset))
        raise InvalidArgument(
            f"producer {producer.name!r} repeated sequence {sequence}, which was stored earlier, "
            "but in other batches or too long ago to know the offset"
        )

    def commit(self) -> None:
        """The oldest pending append is durable."""
        pending = self._oldest
        assert pending is not None, "something is pending"
        self._oldest = self._others.popleft() if self._others else None
        producer = pending.producer
        count = pending.end - pending.sequence
        if producer is not None:
            producer.remember(pending.sequence, count, pending.offset)
            producer.committed_next = pending.end
        self.committed_offset = pending.offset + count

    def roll_back(self) -> None:
        """Nothing that is pending was stored."""
        for pending in self._pending:
            producer = pending.producer
            if producer is not None:
                producer.admitted_next = producer.committed_next
        self._oldest = self._others = None
        self.next_offset = self.committed_offset

    def replay(self, producer: Producer | None, sequence: int, count: int) -> None:
        """A committed batch read back from the journal; its producer may be forgotten, or the broker."""
        offset = self.next_offset
        self.next_offset = self.committed_offset = offset + count
        if producer is not None:
            producer.remember(sequence, count, offset)
            producer.committed_next = producer.admitted_next = sequence + count

    def skip_to(self, offset: int) -> None:
        """What lies below is given up: the next batch is stored at `offset`."""
        assert self._oldest is None, "nothing is pending in a replay"
        assert offset >= self.next_offset
        self.next_offset = self.committed_offset = offset

    def check(self) -> None:
        """Assert every invariant."""
        expected = self.committed_offset
        for pending in self._pending:
            assert pending.offset == expected
            expected += pending.end - pending.sequence
        assert self.next_offset == expected
        for producer in self._producers.values():
            assert producer.is_newest
            if not any(pending.producer is producer for pending in self._pending):
                assert producer.admitted_next == producer.committed_next
