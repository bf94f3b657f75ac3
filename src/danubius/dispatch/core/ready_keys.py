"""Keys that are ready to be handed out: a heap per consumer, of the first held message of its keys."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from danubius.dispatch.core.keys import Key

SLACK: Final = 64
"""Stale entries of a heap that are cheaper to keep than to look for."""


class ReadyKeys:
    """The heaps may hold entries that are no longer true, but miss none that is."""

    __slots__ = ("_heaps", "_keys")

    def __init__(self, keys: Mapping[bytes, Key]) -> None:
        self._keys = keys
        self._heaps: dict[int, list[tuple[int, bytes]]] = {}

    def reset(self, consumer_ids: Iterable[int]) -> None:
        """Owners have changed: every key that may go will be put in anew."""
        self._heaps = {one: [] for one in consumer_ids}

    def put(self, key: Key) -> None:
        """The key has held messages and may go."""
        assert key.owner is not None
        heap = self._heaps[key.owner.consumer_id]
        heappush(heap, (key.held[0], key.name))
        if len(heap) > 2 * len(self._keys) + SLACK:
            heap[:] = sorted(set(filter(self._is_true, heap)))

    def first(self, consumer_id: int) -> int | None:
        """The lowest offset that may go to this consumer; drops entries that are no longer true."""
        heap = self._heaps[consumer_id]
        while heap and not self._is_true(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def pop(self, consumer_id: int) -> Key:
        """Take out the key that `first` has just found."""
        return self._keys[heappop(self._heaps[consumer_id])[1]]

    def check(self, key: Key) -> None:
        assert key.owner is not None
        assert (key.held[0], key.name) in self._heaps[key.owner.consumer_id], "nobody is told of it"

    def _is_true(self, entry: tuple[int, bytes]) -> bool:
        # The heaps are built anew when owners change, so the entry's consumer is the owner.
        key = self._keys.get(entry[1])
        return key is not None and bool(key.held) and key.held[0] == entry[0] and key.may_go
