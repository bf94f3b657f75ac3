"""Range sets, range maps and cursors against plain sets and dicts of single offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danubius.ack.core.cursor import Cursor
from danubius.ack.core.ranges import RangeMap, RangeSet
from danubius.errors import DanubiusError

Range = tuple[int, int]

offsets = st.integers(0, 60)
ranges = st.tuples(offsets, st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
filled_ranges = st.tuples(offsets, st.integers(1, 12)).map(lambda p: (p[0], p[0] + p[1]))


def expand(spans: list[Range]) -> set[int]:
    return {offset for first, end in spans for offset in range(first, end)}


@given(st.lists(st.tuples(st.booleans(), ranges), max_size=40), ranges)
def test_range_set_is_a_set(steps: list[tuple[bool, Range]], probe: Range) -> None:
    ranged, model = RangeSet(), set[int]()
    for adds, (first, end) in steps:
        if adds:
            ranged.add(first, end)
            model |= set(range(first, end))
        else:
            ranged.remove(first, end)
            model -= set(range(first, end))
        ranged.check()
    first, end = probe
    assert expand(list(ranged)) == model
    assert ranged.count == len(model)
    assert expand(ranged.intersect(first, end)) == model & set(range(first, end))
    assert expand(ranged.gaps(first, end)) == set(range(first, end)) - model
    assert ranged.first_gap(first) == next(o for o in range(first, 200) if o not in model)
    assert (first in ranged) == (first in model)
    starts = [one for one, _ in ranged if one >= first]
    assert ranged.next_first(first) == (starts[0] if starts else None)


@given(
    st.lists(st.tuples(st.booleans(), filled_ranges, st.integers(0, 2)), max_size=40), filled_ranges
)
def test_range_map_is_a_dict(steps: list[tuple[bool, Range, int]], probe: Range) -> None:
    ranged: RangeMap[int] = RangeMap()
    model: dict[int, int] = {}
    for puts, (first, end), value in steps:
        cut = {
            offset: one.value
            for one in ranged.cut(first, end)
            for offset in range(one.first, one.end)
        }
        assert cut == {o: model.pop(o) for o in range(first, end) if o in model}
        if puts:
            ranged.put(first, end, value)
            model |= dict.fromkeys(range(first, end), value)
        ranged.check()
        assert ranged.count == len(model)
    assert {o: one.value for one in ranged for o in range(one.first, one.end)} == model
    seen = {o: one.value for one in ranged.overlap(*probe) for o in range(one.first, one.end)}
    assert seen == {o: model[o] for o in range(*probe) if o in model}


@given(offsets, st.lists(st.lists(ranges, max_size=4), max_size=20), ranges)
def test_cursor_is_a_set_that_only_grows(floor: int, acks: list[list[Range]], probe: Range) -> None:
    cursor, model = Cursor(floor), set(range(floor))
    for group in acks:
        floor_before = cursor.floor
        fresh = cursor.ack(group)
        assert sum(end - first for first, end in fresh) == len(expand(fresh)), "counted twice"
        assert expand(fresh) == expand(group) - model
        model |= expand(group)
        assert cursor.floor >= floor_before
        assert cursor.floor == next(o for o in range(200) if o not in model)
        cursor.check()
    for end in range(0, 90, 7):
        assert cursor.backlog(end) == len(set(range(end)) - model)
    assert expand(cursor.unacked(*probe)) == set(range(*probe)) - model
    assert all((offset in cursor) == (offset in model) for offset in range(90))


@given(st.integers(0, 2**63), st.lists(ranges, max_size=30))
def test_cursor_survives_its_encoding(floor: int, acks: list[Range]) -> None:
    cursor = Cursor(floor, [(floor + first, floor + end) for first, end in acks])
    twin = Cursor.decode(cursor.encode())
    assert (twin.floor, list(twin.above)) == (cursor.floor, list(cursor.above))
    assert twin.above.count == cursor.above.count
    twin.check()


@given(st.binary(max_size=40))
def test_damaged_cursor_bytes_give_a_danubius_error_or_a_sound_cursor(damaged: bytes) -> None:
    for encoded in (damaged, b"\x01" + damaged):
        try:
            cursor = Cursor.decode(encoded)
        except DanubiusError:
            continue
        cursor.check()


def test_cursor_of_another_version_is_refused() -> None:
    with pytest.raises(DanubiusError, match="version"):
        Cursor.decode(b"\x03\x00\x00")
