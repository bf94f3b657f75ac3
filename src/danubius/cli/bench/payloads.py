"""Messages that can be counted exactly: each starts with its sequence number.

Making and summing run at C speed over whole chunks, so the harness costs every system the same
small amount.
"""

from __future__ import annotations

import struct
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING

from danubius.cli.bench.work import SIZE_MIN, Latency

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

_SEQUENCE_BYTES = 8
_HEAD = itemgetter(slice(0, _SEQUENCE_BYTES))
_STAMP = struct.Struct("<Qq")
_PERCENTILES = (0.5, 0.9, 0.99, 0.999)


def make(first: int, count: int, size: int) -> list[bytes]:
    """Messages `first`, `first + 1`, … of `size` bytes each."""
    padding = size - _SEQUENCE_BYTES
    pack = struct.Struct(f"<Q{padding}s").pack
    return list(map(pack, range(first, first + count), repeat(b"x" * padding)))


def make_stamped(sequence: int, sent_ns: int, size: int) -> bytes:
    """A message that also carries the time it was sent."""
    return _STAMP.pack(sequence, sent_ns).ljust(size, b"x")


def sent_ns_of(payload: bytes) -> int:
    return _STAMP.unpack_from(payload)[1]


def checksum(payloads: Sequence[bytes]) -> int:
    """The sum of the sequence numbers."""
    return sum(memoryview(b"".join(map(_HEAD, payloads))).cast("Q"))


def expected_checksum(count: int) -> int:
    return count * (count - 1) // 2


def latency_of(samples_ns: array[int], *, warm_up: int) -> Latency | None:
    """Percentiles in milliseconds; the first `warm_up` samples do not count."""
    ordered = sorted(samples_ns[warm_up:])
    if not ordered:
        return None

    def at(fraction: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * fraction))] / 1e6, 3)

    return Latency(*(at(fraction) for fraction in _PERCENTILES), max=at(1.0))


assert _STAMP.size <= SIZE_MIN
