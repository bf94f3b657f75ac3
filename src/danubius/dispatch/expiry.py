"""Messages of a chunk that are too old to be delivered: by their own expiry, or by the time to live of their topic.

Only headers and the eight bytes of an expiry are looked at, so it costs the same for a batch of one and of a million. A
batch expires as a whole: by its topic when its youngest message is too old. So none expires early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danubius.record.header import EXPIRES, read_expiry, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from danubius.ack.core.ranges import Range
    from danubius.dispatch.chunk import Chunk
    from danubius.model.buffers import Buffer
    from danubius.record.header import Header

NEVER_US: Final = 2**63


def expiry_of(buffer: Buffer, header: Header, at: int, ttl_us: int) -> int:
    """When the batch at a position expires, in microseconds since 1970. `ttl_us` of its topic, 0: it has none."""
    by_topic = header.last_time_us + ttl_us if ttl_us else NEVER_US
    if header.flags & EXPIRES:
        return min(by_topic, read_expiry(buffer, header, at))
    return by_topic


def expiries(chunk: Chunk, ttl_us: int) -> Iterator[tuple[int, int, int]]:
    """First offset, end offset and expiry of every batch of a chunk."""
    for buffer in chunk.buffers:
        at = 0
        while at < len(buffer):
            header = read_header(buffer, at)
            first = header.base_offset
            yield first, first + header.count, expiry_of(buffer, header, at, ttl_us)
            at += header.length


def expired_ranges(chunk: Chunk, now_us: int, ttl_us: int) -> list[Range]:
    """The offsets of what has expired, as rising ranges."""
    ranges: list[Range] = []
    for first, end, expires_us in expiries(chunk, ttl_us):
        if expires_us > now_us:
            continue
        if ranges and ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((first, end))
    return ranges
