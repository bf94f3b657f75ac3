"""Fetches of one connection read a few at a time, in order, and only while their answers can leave."""

from __future__ import annotations

import pytest

from danubius.errors import Overloaded
from danubius.session.fetch_gate import READING_MAX, WAITING_MAX, FetchGate


def test_only_a_few_read_at_once_and_the_rest_in_order() -> None:
    gate, started = FetchGate(), list[int]()
    for number in range(5):
        gate.enter(lambda number=number: started.append(number))
    assert started == [0, 1][:READING_MAX]
    gate.leave()
    assert started == [0, 1, 2]
    for _ in range(4):
        gate.leave()
    assert started == [0, 1, 2, 3, 4]


def test_nothing_is_read_for_a_peer_that_does_not_take_its_answers() -> None:
    gate, started = FetchGate(), list[int]()
    gate.set_open(is_open=False)
    gate.enter(lambda: started.append(1))
    assert started == []
    gate.set_open(is_open=True)
    assert started == [1]


def test_a_read_that_ends_at_once_makes_room_for_the_next() -> None:
    gate, started = FetchGate(), list[int]()

    def read(number: int) -> None:
        started.append(number)
        gate.leave()

    for number in range(100):
        gate.enter(lambda number=number: read(number))
    assert started == list(range(100))


def test_waiting_fetches_are_bounded() -> None:
    gate = FetchGate()
    for _ in range(WAITING_MAX + READING_MAX):
        gate.enter(lambda: None)
    with pytest.raises(Overloaded):
        gate.enter(lambda: None)


def test_a_closed_gate_forgets_who_waits() -> None:
    gate, started = FetchGate(), list[int]()
    gate.set_open(is_open=False)
    gate.enter(lambda: started.append(1))
    gate.close()
    gate.leave()
    assert started == []
