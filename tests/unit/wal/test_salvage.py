"""What is left of a journal file: every sound record, whatever lies between."""

from __future__ import annotations

import itertools
import random

import pytest

from danubius.wal.core.format import (
    FILE_HEADER_BYTES,
    FileHeader,
    pack_file_header,
    pack_record,
    record_bytes,
)
from danubius.wal.core.recovery import Found
from danubius.wal.core.salvage import Gap, derive_header, salvage

HEADER = FileHeader(7, 10_000)
SIZES = [3, 200, 0, 48, 1000, 17]


def make_file(header: FileHeader = HEADER, sizes: list[int] = SIZES) -> tuple[bytearray, list[int]]:
    """A file, and the positions of its records, with that of the end."""
    buffers: list[bytes | bytearray | memoryview] = [pack_file_header(header)]
    positions = [header.base]
    for number, size in enumerate(sizes):
        position = positions[-1]
        pack_record(
            position, header.base, 1, header.sequence, size, 1, [bytes([number]) * size], buffers
        )
        positions.append(position + record_bytes(size))
    return bytearray(b"".join(buffers)), positions


def pieces(data: bytearray, limit: int | None = None) -> list[tuple[int, int, bool]]:
    """First and end position of every piece, and whether it is a gap."""
    found: list[tuple[int, int, bool]] = []
    for piece in salvage(memoryview(bytes(data)), HEADER, HEADER.base, limit):
        if isinstance(piece, Found):
            found.append((piece.header.position, piece.header.end, False))
        else:
            found.append((piece.first, piece.end, True))
    return found


def hurt(data: bytearray, position: int) -> None:
    at = FILE_HEADER_BYTES + position - HEADER.base
    data[at : at + 8] = b"\xff" * 8


def test_a_sound_file_has_no_gap() -> None:
    data, positions = make_file()
    assert [piece[0] for piece in pieces(data)] == positions[:-1]
    assert not any(is_gap for _, _, is_gap in pieces(data, positions[-1]))


@pytest.mark.parametrize("bad", range(len(SIZES) - 1))
def test_a_record_that_lost_its_header_is_a_gap_of_its_size(bad: int) -> None:
    data, positions = make_file()
    hurt(data, positions[bad])
    found = pieces(data)
    assert [(first, end) for first, end, _ in found] == list(itertools.pairwise(positions))
    assert [is_gap for _, _, is_gap in found] == [number == bad for number in range(len(SIZES))]


def test_a_record_whose_body_is_bad_is_a_gap_of_its_size() -> None:
    data, positions = make_file()
    hurt(data, positions[1] + 60)
    assert (positions[1], positions[2], True) in pieces(data)
    assert sum(is_gap for _, _, is_gap in pieces(data)) == 1


def test_adjacent_bad_records_are_one_gap() -> None:
    data, positions = make_file()
    hurt(data, positions[1])
    hurt(data, positions[2])
    assert (positions[1], positions[3], True) in pieces(data)


def test_what_is_missing_before_the_next_file_is_a_gap_and_a_torn_tail_is_none() -> None:
    data, positions = make_file()
    hurt(data, positions[-2])
    assert pieces(data, positions[-1])[-1] == (positions[-2], positions[-1], True)
    assert pieces(data)[-1] == (positions[-3], positions[-2], False)


def test_what_a_failed_write_left_behind_the_takeover_is_no_record() -> None:
    data, positions = make_file()
    assert pieces(data, positions[3])[-1] == (positions[2], positions[3], False)


def test_a_lost_header_is_told_by_the_records() -> None:
    data, _ = make_file()
    data[:FILE_HEADER_BYTES] = bytes(FILE_HEADER_BYTES)
    assert derive_header(memoryview(bytes(data)), 7) == HEADER


def test_a_file_that_was_used_before_under_another_name_has_no_header() -> None:
    data, _ = make_file()
    assert derive_header(memoryview(bytes(data)), 8) is None


def test_random_damage_hides_no_sound_record_and_leaves_no_position_out() -> None:
    dice = random.Random(1)
    for _ in range(200):
        data, positions = make_file(sizes=[dice.randrange(300) for _ in range(12)])
        bad: set[int] = set()
        for _ in range(dice.randrange(1, 5)):
            at = dice.randrange(positions[0], positions[-1])
            byte = FILE_HEADER_BYTES + at - HEADER.base
            data[byte] ^= 0xFF
            bad.add(max(position for position in positions if position <= at))
        found = pieces(data, positions[-1])
        assert [first for first, _, _ in found] == [HEADER.base, *(end for _, end, _ in found[:-1])]
        assert found[-1][1] == positions[-1]
        sound = {first for first, _, is_gap in found if not is_gap}
        # A byte of padding is under no checksum.
        assert set(positions[:-1]) - bad <= sound


def test_a_gap_names_its_file_and_the_reason() -> None:
    data, positions = make_file()
    hurt(data, positions[1])
    [gap] = [
        piece
        for piece in salvage(memoryview(bytes(data)), HEADER, HEADER.base)
        if isinstance(piece, Gap)
    ]
    assert gap.file == HEADER
    assert gap.reason == "no record header"
