"""Sessions join over gaps that are short enough, in whatever order their events come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from danubius.pipeline.sessions import Session, merge


def test_merging() -> None:
    parts = [Session(100, 110, 2), Session(0, 5, 1), Session(111, 120, 3)]
    assert merge(parts, 10) == [Session(0, 5, 1), Session(100, 120, 5)]


@given(st.lists(st.integers(0, 500), min_size=1, max_size=30), st.integers(1, 50))
def test_order_does_not_matter(times: list[int], gap: int) -> None:
    events = [Session(each, each, 1) for each in times]
    once = merge(events, gap)
    one_by_one: list[Session] = []
    for event in events:
        one_by_one = merge([*one_by_one, event], gap)
    assert once == one_by_one
    assert sum(each.events for each in once) == len(times)
