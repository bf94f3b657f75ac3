"""Facts about ranges and cursors that are worth a sentence each."""

from __future__ import annotations

import pytest

from danubius.ack.core.cursor import Cursor
from danubius.ack.core.ranges import RangeMap, RangeSet


def test_ranges_that_touch_become_one() -> None:
    ranges = RangeSet([(0, 5), (10, 15), (5, 10)])
    assert list(ranges) == [(0, 15)]


def test_removing_the_middle_leaves_both_sides() -> None:
    ranges = RangeSet([(0, 10)])
    ranges.remove(3, 6)
    assert list(ranges) == [(0, 3), (6, 10)]
    assert ranges.count == 7


def test_a_map_joins_neighbours_of_equal_value_only() -> None:
    ranges: RangeMap[str] = RangeMap()
    ranges.put(0, 5, "a")
    ranges.put(10, 15, "a")
    ranges.put(5, 10, "a")
    ranges.put(15, 20, "b")
    assert [(one.first, one.end, one.value) for one in ranges] == [(0, 15, "a"), (15, 20, "b")]


def test_a_map_refuses_to_overwrite() -> None:
    ranges: RangeMap[int] = RangeMap()
    ranges.put(0, 5, 1)
    with pytest.raises(AssertionError):
        ranges.put(4, 6, 2)


def test_ack_below_the_floor_is_ignored() -> None:
    cursor = Cursor(10)
    assert cursor.ack([(0, 10), (5, 7)]) == []
    assert cursor.floor == 10


def test_filling_the_gap_moves_the_floor_over_what_was_acknowledged_above() -> None:
    cursor = Cursor(0, [(5, 8), (10, 12)])
    assert cursor.ack([(0, 5)]) == [(0, 5)]
    assert cursor.floor == 8
    assert list(cursor.above) == [(10, 12)]


def test_a_cumulative_ack_reports_only_what_is_new() -> None:
    cursor = Cursor(2, [(4, 6)])
    assert cursor.ack([(0, 9)]) == [(2, 4), (6, 9)]
    assert cursor.floor == 9


def test_an_encoded_cursor_is_small() -> None:
    cursor = Cursor(1 << 40, [((1 << 40) + 3 * n + 1, (1 << 40) + 3 * n + 2) for n in range(1000)])
    assert len(cursor.encode()) < 2020
