"""The window of slots that a journal's writer has under way: what may begin, what is committed, what was given up.

Invariants:
- Slots are given in order; none is begun while the one PUTS_AT_ONCE before it is not filled.
- What is committed is a prefix: a group counts when it and all slots before it are filled.
- After `fail` nothing begins until the answers of all that was under way are in and `resume` said where to go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from danubius.tier.core.journal_object import PUTS_AT_ONCE

if TYPE_CHECKING:
    from danubius.tier.core.journal_object import SnapshotRef
    from danubius.wal.writer import Entry


class Claim(NamedTuple):
    """What snapshots make needless: slots below the floor, once this was committed."""

    floor: int = 0
    kept: tuple[SnapshotRef, ...] = ()


class Group(NamedTuple):
    """What fills one slot."""

    slot: int
    base: int
    end: int
    promise: int
    entries: list[Entry]
    claim: Claim
    generation: int


class Window:
    """See the module."""

    def __init__(self, next_slot: int, position: int) -> None:
        self.next_slot = next_slot
        self.filled_to = next_slot
        """All slots below are filled, and what they hold was reported."""
        self.committed_end = position
        self.generation = 1
        """Rises with every failure: what was begun before is given up."""
        self.given_up = 0
        """Puts of earlier generations whose answers are not in."""
        self._end = position
        self._under_way: dict[int, Group] = {}
        self._filled: set[int] = set()

    @property
    def under_way(self) -> int:
        """Groups that are not reported."""
        return len(self._under_way)

    @property
    def has_room(self) -> bool:
        return self.next_slot < self.filled_to + PUTS_AT_ONCE

    def begin(self, entries: list[Entry], size: int, claim: Claim) -> Group:
        """Give the next slot to a group; it is to be put now."""
        assert self.has_room, "all slots that may be under way are"
        slot, base = self.next_slot, self._end
        group = Group(slot, base, base + size, self.filled_to, entries, claim, self.generation)
        self.next_slot += 1
        self._end = group.end
        self._under_way[slot] = group
        return group

    def filled(self, group: Group) -> list[Group]:
        """A put has gone well; returns the groups that are committed by it, in order."""
        if group.generation != self.generation:
            self.given_up -= 1
            return []
        self._filled.add(group.slot)
        committed: list[Group] = []
        while self.filled_to in self._filled:
            self._filled.discard(self.filled_to)
            committed.append(self._under_way.pop(self.filled_to))
            self.filled_to += 1
        if committed:
            self.committed_end = committed[-1].end
        return committed

    def failed(self, group: Group) -> bool:
        """A put has gone wrong for good: whether that is news, and everything under way is given up."""
        if group.generation != self.generation:
            self.given_up -= 1
            return False
        self.abandon()
        self.given_up -= 1  # whose answer this is
        return True

    def abandon(self) -> None:
        """Give up everything under way."""
        # Of slots that were filled behind a hole the answers are in.
        self.given_up += len(self._under_way) - len(self._filled)
        self.generation += 1
        self._under_way.clear()
        self._filled.clear()
        self._end = self.committed_end

    def resume(self, next_slot: int) -> None:
        """Everything below is filled now: by what was committed, by fences, and by what they make void."""
        assert not self._under_way
        self.next_slot = self.filled_to = next_slot
