"""The journal's bytes are frozen, and nothing else is taken for them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danubius.errors import DataDirectoryTooNew
from danubius.record.checksum import crc32c
from danubius.wal.core.format import (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    FileHeader,
    pack_file_header,
    pack_record,
    parse_file_header,
    parse_record_header,
    record_bytes,
)
from danubius.wal.core.recovery import Span, durable_claim, identify, plan_spans, scan, stray_claim

if TYPE_CHECKING:
    from danubius.model.buffers import Buffer


def record(
    position: int, body: bytes, *, sequence: int = 1, durable: int = 0, kind: int = 1
) -> bytes:
    buffers: list[Buffer] = []
    pack_record(position, durable, 7, sequence, len(body), kind, [body], buffers)
    return b"".join(buffers)


def file_of(header: FileHeader, *records: bytes) -> memoryview:
    return memoryview(pack_file_header(header) + b"".join(records))


def test_a_file_header_is_these_bytes_forever() -> None:
    packed = pack_file_header(FileHeader(sequence=3, base=0x1122334455))
    rest = "01000000030000005544332211000000"
    assert packed[:24].hex() == (
        b"DNJF".hex() + crc32c(bytes.fromhex(rest)).to_bytes(4, "little").hex() + rest
    )
    assert packed[2048:2072] == packed[:24]
    assert len(packed) == FILE_HEADER_BYTES == 4096


def test_a_record_is_these_bytes_forever() -> None:
    packed = record(0x100, b"hello", sequence=9, durable=0x80, kind=5)
    rest = (
        "0001000000000000" "8000000000000000" "0700000000000000"
        "09000000" "05000000" + struct.pack("<I", crc32c(b"hello")).hex() + "05000000"
    )  # fmt: skip
    crc = struct.pack("<I", crc32c(bytes.fromhex(rest))).hex()
    assert packed.hex() == b"DNJR".hex() + crc + rest + b"hello\0\0\0".hex()
    assert len(packed) == record_bytes(5) == RECORD_HEADER_BYTES + 8


def test_the_header_copy_stands_in_for_a_bad_sector() -> None:
    packed = bytearray(pack_file_header(FileHeader(3, 100)))
    packed[:512] = bytes(512)
    assert parse_file_header(packed) == FileHeader(3, 100)
    packed[2048:2560] = bytes(512)
    assert parse_file_header(packed) is None


def test_a_newer_format_is_refused() -> None:
    rest = struct.pack("<IIQ", 2, 1, 0)
    packed = b"DNJF" + struct.pack("<I", crc32c(rest)) + rest
    with pytest.raises(DataDirectoryTooNew, match="format version 2"):
        parse_file_header(packed)


def test_a_file_under_another_name_holds_nothing() -> None:
    data = file_of(FileHeader(4, 0))
    assert identify(data, 4) == FileHeader(4, 0)
    assert identify(data, 5) is None


@given(st.binary(max_size=200))
def test_random_bytes_are_no_header(data: bytes) -> None:
    assert parse_record_header(data, 0) is None
    assert parse_file_header(data) is None


@given(bodies=st.lists(st.binary(max_size=50), min_size=1, max_size=8), data=st.data())
def test_a_flipped_byte_ends_the_scan_at_its_record_and_is_never_content(
    bodies: list[bytes], data: st.DataObject
) -> None:
    header = FileHeader(1, 64)
    packed: list[bytes] = []
    position = 64
    for body in bodies:
        packed.append(record(position, body))
        position += len(packed[-1])
    content = bytearray(file_of(header, *packed))
    at = data.draw(st.integers(FILE_HEADER_BYTES, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    found = scan(memoryview(content), header, 64)
    for (kept, body_at), body in zip(found.records, bodies, strict=False):
        assert bytes(content[body_at : body_at + kept.body_bytes]) == body
    damaged = position_of_byte(packed, at)
    # A flip in the padding hurts nobody.
    assert found.end in (64 + sum(map(len, packed[:damaged])), position)


def position_of_byte(packed: list[bytes], at: int) -> int:
    end = FILE_HEADER_BYTES
    for index, piece in enumerate(packed):
        end += len(piece)
        if at < end:
            return index
    raise AssertionError("behind the end")


def test_a_record_of_an_earlier_life_is_not_content() -> None:
    header = FileHeader(2, 0)
    first = record(0, b"new", sequence=2)
    stale = record(len(first), b"old", sequence=1)
    found = scan(file_of(header, first, stale), header, 0)
    assert found.end == len(first)
    assert "earlier life" in found.reason


def test_a_record_at_another_position_is_not_content() -> None:
    header = FileHeader(1, 0)
    assert scan(file_of(header, record(8, b"moved")), header, 0).end == 0


def test_a_scan_stops_where_the_next_file_takes_over() -> None:
    header = FileHeader(1, 0)
    first, second = record(0, b"a"), record(record_bytes(1), b"b")
    assert len(scan(file_of(header, first, second), header, 0, len(first)).records) == 1


def test_promises_behind_damage_are_found() -> None:
    header = FileHeader(1, 0)
    first = record(0, b"x" * 100)
    second = record(len(first), b"y", durable=len(first))
    content = bytearray(file_of(header, first, second))
    content[FILE_HEADER_BYTES] ^= 1
    assert scan(memoryview(content), header, 0).end == 0
    assert durable_claim(memoryview(content), header, 0) == len(first)
    assert stray_claim(memoryview(content), 1) == len(first)
    assert stray_claim(memoryview(content), 2) == 0


def test_files_below_the_position_and_abandoned_ones_are_not_needed() -> None:
    one, two, three, four = (
        FileHeader(1, 0), FileHeader(2, 100), FileHeader(3, 200), FileHeader(4, 200)
    )  # fmt: skip
    assert plan_spans([four, two, three, one], 0) == [
        Span(one, 100),
        Span(two, 200),
        Span(four, -1),
    ]
    assert plan_spans([four, two, three, one], 100) == [Span(two, 200), Span(four, -1)]
    assert plan_spans([four, two, three, one], 999) == [Span(four, -1)]
    assert plan_spans([], 0) == []


def test_a_file_that_carries_records_over_ends_the_one_before_early() -> None:
    assert plan_spans([FileHeader(1, 0), FileHeader(2, 100), FileHeader(3, 40)], 0) == [
        Span(FileHeader(1, 0), 40),
        Span(FileHeader(3, 40), -1),
    ]
