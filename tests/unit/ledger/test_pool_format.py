"""The bytes of pool files: headers, frames, footers, and what a search makes of damaged ones."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from danubius.errors import DataDirectoryTooNew
from danubius.ledger.core.pool_format import (
    FRAME_HEADER_BYTES,
    POOL_HEADER_BYTES,
    SCAN_BYTES,
    Frame,
    decode_frame,
    encode_frame,
    encode_pool_header,
    encode_row,
    encode_trailer,
    is_pool_header,
    read_footer,
    scan_frames,
)
from danubius.record.checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SALT = 0x1234_5678


def build(contents: Sequence[bytes], *, moved: bool = False) -> tuple[bytearray, list[Frame]]:
    """A file without a footer, and its frames."""
    data = bytearray(encode_pool_header(1, SALT))
    frames: list[Frame] = []
    for number, content in enumerate(contents):
        frame = Frame(
            7,
            number,
            64 * number,
            len(content),
            3,
            len(data) + FRAME_HEADER_BYTES,
            number == 0,
            crc32c(content) if moved else None,
        )
        frames.append(frame)
        data += encode_frame(frame, SALT) + content
        data += bytes(-len(data) % 8)
    return data, frames


def reader(data: bytes | bytearray) -> Callable[[int, int], bytes]:
    return lambda at, count: bytes(data[at : at + count])


def scan(data: bytes | bytearray, salt: int = SALT) -> list[Frame]:
    return list(scan_frames(reader(data), len(data), salt))


def finish(data: bytearray, frames: Sequence[Frame]) -> None:
    rows = b"".join(map(encode_row, frames))
    data += rows + encode_trailer(rows, len(data), SALT)


def test_a_frame_header_is_as_documented() -> None:
    frame = Frame(0x1234, 5, 64, 300, 9, 112, is_first=True)
    data = encode_frame(frame, SALT)
    assert len(data) == FRAME_HEADER_BYTES
    assert data[:8] == b"DNPF\x01\x00\x00\x00"
    numbers = [int.from_bytes(data[at : at + 8], "little") for at in (8, 16, 24)]
    assert numbers == [0x1234, 5, 64]
    numbers = [int.from_bytes(data[at : at + 4], "little") for at in (32, 36, 40, 44)]
    assert numbers == [300, 9, 0, crc32c(data[:44], SALT)]
    moved = encode_frame(frame._replace(is_first=False, moved_crc=0xABCDEF), SALT)
    assert moved[4:6] == b"\x02\x00"
    assert int.from_bytes(moved[40:44], "little") == 0xABCDEF


def test_any_flipped_bit_of_a_frame_header_is_seen() -> None:
    data = encode_frame(Frame(1, 2, 64, 300, 9, 112), SALT)
    assert decode_frame(data, 0, 64, SALT) == Frame(1, 2, 64, 300, 9, 112)
    assert decode_frame(data[:-1], 0, 64, SALT) is None
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_frame(damaged, 0, 64, SALT) is None


def test_a_file_header_proves_itself_and_its_version() -> None:
    data = encode_pool_header(7, SALT)
    assert data[:8] == b"DNPL\x01\x00\x00\x00"
    assert is_pool_header(data)
    assert not is_pool_header(data[:-1])
    for bit in range(8 * POOL_HEADER_BYTES):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert not is_pool_header(bytes(damaged))
    newer = bytearray(data)
    newer[4] = 2
    newer[60:] = crc32c(bytes(newer[:60])).to_bytes(4, "little")
    with pytest.raises(DataDirectoryTooNew):
        is_pool_header(bytes(newer))


def test_frames_of_any_length_are_found() -> None:
    data, frames = build([b"a" * length for length in (1, 7, 8, 9, 1000, 3 * SCAN_BYTES, 5)])
    assert scan(data) == frames


def test_a_file_of_another_salt_has_no_frames() -> None:
    data, _ = build([b"abc", b"def"])
    assert scan(data, SALT + 1) == []


def test_a_torn_tail_costs_the_frames_that_are_not_whole() -> None:
    data, frames = build([b"x" * 100] * 5)
    for length in range(len(data)):
        whole = [frame for frame in frames if frame.offset + frame.length <= length]
        assert scan(data[:length]) == whole


def test_damage_costs_one_frame_wherever_it_is() -> None:
    data, frames = build([bytes([number]) * 50 for number in range(20)])
    for lost, frame in enumerate(frames):
        damaged = data.copy()
        damaged[frame.offset - 10] ^= 1
        assert scan(damaged) == frames[:lost] + frames[lost + 1 :]


def test_the_search_behind_damage_crosses_windows() -> None:
    data, frames = build([b"DNPF" * (SCAN_BYTES // 4 + shift) for shift in range(3)] + [b"end"])
    data[frames[0].offset - 10] ^= 1
    assert scan(data) == frames[1:]
    for shift in range(-64, 64, 8):
        data, frames = build([bytes(SCAN_BYTES + shift), b"next"])
        data[frames[0].offset - 10] ^= 1
        assert scan(data) == frames[1:]


def test_what_a_producer_sends_never_passes_for_a_frame() -> None:
    """Even where a damaged header makes the search look into messages."""
    forged = Frame(99, 0, 0, 8, 99, 0, is_first=True)
    data, frames = build([b"".join(encode_frame(forged, guess) for guess in range(50)), b"next"])
    data[frames[0].offset - 10] ^= 1
    assert scan(data) == frames[1:]


def test_random_damage_never_invents_a_frame() -> None:
    dice = random.Random(1)
    data, frames = build([dice.randbytes(dice.randint(1, 300)) for _ in range(100)])
    for _ in range(300):
        damaged = data.copy()
        start = dice.randrange(len(data))
        count = dice.choice([1, 8, 100, 1000])
        damaged[start : start + count] = dice.randbytes(len(damaged[start : start + count]))
        kept = [
            frame
            for frame in frames
            if not (frame.offset - FRAME_HEADER_BYTES < start + count and start < frame.offset)
        ]
        found = scan(damaged)
        assert set(found) <= set(frames)
        assert set(kept) <= set(found)


def test_a_moved_frame_without_its_bytes_is_passed_over() -> None:
    data, frames = build([b"abc", b"def", b"ghi"], moved=True)
    assert scan(data) == frames
    data[frames[1].offset] ^= 1
    assert scan(data) == [frames[0], frames[2]]


def test_a_footer_names_all_frames() -> None:
    data, frames = build([b"abc", b"def" * 100])
    assert read_footer(reader(data), len(data), SALT) is None
    finish(data, frames)
    assert read_footer(reader(data), len(data), SALT) == frames
    assert scan(data) == frames, "the footer is no frame"


def test_any_flipped_bit_of_a_footer_is_seen() -> None:
    data, frames = build([b"abc", b"def"])
    start = len(data)
    finish(data, frames)
    for bit in range(8 * start, 8 * len(data)):
        damaged = data.copy()
        damaged[bit // 8] ^= 1 << bit % 8
        assert read_footer(reader(damaged), len(damaged), SALT) is None
        assert scan(damaged) == frames
    for length in range(len(data)):
        assert read_footer(reader(data[:length]), length, SALT) is None
