"""Recovery of a journal file: the valid records from a position on, and why they end.

Pure: bytes in, facts out; nothing here raises on damage, it is reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.record.checksum import crc32c
from danubius.wal.core.format import (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    FileHeader,
    RecordHeader,
    parse_file_header,
    parse_record_header,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_SEARCH_BYTES: Final = 8 * 1024 * 1024


class Found(NamedTuple):
    """One valid record, and where its body starts in the file."""

    header: RecordHeader
    body_at: int


class Scan(NamedTuple):
    """The longest valid run of records."""

    records: list[Found]
    end: int
    """The position behind the last valid record."""
    reason: str
    """Why the run ends there."""

    @property
    def durable(self) -> int:
        """What the valid records promise to have been synced, or 0."""
        return max((record.durable for record, _ in self.records), default=0)


class Span(NamedTuple):
    """A file's place in the journal."""

    header: FileHeader
    end: int
    """The next file's base; for the last file, where its valid records end at the latest."""


def identify(data: memoryview, sequence: int) -> FileHeader | None:
    """The header of a file named `sequence`, or None if it has none of this life."""
    header = parse_file_header(data)
    return header if header is not None and header.sequence == sequence else None


def scan(data: memoryview, header: FileHeader, start: int, limit: int | None = None) -> Scan:
    """Walk the records from position `start`; `limit` is where the next file takes over."""
    assert start >= header.base, (
        f"position {start} lies before the file, which starts at {header.base}"
    )
    records: list[Found] = []
    position = start
    while limit is None or position < limit:
        at = FILE_HEADER_BYTES + position - header.base
        record = parse_record_header(data, at)
        if record is None:
            return Scan(records, position, "no record header")
        if record.sequence != header.sequence or record.position != position:
            return Scan(records, position, "a record of an earlier life of the file")
        body_at = at + RECORD_HEADER_BYTES
        body = data[body_at : body_at + record.body_bytes]
        if len(body) < record.body_bytes:
            return Scan(records, position, "a record that is cut short")
        if crc32c(body) != record.body_crc:
            return Scan(records, position, "a record whose body fails its checksum")
        records.append(Found(record, body_at))
        position = record.end
    return Scan(records, position, "the next file")


def durable_claim(data: memoryview, header: FileHeader, start: int) -> int:
    """The highest promise of durability in record headers at or behind position `start`, or 0.

    Looks at every aligned place, so it finds records behind a damaged stretch of any length.
    """
    claim = 0
    first = FILE_HEADER_BYTES + max(0, start - header.base)
    for at in magic_places(data, first):
        record = parse_record_header(data, at)
        if record is not None and _belongs(record, header, at):
            claim = max(claim, record.durable)
    return claim


def reaches(data: memoryview, header: FileHeader, position: int) -> bool:
    """Whether the records of a file come up to a position behind its base: one begins or ends there.

    What lies before the position is not needed, so bodies may be damaged.
    """
    end = FILE_HEADER_BYTES + position - header.base
    if end > len(data):
        return False
    following = parse_record_header(data, end)
    if following is not None and _belongs(following, header, end):
        return True
    stop = end
    while stop > FILE_HEADER_BYTES:
        first = max(FILE_HEADER_BYTES, stop - _SEARCH_BYTES)
        window = bytes(data[first:stop])
        at = window.rfind(RECORD_MAGIC)
        while at >= 0:
            record = parse_record_header(data, first + at)
            if record is not None and _belongs(record, header, first + at):
                return record.end == position
            at = window.rfind(RECORD_MAGIC, 0, at + len(RECORD_MAGIC) - 1)
        stop = first + len(RECORD_MAGIC) - 1 if first > FILE_HEADER_BYTES else 0
    return False


def stray_claim(data: memoryview, sequence: int) -> int:
    """The highest promise of durability in any record of `sequence`, wherever it stands, or 0."""
    records = (parse_record_header(data, at) for at in magic_places(data, FILE_HEADER_BYTES))
    return max((r.durable for r in records if r is not None and r.sequence == sequence), default=0)


def plan_spans(headers: Sequence[FileHeader], from_position: int) -> list[Span]:
    """The files that hold anything at or behind `from_position`, in order; ends are the next bases.

    A file whose successor starts at the same base, or below, holds nothing that counts: it was
    abandoned before anything in it was reported. The last file's end is left open (-1).
    """
    ordered = sorted(headers)
    spans: list[Span] = []
    takeover = -1
    for header in reversed(ordered):
        if takeover == -1 or header.base < takeover:
            if takeover == -1 or takeover > from_position:
                spans.append(Span(header, takeover))
            takeover = header.base
    spans.reverse()
    return spans


def _belongs(record: RecordHeader, header: FileHeader, at: int) -> bool:
    return (
        record.sequence == header.sequence
        and FILE_HEADER_BYTES + record.position - header.base == at
    )


def magic_places(data: memoryview, start: int) -> list[int]:
    """Where records may begin, from a byte on: their magic stands there, on a multiple of 8."""
    places: list[int] = []
    for first in range(start, len(data), _SEARCH_BYTES):
        # Overlapping by a magic's length; a copy of a bounded window gives us C-speed find.
        window = bytes(data[first : first + _SEARCH_BYTES + len(RECORD_MAGIC) - 1])
        at = window.find(RECORD_MAGIC)
        while at >= 0:
            if (first + at) % 8 == 0:
                places.append(first + at)
            at = window.find(RECORD_MAGIC, at + 1)
    return places
