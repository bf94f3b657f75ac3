"""The threads that put a journal's groups: what each does, and what the journal's threads report to the loop."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from danubius.errors import BrokerReplaced, DanubiusError, StorageFailed

if TYPE_CHECKING:
    from danubius.runtime.clock import Clock
    from danubius.tier.core.journal_object import Author
    from danubius.tier.core.slots import Group
    from danubius.tier.journal_objects import JournalObjects

RETRY_MS: Final = 100
"""Wait after the first failed put of a group; doubled up to RETRY_MAX_MS."""
RETRY_MAX_MS: Final = 2000


class Stored(NamedTuple):
    """A group is in its slot."""

    group: Group
    took_ns: int


class Lost(NamedTuple):
    """A group could not be stored in time, or its slot is somebody else's."""

    group: Group
    error: DanubiusError


class Healed(NamedTuple):
    """What was under way is void; where to go on."""

    author: Author
    next_slot: int


class NotHealed(NamedTuple):
    """It could not be made void yet, or the journal is somebody else's."""

    error: DanubiusError


Report = Stored | Lost | Healed | NotHealed


class Listener(Protocol):
    """Who hears how it went."""

    @property
    def generation(self) -> int: ...

    def report(self, report: Report) -> None: ...


class Putter:
    """One group at a time, again and again until its deadline."""

    def __init__(
        self, objects: JournalObjects, deadline_ns: int, clock: Clock, journal: Listener
    ) -> None:
        self._objects = objects
        self._deadline_ns = deadline_ns
        self._clock = clock
        self._journal = journal
        self._held: deque[tuple[Group, Author]] = deque()
        self._began_ns = 0
        self._retry_at_ns = 0
        self._pause_ms = RETRY_MS

    def handle(self, items: list[tuple[Group, Author]], now_ns: int) -> int | None:
        self._held += items
        while self._held:
            group, author = self._held[0]
            if not self._began_ns:
                self._began_ns = now_ns
            elif now_ns < self._retry_at_ns:
                return self._retry_at_ns
            report = self._try(group, author, now_ns)
            if report is None:
                return self._retry_at_ns
            self._held.popleft()
            self._began_ns, self._pause_ms = 0, RETRY_MS
            self._journal.report(report)
            now_ns = self._clock.monotonic_ns()
        return None

    def _try(self, group: Group, author: Author, now_ns: int) -> Report | None:
        try:
            self._objects.put_group(group, author)
        except BrokerReplaced as error:
            return Lost(group, error)
        except DanubiusError as error:
            ended_ns = self._clock.monotonic_ns()
            is_needless = group.generation != self._journal.generation
            if is_needless or ended_ns - self._began_ns >= self._deadline_ns:
                return Lost(group, StorageFailed(f"the journal: {error.message}"))
            self._retry_at_ns = max(now_ns, ended_ns) + self._pause_ms * 1_000_000
            self._pause_ms = min(2 * self._pause_ms, RETRY_MAX_MS)
            return None
        return Stored(group, self._clock.monotonic_ns() - self._began_ns)

    def crashed(self, items: list[tuple[Group, Author]], crash: BaseException) -> None:
        error = StorageFailed(f"the journal has stopped after an internal error: {crash!r}")
        for group, _ in (*self._held, *items):
            self._journal.report(Lost(group, error))
