"""Facts about ranges and cursors that are worth a sentence each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danubius.ack.core.cursor import Cursor
from danubius.ack.core.ranges import FEW, RangeMap, RangeSet, Segment, merge_ranges

FIRSTS = st.lists(st.integers(0, 400), min_size=2 * FEW, max_size=200)
LENGTHS = st.lists(st.integers(0, 4), min_size=200, max_size=200)


def ranges_of(firsts: list[int], lengths: list[int]) -> list[tuple[int, int]]:
    return [(at, at + length) for at, length in zip(firsts, lengths, strict=False)]


def offsets_of(ranges: list[tuple[int, int]]) -> set[int]:
    return {offset for first, end in ranges for offset in range(first, end)}


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


@given(FIRSTS, LENGTHS)
def test_merged_ranges_rise_do_not_touch_and_hold_the_same_offsets(
    firsts: list[int], lengths: list[int]
) -> None:
    merged = merge_ranges(ranges_of(firsts, lengths))
    assert offsets_of(merged) == offsets_of(ranges_of(firsts, lengths))
    assert merged == list(RangeSet(merged))


@given(FIRSTS, FIRSTS, LENGTHS)
def test_many_ranges_at_once_are_the_same_set_and_cursor_as_one_by_one(
    firsts: list[int], others: list[int], lengths: list[int]
) -> None:
    before, added = ranges_of(firsts, lengths), ranges_of(others, lengths[::-1])
    bulk = RangeSet(before)
    bulk.add_all(added)
    bulk.check()
    assert list(bulk) == list(RangeSet(before + added))
    many, single = Cursor(7, before), Cursor(7, before)
    fresh = many.ack(added)
    many.check()
    assert offsets_of(fresh) == offsets_of([gap for one in added for gap in single.ack([one])])
    assert fresh == sorted(fresh)
    assert (many.floor, list(many.above)) == (single.floor, list(single.above))


@given(FIRSTS, FIRSTS, LENGTHS)
def test_many_ranges_are_cut_and_put_back_in_one_pass(
    firsts: list[int], others: list[int], lengths: list[int]
) -> None:
    ranges: RangeMap[int] = RangeMap()
    for first, end in merge_ranges(ranges_of(firsts, lengths)):
        for offset in range(first, end):
            ranges.put(offset, offset + 1, offset // 3)
    before = list(ranges)
    cuts = merge_ranges(ranges_of(others, lengths[::-1]))
    expected = [one for first, end in cuts for one in ranges.overlap(first, end)]
    cut = ranges.cut_all(cuts)
    ranges.check()
    assert [*map(tuple, cut)] == [*map(tuple, expected)]
    assert all(not ranges.overlap(first, end) for first, end in cuts)
    ranges.put_all([Segment(*one) for one in cut])
    ranges.check()
    assert list(ranges) == before
