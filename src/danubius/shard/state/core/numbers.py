"""Numbers of topics, producers, subscriptions and stages: each is drawn once, and unique in a cluster.

A number is the shard's own number above, and a count below, so that shards draw without asking each other. The first
shard's numbers are plain counts. All of them are exact in a JSON number, which has 53 bits.
"""

from __future__ import annotations

from typing import Final

COUNT_BITS: Final = 40
SHARD_MAX: Final = (1 << 13) - 1


class Numbers:
    """Those of one shard. What a fact has seen is never drawn again."""

    def __init__(self, shard: int = 0) -> None:
        assert 0 <= shard <= SHARD_MAX
        self._shard = shard
        self.next = (shard << COUNT_BITS) + 1
        """The lowest that was never drawn."""

    def draw(self) -> int:
        number = self.next
        self.next += 1
        return number

    def seen(self, number: int) -> None:
        """A fact has it; one of another shard, whose topic came here, is nothing to this count."""
        if number >> COUNT_BITS == self._shard:
            self.next = max(self.next, number + 1)
