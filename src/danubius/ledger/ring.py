"""The log of a non-reliable topic: the last batches in memory, the oldest dropped for the newest.

Offsets go on without gaps as in a stored topic; a reader that asks for a dropped one is served
from the oldest kept, and sees by `Chunk.first` what it lost.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from danubius.errors import OffsetOutOfRange
from danubius.ledger.core.segment import ENTRY_MEMORY_BYTES
from danubius.ledger.entry import Chunk, Entry
from danubius.model.limits import MIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.errors import DanubiusError
    from danubius.model.buffers import Buffer

RING_BYTES_MAX: Final = 16 * MIB
RING_ENTRIES_MAX: Final = 65_536
_COMPACT_AT: Final = 512
_first_of: Final = attrgetter("first")


class Ring:
    """Bounded in bytes and entries; the newest entry is kept even if it alone is larger."""

    __slots__ = (
        "_bytes_max",
        "_end",
        "_entries",
        "_entries_max",
        "_head",
        "_start",
        "cached_bytes",
    )

    def __init__(
        self,
        bytes_max: int = RING_BYTES_MAX,
        entries_max: int = RING_ENTRIES_MAX,
        *,
        next_offset: int = 0,
    ) -> None:
        assert bytes_max > 0
        assert entries_max > 0
        self._bytes_max = bytes_max
        self._entries_max = entries_max
        self._entries: list[Entry | None] = []
        self._head = 0
        """Where the kept entries begin: dropping one moves it, and the list is cut now and then."""
        self._start = next_offset
        self._end = next_offset
        self.cached_bytes = 0

    @property
    def start_offset(self) -> int:
        return self._start

    @property
    def end_offset(self) -> int:
        return self._end

    def __len__(self) -> int:
        """The number of batches kept."""
        return len(self._entries) - self._head

    def append(self, entry: Entry) -> None:
        assert entry.first == self._end, "offsets are contiguous"
        assert entry.first < entry.end
        self._entries.append(entry)
        self._end = entry.end
        self.cached_bytes += entry.buffer.nbytes + ENTRY_MEMORY_BYTES
        while len(self) > 1 and (
            self.cached_bytes > self._bytes_max or len(self) > self._entries_max
        ):
            self._drop_oldest()

    def read(
        self,
        first: int,
        bytes_max: int,
        on_done: Callable[[Chunk | DanubiusError], None],
        *,
        may_point: bool = False,
    ) -> None:
        """Hand over batches from `first`, or the oldest kept, on; at once, without a copy."""
        del may_point  # there are no files here
        if first > self._end or first < 0:
            on_done(
                OffsetOutOfRange(f"offset {first} is not in the topic; the next one is {self._end}")
            )
            return
        if first == self._end:
            on_done(Chunk(first, first, [], 0))
            return
        on_done(self._gather(max(first, self._start), bytes_max))

    def _gather(self, first: int, bytes_max: int) -> Chunk:
        entries = self._entries
        start = at = bisect_right(entries, first, self._head, key=_first_of) - 1
        buffers: list[Buffer] = []
        size = 0
        end = first
        while at < len(entries):
            entry = entries[at]
            assert entry is not None
            size += entry.buffer.nbytes
            if size > bytes_max and at > start:
                size -= entry.buffer.nbytes
                break
            buffers.append(entry.buffer)
            end = entry.end
            at += 1
        oldest = entries[start]
        assert oldest is not None
        return Chunk(oldest.first, end, buffers, size)

    def _drop_oldest(self) -> None:
        entry = self._entries[self._head]
        assert entry is not None
        self._entries[self._head] = None
        self._head += 1
        self._start = entry.end
        self.cached_bytes -= entry.buffer.nbytes + ENTRY_MEMORY_BYTES
        if self._head >= _COMPACT_AT and 2 * self._head >= len(self._entries):
            del self._entries[: self._head]
            self._head = 0
