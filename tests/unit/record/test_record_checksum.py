"""crc32c: known values, every kind of buffer, and going on from an earlier checksum."""

from __future__ import annotations

import pytest

from danubius.record.checksum import crc32c
from danubius.record.key_hash import key_hash

LARGE = bytes(range(256)) * 4096  # 1 MiB: above the size that is copied


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_crc32c_has_the_published_values(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


@pytest.mark.parametrize("data", [b"", b"abc", LARGE, LARGE + b"tail"])
def test_every_kind_of_buffer_gives_the_same_checksum(data: bytes) -> None:
    expected = crc32c(data)
    assert crc32c(bytearray(data)) == expected
    assert crc32c(memoryview(data)) == expected
    assert crc32c(memoryview(bytearray(data))) == expected


@pytest.mark.parametrize("cut", [0, 1, 100_000, 300_000, len(LARGE)])
def test_a_checksum_can_go_on_from_an_earlier_one(cut: int) -> None:
    buffer = memoryview(bytearray(LARGE))
    assert crc32c(buffer[cut:], crc32c(buffer[:cut])) == crc32c(LARGE)


def test_the_buffer_is_free_again_after_the_checksum() -> None:
    buffer = bytearray(LARGE)
    crc32c(buffer)
    buffer.append(1)  # raises BufferError while somebody holds a view
    assert len(buffer) == len(LARGE) + 1


def test_key_hash_is_the_crc32c_of_the_key() -> None:
    assert key_hash(b"123456789") == 0xE3069283
    assert key_hash(b"") == 0


def test_a_large_buffer_of_numbers_is_read_as_bytes() -> None:
    assert crc32c(memoryview(bytearray(LARGE * 2)).cast("q")) == crc32c(LARGE * 2)
