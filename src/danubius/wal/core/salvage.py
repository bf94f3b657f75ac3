"""Salvage of damaged journal files: the records on both sides of every gap.

Pure, as `recovery` is, and of the same rules: a record counts in its place and its file's life only. Where `recovery`
ends at the first bad record, this goes on behind it. A gap begins and ends where a record did, so a record of exactly
its size can take its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from danubius.record.checksum import crc32c
from danubius.wal.core.format import (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    FileHeader,
    parse_record_header,
)
from danubius.wal.core.recovery import Found, magic_places, scan

if TYPE_CHECKING:
    from collections.abc import Iterator


class Gap(NamedTuple):
    """Positions of which nothing can be read, and the file that is to have something in their place."""

    first: int
    end: int
    file: FileHeader
    reason: str


def derive_header(data: memoryview, sequence: int) -> FileHeader | None:
    """The header of a file that has lost both copies: every record says where it stands."""
    for at in magic_places(data, FILE_HEADER_BYTES):
        record = parse_record_header(data, at)
        if record is not None and record.sequence == sequence:
            base = record.position - (at - FILE_HEADER_BYTES)
            if base >= 0:
                return FileHeader(sequence, base)
    return None


def salvage(
    data: memoryview, header: FileHeader, start: int, limit: int | None = None
) -> Iterator[Found | Gap]:
    """All sound records of a file from position `start` on, and the gaps between them, in order.

    `limit` is where the next file takes over: what is missing up to there is a gap. What comes behind the last sound
    record of the last file is none, as nobody can tell it from a torn tail.
    """
    position = start
    while True:
        run = scan(data, header, position, limit)
        yield from run.records
        if limit is not None and run.end >= limit:
            return
        found = _next_sound(data, header, run.end, limit)
        if found is None:
            if limit is not None:
                yield Gap(run.end, limit, header, run.reason)
            return
        yield Gap(run.end, found, header, run.reason)
        position = found


def _next_sound(data: memoryview, header: FileHeader, after: int, limit: int | None) -> int | None:
    for at in magic_places(data, FILE_HEADER_BYTES + after - header.base + 1):
        record = parse_record_header(data, at)
        if record is None or record.sequence != header.sequence:
            continue
        if FILE_HEADER_BYTES + record.position - header.base != at:
            continue
        if limit is not None and record.position >= limit:
            return None
        body = data[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + record.body_bytes]
        if len(body) == record.body_bytes and crc32c(body) == record.body_crc:
            return record.position
    return None
