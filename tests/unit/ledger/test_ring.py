"""The ring of a non-reliable topic."""

from __future__ import annotations

from typing import Any

from danubius.errors import OffsetOutOfRange
from danubius.ledger.entry import Chunk
from danubius.ledger.ring import Ring


def read(ring: Ring, first: int, bytes_max: int = 1 << 20) -> Any:
    got: list[Any] = []
    ring.read(first, bytes_max, got.append)
    assert len(got) == 1, "a ring answers at once"
    return got[0]


def test_a_new_ring_is_empty() -> None:
    ring = Ring(1000)
    assert (ring.start_offset, ring.end_offset, len(ring)) == (0, 0, 0)
    assert read(ring, 0) == Chunk(0, 0, [], 0)


def test_what_was_appended_is_read_without_a_copy(make_entry: Any) -> None:
    ring = Ring()
    entries = [make_entry(0, [b"a", b"b"]), make_entry(2, [b"c"])]
    for entry in entries:
        ring.append(entry)
    chunk = read(ring, 0)
    assert (chunk.first, chunk.end) == (0, 3)
    assert chunk.buffers[0] is entries[0].buffer
    assert chunk.buffers[1] is entries[1].buffer
    assert chunk.size == sum(entry.buffer.nbytes for entry in entries)
    assert read(ring, 1).first == 0
    assert read(ring, 2).first == 2
    assert read(ring, 3) == Chunk(3, 3, [], 0)


def test_a_chunk_stays_within_bytes_max_but_has_a_batch(make_entry: Any) -> None:
    ring = Ring()
    for first in range(4):
        ring.append(make_entry(first, [b"x"]))
    size = read(ring, 0, 1).size
    assert read(ring, 0, 1).end == 1
    assert read(ring, 1, 2 * size).end == 3
    assert read(ring, 1, 2 * size - 1).end == 2


def test_the_oldest_is_dropped_by_bytes_and_the_gap_is_seen(make_entry: Any) -> None:
    ring = Ring(bytes_max=10_000)
    for first in range(0, 400, 2):
        ring.append(make_entry(first, [b"x" * 50] * 2))
        assert ring.cached_bytes <= 10_000
    assert ring.end_offset == 400
    assert 0 < ring.start_offset < 400
    chunk = read(ring, 0)
    assert (chunk.first, chunk.end) == (ring.start_offset, 400)


def test_the_oldest_is_dropped_by_entries(make_entry: Any) -> None:
    ring = Ring(entries_max=3)
    for first in range(2000):
        ring.append(make_entry(first, [b"x"]))
    assert (len(ring), ring.start_offset) == (3, 1997)
    assert len(ring._entries) < 2000, "the list is cut, or it would grow for ever"
    assert read(ring, 0).first == 1997


def test_one_entry_larger_than_the_ring_is_kept_alone(make_entry: Any) -> None:
    ring = Ring(bytes_max=100)
    ring.append(make_entry(0, [b"x"]))
    ring.append(make_entry(1, [b"x" * 1000]))
    assert (ring.start_offset, ring.end_offset) == (1, 2)
    assert read(ring, 0).first == 1


def test_a_read_beyond_the_end_is_refused() -> None:
    assert isinstance(read(Ring(), 1), OffsetOutOfRange)
    assert isinstance(read(Ring(), -1), OffsetOutOfRange)


def test_a_ring_may_start_anywhere(make_entry: Any) -> None:
    ring = Ring(next_offset=50)
    ring.append(make_entry(50, [b"x"]))
    assert (ring.start_offset, ring.end_offset) == (50, 51)
    assert read(ring, 0).first == 50
