"""Figures of offloading: how much lies where, how far it is behind, what it has done and what failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from danubius.ledger.entry import TierSizes


class OffloadFigures:
    """Totals of the last whole round over all topics, and counts since the start of the broker."""

    def __init__(self) -> None:
        self.local_bytes = 0
        self.cold_bytes = 0
        self.local_ledgers = 0
        self.cold_ledgers = 0
        self.lag_ms = 0
        """How long the oldest ledger that is due has been due."""
        self.lag_bytes = 0
        """Bytes that are due and not in the object store."""
        self.rounds = 0
        self.uploads = 0
        self.uploaded_bytes = 0
        self.reclaims = 0
        self.removals = 0
        self.orphans = 0
        self.unexplained = 0
        """Objects of the last search that a later state may know, and that are kept."""
        self.failures = 0
        self.position = 0
        """How far the journal is committed, as was last said."""
        self._counted_position = 0
        self._round = _Round(0)

    def count(self, sizes: TierSizes) -> None:
        """One topic of the round."""
        counted = self._round
        counted.local_bytes += sizes.local_bytes
        counted.cold_bytes += sizes.cold_bytes
        counted.local_ledgers += sizes.local_ledgers
        counted.cold_ledgers += sizes.cold_ledgers

    def count_lag(self, lag_ms: int, lag_bytes: int) -> None:
        self._round.lag_ms = max(self._round.lag_ms, lag_ms)
        self._round.lag_bytes += lag_bytes

    def finish_round(self) -> None:
        counted, self._round = self._round, _Round(self.position)
        self._counted_position = counted.position
        self.local_bytes, self.cold_bytes = counted.local_bytes, counted.cold_bytes
        self.local_ledgers, self.cold_ledgers = counted.local_ledgers, counted.cold_ledgers
        self.lag_ms, self.lag_bytes = counted.lag_ms, counted.lag_bytes
        self.rounds += 1

    def local_bytes_most(self) -> int:
        """What can be on disk at the most: what was counted, and all that was journaled since that count began."""
        return self.local_bytes + max(0, self.position - self._counted_position)

    def recount(self, local_bytes: int) -> None:
        """It was counted exactly, now."""
        self.local_bytes = local_bytes
        self._counted_position = self.position


class _Round:
    """What a round has counted so far."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.local_bytes = self.cold_bytes = 0
        self.local_ledgers = self.cold_ledgers = 0
        self.lag_ms = self.lag_bytes = 0
