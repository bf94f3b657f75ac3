"""Acknowledged offsets in flags where ranges are many: the same answers, for a byte an offset."""

from __future__ import annotations

import random
import sys

import pytest

from danubius.ack.core.acked import BLOCK, DENSE, MANY, AckedSet
from danubius.ack.core.cursor import Cursor
from danubius.ack.core.ranges import RangeSet
from danubius.errors import DanubiusError


def alternating(first: int, end: int) -> list[tuple[int, int]]:
    return [(offset, offset + 1) for offset in range(first, end, 2)]


def deep_bytes(cursor: Cursor) -> int:
    """What the cursor holds, counted by its parts."""
    above = cursor.above
    blocks = sum(sys.getsizeof(one.flags) + 200 for one in above._blocks.values())
    return blocks + 80 * len(above._ranges)


@pytest.mark.parametrize("frame", [1_000, 30_000])
def test_every_other_message_acknowledged_costs_little_more_than_a_byte_each(frame: int) -> None:
    cursor, count = Cursor(), 200_000
    for first in range(1, count, frame):
        cursor.ack(alternating(first, min(first + frame, count)))
    assert cursor.above.count == cursor.backlog(count) == count // 2
    assert len(cursor.above._ranges) <= MANY + DENSE
    assert deep_bytes(cursor) < 2 * count
    # Its stored form is a bit each, and not made a message at a time.
    encoded = cursor.encode()
    assert len(encoded) < count // 4
    twin = Cursor.decode(encoded)
    assert twin.above.count == cursor.above.count
    assert twin.unacked(0, 10_000) == cursor.unacked(0, 10_000)
    twin.check()
    # And it goes when the rest is acknowledged.
    cursor.ack([(0, count)])
    assert (cursor.floor, len(cursor.above), cursor.above.blocks) == (count, 0, 0)


def test_a_block_that_is_acknowledged_to_the_end_is_a_range_again() -> None:
    cursor = Cursor()
    cursor.ack(alternating(1, 8 * BLOCK))
    assert cursor.above.blocks
    cursor.ack(alternating(2, 8 * BLOCK))
    assert list(cursor.above) == [(1, 8 * BLOCK)]
    assert cursor.above.blocks == 1, "that of the one which is still missing"
    cursor.check()
    cursor.ack([(0, 1)])
    assert (cursor.floor, cursor.above.blocks) == (8 * BLOCK, 0)


def test_ranges_far_apart_are_kept_as_ranges() -> None:
    acked = AckedSet()
    for number in range(2 * MANY):
        acked.add(number * BLOCK + 7, number * BLOCK + 9)
    assert acked.blocks == 0
    assert len(acked) == 2 * MANY


@pytest.mark.parametrize("seed", range(3))
def test_it_answers_as_a_set_of_ranges_does(seed: int) -> None:
    dice = random.Random(seed)
    span = 7 * BLOCK
    acked, plain = AckedSet(), RangeSet()
    acked.add_all(alternating(1, 5 * BLOCK))
    plain.add_all(alternating(1, 5 * BLOCK))
    assert acked.blocks
    for _ in range(100):
        first = dice.randrange(span)
        end = first + dice.choice([1, 1, 2, 40, BLOCK // 2, BLOCK, 3 * BLOCK])
        action = dice.random()
        if action < 0.4:
            acked.add(first, end)
            plain.add(first, end)
        elif action < 0.5:
            some = alternating(first, end + 200)
            acked.add_all(some)
            plain.add_all(some)
        elif action < 0.8:
            acked.remove(first, end)
            plain.remove(first, end)
        assert acked.count == plain.count
        assert acked.intersect(first, end) == plain.intersect(first, end)
        assert acked.gaps(first, end) == plain.gaps(first, end)
        gap = plain.first_gap(first)
        assert acked.first_gap(first) == gap
        assert acked.next_first(gap) == plain.next_first(gap)
        assert (first in acked) == (first in plain)
        assert acked.count_within(first, end) == sum(b - a for a, b in plain.intersect(first, end))
    assert list(acked) == list(plain)
    acked.check()


def test_a_stored_cursor_with_a_bad_block_is_refused() -> None:
    cursor = Cursor(3)
    cursor.ack(alternating(5, 6 * BLOCK))
    encoded = cursor.encode()
    assert Cursor.decode(encoded).encode() == encoded
    for damaged in (encoded[:-1], encoded + encoded[-520:], encoded[:-512] + bytes(512)):
        with pytest.raises(DanubiusError):
            Cursor.decode(damaged)
