"""Walking concatenated batches, sound and damaged."""

from __future__ import annotations

import pytest

from danubius.errors import DanubiusError
from danubius.record.encode import encode
from danubius.record.scan import iter_batches, scan

BATCHES = [encode([b"%d" % n] * (n + 1), publish_time_us=n) for n in range(4)]
FILE = b"".join(BATCHES)
STARTS = [sum(map(len, BATCHES[:n])) for n in range(5)]


def test_a_sound_buffer_is_walked_to_its_end() -> None:
    found = scan(FILE)
    assert found.problem is None
    assert found.valid_bytes == len(FILE)
    assert [position for position, _ in found.batches] == STARTS[:4]
    assert [header.count for _, header in found.batches] == [1, 2, 3, 4]
    assert [batch.payload(0) for batch in iter_batches(FILE)] == [b"0", b"1", b"2", b"3"]


def test_an_empty_buffer_is_sound() -> None:
    assert scan(b"").valid_bytes == 0
    assert scan(b"").problem is None
    assert list(iter_batches(b"")) == []


def test_a_cut_at_any_byte_leaves_the_whole_batches_before_it() -> None:
    for length in range(len(FILE)):
        found = scan(memoryview(FILE)[:length])
        whole = sum(end <= length for end in STARTS[1:])
        assert found.valid_bytes == STARTS[whole]
        assert len(found.batches) == whole
        assert (found.problem is None) == (length in STARTS)


def test_damage_stops_the_scan_at_the_damaged_batch() -> None:
    damaged = bytearray(FILE)
    damaged[STARTS[2] + 90] ^= 1
    found = scan(damaged)
    assert found.valid_bytes == STARTS[2]
    assert found.problem is not None
    assert f"at byte {STARTS[2]}" in found.problem
    assert "checksum" in found.problem
    walk = iter_batches(damaged)
    assert [len(next(walk)), len(next(walk))] == [1, 2]
    with pytest.raises(DanubiusError):
        next(walk)


def test_zeros_behind_the_batches_are_not_one() -> None:
    found = scan(FILE + bytes(4096))
    assert found.valid_bytes == len(FILE)
    assert found.problem is not None


def test_without_verification_the_checksum_is_not_looked_at() -> None:
    damaged = bytearray(FILE)
    damaged[STARTS[1] - 5] ^= 1
    assert len(list(iter_batches(damaged, verify=False))) == 4
