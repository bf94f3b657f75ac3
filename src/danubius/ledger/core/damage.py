"""Finding what is left of damaged bytes: the batches that still prove themselves.

A batch's checksum covers its records and their number, but not its offset. So an offset counts only
if two witnesses agree on it: the batch's stamp, and the number of records between the batch and a
place whose offset is known, which is either end of the searched bytes. Without the second one a
batch is given up: lost is better than served in a wrong place.

The search goes from batch to batch by their lengths; where that chain breaks it looks for the next
magic on a multiple of 8. So a message that contains a record batch is not taken for one, unless the
header before it is lost.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from danubius.errors import DanubiusError, LedgerDamaged
from danubius.model.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from danubius.record.checksum import crc32c
from danubius.record.header import (
    CHECKED_FROM,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    VERSION,
    Header,
    check_fields,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from danubius.ledger.entry import LedgerRef
    from danubius.model.buffers import Buffer

MAGIC_BYTES: Final = MAGIC.to_bytes(4, "little")
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
    """A batch at a position of the searched bytes. If it is not sound, its header alone is legible."""

    position: int
    header: Header
    is_sound: bool

    @property
    def end(self) -> int:
        return self.position + self.header.length


class Run(NamedTuple):
    """Batches back to back: bytes [start, stop) and, by their stamps, offsets [first, end).

    They are all sound, or it is a single one that is not.
    """

    start: int
    stop: int
    first: int
    end: int
    is_sound: bool


class Span(NamedTuple):
    """What is known of the searched bytes: [start, stop) holds exactly the offsets [first, end)."""

    start: int
    stop: int
    first: int
    end: int


def find_batches(data: bytes, *, goes_on: bool = False) -> Iterator[Found]:
    """All batches with a legible header, in order. What they are stamped with is not looked at.

    If the bytes go on behind `data`, the search ends before a batch whose successor may not be seen.
    """
    at = 0
    while 0 <= at <= len(data) - HEADER_BYTES:
        header = _legible_header(data, at)
        if header is None:
            at = _next_magic(data, at)
            continue
        following = at + header.length
        if goes_on and following > len(data) - HEADER_BYTES:
            return
        is_sound = _is_sound(data, at, header)
        # A length that nothing proves is followed only to where a batch starts.
        if is_sound or following == len(data) or _legible_header(data, following) is not None:
            yield Found(at, header, is_sound)
            at = following
        else:
            at = _next_magic(data, at)


def find_runs(data: bytes, size: int, first: int, end: int) -> list[Run]:
    """The batches to be served of damaged bytes that were `size` long and held [first, end)."""
    found = [run_of(batch) for batch in find_batches(data)]
    runs: list[Run] = []
    for run in confirm(found, Span(0, size, first, end)):
        if runs and (runs[-1].stop, runs[-1].end) == (run.start, run.first):
            runs[-1] = runs[-1]._replace(stop=run.stop, end=run.end)
        else:
            runs.append(run)
    return runs


def confirm(runs: Sequence[Run], span: Span) -> list[Run]:
    """The sound runs whose stamps agree with the records counted from an end of the span.

    Sound batches carry the count, whatever they are stamped with. Damaged ones carry it too, if the
    span is covered without a hole and all counts add up to what it holds.
    """
    served: list[Run] = []
    low, known = 0, (span.start, span.first)
    at, offset = known
    for number, run in enumerate(runs):
        if not run.is_sound or run.start != at:
            break
        at, base, offset = run.stop, offset, offset + run.end - run.first
        if run.first == base and run.end <= span.end:
            served.append(run)
            low, known = number + 1, (at, offset)
    from_end: list[Run] = []
    high, stop, end = len(runs), span.stop, span.end
    while low < high and runs[high - 1].is_sound and runs[high - 1].stop == stop:
        run = runs[high - 1]
        base = end - (run.end - run.first)
        if base <= known[1]:
            break  # nothing is left for the bytes before it: this is no batch of this ledger
        if run.first == base:
            from_end.append(run)
        high, stop, end = high - 1, run.start, base
    served += _bridge(runs[low:high], Span(known[0], stop, known[1], end))
    return served + from_end[::-1]


def _bridge(runs: Sequence[Run], span: Span) -> list[Run]:
    served: list[Run] = []
    at, offset = span.start, span.first
    for run in runs:
        if run.start != at:
            return []
        if run.is_sound and run.first == offset:
            served.append(run)
        at, offset = run.stop, offset + run.end - run.first
    return served if (at, offset) == (span.stop, span.end) else []


def run_of(found: Found) -> Run:
    header = found.header
    return Run(found.position, found.end, header.base_offset, header.end_offset, found.is_sound)


def _legible_header(data: Buffer, at: int) -> Header | None:
    """The header, if its length can be walked by: it fits the stored length, which it repeats."""
    if at > len(data) - HEADER_BYTES:
        return None
    magic, *fields = HEADER.unpack_from(data, at)
    header = Header(*fields)
    is_legible = (
        magic == MAGIC
        and header.length & 7 == 0
        and 0 <= header.length - HEADER_BYTES - header.stored_bytes < 8
        and header.length <= BATCH_BYTES_MAX
        and 1 <= header.count <= BATCH_RECORDS_MAX
    )
    return header if is_legible else None


def _is_sound(data: Buffer, at: int, header: Header) -> bool:
    try:
        check_fields(msgspec.structs.replace(header, base_offset=0))
    except DanubiusError:
        return False
    end = at + header.length
    return (
        header.version == VERSION
        and not header.is_sparse
        and end <= len(data)
        and crc32c(data[at + CHECKED_FROM : end]) == header.crc
    )


def seek_batch(data: Buffer, start: int, offset: int) -> int:
    """The position of the batch that holds the offset, in sound batches from `start` on."""
    while True:
        length, base, count = WALK.unpack_from(data, start)
        if offset < base + count:
            return start
        start += length


def _next_magic(data: bytes, at: int) -> int:
    """Where to look behind bytes that cannot be walked over; -1 if nowhere."""
    at = data.find(MAGIC_BYTES, at + 1)
    while at >= 0 and at % 8:
        at = data.find(MAGIC_BYTES, at + 1)
    return at
