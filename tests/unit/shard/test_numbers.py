"""Numbers are drawn once, whatever shard draws them and whatever its facts have seen."""

from __future__ import annotations

from danubius.shard.state.core.numbers import COUNT_BITS, SHARD_MAX, Numbers


def test_the_first_shard_counts_from_one() -> None:
    numbers = Numbers()
    assert [numbers.draw() for _ in range(3)] == [1, 2, 3]


def test_what_was_seen_is_not_drawn_again() -> None:
    numbers = Numbers()
    numbers.seen(41)
    numbers.seen(7)
    assert numbers.draw() == 42


def test_shards_never_draw_the_same() -> None:
    drawn = [Numbers(shard).draw() for shard in (0, 1, 2, SHARD_MAX)]
    assert len(set(drawn)) == 4
    assert max(drawn) < 2**53


def test_a_number_of_another_shard_moves_no_count() -> None:
    numbers = Numbers(3)
    first = numbers.next
    numbers.seen((4 << COUNT_BITS) + 99)
    numbers.seen(99)
    assert numbers.draw() == first
    numbers.seen(first + 10)
    assert numbers.draw() == first + 11
