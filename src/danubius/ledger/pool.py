"""The files that small ledgers share: frames of many ledgers, appended to one file after the other.

    DIR/<number>-<salt>.pool

Invariants:
- One file is written, the last; it is finished when it is full, and never written again but for its footer. A new
  process starts a new one. So the order of frames, by file and offset, is the order in which they were written.
- `extents` says where bytes lie. It changes only after the frames were written, and for moved ones after they were
  synced too: a file is removed once nothing in it is live, and what was moved out of it is durable elsewhere.
- What a failed write left behind is cut off, or the file is given up: nothing stale comes behind what is newer.
- After a failed sync the file is given up, and moves that it was to cover are forgotten.
- One thread writes. Any thread reads: one that finds a file removed looks again where the bytes are now.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import DanubiusError, StorageFailed
from danubius.ledger.core.extents import POSITION_MAX, Entry, Extent, ExtentMap
from danubius.ledger.core.pool_format import (
    FOOTER_ROW_BYTES,
    FRAME_HEADER_BYTES,
    POOL_HEADER_BYTES,
    Frame,
    aligned,
    encode_frame,
    encode_pool_header,
    encode_row,
    encode_trailer,
    is_pool_header,
    read_footer,
    scan_frames,
)
from danubius.ledger.entry import LedgerRef
from danubius.ledger.pool_read import Join, Move, PoolFile, PoolReader
from danubius.model.limits import MIB
from danubius.record.checksum import crc32c
from danubius.runtime import ambient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from danubius.model.buffers import Buffer
    from danubius.runtime.files import File, Files

FILE_BYTES: Final = 64 * MIB
FILE_FRAMES: Final = 65_536
"""A file is full at either: the second bounds the footer, which is held in memory until it is written."""
SMALL_FILE_BYTES: Final = 8 * MIB
SMALL_FILES: Final = 4
"""So many finished files of less than that are merged: every start of a broker may leave one."""
STEP_BYTES: Final = 4 * MIB
"""What one step of tidying moves; it reads sixteen times as much at most."""
SCATTERED_PIECES: Final = 4
"""A ledger in so many pieces is copied into one when it is sealed: each costs memory, and a start time."""
STEP_LEDGERS: Final = 16
_NAME: Final = re.compile(r"([0-9a-f]{8,})-([0-9a-f]{8})\.pool")
_PADDING: Final = [bytes(count) for count in range(8)]

log = logging.getLogger(__name__)


class Piece(NamedTuple):
    """Bytes of one ledger that go into the pool."""

    ref: LedgerRef
    epoch: int
    position: int
    buffers: Sequence[Buffer]
    size: int
    is_first: bool = False
    moved_crc: int | None = None


class LedgerPool:
    """Files shared by small ledgers."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        *,
        file_bytes: int = FILE_BYTES,
        salt: Callable[[], int] = lambda: int.from_bytes(ambient.token(4)),
    ) -> None:
        self._files = files
        self._directory = directory
        self._file_bytes = file_bytes
        self._salt = salt
        self.extents = ExtentMap()
        self._known: dict[int, PoolFile] = {}
        """By key, which is a number of this process: the order of the files."""
        self._next_key = 0
        self._next_number = 1
        self._active: PoolFile | None = None
        self._unsynced: dict[int, PoolFile] = {}
        self._has_unsynced_names = False
        self._moves: list[Move] = []
        self._joins: list[Join] = []
        self._scattered: deque[LedgerRef] = deque()
        """Ledgers that are complete and lie in many pieces."""
        self._victim: list[tuple[LedgerRef, Extent]] = []
        """What is left to be moved out of a file, last first."""
        self._is_tidying_hard = False
        self._load()
        self.read: Final = PoolReader(files, self.extents, self._known).read

    # ------------------------------------------------------------ writing

    def append(self, pieces: Sequence[Piece]) -> None:
        """Write pieces with as few calls as they need; all of them, or raise and change nothing."""
        put = self.extents.put
        for piece, extent in zip(pieces, self._write(pieces), strict=True):
            put(piece.ref, piece.epoch, extent, is_first=piece.is_first)

    def _write(self, pieces: Sequence[Piece]) -> list[Extent]:
        file = self._room(sum(piece.size for piece in pieces), len(pieces))
        handle, rows, salt, key = file.handle, file.rows, file.salt, file.key
        assert handle is not None
        assert rows is not None
        at = file.size
        buffers: list[Buffer] = []
        extents: list[Extent] = []
        new_rows: list[bytes] = []
        for (topic_id, ledger_id), epoch, position, data, size, is_first, crc in pieces:
            at += FRAME_HEADER_BYTES
            frame = Frame(topic_id, ledger_id, position, size, epoch, at, is_first, crc)
            buffers.append(encode_frame(frame, salt))
            buffers.extend(data)
            new_rows.append(encode_row(frame))
            extents.append(Extent(position, size, key, at))
            at += size
            if at & 7:
                buffers.append(_PADDING[-at & 7])
                at = aligned(at)
        self._unsynced[key] = file
        try:
            handle.pwritev(buffers, file.size)
        except DanubiusError:
            self._cut_back(file, handle)
            raise
        file.size = at
        rows += b"".join(new_rows)
        return extents

    def _cut_back(self, file: PoolFile, handle: File) -> None:
        """Remove what a failed write left, or write to another file from now on."""
        try:
            handle.truncate(file.size)
        except DanubiusError:
            file.rows = None
            self._active = None

    def _room(self, size: int, frames: int) -> PoolFile:
        """The file to write to."""
        file = self._active
        if file is not None:
            assert file.rows is not None
            is_full = (
                file.size + size + frames * (FRAME_HEADER_BYTES + 8) > self._file_bytes
                or len(file.rows) // FOOTER_ROW_BYTES + frames > FILE_FRAMES
            )
            if not is_full or file.size == POOL_HEADER_BYTES:
                return file
            self._retire(file)
        return self._create()

    def _create(self) -> PoolFile:
        self._files.mkdir(self._directory)
        number, salt = self._next_number, self._salt()
        self._next_number += 1
        path = self._directory / f"{number:08x}-{salt:08x}.pool"
        handle = self._files.open(path, create=True)
        self._has_unsynced_names = True
        try:
            handle.pwritev([encode_pool_header(number, salt)], 0)
        except DanubiusError:
            with contextlib.suppress(DanubiusError):
                handle.close()
                self._files.remove(path)
            raise
        file = self._know(path, salt)
        file.size = POOL_HEADER_BYTES
        file.handle = handle
        file.rows = bytearray()
        self._active = file
        return file

    def _know(self, path: Path, salt: int) -> PoolFile:
        file = PoolFile(self._next_key, path, salt)
        self._next_key += 1
        self._known[file.key] = file
        return file

    def _retire(self, file: PoolFile) -> None:
        """Write no more frames to the active file; its footer comes once it is synced."""
        self._active = None
        if file.key not in self._unsynced:
            self._close(file)

    def _write_footer(self, file: PoolFile, handle: File) -> None:
        """Only to a file that is synced and has no live frames to come. A start does without it, if it must."""
        rows, file.rows = file.rows, None
        at = aligned(file.size)
        assert rows is not None
        footer = [rows, encode_trailer(rows, at, file.salt)]
        with contextlib.suppress(DanubiusError):
            handle.pwritev(footer, at)
            file.size = at + sum(map(len, footer))

    # ------------------------------------------------------------ syncing

    def sync(self) -> None:
        """Make everything written durable."""
        try:
            for file in self._unsynced.values():
                assert file.handle is not None
                file.handle.datasync()
                # As with other ledgers: whoever is near the tail reads from our own cache.
                file.handle.forget_cached()
            if self._has_unsynced_names:
                self._sync_names()
        except DanubiusError:
            self.sync_failed()
            raise
        self.synced()

    def _sync_names(self) -> None:
        for level in (self._directory, *self._directory.parents[:2]):
            self._files.sync_dir(level)

    def synced(self) -> None:
        """Everything is durable: the whole file system was synced."""
        for file in self._unsynced.values():
            if file is not self._active:
                self._close(file)
        self._unsynced.clear()
        self._has_unsynced_names = False
        moves, self._moves = self._moves, []
        for move in moves:
            self.extents.move(move.ref, move.old, move.new)
        joins, self._joins = self._joins, []
        for ref, before, new in joins:
            if self.extents.get(ref) == before:
                self.extents.put(ref, before.epoch, new)
            else:
                self._scattered.append(ref)

    def sync_failed(self) -> None:
        """What was written since the last good sync may be lost, though it can still be read."""
        self._moves.clear()
        self._joins.clear()
        self._victim.clear()
        if self._active is not None and self._active.key in self._unsynced:
            self._active = None
        for file in self._unsynced.values():
            file.rows = None
            self._close(file)
        self._unsynced.clear()

    def close(self) -> None:
        """Write nothing: after a crash nothing of what is known here may be trusted. The next start scans one file."""
        file, self._active = self._active, None
        if file is not None:
            self._close(file)
        for file in self._unsynced.values():
            self._close(file)
        self._unsynced.clear()

    def _close(self, file: PoolFile) -> None:
        handle, file.handle = file.handle, None
        if handle is not None:
            with contextlib.suppress(DanubiusError):
                handle.close()

    # ------------------------------------------------------------ starting

    def _load(self) -> None:
        found = sorted(
            (int(match[1], 16), name, int(match[2], 16))
            for name in self._files.listdir(self._directory)
            if (match := _NAME.fullmatch(name))
        )
        for number, name, salt in found:
            self._next_number = number + 1
            file = self._know(self._directory / name, salt)
            try:
                self._load_file(file)
            except StorageFailed as error:
                # Nobody but the readers of what it holds need suffer; it is kept for whoever repairs the disk.
                file.is_unreadable = True
                log.exception("pool file cannot be read", extra={"error": str(error)})

    def _load_file(self, file: PoolFile) -> None:
        with contextlib.closing(self._files.open(file.path, write=False)) as handle:
            file.size = handle.size()

            def read(at: int, count: int) -> bytes:
                return handle.pread(count, at)

            if not is_pool_header(read(0, POOL_HEADER_BYTES)) and file.size > POOL_HEADER_BYTES:
                log.warning("pool file header is damaged", extra={"path": str(file.path)})
            frames = read_footer(read, file.size, file.salt)
            if frames is None:
                file.rows = bytearray()
                frames = scan_frames(read, file.size, file.salt)
            for frame in frames:
                ref = LedgerRef(frame.topic_id, frame.ledger_id)
                extent = Extent(frame.position, frame.length, file.key, frame.offset)
                if file.rows is not None:
                    if frame.moved_crc is not None and self.extents.covers(
                        ref, frame.epoch, extent
                    ):
                        # Nobody knows whether this copy was synced, and a sync that failed cannot be made good: the
                        # original counts. Where that is gone, the copy was synced before it went.
                        continue
                    file.rows += encode_row(frame)
                if frame.length and frame.position + frame.length <= POSITION_MAX:
                    self.extents.put(ref, frame.epoch, extent, is_first=frame.is_first)

    # ------------------------------------------------------------ space

    def tidy(self) -> None:
        """One bounded step towards less wasted space. Raises only if what was moved cannot be synced."""
        if self._moves or self._joins:
            self.sync()
        try:
            self._tidy()
        except DanubiusError as error:
            # Space is wasted for longer, that is all. Once is told, not every second.
            if not self._is_tidying_hard:
                log.warning("pool files not tidied up", extra={"error": str(error)})
            self._is_tidying_hard = True
        else:
            self._is_tidying_hard = False

    def _tidy(self) -> None:
        self._remove_dead()
        self._add_footer()
        active = self._active
        if active is not None and active.size >= STEP_BYTES and self._is_wasteful(active):
            self._retire(active)
        if not self._victim:
            self._choose_victim()
        if self._victim:
            self._move_some()
        if self._scattered:
            self._join_some()

    def _remove_dead(self) -> None:
        for file in list(self._known.values()):
            is_empty_active = file is self._active and file.size == POOL_HEADER_BYTES
            if file.key in self.extents.live_bytes or is_empty_active or file.is_unreadable:
                continue
            if file is self._active:
                self._active = None
            self._unsynced.pop(file.key, None)
            self._close(file)
            self._files.remove(file.path)
            del self._known[file.key]

    def _add_footer(self) -> None:
        """Finish one full file, or one of an earlier process, so that the next start need not scan it."""
        for file in self._known.values():
            if (
                file.rows is not None
                and file is not self._active
                and file.key not in self._unsynced
                and not file.is_unreadable
            ):
                with contextlib.closing(self._files.open(file.path)) as handle:
                    self._write_footer(file, handle)
                return

    def _is_wasteful(self, file: PoolFile) -> bool:
        return 2 * self.extents.live_bytes.get(file.key, 0) < file.size

    def _choose_victim(self) -> None:
        files = [
            file
            for file in self._known.values()
            if file is not self._active and not file.is_unreadable
        ]
        small = [file for file in files if file.size < SMALL_FILE_BYTES]
        victims = [file for file in files if self._is_wasteful(file)]
        if not victims and len(small) >= SMALL_FILES:
            victims = small
        if victims:
            self._victim = self.extents.extents_in(victims[0].key)[::-1]

    def _move_some(self) -> None:
        file = self._known.get(self._victim[-1][1].file)
        if file is None:  # it has died meanwhile
            self._victim.clear()
            return
        moved = 0
        with contextlib.closing(self._files.open(file.path, write=False)) as handle:
            for _ in range(16):
                run = self._next_run()
                if not run or moved >= STEP_BYTES:
                    break
                moved += self._move_run(file, handle, run)

    def _next_run(self) -> list[tuple[LedgerRef, Extent]]:
        """Extents that lie near each other, to be read at once."""
        run: list[tuple[LedgerRef, Extent]] = []
        while self._victim:
            extent = self._victim[-1][1]
            if run and extent.offset + extent.length - run[0][1].offset > STEP_BYTES:
                break
            run.append(self._victim.pop())
        return run

    def _move_run(self, file: PoolFile, handle: File, run: list[tuple[LedgerRef, Extent]]) -> int:
        first, last = run[0][1], run[-1][1]
        data = handle.pread(last.offset + last.length - first.offset, first.offset)
        pieces: list[Piece] = []
        olds: list[Extent] = []
        for ref, extent in run:
            entry = self.extents.get(ref)
            if entry is None or extent not in entry.extents:
                continue
            start = extent.offset - first.offset
            content = data[start : start + extent.length]
            if len(content) < extent.length:
                # The disk lost it. What is left stays where it is, for the damage to be told.
                file.is_unreadable = True
                continue
            olds.append(extent)
            crc = crc32c(content)
            pieces.append(
                Piece(ref, entry.epoch, extent.position, [content], len(content), moved_crc=crc)
            )
        if pieces:
            try:
                news = self._write(pieces)
            except DanubiusError:
                self._victim.clear()
                raise
            for piece, old, new in zip(pieces, olds, news, strict=True):
                self._moves.append(Move(piece.ref, old, new))
        return sum(piece.size for piece in pieces)

    def pass_over(self, ref: LedgerRef) -> None:
        """What lies under this name is another's: it is not read, and the files that hold it are kept as they are."""
        entry = self.extents.get(ref)
        for file in {extent.file for extent in entry.extents} if entry is not None else ():
            self._known[file].is_unreadable = True
        self.extents.drop(ref)

    def keep_dead(self) -> None:
        """Ledgers are missing: they may be in files in which nothing was found, and those stay."""
        for file in self._known.values():
            if file.key not in self.extents.live_bytes and file.size > POOL_HEADER_BYTES:
                file.is_unreadable = True
                log.error("pool file kept: ledgers are missing", extra={"path": str(file.path)})

    def join_later(self, ref: LedgerRef) -> None:
        """Nothing more will be written to a ledger: when there is time, its pieces are put together."""
        entry = self.extents.get(ref)
        if entry is not None and len(entry) >= SCATTERED_PIECES:
            self._scattered.append(ref)

    def _join_some(self) -> None:
        pieces: list[Piece] = []
        entries: list[Entry] = []
        size = 0
        while self._scattered and len(pieces) < STEP_LEDGERS and size < STEP_BYTES:
            ref = self._scattered.popleft()
            entry = self.extents.get(ref)
            if entry is None or len(entry) == 1 or not entry.is_contiguous:
                continue
            start = entry.extents[0].position
            data = self.read(ref, start, entry.end - start, read_nothing)
            size += len(data)
            crc = crc32c(data)
            pieces.append(Piece(ref, entry.epoch, start, [data], len(data), moved_crc=crc))
            entries.append(entry)
        if pieces:
            for piece, entry, new in zip(pieces, entries, self._write(pieces), strict=True):
                self._joins.append(Join(piece.ref, entry, new))


def read_nothing(_at: int, _count: int) -> bytes:
    return b""
