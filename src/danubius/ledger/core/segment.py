"""Segments: what the loop knows of one ledger, and the segments of its tail that are in memory.

A *segment* is the unit of writing and of caching: consecutive batches of one block. A *block* is
the unit of the index: one or more segments. Segments are closed when they are handed to the
storage thread; blocks when they are full, or at a checkpoint, so that the number of index entries
of a snapshot is known before anything is written.

States of a segment: OPEN (batches are added) -> HANDED (the storage thread reads it, nobody
changes it) -> WRITTEN (its batches are one buffer, and it may leave the memory).
"""

from __future__ import annotations

import enum
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from danubius.ledger.core.index import BlockIndex
from danubius.ledger.entry import LedgerMeta, LedgerRef
from danubius.record.ledger_file import FILE_HEADER_BYTES, BlockRow, LedgerHeader

if TYPE_CHECKING:
    from danubius.ledger.entry import Entry, StoredObject
    from danubius.model.buffers import Buffer

ENTRY_MEMORY_BYTES: Final = 256
"""What a cached batch costs beside its bytes: its view, its owner and two array elements."""
SEGMENT_MEMORY_BYTES: Final = 768
RECOVERED: Final = -1
"""In the place of a position: sealed by an earlier process, or by the recovery from its end."""
_TIME_AT: Final = 56
_NO_FIRSTS: Final = array("Q")
_NO_MARKS: Final = array("I")


class Tail(Protocol):
    """The owner of cached segments, as the cache sees it."""

    unhanded_cost: int
    """Memory of what was not handed over. The cache's, as is the next: kept here, where an append has just been."""
    unhanded_since_ms: int

    def take_unwritten(self) -> WriteJob | None:
        """Give away all unwritten segments; whoever takes them must put the job."""
        ...

    def close_block(self) -> None: ...
    def forget_oldest(self, segment: Segment) -> None: ...


class State(enum.IntEnum):
    """How far a segment has come."""

    OPEN = 0
    HANDED = 1
    WRITTEN = 2


_HANDED: Final = State.HANDED
_WRITTEN: Final = State.WRITTEN
"""Members of an enum are slow to look up, and every write of every topic sets both."""


class Segment:
    """Consecutive batches of one block, in memory."""

    __slots__ = (
        "_firsts",
        "_marks",
        "block_number",
        "buffers",
        "cost",
        "end",
        "first",
        "is_dropped",
        "last_time_us",
        "ledger",
        "position",
        "size",
        "starts_block",
        "state",
    )

    def __init__(self, ledger: Ledger, first: int, position: int, *, starts_block: bool) -> None:
        self.ledger = ledger
        self.first = first
        self.end = first
        self.position = position
        self.size = 0
        self.cost = SEGMENT_MEMORY_BYTES
        self.starts_block = starts_block
        self.block_number = ledger.blocks - 1
        self.last_time_us = -(2**63)
        self.state = State.OPEN
        self.is_dropped = False
        self.buffers: list[Buffer] = []
        self._firsts, self._marks = _NO_FIRSTS, _NO_MARKS
        """Where each batch begins and ends, in offsets and in bytes from the segment's start; not kept of a single one,
        which is what most segments of ten thousand topics have."""

    def add(self, entry: Entry, size: int) -> None:
        if self.buffers:
            if not self._marks:
                self._firsts, self._marks = array("Q", (self.first,)), array("I", (self.size,))
            self._firsts.append(entry.first)
            self._marks.append(self.size + size)
        self.buffers.append(entry.buffer)
        self.size += size
        self.end = entry.end
        self.cost += size + ENTRY_MEMORY_BYTES
        if entry.last_time_us > self.last_time_us:
            self.last_time_us = entry.last_time_us

    def become_written(self, data: Buffer) -> None:
        """The batches are on disk, and `data` is all of them: the many small buffers may go."""
        assert len(data) == self.size
        self.state = _WRITTEN
        self.buffers = [data]

    def drop(self) -> None:
        """Give up the memory; whoever still holds the segment in a queue passes it by."""
        self.is_dropped = True
        self.buffers = []
        self._firsts, self._marks = _NO_FIRSTS, _NO_MARKS

    def gather(self, first: int, room: int, into: list[Buffer]) -> Gathered:
        """Add the batches from the one that holds `first` on, as many as fit into `room` bytes.

        If `into` is empty the first batch is taken even if it does not fit.
        """
        firsts, marks = self._firsts, self._marks
        if not marks:
            if self.size > room and into:
                return Gathered(first, first, 0)
            into.append(self.buffers[0])
            return Gathered(self.first, self.end, self.size)
        count = len(firsts)
        start = bisect_right(firsts, first) - 1 if first > self.first else 0
        start_at = marks[start - 1] if start else 0
        if self.size - start_at <= room:
            stop = count
        else:
            stop = bisect_right(marks, start_at + room, start)
            if stop == start and not into:
                stop = start + 1
        if stop == start:
            return Gathered(first, first, 0)
        stop_at = marks[stop - 1]
        if self.state is not State.WRITTEN:
            into.extend(self.buffers[start:stop])
        elif stop_at - start_at == self.size:
            into.append(self.buffers[0])
        else:
            into.append(memoryview(self.buffers[0])[start_at:stop_at])
        end = self.end if stop == count else firsts[stop]
        return Gathered(firsts[start], end, stop_at - start_at)


class Gathered:
    """What one segment gave to a chunk."""

    __slots__ = ("end", "first", "size")

    def __init__(self, first: int, end: int, size: int) -> None:
        self.first = first
        self.end = end
        self.size = size


class Ledger:
    """One ledger of a topic, open or sealed. Owned by the loop."""

    __slots__ = (
        "_block_bytes",
        "_open_segment",
        "base_offset",
        "blocks",
        "created_ms",
        "data_bytes",
        "end_offset",
        "epoch",
        "first_time_us",
        "index",
        "is_local",
        "is_sealed",
        "last_time_us",
        "object_bytes",
        "object_crc",
        "object_name",
        "ref",
        "sealed_position",
        "tail",
        "unwritten",
    )

    def __init__(self, ref: LedgerRef, epoch: int, base_offset: int, created_ms: int) -> None:
        self.ref = ref
        self.epoch = epoch
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.data_bytes = FILE_HEADER_BYTES
        self.blocks = 0
        self.first_time_us = 0
        self.last_time_us = -(2**63)
        self.created_ms = created_ms
        self.is_sealed = False
        self.sealed_position = RECOVERED
        """How far the journal was committed when it was sealed: a checkpoint behind it knows the ledger as sealed."""
        self.object_name = ""
        self.object_bytes = 0
        self.object_crc = 0
        self.is_local = True
        self.index: BlockIndex | None = None
        """What is written of a ledger of this process; that of others is loaded when needed."""
        self.unwritten: list[Segment] = []
        self.tail: Tail | None = None
        self._open_segment: Segment | None = None
        self._block_bytes = 0

    @classmethod
    def from_meta(cls, topic_id: int, meta: LedgerMeta) -> Ledger:
        """A ledger of an earlier process: sealed, for it is never written again."""
        ledger = cls(
            LedgerRef(topic_id, meta.ledger_id), meta.epoch, meta.base_offset, meta.created_ms
        )
        ledger.end_offset = meta.end_offset
        ledger.data_bytes = meta.data_bytes
        ledger.blocks = meta.index_entries
        ledger.first_time_us = meta.first_time_us
        ledger.last_time_us = meta.last_time_us
        ledger.is_sealed = True
        ledger.object_name = meta.object_name
        ledger.object_bytes = meta.object_bytes
        ledger.object_crc = meta.object_crc
        ledger.is_local = meta.is_local
        return ledger

    @property
    def meta(self) -> LedgerMeta:
        """The ledger with everything appended to it, written or not."""
        return LedgerMeta(
            self.ref.ledger_id,
            self.epoch,
            self.base_offset,
            self.end_offset,
            self.data_bytes,
            self.blocks,
            self.first_time_us,
            self.last_time_us,
            self.created_ms,
            self.is_sealed,
            self.object_name,
            self.object_bytes,
            self.object_crc,
            self.is_local,
        )

    @property
    def is_lost(self) -> bool:
        """It stands for messages that were given up: there is nothing of it."""
        return self.data_bytes == FILE_HEADER_BYTES and self.end_offset > self.base_offset

    @property
    def header(self) -> LedgerHeader:
        return LedgerHeader(*self.ref, self.base_offset, self.epoch, self.created_ms)

    def append(self, entry: Entry, size: int, block_bytes_max: int) -> Segment | None:
        """Add a batch to the open segment; the new segment if one had to be opened."""
        opened = None
        segment = self._open_segment
        if segment is None or self._block_bytes + size > block_bytes_max:
            segment = opened = self._open(entry.first, size, block_bytes_max)
        segment.add(entry, size)
        if self.end_offset == self.base_offset:
            self.first_time_us = int.from_bytes(
                entry.buffer[_TIME_AT : _TIME_AT + 8], "little", signed=True
            )
        self._block_bytes += size
        self.data_bytes += size
        self.end_offset = entry.end
        if entry.last_time_us > self.last_time_us:
            self.last_time_us = entry.last_time_us
        return opened

    def _open(self, first: int, size: int, block_bytes_max: int) -> Segment:
        starts_block = not self._block_bytes or self._block_bytes + size > block_bytes_max
        if starts_block:
            self._block_bytes = 0
            self.blocks += 1
        segment = Segment(self, first, self.data_bytes, starts_block=starts_block)
        self.unwritten.append(segment)
        self._open_segment = segment
        return segment

    def close_block(self) -> None:
        """The next batch starts a new block."""
        self._open_segment = None
        self._block_bytes = 0

    def take_unwritten(self) -> list[Segment]:
        """Close and return the segments to be written. The block may go on."""
        segments, self.unwritten = self.unwritten, []
        self._open_segment = None
        for segment in segments:
            segment.state = _HANDED
        return segments

    def seal(self, position: int) -> None:
        self.close_block()
        self.is_sealed = True
        self.sealed_position = position

    def give_up(self, end_offset: int, time_us: int, position: int) -> None:
        """Stand for messages up to `end_offset` that are lost; they count as published when those before them were."""
        self.end_offset = end_offset
        self.first_time_us = self.last_time_us = time_us
        self.seal(position)

    def store(self, stored: StoredObject) -> None:
        """There is a verified copy in the object store."""
        assert self.is_sealed
        self.object_name = stored.name
        self.object_bytes = stored.size
        self.object_crc = stored.crc
        # An index that was rebuilt for the object may have fewer rows than blocks were written.
        self.blocks = stored.index_rows

    def wrote(self, segment: Segment, block_crc: int) -> None:
        """A segment is in the file; `block_crc` covers its block up to its end."""
        if self.index is None:
            self.index = BlockIndex()
        count = segment.end - segment.first
        if segment.starts_block:
            row = BlockRow(
                segment.first,
                segment.position,
                segment.size,
                block_crc,
                segment.last_time_us,
                count,
            )
            self.index.append(row)
        else:
            self.index.grow(segment.size, count, block_crc, segment.last_time_us)


class WriteJob(NamedTuple):
    """Write segments of one ledger; with `seal`, they are its last."""

    ledger: Ledger
    """Its name and header alone, which never change: the rest of it belongs to the loop."""
    segments: list[Segment]
    seal: bool
