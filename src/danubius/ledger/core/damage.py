"""Finding what is left of damaged bytes: the batches that still prove themselves.

A batch counts if its header is sound, its checksum holds and its offsets fit its neighbours'. The
search goes from batch to batch by their lengths; where that chain breaks it looks for the next
magic on a multiple of 8. So a message that contains a record batch is not taken for one, unless the
header before it is lost.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import DanubiusError, LedgerDamaged
from danubius.record.checksum import Buffer, crc32c
from danubius.record.header import (
    CHECKED_FROM,
    HEADER_BYTES,
    INT64_MAX,
    Header,
    check_fields,
    read_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from danubius.ledger.entry import LedgerRef

MAGIC: Final = b"DNRB"
WALK: Final = struct.Struct("<4xIQ12xI")
"""Length, base offset and record count of a batch that is known to be sound."""


class DamagedRange(LedgerDamaged):
    """Messages from `first` up to `end` cannot be read; `end` itself may be."""

    def __init__(self, ref: LedgerRef, first: int, end: int, reason: str) -> None:
        super().__init__(
            f"messages {first} to {end - 1} are damaged in ledger {ref.ledger_id} of topic id "
            f"{ref.topic_id}: {reason}; skip them explicitly to go on at {end}"
        )
        self.first = first
        self.end = end


class Found(NamedTuple):
    """A sound batch at a position of the searched bytes."""

    position: int
    header: Header

    @property
    def end(self) -> int:
        return self.position + self.header.length


class Run(NamedTuple):
    """Sound batches back to back: bytes [start, stop), offsets [first, end)."""

    start: int
    stop: int
    first: int
    end: int


def find_batches(
    data: bytes, floor: int, ceiling: int, *, goes_on: bool = False, is_chained: bool = True
) -> Iterator[Found]:
    """All sound batches with offsets in [floor, ceiling), in order.

    If the bytes go on behind `data`, the search ends before a batch that would go on there.
    `is_chained`: the bytes start where `floor` does, so the first batch can have no other offset.
    """
    at = 0
    while 0 <= at <= len(data) - HEADER_BYTES:
        header = _possible_header(data, at, floor, ceiling)
        if header is not None and goes_on and at + header.length > len(data):
            return
        # No checksum of the batch covers its offset: its neighbours must agree with it.
        if (
            header is not None
            and _is_sound(data, at, header)
            and (header.base_offset == floor if is_chained else _agrees_with_next(data, at, header))
        ):
            yield Found(at, header)
            at += header.length
            floor = header.end_offset
            is_chained = True
        else:
            at = _next_position(data, at, floor, ceiling)
            is_chained = False


def find_runs(data: bytes, floor: int, ceiling: int) -> list[Run]:
    """The sound batches of damaged bytes, joined where they follow each other without a gap."""
    runs: list[Run] = []
    for position, header in find_batches(data, floor, ceiling):
        stop, end = position + header.length, header.end_offset
        if runs and runs[-1].stop == position and runs[-1].end == header.base_offset:
            runs[-1] = runs[-1]._replace(stop=stop, end=end)
        else:
            runs.append(Run(position, stop, header.base_offset, end))
    return runs


def _possible_header(data: Buffer, at: int, floor: int, ceiling: int) -> Header | None:
    try:
        header = read_header(data, at)
        check_fields(header)
    except DanubiusError:
        return None
    if header.is_sparse or not floor <= header.base_offset < header.end_offset <= ceiling:
        return None
    return header


def _is_sound(data: Buffer, at: int, header: Header) -> bool:
    end = at + header.length
    return end <= len(data) and crc32c(data[at + CHECKED_FROM : end]) == header.crc


def _agrees_with_next(data: Buffer, at: int, header: Header) -> bool:
    """Whether the batch behind this one, if it is sound, goes on where this one ends."""
    following = at + header.length
    after = _possible_header(data, following, 0, INT64_MAX)
    if after is None or not _is_sound(data, following, after):
        return True
    return after.base_offset == header.end_offset


def seek_batch(data: Buffer, start: int, offset: int) -> int:
    """The position of the batch that holds the offset, in sound batches from `start` on."""
    while True:
        length, base, count = WALK.unpack_from(data, start)
        if offset < base + count:
            return start
        start += length


def _next_position(data: bytes, at: int, floor: int, ceiling: int) -> int:
    """Where to look behind unsound bytes; -1 if nowhere."""
    if data[at : at + 4] == MAGIC:
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        following = at + length
        header = _possible_header(data, following, floor, ceiling)
        if (
            length >= HEADER_BYTES
            and length % 8 == 0
            and (
                following == len(data)
                or (header is not None and _is_sound(data, following, header))
            )
        ):
            return following
    at = data.find(MAGIC, at + 1)
    while at >= 0 and at % 8:
        at = data.find(MAGIC, at + 1)
    return at
