"""The journal's second thread for objects: deletes what is needless, looks for other starts, and gives up.

Whoever waits comes first: deletions are done a few at a time, in order of their slots, and wait while the store fails.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from danubius.errors import BrokerReplaced, DanubiusError, StorageFailed
from danubius.tier.core.fencing import give_up
from danubius.tier.core.journal_object import Author, SnapshotRef

if TYPE_CHECKING:
    from danubius.runtime.clock import Clock
    from danubius.tier.core.slots import Claim
    from danubius.tier.journal_objects import JournalObjects
    from danubius.tier.object_snapshots import ObjectSnapshots

DELETES_AT_ONCE: Final = 16
PAUSE_NS: Final = 5_000_000_000
"""After a deletion that failed."""

log = logging.getLogger(__name__)


class Sweep(NamedTuple):
    """Delete what a committed claim makes needless."""

    claim: Claim


class Look(NamedTuple):
    """Whether the slot that would be filled next is somebody else's already."""

    slot: int
    author: Author
    generation: int


class GiveUp(NamedTuple):
    """Make void what this author may have under way from a slot on."""

    author: Author
    filled_to: int


Job = Sweep | Look | GiveUp


class Listener(Protocol):
    """Who hears how it went."""

    @property
    def generation(self) -> int: ...

    def healed(self, author: Author, next_slot: int) -> None: ...

    def not_healed(self, error: DanubiusError) -> None: ...

    def overtaken(self, error: BrokerReplaced) -> None: ...


class Keeper:
    """State of the thread; `handle` is its only entrance."""

    def __init__(
        self,
        objects: JournalObjects,
        snapshots: ObjectSnapshots,
        clock: Clock,
        deadline_s: float,
        listener: Listener,
    ) -> None:
        self._objects = objects
        self._snapshots = snapshots
        self._clock = clock
        self._deadline_s = deadline_s
        self._listener = listener
        self._sweep: Claim | None = None
        self._doomed: deque[int | SnapshotRef] = deque()
        """Slots in order, and snapshots: no more than there are."""
        self._sweep_at_ns = 0

    def handle(self, items: list[Job], now_ns: int) -> int | None:
        for item in items:
            match item:
                case Sweep(claim):
                    self._sweep = claim
                case Look():
                    self._look(item)
                case GiveUp(author, filled_to):
                    self._give_up(author, filled_to)
        if (self._sweep is None and not self._doomed) or now_ns < self._sweep_at_ns:
            return self._sweep_at_ns if self._sweep is not None or self._doomed else None
        try:
            is_more = self._delete_some()
        except DanubiusError as error:
            log.warning(
                "objects that are not needed could not be deleted; the next sweep tries again",
                extra={"error": error.message},
            )
            self._sweep_at_ns = self._clock.monotonic_ns() + PAUSE_NS
            return self._sweep_at_ns
        return now_ns if is_more else None

    def _delete_some(self) -> bool:
        """Whether there may be more to do."""
        if not self._doomed:
            claim, self._sweep = self._sweep, None
            if claim is None:
                return False
            try:
                self._doomed += self._objects.slots_below(claim.floor)
                self._doomed += self._snapshots.needless(claim.kept)
            except DanubiusError:
                self._sweep = self._sweep or claim
                raise
        for _ in range(min(DELETES_AT_ONCE, len(self._doomed))):
            doomed = self._doomed[0]
            if isinstance(doomed, SnapshotRef):
                self._snapshots.delete(doomed)
            else:
                self._objects.delete(doomed)
            self._doomed.popleft()
        return bool(self._doomed) or self._sweep is not None

    def _look(self, look: Look) -> None:
        """What cannot be found out now will be at the next look, or by the next put."""
        if look.generation != self._listener.generation:
            return
        try:
            if self._objects.is_filled(look.slot):
                self._objects.check_own(look.slot, look.author)
        except BrokerReplaced as error:
            self._listener.overtaken(error)
        except DanubiusError as error:
            log.debug("no look at the journal", extra={"error": error.message})

    def _give_up(self, author: Author, filled_to: int) -> None:
        try:
            own, next_slot = self._objects.run(give_up(author, filled_to), self._deadline_s)
        except DanubiusError as error:
            if not isinstance(error, BrokerReplaced):
                error = StorageFailed(f"the journal: {error.message}")
            self._listener.not_healed(error)
        else:
            self._listener.healed(own, next_slot)

    def crashed(self, items: list[Job], crash: BaseException) -> None:
        """A bug ended the thread: whoever waits for it hears of it."""
        error = StorageFailed(f"the journal has stopped after an internal error: {crash!r}")
        if any(isinstance(item, GiveUp) for item in items):
            self._listener.not_healed(error)
