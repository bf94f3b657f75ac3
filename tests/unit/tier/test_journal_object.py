"""Journal objects: what their headers say, and what counts of them."""

from __future__ import annotations

import pytest

from danubius.errors import DataDirectoryDamaged, DataDirectoryTooNew
from danubius.tier.core.journal_object import (
    HEADER_BYTES,
    RECORDS,
    Author,
    SlotHeader,
    SnapshotRef,
    fence,
    pack_header,
    parse_header,
    walk,
)

ONE, TWO, THREE = Author(1, 11), Author(2, 22), Author(3, 33)


def records(author: Author, slot: int, base: int, promise: int, floor: int = 0) -> SlotHeader:
    """Ten positions of records."""
    kept = (SnapshotRef(floor, author.epoch),) if floor else ()
    return SlotHeader(RECORDS, author, slot, base, base + 10, promise, floor, 0, 1, kept)


def slots_of(*headers: SlotHeader) -> list[int]:
    return [header.slot for header in walk(headers).valid]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_header_is_read_back(count: int) -> None:
    kept = tuple(SnapshotRef(1 << 40, number + 1) for number in range(count))
    header = SlotHeader(RECORDS, Author(7, 1 << 63), 1 << 50, 5, 1 << 62, 40, 30, 20, 9, kept)
    packed = pack_header(header)
    assert len(packed) == HEADER_BYTES
    assert parse_header(packed, header.slot) == header


def test_a_header_that_is_damaged_short_or_of_another_slot_is_none() -> None:
    packed = pack_header(fence(ONE, 5))
    assert parse_header(packed, 6) is None
    assert parse_header(packed[:-1], 5) is None
    for at in range(HEADER_BYTES):
        wrong = bytearray(packed)
        wrong[at] ^= 4
        assert parse_header(bytes(wrong), 5) is None


def test_a_header_of_the_future_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("danubius.tier.core.journal_object.FORMAT_VERSION", 2)
    packed = pack_header(fence(ONE, 5))
    monkeypatch.undo()
    with pytest.raises(DataDirectoryTooNew, match="format version 2"):
        parse_header(packed, 5)


def test_what_an_author_filled_from_its_promise_on_counts() -> None:
    found = walk(
        [fence(ONE, 4), records(ONE, 5, 0, 5), records(ONE, 6, 10, 5, floor=5), fence(TWO, 7)]
    )
    assert [header.slot for header in found.valid] == [5, 6]
    assert (found.end, found.next_slot, found.floor) == (20, 8, 5)
    assert found.kept == (SnapshotRef(5, 1),)


def test_what_lies_behind_a_fence_is_void() -> None:
    assert slots_of(
        records(ONE, 0, 0, 0),
        fence(TWO, 1),
        records(ONE, 2, 20, 1),
        fence(TWO, 3),
        records(TWO, 4, 10, 4),
    ) == [0, 4]


def test_a_fence_of_a_lower_epoch_breaks_a_run_too() -> None:
    """Two starts at once: the older one's fence came first, and the younger's next object behind it anyway."""
    assert slots_of(
        records(TWO, 0, 0, 0), fence(ONE, 1), records(TWO, 2, 20, 1), fence(THREE, 3)
    ) == [0]


def test_what_a_writer_gave_up_is_void_though_it_arrived() -> None:
    again = Author(2, ONE.process)
    assert slots_of(
        records(ONE, 0, 0, 0),
        records(ONE, 1, 10, 1),
        records(ONE, 2, 20, 1),
        fence(again, 3),
        fence(again, 4),
        fence(again, 5, void_from=1),
        records(again, 6, 10, 6),
    ) == [0, 6]


def test_it_counts_if_the_writer_was_replaced_before_it_had_given_up() -> None:
    """A later start has filled a slot between: the writer ends, and nothing hangs on what it gave up."""
    again = Author(2, ONE.process)
    assert slots_of(
        records(ONE, 0, 0, 0),
        records(ONE, 1, 10, 1),
        fence(THREE, 2),
        fence(again, 3, void_from=1),
        records(THREE, 4, 20, 4),
    ) == [0, 1, 4]


def test_positions_that_do_not_fit_are_damage() -> None:
    with pytest.raises(DataDirectoryDamaged, match="begins at position 30, but the one before"):
        walk([records(ONE, 0, 0, 0), records(ONE, 1, 30, 1)])


def test_nothing_is_nothing() -> None:
    assert walk([]).next_slot == 0
    assert walk([fence(ONE, 0)]).valid == []
