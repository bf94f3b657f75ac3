"""Retention and index: the decisions, without files."""

from __future__ import annotations

import pytest

from danubius.errors import InvalidArgument, LedgerDamaged
from danubius.ledger.config import LedgerConfig
from danubius.ledger.core.index import BlockIndex, parse_index
from danubius.ledger.core.retention import newest_ms, plan_drop
from danubius.ledger.entry import LedgerMeta
from danubius.model.topic import Retention
from danubius.record.ledger_file import BlockRow, encode_row


def metas(*specs: tuple[int, int], open_last: bool = True) -> list[LedgerMeta]:
    """Ledgers of ten messages each, of (created_ms, bytes)."""
    return [
        LedgerMeta(
            i,
            1,
            10 * i,
            10 * i + 10,
            size,
            1,
            0,
            created * 1000,
            created,
            not open_last or i < len(specs) - 1,
        )
        for i, (created, size) in enumerate(specs)
    ]


THREE = metas((100, 50), (200, 50), (300, 50))


def test_nothing_goes_without_a_bound() -> None:
    assert plan_drop(THREE, 30, Retention(age_ms=None), 10**9) == 0


def test_old_ledgers_go_and_younger_stay() -> None:
    assert plan_drop(THREE, 30, Retention(age_ms=1000), 1099) == 0
    assert plan_drop(THREE, 30, Retention(age_ms=1000), 1100) == 1
    assert plan_drop(THREE, 30, Retention(age_ms=1000), 1200) == 2


def test_the_open_ledger_never_goes() -> None:
    assert plan_drop(THREE, 30, Retention(age_ms=0), 10**9) == 2
    assert plan_drop(metas((1, 1), (2, 1), open_last=False), 20, Retention(age_ms=0), 10**9) == 2


def test_a_ledger_that_a_cursor_needs_stays_with_all_behind_it() -> None:
    assert plan_drop(THREE, 19, Retention(age_ms=0), 10**9) == 1
    assert plan_drop(THREE, 9, Retention(age_ms=0), 10**9) == 0


def test_ledgers_go_while_the_topic_is_too_large() -> None:
    assert plan_drop(THREE, 30, Retention(age_ms=None, size_bytes=150), 0) == 0
    assert plan_drop(THREE, 30, Retention(age_ms=None, size_bytes=149), 0) == 1
    assert plan_drop(THREE, 30, Retention(age_ms=None, size_bytes=0), 0) == 2


def test_either_bound_is_enough() -> None:
    assert plan_drop(THREE, 30, Retention(age_ms=10**6, size_bytes=100), 400) == 1
    assert plan_drop(THREE, 30, Retention(age_ms=150, size_bytes=10**6), 350) == 2


def test_wrong_producer_clocks_do_not_move_retention_much() -> None:
    ledger, following = LedgerMeta(0, 1, 0, 1, 1, 1, 0, 0, 100, True), THREE[1]
    assert newest_ms(ledger, following) == 100
    assert newest_ms(ledger, None) == 100
    future = LedgerMeta(0, 1, 0, 1, 1, 1, 0, 10**15, 100, True)
    assert newest_ms(future, following) == 200


def rows(*specs: tuple[int, int, int]) -> list[BlockRow]:
    """Adjacent blocks of (records, bytes, time)."""
    result: list[BlockRow] = []
    offset, position = 0, 64
    for records, size, time_us in specs:
        result.append(BlockRow(offset, position, size, 0, time_us, records))
        offset, position = offset + records, position + size
    return result


BLOCKS = rows((10, 100, 5), (1, 300, 50), (10, 100, 20), (10, 100, 60))


def test_a_block_is_found_by_offset() -> None:
    index = BlockIndex(BLOCKS)
    assert [index.find(offset) for offset in (0, 9, 10, 11, 20, 21, 30)] == [0, 0, 1, 2, 2, 3, 3]
    assert index.end_offset == 31


def test_a_block_is_found_by_time_though_times_fall() -> None:
    index = BlockIndex(BLOCKS)
    assert [index.find_time(t) for t in (0, 5, 6, 50, 51, 60, 61)] == [0, 0, 1, 1, 3, 3, 4]


def test_a_plan_takes_adjacent_blocks_within_the_bound() -> None:
    index = BlockIndex(BLOCKS)
    assert [len(index.plan(0, size)) for size in (1, 399, 400, 500, 10**9)] == [1, 1, 2, 3, 4]
    assert index.plan(12, 1)[0].base_offset == 11


def test_a_plan_ends_before_a_gap_and_gaps_have_bounds() -> None:
    index = BlockIndex([BLOCKS[1], BLOCKS[3]])
    assert len(index.plan(10, 10**9)) == 1
    assert index.gap_at(10) is None
    assert index.gap_at(3) == (3, 10)
    assert index.gap_at(15) == (11, 21)
    assert index.gap_at(40) == (31, None)


def test_the_last_block_grows() -> None:
    index = BlockIndex(BLOCKS)
    index.grow(20, 2, 99, 70)
    assert index.row(3) == BlockRow(21, 564, 120, 99, 70, 12)
    index.check()


META = LedgerMeta(0, 1, 0, 31, 664, 4, 0, 60, 0, True)


def test_a_stored_index_is_read_back() -> None:
    index = parse_index(b"".join(map(encode_row, BLOCKS)), META)
    assert [index.row(i).base_offset for i in range(4)] == [0, 10, 11, 21]


@pytest.mark.parametrize(
    "stored",
    [BLOCKS[:3], [*BLOCKS, BLOCKS[3]], [BLOCKS[0], BLOCKS[2], BLOCKS[1], BLOCKS[3]], BLOCKS[:0]],
)
def test_rows_that_do_not_describe_the_ledger_are_refused(stored: list[BlockRow]) -> None:
    with pytest.raises(LedgerDamaged):
        parse_index(b"".join(map(encode_row, stored)), META)


def test_rows_that_end_elsewhere_than_the_ledger_are_refused() -> None:
    data = b"".join(map(encode_row, BLOCKS))
    with pytest.raises(LedgerDamaged):
        parse_index(data, LedgerMeta(0, 1, 0, 30, 664, 4, 0, 60, 0, True))


def test_bounds_that_contradict_each_other_are_refused() -> None:
    LedgerConfig().check()
    with pytest.raises(InvalidArgument):
        LedgerConfig(cache_bytes=1000).check()
    with pytest.raises(InvalidArgument):
        LedgerConfig(retry_ms=10_000).check()
