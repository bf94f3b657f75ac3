"""Which batches of a chunk have expired: by their own time, or by their topic's."""

from __future__ import annotations

from typing import NamedTuple

from danubius.dispatch.expiry import NEVER_US, expired_ranges, expiries
from danubius.record.batch import stamp
from danubius.record.encode import encode

SECOND = 1_000_000


class Bytes(NamedTuple):
    """Batches as a log gives them."""

    first: int
    end: int
    buffers: list[bytes]
    size: int


def batch(base: int, times_us: list[int], expires_us: int | None = None) -> bytes:
    data = encode([b"m"] * len(times_us), publish_time_us=times_us, expires_us=expires_us)
    stamp(data, base, 1)
    return bytes(data)


def chunk(*buffers: bytes, end: int) -> Bytes:
    return Bytes(0, end, list(buffers), sum(map(len, buffers)))


def test_nothing_expires_without_a_time() -> None:
    found = chunk(batch(0, [0]), end=1)
    assert expired_ranges(found, 2**62, 0) == []
    assert list(expiries(found, 0)) == [(0, 1, NEVER_US)]


def test_a_batch_expires_when_its_time_has_come() -> None:
    found = chunk(
        batch(0, [0, 0], 5 * SECOND) + batch(2, [0], 3 * SECOND),
        batch(3, [0]),
        batch(4, [0], 4 * SECOND),
        end=5,
    )
    assert expired_ranges(found, 3 * SECOND - 1, 0) == []
    assert expired_ranges(found, 3 * SECOND, 0) == [(2, 3)]
    assert expired_ranges(found, 4 * SECOND, 0) == [(2, 3), (4, 5)]
    assert expired_ranges(found, 5 * SECOND, 0) == [(0, 3), (4, 5)]


def test_a_topic_expires_a_batch_when_its_youngest_message_is_too_old() -> None:
    found = chunk(batch(0, [3 * SECOND, SECOND]), batch(2, [2 * SECOND]), end=3)
    assert expired_ranges(found, 11 * SECOND, 10 * SECOND) == []
    assert expired_ranges(found, 12 * SECOND, 10 * SECOND) == [(2, 3)]
    assert expired_ranges(found, 13 * SECOND, 10 * SECOND) == [(0, 3)]


def test_the_earlier_of_both_counts() -> None:
    found = chunk(batch(0, [0], 5 * SECOND), batch(1, [0], 50 * SECOND), end=2)
    assert [one[2] for one in expiries(found, 10 * SECOND)] == [5 * SECOND, 10 * SECOND]
