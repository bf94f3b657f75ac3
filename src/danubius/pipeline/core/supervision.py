"""Supervision of queries, which are started, started again, given up and stopped: events in, effects out.

Invariants: a query is started only when nothing it waits for is missing; between a failure and the next start lies a
delay that doubles up to a bound; after `attempts_max` failures without a batch between them the whole pipeline stops;
`Done` is said once, when no query is under way any more.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from danubius.pipeline.spec import Restart

Until = Literal["started", "progressed", "finished"]


class State(enum.Enum):
    """Where a query is in its life."""

    WAITING = "waiting"
    """For another query, or for its delay to pass."""
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


# ---------------------------------------------------------------- effects


@dataclass(frozen=True)
class Start:
    """Start this query now."""

    query: str


@dataclass(frozen=True)
class Stop:
    """Let this query end after its batch."""

    query: str


@dataclass(frozen=True)
class Retry:
    """Told to people: this query failed and will be started again."""

    query: str
    delay_ms: int
    attempt: int
    reason: str


@dataclass(frozen=True)
class GaveUp:
    """Told to people: this query failed too often."""

    query: str
    attempts: int
    reason: str


@dataclass(frozen=True)
class Done:
    """Nothing is under way any more."""

    is_success: bool


Effect = Start | Stop | Retry | GaveUp | Done


@dataclass
class Query:
    """One query's life, as far as it is known."""

    needs: Mapping[str, Until]
    state: State = State.WAITING
    due_ms: int = 0
    failures: int = 0
    """In a row, without a batch between them."""
    restarts: int = 0
    has_started: bool = False
    has_progressed: bool = False
    reason: str = ""


@dataclass
class Supervision:
    """All queries of one pipeline. Times are milliseconds of one monotonic clock."""

    restart: Restart
    queries: dict[str, Query]
    is_stopping: bool = False
    has_failed: bool = False
    _is_done: bool = field(default=False, repr=False)

    @classmethod
    def of(cls, restart: Restart, needs: Mapping[str, Mapping[str, Until]]) -> Supervision:
        return cls(restart, {name: Query(dict(each)) for name, each in needs.items()})

    def tick(self, now_ms: int) -> list[Effect]:
        """Start what is due; say so when all is over."""
        effects: list[Effect] = []
        for name, query in self.queries.items():
            if (
                not self.is_stopping
                and query.state is State.WAITING
                and self._may_start(query, now_ms)
            ):
                query.state = State.RUNNING
                effects.append(Start(name))
        return effects + self._end()

    def next_due_ms(self) -> int | None:
        """When a tick can do something by time alone."""
        due = [
            q.due_ms
            for q in self.queries.values()
            if q.state is State.WAITING and self._has_needs(q)
        ]
        return min(due, default=None)

    def started(self, name: str) -> list[Effect]:
        """Spark took it; a stop that was asked for meanwhile follows at once."""
        query = self.queries[name]
        query.has_started = True
        return [Stop(name)] if query.state is State.STOPPING else []

    def progressed(self, name: str) -> list[Effect]:
        """It committed a batch: what failed before is forgotten."""
        query = self.queries[name]
        query.has_progressed = True
        query.failures = 0
        return []

    def finished(self, name: str) -> list[Effect]:
        """It ended without an error: by itself, or because it was told to."""
        query = self.queries[name]
        query.has_progressed = query.has_progressed or not self.is_stopping
        query.state = State.STOPPED if query.state is State.STOPPING else State.FINISHED
        return self._end()

    def failed(self, name: str, reason: str, now_ms: int) -> list[Effect]:
        query = self.queries[name]
        query.reason = reason
        if self.is_stopping:
            query.state = State.STOPPED
            return self._end()
        query.failures += 1
        if query.failures >= self.restart.attempts_max:
            return self._give_up(name)
        delay = min(
            self.restart.first_delay_ms << min(query.failures - 1, 40), self.restart.delay_max_ms
        )
        query.state, query.due_ms = State.WAITING, now_ms + delay
        query.restarts += 1
        return [Retry(name, delay, query.failures, reason)]

    def refused(self, name: str, reason: str) -> list[Effect]:
        """It cannot be started as things are, however often it is tried."""
        query = self.queries[name]
        query.reason = reason
        query.failures += 1
        return self._give_up(name)

    def _give_up(self, name: str) -> list[Effect]:
        query = self.queries[name]
        query.state = State.FAILED
        self.has_failed = True
        return [GaveUp(name, query.failures, query.reason), *self.stop()]

    def stop(self) -> list[Effect]:
        """End everything; asked twice it does nothing new."""
        effects: list[Effect] = []
        self.is_stopping = True
        for name, query in self.queries.items():
            if query.state is State.WAITING:
                query.state = State.STOPPED
            elif query.state is State.RUNNING:
                query.state = State.STOPPING
                if query.has_started:
                    effects.append(Stop(name))
        return effects + self._end()

    def _may_start(self, query: Query, now_ms: int) -> bool:
        return query.due_ms <= now_ms and self._has_needs(query)

    def _has_needs(self, query: Query) -> bool:
        return all(self._is(self.queries[name], until) for name, until in query.needs.items())

    @staticmethod
    def _is(query: Query, until: Until) -> bool:
        if query.state is State.FINISHED:
            return True
        return {
            "started": query.has_started,
            "progressed": query.has_progressed,
            "finished": False,
        }[until]

    def _end(self) -> list[Effect]:
        over = {State.FINISHED, State.STOPPED, State.FAILED}
        if self._is_done or any(query.state not in over for query in self.queries.values()):
            return []
        self._is_done = True
        return [Done(not self.has_failed)]
