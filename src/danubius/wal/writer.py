"""The journal's pen: writes groups, syncs them, rolls files, and gets over failures.

Invariants:
- [0, durable) is synced; [durable, end) is written; nothing lies behind end that counts.
- One life of a file is written once, front to back. After any failure the file is left for a new
  one that starts at `durable`: what the failed group left behind never becomes part of the journal.
- A new file's header is written only when everything below its base is durable. So the records
  after a synced record's position are lost before it is, never the other way round.
- Records that were reported written but not yet synced survive a failed sync: they are read back,
  checked and carried over into the new file. So is all that a file left early holds, if it is little: a
  disk that fails now and then does not use up the journal's files.
Owned by the journal thread; every method may block and raise StorageFull or StorageFailed.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from danubius.errors import DanubiusError, StorageFailed
from danubius.model.buffers import Buffer
from danubius.wal.core.format import (
    FILE_HEADER_BYTES,
    FileHeader,
    pack_file_header,
    pack_record,
    record_bytes,
)
from danubius.wal.core.recovery import scan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.wal.config import JournalConfig
    from danubius.wal.segments import Segment, Segments

Aside: TypeAlias = "Callable[[], contextlib.AbstractContextManager[None]]"
_ZEROS: Final = bytes(1024 * 1024)
_LARGE_GROUP: Final = 64
"""A group of at least this part of fill_bytes pays for its own allocation: filling doubles bytes."""
_SYNCED_BYTES_MAX: Final = 64 * 1024
"""Larger groups are written and then synced: the second call is nothing beside so many bytes."""
_CARRY_SHARE: Final = 16
"""A file that was left with less than this part of it used is carried over whole, and is free. As many failures as
there are files then leave a file's worth of records at least, at which a checkpoint is due (as the settings come)."""
_CALM_GROUPS: Final = 64
"""Smaller groups in a row before the file is filled for them: beside large ones the zeros would be for those."""


class Entry(msgspec.Struct, gc=False):
    """One record to be."""

    kind: int
    topic_id: int
    body: tuple[Buffer, ...]
    body_bytes: int
    size: int
    """What the record takes in the journal: record_bytes(body_bytes), computed once."""
    is_sync: bool
    generation: int


class JournalWriter:
    """Writes entries at the end of the journal."""

    def __init__(self, config: JournalConfig, segments: Segments, end: int) -> None:
        self._config = config
        self._segments = segments
        self._fill_below = config.fill_bytes // 4
        self._large_bytes = config.fill_bytes // _LARGE_GROUP
        self._small_groups = _CALM_GROUPS
        self.end = end
        self.durable = end
        self.must_sync = False
        """After a failure the next group is synced before it is reported, whatever it asked for.

        Otherwise power loss could take the new file and leave the failed records in the old one.
        """
        self._segment: Segment | None = None
        self._left: Segment | None = None
        """The file before, as long as [durable, end) may have to be read back from it."""

    @property
    def size_bytes(self) -> int:
        """Live bytes: whole files for those that are full, plus what the open one holds."""
        open_bytes = self.end - self._segment.header.base if self._segment else 0
        left_bytes = self._config.file_bytes if self._left else 0
        return self._segments.live_bytes() + left_bytes + open_bytes

    def is_quick(self, size: int) -> bool:
        """Whether a write of this size neither changes files nor must be synced nor fills ahead."""
        segment = self._segment
        if segment is None or self.must_sync:
            return False
        at = segment.at(self.end) + size
        if at > self._config.file_bytes:
            return False
        return self._small_groups < _CALM_GROUPS or not self._needs_filling(segment, at)

    def fit(self, entries: Sequence[Entry], first: int) -> int:
        """How many entries from `first` on go into one write: at least one."""
        room = self._room()
        if room < entries[first].size:
            room = self._config.file_bytes - FILE_HEADER_BYTES
        room = min(room, self._config.group_bytes_max)
        total = 0
        for index in range(first, len(entries)):
            total += entries[index].size
            if total > room:
                return max(1, index - first)
        return len(entries) - first

    def write(self, entries: Sequence[Entry], size: int) -> None:
        """Write a group of `size` bytes, all of it or, as far as anyone can tell, nothing."""
        segment = self._segment_for(size)
        buffers = self._pack(entries, segment.header.sequence, self.end)
        try:
            segment.file.pwritev(buffers, segment.at(self.end))
        except DanubiusError:
            self._leave()
            self.must_sync = True
            raise
        self._wrote(segment, size)

    def write_synced(self, entries: Sequence[Entry], size: int) -> bool:
        """Write a small group and make it durable at once; False: that takes a write and a sync.

        One call of the system for two. It makes what it wrote durable, and nothing else of the file.
        """
        segment = self._segment
        if segment is None or not segment.is_settled or self.durable != self.end:
            return False
        if size > min(_SYNCED_BYTES_MAX, self._room()):
            return False
        buffers = self._pack(entries, segment.header.sequence, self.end)
        try:
            segment.file.pwritev_synced(buffers, segment.at(self.end))
        except DanubiusError:
            segment.is_suspect = True
            self._leave()
            self.must_sync = True
            raise
        self.durable = self.end + size
        self._wrote(segment, size)
        return True

    def _wrote(self, segment: Segment, size: int) -> None:
        self.end += size
        if size >= self._large_bytes:
            self._small_groups = 0
        elif self._small_groups < _CALM_GROUPS:
            self._small_groups += 1
        else:
            self._fill_ahead(segment)

    def sync(self, aside: Aside = contextlib.nullcontext) -> None:
        """Make everything written so far durable; small writes may go on `aside` while the disk works."""
        if self.durable == self.end:
            return
        segment = self._segment or self._open_next()
        end = self.end
        try:
            with aside():
                segment.file.datasync()
        except DanubiusError:
            # The kernel may have dropped the pages and call the next sync a success.
            segment.is_suspect = True
            self._leave()
            self.must_sync = True
            raise
        self.durable = max(self.durable, end)
        if (
            self._segment is segment
        ):  # otherwise a write failed aside, and the new file must be synced first
            self.must_sync = False
            segment.is_settled = True

    def rewind(self, position: int) -> None:
        """Take back what was written behind `position`; it never happened."""
        assert self.durable <= position <= self.end, "what is durable cannot be taken back"
        if position < self.end:
            self._leave()
            self.end = position

    def trim(self, position: int) -> None:
        self._segments.trim(position)

    def prepare(self) -> None:
        """Get the next file ready once half of this one is used."""
        if self._room() < self._config.file_bytes // 2:
            self._segments.prepare()

    def mark(self) -> None:
        """Tell the next start how far the journal is durable."""
        self._segments.mark(self.durable)

    def close(self) -> None:
        """Give the files back; sync first."""
        self._segments.close()
        for segment in (self._segment, self._left):
            if segment is not None:
                with contextlib.suppress(DanubiusError):
                    segment.file.close()
        self._segment = self._left = None

    # ------------------------------------------------------------ files

    def _room(self) -> int:
        if self._segment is None:
            return 0
        return self._config.file_bytes - self._segment.at(self.end)

    def _segment_for(self, size: int) -> Segment:
        segment = self._segment
        if segment is None:
            return self._open_next()
        if size <= self._room() or segment.header.base == self.end:
            return segment
        self._leave()
        return self._open_next()

    def _leave(self) -> None:
        """Write no more to the open file. A file that is left already stays the one to read from."""
        if self._segment is not None:
            assert self._left is None, "two files cannot both hold what is not durable"
            self._left, self._segment = self._segment, None

    def _open_next(self) -> Segment:
        carried = self._secure()
        whole = self._read_whole()
        if whole is not None:
            return self._replace_left(whole)
        base = self.durable
        segment = self._segments.open_next(base)
        try:
            # The header comes last: with it the file takes over from the one that we left.
            segment.file.pwritev(
                self._pack(carried, segment.header.sequence, base), segment.at(base)
            )
            segment.file.pwritev([pack_file_header(segment.header)], 0)
        except DanubiusError:
            self._segments.retire(segment, base)
            raise
        if self._left is not None:
            self._segments.retire(self._left, self.durable)
            self._left = None
        self._segment = segment
        return segment

    def _read_whole(self) -> list[Entry] | None:
        """All records of a file that a failure made us leave early; None: it stays as it is."""
        left = self._left
        if left is None or not self.must_sync or self.durable == left.header.base:
            return None
        if self.end - left.header.base > self._config.file_bytes // _CARRY_SHARE:
            return None
        try:
            return self._read_back(left, left.header.base)
        except DanubiusError:
            return None  # what is durable of it is safe where it is

    def _replace_left(self, records: list[Entry]) -> Segment:
        """A new file takes over from the one that we left, from its first record on: that one is free.

        The records are durable in the new file before it has a header, and that is durable before the old one goes.
        """
        left = self._left
        assert left is not None
        base = left.header.base
        segment = self._segments.open_next(base)
        try:
            buffers = self._pack(records, segment.header.sequence, base)
            segment.file.pwritev(buffers, segment.at(base))
            segment.file.datasync()
            segment.file.pwritev([pack_file_header(segment.header)], 0)
            segment.file.datasync()
        except DanubiusError:
            self._segments.retire(segment, base)
            raise
        self._segments.retire(left, base)
        self._left = None
        self.durable = self.end
        self._segment = segment
        return segment

    def _secure(self) -> list[Entry]:
        """Sync what the file that we left holds; if that fails, read back what is not durable."""
        left = self._left
        if left is None or self.durable == self.end:
            return []
        if not left.is_suspect:
            try:
                left.file.datasync()
            except DanubiusError:
                left.is_suspect = True
            else:
                self.durable = self.end
                return []
        return self._read_back(left, self.durable)

    def _read_back(self, left: Segment, first: int) -> list[Entry]:
        """The records from a position on, proven by their checksums."""
        count = self.end - first
        content = bytearray(FILE_HEADER_BYTES + count)
        view = memoryview(content)
        left.file.preadinto(view[FILE_HEADER_BYTES:], left.at(first))
        header = FileHeader(left.header.sequence, first)
        found = scan(view, header, first, self.end)
        if found.end != self.end:
            raise StorageFailed(
                f"{left.file.path} lost records at position {found.end} in a failed sync; "
                "they had been written but not synced"
            )
        return [
            Entry(
                kind=record.kind,
                topic_id=record.topic_id,
                body=(view[body_at : body_at + record.body_bytes],),
                body_bytes=record.body_bytes,
                size=record_bytes(record.body_bytes),
                is_sync=False,
                generation=0,
            )
            for record, body_at in found.records
        ]

    def _pack(self, entries: Sequence[Entry], sequence: int, at: int) -> list[Buffer]:
        buffers: list[Buffer] = []
        for entry in entries:
            pack_record(
                at,
                self.durable,
                entry.topic_id,
                sequence,
                entry.body_bytes,
                entry.kind,
                entry.body,
                buffers,
            )
            at += entry.size
        return buffers

    def _needs_filling(self, segment: Segment, at: int) -> bool:
        if segment.filled - at > self._fill_below:
            return False
        return segment.filled < min(self._config.file_bytes, at + self._config.fill_bytes)

    def _fill_ahead(self, segment: Segment) -> None:
        """Keep zeros before the pen, so that most syncs find the blocks allocated."""
        at = segment.at(self.end)
        if segment.filled < at:
            segment.filled = at
        if not self._needs_filling(segment, at):
            return
        target = min(self._config.file_bytes, at + self._config.fill_bytes)
        count = target - segment.filled
        zeros: list[Buffer] = [_ZEROS] * (count // len(_ZEROS))
        zeros.append(_ZEROS[: count % len(_ZEROS)])
        # Only speed is lost if this fails; a disk that is full says so at the next real write.
        with contextlib.suppress(DanubiusError):
            segment.file.pwritev(zeros, segment.filled)
        segment.filled = target
        segment.is_settled = False
