"""One key of a Key-Shared subscription, and what is found out about many of its messages at once."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from danubius.ack.core.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from danubius.ack.core.in_flight import Flight
    from danubius.ack.core.ranges import Range
    from danubius.dispatch.core.consumers import Consumer

NEVER_NS: Final = 1 << 64
"""Later than every deadline."""


class Key:
    """One key with open messages, or with messages that were passed by."""

    __slots__ = (
        "condemned",
        "due_ns",
        "flying",
        "held",
        "holder",
        "is_seeking",
        "name",
        "owner",
        "passed",
        "passed_from",
    )

    def __init__(self, name: bytes, owner: Consumer | None) -> None:
        self.name = name
        self.owner = owner
        """Whom the ring names; None while nobody takes the key."""
        self.holder: int | None = None
        """The consumer that has all the flying messages; None if and only if there are none."""
        self.flying = 0
        self.held: deque[int] = deque()
        """Offsets, rising."""
        self.due_ns = 0
        """The key waits until then; 0 if it does not."""
        self.condemned = 0
        """How many of the held messages failed too often."""
        self.passed_from = -1
        """From here on, none of its messages below the window's `next` is open; -1 if none was passed by."""
        self.passed = 0
        """How many were passed by, and not taken since; some may have been acknowledged meanwhile."""
        self.is_seeking = False
        """Whether they are being looked for."""

    @property
    def may_go(self) -> bool:
        """Whether its owner may be given its next message."""
        owner = self.owner
        if owner is None or self.due_ns or self.condemned:
            return False
        return self.holder is None or self.holder == owner.consumer_id

    def check(self, flying: Mapping[int, int]) -> None:
        """`flying`: the key's messages in flight, each with its consumer."""
        assert self.held or self.flying or self.passed_from >= 0, "a key without messages"
        assert sorted(set(self.held)) == list(self.held), "held messages are out of order"
        assert len(flying) == self.flying
        assert (self.holder is None) == (self.flying == 0)
        assert all(one == self.holder for one in flying.values()), "a key flies at two consumers"
        assert not self.due_ns or self.held, "a key waits for nothing"
        assert self.passed_from >= 0 or not (self.passed or self.is_seeking)


def flights_in(flights: Mapping[int, Flight], ranges: list[Range]) -> list[int]:
    """The messages in flight that lie in these ranges, at the cost of the fewer of both."""
    if sum(end - first for first, end in ranges) > len(flights):
        wanted = RangeSet(ranges)
        return [offset for offset in flights if offset in wanted]
    return [offset for first, end in ranges for offset in range(first, end) if offset in flights]


def overdue_of(
    flights: Mapping[int, Flight], now_ns: int, *, is_rising: bool
) -> tuple[list[int], int]:
    """The messages whose deadline has come, and the next deadline. `is_rising`: deadlines are in order."""
    overdue: list[int] = []
    next_ns = NEVER_NS
    for offset, flight in flights.items():
        if not flight.due_ns:
            continue
        if flight.due_ns <= now_ns:
            overdue.append(offset)
            continue
        next_ns = min(next_ns, flight.due_ns)
        if is_rising:
            break
    return overdue, next_ns


def runs_of(offsets: Sequence[int]) -> list[Range]:
    """Rising offsets as ranges."""
    runs: list[Range] = []
    first = before = offsets[0]
    for offset in offsets[1:]:
        if offset != before + 1:
            runs.append((first, before + 1))
            first = offset
        before = offset
    runs.append((first, before + 1))
    return runs
