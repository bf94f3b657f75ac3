"""Queries are started in order, started again with a growing delay, given up within bounds, stopped once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from danubius.pipeline.core.supervision import Done, GaveUp, Retry, Start, State, Stop, Supervision
from danubius.pipeline.spec import Restart

if TYPE_CHECKING:
    from danubius.pipeline.core.supervision import Effect

RESTART = Restart(attempts_max=4, first_delay_ms=100, delay_max_ms=250)


def _running(*names: str) -> Supervision:
    supervision = Supervision.of(RESTART, {name: {} for name in names})
    assert supervision.tick(0) == [Start(name) for name in names]
    for name in names:
        supervision.started(name)
    return supervision


def test_a_query_waits_for_what_it_needs() -> None:
    supervision = Supervision.of(
        RESTART, {"b": {"a": "progressed"}, "c": {"b": "started"}, "a": {}}
    )
    assert supervision.tick(0) == [Start("a")]
    supervision.started("a")
    assert supervision.tick(1) == []
    supervision.progressed("a")
    assert supervision.tick(2) == [Start("b")]
    supervision.started("b")
    assert supervision.tick(3) == [Start("c")]


def test_finished_is_enough_for_everybody() -> None:
    supervision = Supervision.of(
        RESTART, {"a": {}, "b": {"a": "finished"}, "c": {"a": "progressed"}}
    )
    supervision.tick(0)
    supervision.started("a")
    assert supervision.finished("a") == []
    assert supervision.tick(1) == [Start("b"), Start("c")]


def test_the_delay_doubles_up_to_its_bound() -> None:
    supervision = _running("a")
    delays: list[int] = []
    now = 0
    for _ in range(3):
        (retry,) = supervision.failed("a", "why", now)
        assert isinstance(retry, Retry)
        delays.append(retry.delay_ms)
        assert supervision.tick(now + retry.delay_ms - 1) == []
        now += retry.delay_ms
        assert supervision.next_due_ms() == now
        assert supervision.tick(now) == [Start("a")]
        supervision.started("a")
    assert delays == [100, 200, 250]


def test_too_many_failures_stop_everything() -> None:
    supervision = _running("a", "b")
    for now in (0, 1_000, 2_000):
        supervision.failed("a", "why", now)
        supervision.tick(now + 250)
        supervision.started("a")
    assert supervision.failed("a", "why", 3_000) == [GaveUp("a", 4, "why"), Stop("b")]
    assert supervision.finished("b") == [Done(is_success=False)]
    assert supervision.queries["a"].state is State.FAILED


def test_a_batch_forgets_the_failures_before_it() -> None:
    supervision = _running("a")
    for now in range(0, 100_000, 1_000):
        (retry,) = supervision.failed("a", "why", now)
        assert isinstance(retry, Retry)
        supervision.tick(now + 500)
        supervision.started("a")
        supervision.progressed("a")
    assert supervision.queries["a"].restarts == 100


def test_stopping_ends_what_runs_and_what_waits() -> None:
    supervision = _running("a", "b")
    supervision.failed("b", "why", 0)
    assert supervision.stop() == [Stop("a")]
    assert supervision.stop() == []
    assert supervision.tick(10_000) == []
    assert supervision.finished("a") == [Done(is_success=True)]
    assert supervision.queries["b"].state is State.STOPPED


def test_a_stop_while_spark_starts_a_query() -> None:
    supervision = Supervision.of(RESTART, {"a": {}})
    supervision.tick(0)
    assert supervision.stop() == []
    assert supervision.started("a") == [Stop("a")]
    assert supervision.failed("a", "interrupted", 1) == [Done(is_success=True)]


class Life:
    """A shell without Spark: it obeys, and watches what it is told."""

    def __init__(self) -> None:
        needs = {"a": {}, "b": {"a": "progressed"}, "c": {}}
        self.supervision = Supervision.of(RESTART, needs)  # pyright: ignore[reportArgumentType]
        self.running: set[str] = set()
        self.done = 0
        self.now = 0

    def obey(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Start):
                assert effect.query not in self.running
                assert not self.supervision.is_stopping
                self.running.add(effect.query)
                self.obey(self.supervision.started(effect.query))
            elif isinstance(effect, Done):
                assert not self.running
                self.done += 1

    def happen(self, event: str, name: str) -> None:
        self.now += 1_000
        if event == "tick":
            self.obey(self.supervision.tick(self.now))
        elif event == "stop":
            self.obey(self.supervision.stop())
        elif name in self.running and event == "batch":
            self.obey(self.supervision.progressed(name))
        elif name in self.running:
            self.running.discard(name)
            ends = self.supervision.finished
            self.obey(
                self.supervision.failed(name, "x", self.now) if event == "fail" else ends(name)
            )


EVENTS = st.tuples(
    st.sampled_from(["fail", "finish", "batch", "tick", "stop"]), st.sampled_from("abc")
)


@given(st.lists(EVENTS, max_size=60))
def test_done_is_said_once_and_only_at_the_end(events: list[tuple[str, str]]) -> None:
    life = Life()
    for event, name in [*events, ("stop", "a")]:
        life.happen(event, name)
    for name in sorted(life.running):
        life.happen("finish", name)
    assert life.done == 1


def test_what_cannot_be_started_however_often_is_given_up_at_once() -> None:
    supervision = Supervision.of(RESTART, {"a": {}, "b": {}})
    supervision.tick(0)
    supervision.started("b")
    assert supervision.refused("a", "why") == [GaveUp("a", 1, "why"), Stop("b")]
    assert supervision.finished("b") == [Done(False)]
