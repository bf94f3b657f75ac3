"""A ledger becomes an object in bounded memory, and every wrong byte of either is found."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danubius.errors import LedgerDamaged, ObjectNotFound
from danubius.record.ledger_file import encode_row
from danubius.tier.core.object_format import FOOTER_BYTES, decode_footer, encode_footer
from danubius.tier.memory_objects import MemoryObjects
from danubius.tier.packing import LedgerPacker
from danubius.tier.unpacking import check_object, read_footer, read_rows
from faulty_objects import FaultyObjects
from unit.tier.ledgers_made import BASE, REF, Made

NAME = "store/topic/ledger"
PIECE = 1000


def pack(made: Made, objects: MemoryObjects | FaultyObjects) -> LedgerPacker:
    packer = LedgerPacker(made.store, REF, made.meta, made.rows, piece_bytes=PIECE)
    assert objects.put(NAME, packer.parts())
    return packer


@given(st.lists(st.integers(1, 3 * PIECE), max_size=20))
def test_an_object_is_the_ledger_its_rows_and_the_footer(sizes: list[int]) -> None:
    made, objects = Made(sizes), MemoryObjects()
    packer = pack(made, objects)
    stored = objects.get(NAME, 0, 1 << 20)
    rows = b"".join(map(encode_row, made.rows))
    assert stored[:-FOOTER_BYTES] == made.data + rows
    footer = decode_footer(stored[-FOOTER_BYTES:], len(stored))
    assert footer == packer.footer == read_footer(objects, NAME)
    assert check_object(objects, NAME, piece_bytes=PIECE) == footer
    assert (footer.base_offset, footer.end_offset) == (BASE, made.meta.end_offset)
    assert read_rows(objects, NAME, footer) == made.rows


def test_pieces_are_bounded() -> None:
    made = Made([300] * 30 + [2500] + [10] * 300)
    packer = LedgerPacker(made.store, REF, made.meta, made.rows, piece_bytes=PIECE)
    *data, rows, footer = packer.parts()
    assert max(map(len, data)) == 2500
    assert sorted(map(len, data))[-2] <= PIECE
    assert len(rows) == 40 * len(made.rows)
    assert len(footer) == FOOTER_BYTES


def test_parts_are_made_again_for_another_attempt() -> None:
    made = Made([500] * 5)
    packer = LedgerPacker(made.store, REF, made.meta, made.rows)
    assert next(packer.parts())
    assert packer.footer is None
    assert b"".join(packer.parts()) == b"".join(packer.parts())
    assert packer.footer is not None


def test_a_damaged_ledger_becomes_no_object() -> None:
    made, objects = Made([400, 500, 600]), MemoryObjects()
    made.store.append(REF, 64 + 400 + 17, [b"\x00\x01\x02"])
    with pytest.raises(LedgerDamaged, match="offset 103") as caught:
        pack(made, objects)
    assert (caught.value.first, caught.value.end) == (103, 106)
    assert list(objects.list("")) == []


def test_a_ledger_that_is_cut_short_becomes_no_object() -> None:
    made = Made([400, 500, 600])
    made.store.truncate(REF, made.meta.data_bytes - 1, 0)
    with pytest.raises(LedgerDamaged, match="ends before"):
        pack(made, MemoryObjects())


def test_another_ledger_under_the_name_becomes_no_object() -> None:
    made = Made([400])
    made.store.create(REF, made.header._replace(epoch=8), [made.data[64:]])
    with pytest.raises(LedgerDamaged, match="header of another"):
        pack(made, MemoryObjects())


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_an_index_with_a_gap_becomes_no_object(missing: int) -> None:
    made = Made([400, 500, 600])
    del made.rows[missing]
    with pytest.raises(LedgerDamaged, match="lacks offsets from"):
        pack(made, MemoryObjects())


def test_any_wrong_byte_of_an_object_is_found() -> None:
    made, objects = Made([150, 250, 350]), MemoryObjects()
    pack(made, objects)
    stored = objects.get(NAME, 0, 1 << 20)
    dice = random.Random(3)
    for at in range(len(stored)):
        wrong = bytearray(stored)
        wrong[at] ^= 1 << dice.randrange(8)
        objects.put(NAME, [wrong], replace=True)
        with pytest.raises(LedgerDamaged):
            check_object(objects, NAME, piece_bytes=PIECE)


def test_an_object_of_any_other_length_is_found() -> None:
    made, objects = Made([150, 250]), MemoryObjects()
    pack(made, objects)
    stored = objects.get(NAME, 0, 1 << 20)
    for size in range(len(stored)):
        objects.put(NAME, [stored[:size]], replace=True)
        with pytest.raises(LedgerDamaged):
            check_object(objects, NAME)
    objects.put(NAME, [stored, b"x"], replace=True)
    with pytest.raises(LedgerDamaged):
        check_object(objects, NAME)


def test_answers_that_are_cut_short_are_found() -> None:
    made, faulty = Made([150, 250]), FaultyObjects(MemoryObjects())
    pack(made, faulty)
    for number in range(1, 5):
        faulty.heal()
        faulty.cut_reads(number)
        with pytest.raises(LedgerDamaged):
            check_object(faulty, NAME)


def test_a_footer_over_other_bytes_is_found() -> None:
    made, other, objects = Made([150, 250]), Made([150, 250], seed=2), MemoryObjects()
    footer = pack(made, objects).footer
    assert footer is not None
    body = objects.get(NAME, 0, footer.object_bytes - FOOTER_BYTES)
    objects.put(NAME, [other.data, body[len(other.data) :], encode_footer(footer)], replace=True)
    with pytest.raises(LedgerDamaged):
        check_object(objects, NAME)


def test_an_absent_object_is_said_to_be_absent() -> None:
    with pytest.raises(ObjectNotFound):
        check_object(MemoryObjects(), NAME)
