"""Back-pressure on publishers: who is not read from, and until when.

Two queues fill up when the disk is slower than the producers: the journal's, and the cache's unwritten part. Above
their bounds publishing connections are paused. If the disk does not write at all, waiting would be for ever: then
publishes are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from danubius.ledger.storage import LedgerStorage
    from danubius.wal.journal import Journal


class Publisher(Protocol):
    """A connection that is not read from for the moment."""

    def resume_publishing(self) -> None: ...


class PublishPressure:
    """The gate in front of the publish path."""

    def __init__(self, journal: Journal, ledgers: LedgerStorage, queue_bytes_max: int) -> None:
        self._journal = journal
        self._ledgers = ledgers
        self._queue_bytes_max = queue_bytes_max
        self._paused: set[Publisher] = set()

    def check(self) -> None:
        """Refuse to publish while ledgers cannot be written and the cache is full of unwritten batches."""
        if self._ledgers.is_congested and self._ledgers.failure is not None:
            raise self._ledgers.failure

    @property
    def is_high(self) -> bool:
        return self._journal.queued_bytes > self._queue_bytes_max or self._ledgers.is_congested

    @property
    def holds_any(self) -> bool:
        """Whether somebody waits for relief."""
        return bool(self._paused)

    def pause(self, publisher: Publisher) -> None:
        """Resume this one when there is room."""
        self._paused.add(publisher)

    def relieve(self) -> None:
        """Read again from those who were held back, if there is room or no hope of it."""
        if not self._paused or self._journal.queued_bytes > self._queue_bytes_max // 2:
            return
        if self._ledgers.is_congested and self._ledgers.failure is None:
            return
        paused, self._paused = self._paused, set()
        for publisher in paused:
            publisher.resume_publishing()
