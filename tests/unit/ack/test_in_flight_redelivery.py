"""Facts about what is in flight and what comes again."""

from __future__ import annotations

from danubius.ack.core.in_flight import Flight, InFlight
from danubius.ack.core.ranges import Segment
from danubius.ack.core.redelivery import Redelivery


def test_a_leaving_consumer_returns_its_own_ranges_in_order() -> None:
    flights = InFlight()
    flights.add(10, 20, Flight(1, 0, 0))
    flights.add(0, 5, Flight(1, 2, 0))
    flights.add(5, 10, Flight(2, 0, 0))
    returned = flights.remove_consumer(1)
    assert [(one.first, one.end, one.value.attempts) for one in returned] == [
        (0, 5, 2),
        (10, 20, 0),
    ]
    assert flights.count == 5


def test_a_new_delivery_of_a_range_is_not_expired_by_the_deadline_of_the_old_one() -> None:
    flights = InFlight()
    flights.add(0, 10, Flight(1, 0, 100))
    flights.remove([(0, 10)])
    flights.add(0, 10, Flight(1, 1, 200))
    assert flights.expire(150) == []
    assert [(one.first, one.end) for one in flights.expire(200)] == [(0, 10)]


def test_deadlines_of_acknowledged_ranges_do_not_pile_up() -> None:
    flights = InFlight()
    for at in range(10_000):
        flights.add(at, at + 1, Flight(1, 0, 10**9 + at))
        flights.remove([(at, at + 1)])
    assert len(flights._deadlines) < 100


def test_an_acknowledged_part_of_a_delayed_range_does_not_come_back() -> None:
    waiting = Redelivery()
    waiting.add_delayed([Segment(0, 10, 1)], 100)
    assert waiting.remove([(3, 5)]) == 2
    waiting.release(99)
    assert waiting.lowest_ready() is None
    waiting.release(100)
    assert [(one.first, one.end) for one in waiting.ready] == [(0, 3), (5, 10)]


def test_delays_of_acknowledged_ranges_do_not_pile_up() -> None:
    waiting = Redelivery()
    for at in range(10_000):
        waiting.add_delayed([Segment(at, at + 1, 1)], 10**9 + at)
        waiting.remove([(at, at + 1)])
    assert len(waiting._deadlines) < 100
