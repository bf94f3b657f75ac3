"""Back-pressure on publishers: who is not read from, and until when.

Two queues fill up when the disk is slower than the producers: the journal's, and the cache's unwritten part. Above
their bounds publishing connections are paused. If the disk does not write at all, waiting would be for ever: then
publishes are refused.

The journal's queue is also what a quiet publisher waits behind, so a busy one may not fill it: while several
connections publish, one that brings large batches is paused already when more than `share_bytes` are queued. A
connection that publishes alone keeps nobody waiting and is not held back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from danubius.model.limits import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.errors import DanubiusError

LARGE_BYTES: Final = 16 * KIB
"""A batch below this size costs others nothing to speak of, and its connection is not held back for them."""
SHARE_BYTES: Final = MIB
"""What may be queued while several connections publish and a sync takes a millisecond or less."""
SHARE_SYNC_NS: Final = 1_000_000
"""For each of these that a sync takes, so much more: a group of records must be worth its sync."""
TOGETHER_NS: Final = 200_000_000
"""Connections that publish within this time publish together."""


class Publisher(Protocol):
    """A connection that is not read from for the moment."""

    def resume_publishing(self) -> None: ...


class JournalCounts(Protocol):
    """What the journal says of its syncs."""

    syncs: int
    sync_ns: int


class JournalQueue(Protocol):
    """The journal, as far as it is looked at here."""

    @property
    def queued_bytes(self) -> int: ...

    @property
    def counters(self) -> JournalCounts: ...


class UnwrittenCache(Protocol):
    """The ledgers, as far as they are looked at here."""

    @property
    def is_congested(self) -> bool: ...

    @property
    def failure(self) -> Exception | None: ...


class PublishPressure:
    """The gate in front of the publish path."""

    def __init__(
        self,
        journal: JournalQueue,
        ledgers: UnwrittenCache,
        queue_bytes_max: int,
        now_ns: Callable[[], int],
    ) -> None:
        self._journal = journal
        self._ledgers = ledgers
        self._queue_bytes_max = queue_bytes_max
        self._now_ns = now_ns
        self._paused: set[Publisher] = set()
        self._sharing: set[Publisher] = set()
        """Paused only so that others get their turn."""
        self._last: Publisher | None = None
        """Who published last."""
        self._together_ns = -TOGETHER_NS
        """When somebody else published than before."""
        self.refusal: DanubiusError | None = None
        """Why nothing may be published at all for now."""

    def check(self) -> None:
        """Refuse to publish while ledgers cannot be written and the cache is full of unwritten batches."""
        if self.refusal is not None:
            raise self.refusal
        if self._ledgers.is_congested and self._ledgers.failure is not None:
            raise self._ledgers.failure

    @property
    def is_high(self) -> bool:
        return self._journal.queued_bytes > self._queue_bytes_max or self._ledgers.is_congested

    @property
    def share_bytes(self) -> int:
        """What may be queued while several publish."""
        counters = self._journal.counters
        sync_ns = counters.sync_ns // max(1, counters.syncs)
        share = SHARE_BYTES * max(1, sync_ns // SHARE_SYNC_NS)
        return min(share, self._queue_bytes_max)

    def must_wait(self, publisher: Publisher, size: int) -> bool:
        """A batch of `size` bytes was taken: whether its connection is not to be read from for a while."""
        if publisher is not self._last:
            if self._last is not None:
                self._together_ns = self._now_ns()
            self._last = publisher
        if size >= LARGE_BYTES and self._journal.queued_bytes > SHARE_BYTES:
            is_together = self._now_ns() - self._together_ns < TOGETHER_NS
            if is_together and self._journal.queued_bytes > self.share_bytes:
                return True
        return self.is_high

    @property
    def holds_any(self) -> bool:
        """Whether somebody waits for relief."""
        return bool(self._paused or self._sharing)

    def pause(self, publisher: Publisher) -> None:
        """Resume this one when there is room."""
        (self._paused if self.is_high else self._sharing).add(publisher)

    def forget(self, publisher: Publisher) -> None:
        """It is gone."""
        self._paused.discard(publisher)
        self._sharing.discard(publisher)
        if self._last is publisher:
            self._last = None

    def relieve(self) -> None:
        """Read again from those who were held back, if there is room or no hope of it."""
        queued = self._journal.queued_bytes
        if self._sharing and queued <= self.share_bytes // 2:
            sharing, self._sharing = self._sharing, set()
            for publisher in sharing:
                publisher.resume_publishing()
        if not self._paused or queued > self._queue_bytes_max // 2:
            return
        if self._ledgers.is_congested and self._ledgers.failure is None:
            return
        paused, self._paused = self._paused, set()
        for publisher in paused:
            publisher.resume_publishing()
