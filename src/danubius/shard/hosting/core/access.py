"""Access modes, which say who may publish to one topic: any number together, or one alone.

Invariants:
- Either all holders share the topic, or there is exactly one.
- Each name holds one place. A newer claim of a name takes the place of the older, in the topic and in the queue: it is
  the same producer after a lost connection, or one that is about to fence it.
- Somebody waits only while somebody else holds the topic. Places are given in order of arrival.
- Shared producers come in whenever nobody holds the topic exclusively, also past those who wait: who waits for all
  others to go waits for new ones too.
"""

from __future__ import annotations

import enum
import itertools
from typing import NamedTuple


class Mode(enum.Enum):
    """What a producer asks for."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"
    WAIT = "wait"


class Claim:
    """One producer's place on the topic, from its request to its end."""

    __slots__ = ("mode", "name")

    def __init__(self, name: str, mode: Mode) -> None:
        self.name = name
        self.mode = mode

    @property
    def is_shared(self) -> bool:
        return self.mode is Mode.SHARED


class Granted(NamedTuple):
    """Come in. The older claim of its name, if one waited, is out of the queue."""

    displaced: Claim | None = None


class Refused(NamedTuple):
    """Somebody else is there."""

    incumbent: Claim


class Waiting(NamedTuple):
    """Queued; `leave` of others will name it. The older claim of its name, if there was one, is out of the queue."""

    displaced: Claim | None


class AccessGate:
    """The places of one topic."""

    __slots__ = ("_holders", "_waiting")

    def __init__(self) -> None:
        self._holders: dict[str, Claim] = {}
        self._waiting: dict[str, Claim] = {}

    @property
    def is_empty(self) -> bool:
        return not self._holders and not self._waiting

    @property
    def waiting(self) -> list[Claim]:
        """Who waits, in the order in which they came."""
        return list(self._waiting.values())

    def others(self, name: str) -> int:
        """How many of other names are there, or on their way in."""
        return len(self._holders) - (name in self._holders)

    def ask(self, claim: Claim) -> Granted | Refused | Waiting:
        """Ask for a place. Granted holds it until `leave`; asking again after Refused is allowed."""
        incumbent = self._in_the_way(claim)
        if incumbent is None:
            self._holders[claim.name] = claim
            return Granted(self._waiting.pop(claim.name, None))
        if claim.mode is not Mode.WAIT:
            return Refused(incumbent)
        displaced = self._waiting.get(claim.name)
        self._waiting[claim.name] = claim  # in the place of the older, or at the end
        return Waiting(displaced if displaced is not claim else None)

    def leave(self, claim: Claim) -> list[Claim]:
        """Give the place up, whichever it was; those whose turn it is now hold theirs."""
        if self._waiting.get(claim.name) is claim:
            del self._waiting[claim.name]
            return []
        if self._holders.get(claim.name) is not claim:
            return []
        del self._holders[claim.name]
        if self._holders or not self._waiting:
            return []
        name = next(iter(self._waiting))
        first = self._waiting.pop(name)
        self._holders[name] = first
        return [first]

    def _in_the_way(self, claim: Claim) -> Claim | None:
        # All of them are shared, or there is one: two of ten thousand tell all.
        for other in itertools.islice(self._holders.values(), 2):
            if other.name != claim.name and not (other.is_shared and claim.is_shared):
                return other
        return None

    def check(self) -> None:
        """Assert every invariant."""
        holders = list(self._holders.values())
        assert all(claim.is_shared for claim in holders) or len(holders) == 1
        assert holders or not self._waiting
        for places in (self._holders, self._waiting):
            assert all(claim.name == name for name, claim in places.items())
        assert all(claim.mode is Mode.WAIT for claim in self._waiting.values())
