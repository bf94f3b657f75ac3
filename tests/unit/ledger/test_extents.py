"""Where pooled bytes lie, against a model that remembers each byte."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from danubius.ledger.core.extents import Extent, ExtentMap
from danubius.ledger.entry import LedgerRef

A, B = LedgerRef(1, 0), LedgerRef(1, 1)

Place = tuple[int, int]
"""File and offset of one byte."""


def places(extents: ExtentMap, ref: LedgerRef) -> dict[int, Place]:
    entry = extents.get(ref)
    return {
        extent.position + index: (extent.file, extent.offset + index)
        for extent in (entry.extents if entry else [])
        for index in range(extent.length)
    }


def move_one(extents: ExtentMap, model: dict[int, Place], ref: LedgerRef, number: int) -> None:
    entry = extents.get(ref)
    if entry is None or number >= len(entry):
        return
    old = entry.extents[number]
    new = old._replace(file=77, offset=old.offset + 1000)
    assert extents.move(ref, old, new)
    assert not extents.move(ref, old, new)
    for index in range(old.length):
        model[old.position + index] = (77, new.offset + index)


steps = st.one_of(
    st.tuples(
        st.just("put"),
        st.sampled_from([A, B]),
        st.integers(0, 40),
        st.integers(1, 20),
        st.booleans(),
    ),
    st.tuples(st.just("cut"), st.sampled_from([A, B]), st.integers(0, 50)),
    st.tuples(st.just("drop"), st.sampled_from([A, B])),
    st.tuples(st.just("move"), st.sampled_from([A, B]), st.integers(0, 5)),
    st.tuples(st.just("topic")),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(steps, max_size=25))
def test_every_byte_lies_where_it_was_put_last(history: list[tuple[object, ...]]) -> None:
    extents = ExtentMap()
    model: dict[LedgerRef, dict[int, Place]] = {A: {}, B: {}}
    offset = 0
    for step in history:
        match step:
            case ("put", LedgerRef() as ref, int(position), int(length), bool(is_first)):
                file, offset = offset // 100, offset + length
                extent = Extent(position, length, file, offset)
                extents.put(ref, 1, extent, is_first=is_first)
                if is_first:
                    model[ref].clear()
                for index in range(length):
                    model[ref][position + index] = (file, offset + index)
            case ("cut", LedgerRef() as ref, int(position)):
                extents.cut(ref, position)
                model[ref] = {at: place for at, place in model[ref].items() if at < position}
            case ("drop", LedgerRef() as ref):
                extents.drop(ref)
                model[ref].clear()
            case ("move", LedgerRef() as ref, int(number)):
                move_one(extents, model[ref], ref, number)
            case _:
                extents.drop_topic(1)
                model[A].clear()
                model[B].clear()
        extents.check()
        for ref in (A, B):
            assert places(extents, ref) == model[ref]
        assert sorted(extents.refs()) == [ref for ref in (A, B) if model[ref]]
    in_files = {
        (ref, extent) for file in extents.live_bytes for ref, extent in extents.extents_in(file)
    }
    assert sum(extent.length for _, extent in in_files) == sum(map(len, model.values()))


def test_the_last_writer_of_a_name_owns_it() -> None:
    extents = ExtentMap()
    extents.put(A, 5, Extent(0, 10, 1, 100))
    extents.put(A, 5, Extent(10, 10, 1, 200))
    extents.put(A, 4, Extent(0, 50, 2, 100))
    entry = extents.get(A)
    assert entry is not None
    assert (entry.epoch, len(entry), entry.end) == (5, 2, 20)
    extents.put(A, 6, Extent(0, 5, 3, 100))
    entry = extents.get(A)
    assert entry is not None
    assert (entry.epoch, entry.extents) == (6, [Extent(0, 5, 3, 100)])
    extents.check()


def test_what_a_reader_got_does_not_change() -> None:
    extents = ExtentMap()
    extents.put(A, 5, Extent(0, 10, 1, 100))
    before = extents.get(A)
    assert before == extents.get(A)
    extents.put(A, 5, Extent(10, 10, 1, 200))
    assert before is not None
    assert before.extents == [Extent(0, 10, 1, 100)]
    assert before != extents.get(A)


def test_a_move_of_what_has_changed_is_refused() -> None:
    extents = ExtentMap()
    old = Extent(0, 10, 1, 100)
    assert not extents.move(A, old, old._replace(file=2))
    extents.put(A, 5, old)
    extents.cut(A, 5)
    assert not extents.move(A, old, old._replace(file=2))
    assert extents.live_bytes.keys() == {1}


def test_what_covers_a_piece_may_lie_in_several_places() -> None:
    extents = ExtentMap()
    extents.put(A, 5, Extent(0, 10, 1, 100))
    extents.put(A, 5, Extent(10, 10, 2, 100))
    assert extents.covers(A, 5, Extent(0, 20, 3, 0))
    assert extents.covers(A, 5, Extent(5, 10, 3, 0))
    assert not extents.covers(A, 5, Extent(5, 16, 3, 0))
    assert not extents.covers(A, 6, Extent(0, 10, 3, 0))
    extents.put(A, 5, Extent(30, 10, 2, 200))
    assert not extents.covers(A, 5, Extent(15, 20, 3, 0))
