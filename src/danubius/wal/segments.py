"""The journal's directory: which files are live, which wait to be used again, and their names.

Invariants:
- A file's name is its sequence; a higher sequence is a later life. A sequence is used once: a file
  is renamed to a new one, and the name synced, before anything is written to it again.
- live: files whose records may be needed, in order; idle: files that hold nothing that is needed;
  spares: idle files that already bear a fresh sequence, in order of use.
- live + idle + spares + the open file are never more than files_max.
Owned by the journal thread (before it starts: by whoever recovers).
"""

from __future__ import annotations

import contextlib
import re
import shlex
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import DanubiusError, DataDirectoryDamaged, StorageFull
from danubius.wal.core.format import (
    FILE_HEADER_BYTES,
    SEQUENCE_MAX,
    FileHeader,
    pack_mark,
    parse_mark,
)
from danubius.wal.core.recovery import (
    Span,
    durable_claim,
    identify,
    plan_spans,
    reaches,
    scan,
    stray_claim,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from danubius.runtime.files import File, Files
    from danubius.wal.config import JournalConfig
    from danubius.wal.core.recovery import Scan

MARK_NAME: Final = "end"
"""How far the journal was synced, told again and again: what ends before that has lost its newest file."""
_NAME: Final = re.compile(r"(\d{10})\.journal\Z")


class Live(NamedTuple):
    """A file that is no longer written but may still be needed."""

    sequence: int
    base: int
    end: int


class Segment:
    """The file that is being written."""

    __slots__ = ("file", "filled", "header", "is_settled", "is_suspect")

    def __init__(self, header: FileHeader, file: File, filled: int) -> None:
        self.header = header
        self.file = file
        self.filled = filled
        """Up to here the file's blocks exist: a write below costs no allocation."""
        self.is_settled = False
        """Nothing but records may wait for a sync: neither the header nor zeros."""
        self.is_suspect = False
        """A sync failed: what it holds beyond the last good sync may be gone, whatever it says."""

    def at(self, position: int) -> int:
        """Where in the file a position lies."""
        return FILE_HEADER_BYTES + position - self.header.base


class Segments:
    """The journal's files."""

    def __init__(self, config: JournalConfig, files: Files, directory: Path) -> None:
        self._config = config
        self._files = files
        self._directory = directory
        self._live: list[Live] = []
        self._idle: list[int] = []
        self._spares: list[int] = []
        self._open_count = 0
        self._next_sequence = 1
        self.recovered_end = 0
        self._tail: Live | None = None
        """Of the last file that was found: what is to be written again, from the last promise on."""
        self._mark: File | None = None

    # ------------------------------------------------------------ recovery

    def recover(
        self, from_position: int, keep_from: int | None = None
    ) -> Iterator[tuple[memoryview, Scan]]:
        """`inspect`, and then `secure`."""
        yield from self.inspect(from_position, keep_from)
        self.secure()

    def inspect(
        self, from_position: int, keep_from: int | None = None, reach: int | None = None
    ) -> Iterator[tuple[memoryview, Scan]]:
        """Read every file that matters, in order, as (content, scan); then `recovered_end` is known. Changes nothing.

        Files with anything from `keep_from` on are kept as they are: an older snapshot needs them. `reach`: the journal
        had been synced up to here; None: nobody knows, and it may end before `from_position`.
        Raises DataDirectoryDamaged if anything that was synced is missing or bad.
        """
        sequences = self._list()
        if not sequences and from_position:
            raise DataDirectoryDamaged(
                f"{self._directory} holds no journal, but a snapshot expects one at "
                f"position {from_position}: {self._way_out}"
            )
        self._next_sequence = max(sequences, default=0) + 1
        headers = [header for header in map(self._identify, sequences) if header is not None]
        spans = plan_spans(headers, from_position)
        floor = from_position if keep_from is None else min(keep_from, from_position)
        kept = plan_spans(headers, floor)
        self._live = [Live(*span.header, span.end) for span in kept if span not in spans]
        self._idle = sorted(set(sequences) - {span.header.sequence for span in kept})
        self._check_first(spans, from_position)
        self.recovered_end = from_position
        self._tail = None
        is_reached = reach is None or not from_position
        for span in spans:
            content = self._read(span.header.sequence)
            if not is_reached:
                is_reached = from_position == span.header.base or reaches(
                    content, span.header, from_position
                )
                self._check_reached(is_reached, from_position, span.header.sequence)
            start = max(span.header.base, from_position)
            found = scan(content, span.header, start, None if span.end < 0 else span.end)
            self._check_end(span, content, found)
            self._live.append(Live(span.header.sequence, span.header.base, found.end))
            self.recovered_end = found.end
            if span.end < 0:
                self._tail = Live(span.header.sequence, max(start, found.durable), found.end)
            yield content, found
        self._check_strays()
        self._check_reached(is_reached, from_position, None)
        if reach is not None:
            self._check_reached(self.recovered_end >= reach, reach, None)
        self._check_mark()

    def secure(self) -> None:
        """Make what `inspect` found durable before anything builds on it."""
        self._files.mkdir(self._directory, sync=True)
        if self._tail is not None:
            self._write_again(self._tail)
        self._files.sync_dir(self._directory)

    def _identify(self, sequence: int) -> FileHeader | None:
        file = self._files.open(self._path(sequence), write=False)
        try:
            return identify(memoryview(file.pread(FILE_HEADER_BYTES, 0)), sequence)
        finally:
            file.close()

    def _check_first(self, spans: list[Span], from_position: int) -> None:
        if spans and spans[0].header.base > from_position:
            # A repair needs a snapshot.
            missing = (
                f"from {from_position} on: a file is missing; {self._way_out}"
                if from_position
                else "from its beginning, as there is no snapshot: a file is missing, or the snapshots are; restore "
                "them from a copy"
            )
            raise DataDirectoryDamaged(
                f"the journal in {self._directory} starts at position {spans[0].header.base}, but is needed {missing}"
            )

    @property
    def _way_out(self) -> str:
        """The end of a refusal."""
        directory = shlex.quote(str(self._directory.parent))
        return (
            "restore it from a copy, or see what can be saved without it: danubius storage repair --data-dir "
            f"{directory} --dry-run"
        )

    def _check_end(self, span: Span, content: memoryview, found: Scan) -> None:
        claim = span.end if span.end >= 0 else durable_claim(content, span.header, found.end)
        if found.end < claim:
            raise DataDirectoryDamaged(
                f"{self._path(span.header.sequence)} is damaged at position {found.end} (byte "
                f"{FILE_HEADER_BYTES + found.end - span.header.base}: {found.reason}), while "
                f"everything up to {claim} had been synced: {self._way_out}"
            )

    def _check_strays(self) -> None:
        """A file behind the last known one is a spare, or it has lost its head."""
        last = self._live[-1].sequence if self._live else 0
        for sequence in self._idle:
            if sequence > last:
                claim = stray_claim(self._read(sequence), sequence)
                if claim > self.recovered_end:
                    raise DataDirectoryDamaged(
                        f"{self._path(sequence)} has lost its beginning, while the journal had "
                        f"been synced up to position {claim}: {self._way_out}"
                    )

    def _check_reached(self, is_reached: bool, position: int, sequence: int | None) -> None:
        if not is_reached:
            where = self._directory if sequence is None else self._path(sequence)
            raise DataDirectoryDamaged(
                f"{where}: the journal ends before position {position}, while a snapshot says that it had been synced "
                f"up to there: its newest file is missing, cut short or overwritten; {self._way_out}"
            )

    def _check_mark(self) -> None:
        path = self._directory / MARK_NAME
        marked = parse_mark(self._files.read_bytes(path)) if self._files.exists(path) else 0
        if marked > self.recovered_end:
            raise DataDirectoryDamaged(
                f"the journal in {self._directory} ends at position {self.recovered_end}, while it had been synced up "
                f"to {marked}: {marked - self.recovered_end} bytes are missing, and with them messages that were "
                f"acknowledged; its newest file is missing, cut short or overwritten: {self._way_out}. Only if this "
                f"directory is itself a copy, made while the broker ran, remove {path} and start again"
            )

    def mark(self, position: int) -> None:
        """Everything below is synced, which is true before it is told. An older one is true too: so none is synced."""
        with contextlib.suppress(DanubiusError):
            if self._mark is None:
                self._mark = self._files.open(self._directory / MARK_NAME, create=True)
            self._mark.pwritev([pack_mark(position)], 0)

    def close(self) -> None:
        if self._mark is not None:
            with contextlib.suppress(DanubiusError):
                self._mark.close()
            self._mark = None

    def _write_again(self, tail: Live) -> None:
        """The end of the last file once more, from the last promise on.

        A killed broker's records may be in the page cache only, and after a failed sync the cache
        calls them clean: so they are written once more, and then synced.
        """
        header = next(live for live in self._live if live.sequence == tail.sequence)
        first = FILE_HEADER_BYTES + tail.base - header.base
        file = self._files.open(self._path(tail.sequence))
        try:
            file.pwritev([file.pread(FILE_HEADER_BYTES, 0)], 0)
            file.pwritev([file.pread(tail.end - tail.base, first)], first)
            file.datasync()
        finally:
            file.close()

    # ------------------------------------------------------------ files to write to

    def open_next(self, base: int) -> Segment:
        """The next file, still without a header. Raises if there is none to be had."""
        if not self._spares:
            self._make_spare()
        sequence = self._spares[0]
        file = self._files.open(self._path(sequence))
        try:
            size = file.size()
            if size > self._config.file_bytes:
                # Grown for a record larger than a file.
                file.truncate(self._config.file_bytes)
        except DanubiusError:
            file.close()
            raise
        self._spares.pop(0)
        self._open_count += 1
        filled = min(max(size, FILE_HEADER_BYTES), self._config.file_bytes)
        return Segment(FileHeader(sequence, base), file, filled)

    def retire(self, segment: Segment, end: int) -> None:
        """The file is left at `end`, where the next one takes over."""
        self._open_count -= 1
        sequence, base = segment.header
        if base < end:
            self._live.append(Live(sequence, base, end))
        else:
            self._idle.append(sequence)
        with contextlib.suppress(DanubiusError):
            # What it holds was secured before; a failing close takes nothing from it.
            segment.file.close()

    def trim(self, position: int) -> None:
        """Files that end at or below `position` are free; but one must stay that comes up to the newest snapshot."""
        last = None if self._open_count or not self._live else self._live[-1]
        free = [live for live in self._live if live.end <= position and live is not last]
        self._idle.extend(live.sequence for live in free)
        self._live = [live for live in self._live if live not in free]
        with contextlib.suppress(DanubiusError):
            while self._idle and self._has_excess():
                self._files.remove(self._path(self._idle[0]))
                self._idle.pop(0)

    def prepare(self) -> None:
        """Have a spare at hand, so that a roll costs no directory sync. May fail: then later."""
        if not self._spares and (self._idle or self._count() < self._config.files_max):
            with contextlib.suppress(DanubiusError):
                self._make_spare()

    def live_bytes(self) -> int:
        """Whole files: an early end frees nothing."""
        return len(self._live) * self._config.file_bytes

    def _make_spare(self) -> None:
        sequence = self._next_sequence
        assert sequence <= SEQUENCE_MAX, "the journal ran out of file numbers"
        if self._idle:
            self._next_sequence += 1
            self._files.rename(self._path(self._idle[0]), self._path(sequence))
            self._idle[0] = sequence
        elif self._count() < self._config.files_max:
            self._next_sequence += 1
            self._files.open(self._path(sequence), create=True).close()
            self._idle.append(sequence)
        else:
            raise StorageFull(
                f"the journal is at its bound of {self._config.files_max} files of "
                f"{self._config.file_bytes} bytes; it goes on when the ledgers have caught up"
            )
        self._files.sync_dir(self._directory)
        self._idle.remove(sequence)
        self._spares.append(sequence)

    def _has_excess(self) -> bool:
        """Half of the bound is kept for use again; the rest goes back to the file system."""
        kept = len(self._idle) + len(self._spares)
        return kept > max(1, self._config.files_max // 2) or self._count() > self._config.files_max

    def _count(self) -> int:
        return len(self._live) + len(self._idle) + len(self._spares) + self._open_count

    # ------------------------------------------------------------ names

    def _path(self, sequence: int) -> Path:
        return self._directory / f"{sequence:010d}.journal"

    def _list(self) -> list[int]:
        names = map(_NAME.match, self._files.listdir(self._directory))
        return sorted(int(name[1]) for name in names if name is not None)

    def _read(self, sequence: int) -> memoryview:
        file = self._files.open(self._path(sequence), write=False)
        try:
            content = bytearray(file.size())
            count = file.preadinto(content, 0)
        finally:
            file.close()
        return memoryview(content)[:count].toreadonly()
