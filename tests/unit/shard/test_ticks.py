"""Calls every now and then: each with its own interval, never more than one at a tick."""

from __future__ import annotations

from danubius.shard.state.ticks import Ticks


def test_each_is_called_once_per_interval() -> None:
    ticks = Ticks()
    calls: list[str] = []
    ticks.add(100, lambda: calls.append("often"))
    ticks.add(1000, lambda: calls.append("seldom"))

    for _ in range(8):
        ticks.advance(250)

    assert calls.count("often") == 8
    assert calls.count("seldom") == 2


def test_what_is_late_is_called_once() -> None:
    ticks = Ticks()
    calls: list[str] = []
    ticks.add(10, lambda: calls.append("late"))

    ticks.advance(10_000)

    assert calls == ["late"]


def test_a_call_may_add_another() -> None:
    ticks = Ticks()
    calls: list[str] = []
    ticks.add(10, lambda: ticks.add(10, lambda: calls.append("added")))

    ticks.advance(10)
    assert calls == []
    ticks.advance(10)
    assert calls == ["added"]
