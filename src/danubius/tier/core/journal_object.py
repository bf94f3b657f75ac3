"""A journal object: who wrote it, which slot it fills, what it holds and what it promises.

    diskless/journal/<slot, 16 hexadecimal digits>

A header of 128 bytes, then records as they stand in a journal file (`wal/core/format.py`), back to back. A slot is
filled once, with *put if absent*: by a group of records, or by a fence, which says that another life begins behind it.

Invariants:
- A writer fills slots in order and begins slot s only when all up to s - PUTS_AT_ONCE are filled by it or before it
  began. So while slot s is not, it has nothing behind s + PUTS_AT_ONCE, its own fence after a failure included; and if
  s was filled by somebody else, it never will have.
- `promise`: every slot below it was filled when this object was made. A hole below a promise is damage.
- `floor`: slots below it may be gone. A writer claims a floor when snapshots make what is below needless, and deletes
  only once an object with the claim is committed. So a hole that was never filled lies above every claim.
- Fences are never deleted. A writer that was replaced finds one at the first slot that is not its own, however late it
  wakes up, and whatever was trimmed meanwhile. A fence is a header alone; every other object is longer.
- What counts (`walk`): an object whose author has filled all slots from its promise on. Behind somebody else's slot
  an author's objects are void, whatever the epochs; so are those from a fence's `void_from` on, if all slots up to it
  are its own process's, which gave them up. What is void was never acknowledged, and what was is never void. The rest
  is one sequence of positions without a gap.
- `kept`: the snapshots that hold, the newest last, as of this object. Those that the last valid object names are where
  a start begins, whatever else lies there: a replaced broker's snapshots are not looked at.
"""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import DataDirectoryDamaged, DataDirectoryTooNew
from danubius.record.checksum import crc32c
from danubius.wal.core.format import RECORD_HEADER_BYTES, parse_record_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from danubius.wal.core.format import RecordHeader

FORMAT_VERSION: Final = 1
PUTS_AT_ONCE: Final = 4
"""Part of the format: whoever fences a writer counts on it."""
REACH: Final = PUTS_AT_ONCE + 1
"""From the first slot that a writer has not filled, so many are within its reach."""
HEADER_BYTES: Final = 128
RECORDS: Final = 1
FENCE: Final = 2
KEPT_MAX: Final = 2

_MAGIC: Final = b"DNJO"
_START: Final = struct.Struct("<4sI")
_REST: Final = struct.Struct("<HHIQQQQQQQQQQQQQ")
_PADDED: Final = HEADER_BYTES - _START.size - _REST.size


class Author(NamedTuple):
    """Who writes: the number of a start, which is given once, and the process that has it."""

    epoch: int
    process: int


class SnapshotRef(NamedTuple):
    """A snapshot by its name: as of which position, and by which start."""

    position: int
    epoch: int


class SlotHeader(NamedTuple):
    """What stands before the records of a slot."""

    kind: int
    author: Author
    slot: int
    base: int
    """The position of the first record."""
    end: int
    promise: int = 0
    floor: int = 0
    void_from: int = 0
    """Of a fence: from this slot on what its writer had under way is void; its own slot: nothing is."""
    records: int = 0
    """How many."""
    kept: tuple[SnapshotRef, ...] = ()

    @property
    def is_fence(self) -> bool:
        return self.kind == FENCE


def slot_name(slot: int) -> str:
    return f"{slot:016x}"


def fence(author: Author, slot: int, void_from: int | None = None) -> SlotHeader:
    return SlotHeader(FENCE, author, slot, 0, 0, void_from=slot if void_from is None else void_from)


def pack_header(header: SlotHeader) -> bytes:
    kept = (*header.kept, SnapshotRef(0, 0), SnapshotRef(0, 0))[:KEPT_MAX]
    rest = _REST.pack(
        FORMAT_VERSION,
        header.kind,
        header.records,
        *header.author,
        header.slot,
        header.base,
        header.end,
        header.promise,
        header.floor,
        header.void_from,
        *(number for ref in kept for number in ref),
        0,
    ) + bytes(_PADDED)
    return _START.pack(_MAGIC, crc32c(rest)) + rest


def parse_header(data: bytes | memoryview, slot: int) -> SlotHeader | None:
    """None if it is none, or not whole, or another slot's. Raises DataDirectoryTooNew."""
    if len(data) < HEADER_BYTES:
        return None
    magic, crc = _START.unpack_from(data)
    rest = bytes(data[_START.size : HEADER_BYTES])
    if magic != _MAGIC or crc != crc32c(rest):
        return None
    version, kind, count, epoch, process, *numbers = _REST.unpack_from(rest)
    if version > FORMAT_VERSION:
        raise DataDirectoryTooNew(
            f"the journal has objects of format version {version}, this version of Danubius knows {FORMAT_VERSION}: "
            "start the version that wrote them, or a newer one"
        )
    stored, base, end, promise, floor, void_from = numbers[:6]
    if stored != slot:
        return None
    refs = (SnapshotRef(*numbers[6:8]), SnapshotRef(*numbers[8:10]))
    kept = tuple(ref for ref in refs if ref.epoch)
    return SlotHeader(
        kind, Author(epoch, process), slot, base, end, promise, floor, void_from, count, kept
    )


def read_records(header: SlotHeader, body: memoryview) -> Iterator[tuple[RecordHeader, memoryview]]:
    """The records of an object, each with its body. Raises ValueError where one is not as it was written."""
    position = header.base
    for _ in range(header.records):
        at = position - header.base
        record = parse_record_header(body, at)
        if record is None or record.position != position:
            raise ValueError(f"no record at position {position}")
        first = at + RECORD_HEADER_BYTES
        content = body[first : first + record.body_bytes]
        if len(content) < record.body_bytes or crc32c(content) != record.body_crc:
            raise ValueError(f"the record at position {position} fails its checksum")
        yield record, content
        position = record.end
    if position != header.end:
        raise ValueError(f"the records end at position {position} and not at {header.end}")


class Walk(NamedTuple):
    """What counts of a journal that nobody writes to any more."""

    valid: list[SlotHeader]
    """The objects with records, in order; the first may begin before any snapshot needs it."""
    end: int
    """The position behind the last record."""
    floor: int
    kept: tuple[SnapshotRef, ...]
    next_slot: int


def walk(headers: Sequence[SlotHeader]) -> Walk:
    """Tell what counts of adjacent slots. Raises DataDirectoryDamaged where positions do not fit together."""
    valid: list[SlotHeader] = []
    for header in headers:
        if not header.is_fence:
            run = _between(headers, header.promise, header.slot)
            if all(each.author == header.author and not each.is_fence for each in run):
                valid.append(header)
            continue
        process = header.author.process
        run = _between(headers, header.void_from, header.slot)
        if all(each.author.process == process for each in run):
            while valid and valid[-1].slot >= header.void_from:
                valid.pop()
    for before, header in itertools.pairwise(valid):
        if header.base != before.end:
            raise DataDirectoryDamaged(
                f"the journal's object {slot_name(header.slot)} begins at position {header.base}, but the one before "
                f"it ends at {before.end}: objects are missing or of another broker; restore the store from a copy"
            )
    next_slot = headers[-1].slot + 1 if headers else 0
    if not valid:
        return Walk([], 0, 0, (), next_slot)
    last = valid[-1]
    return Walk(valid, last.end, last.floor, last.kept, next_slot)


def _between(headers: Sequence[SlotHeader], first: int, end: int) -> Sequence[SlotHeader]:
    """Those of the slots from `first` up to, and without, `end`; what is below the floor is known to be in order."""
    start = headers[0].slot
    return headers[max(0, first - start) : end - start]
