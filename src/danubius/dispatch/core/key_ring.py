"""Consistent hashing: which member owns a key.

Each member has `POINTS` points on a ring of 32-bit numbers, derived from its seed alone; a key
belongs to the next point at or above its hash. So a member that joins takes keys only for itself,
and one that leaves gives away only its own.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from hashlib import blake2b
from struct import iter_unpack
from typing import Final, Generic, TypeVar

M = TypeVar("M")

POINTS: Final = 64
"""Points per member: the largest share is then within about a third of the mean."""


class KeyRing(Generic[M]):
    """The ring. Equal points are told apart by the member's id, so the order is always the same."""

    __slots__ = ("_hashes", "_members", "_owners", "_points")

    def __init__(self) -> None:
        self._members: dict[int, M] = {}
        self._points: list[tuple[int, int]] = []
        self._hashes: list[int] = []
        self._owners: list[M] = []

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member_id: int, member: M, seed: str) -> None:
        assert member_id not in self._members
        self._members[member_id] = member
        for point in _points_of(seed):
            insort(self._points, (point, member_id))
        self._index()

    def remove(self, member_id: int) -> None:
        del self._members[member_id]
        self._points = [point for point in self._points if point[1] != member_id]
        self._index()

    def owner_of(self, key_hash: int) -> M:
        """The owner; the ring must have a member."""
        at = bisect_left(self._hashes, key_hash)
        return self._owners[at if at < len(self._owners) else 0]

    def _index(self) -> None:
        self._hashes = [point for point, _ in self._points]
        self._owners = [self._members[member_id] for _, member_id in self._points]


def _points_of(seed: str) -> list[int]:
    points: list[int] = []
    for salt in range(POINTS // 16):
        digest = blake2b(seed.encode(), digest_size=64, salt=salt.to_bytes(8, "little")).digest()
        points += [point for (point,) in iter_unpack("<I", digest)]
    return points
