"""Ledgers in files of one directory tree: the default.

    DIR/<last byte of the topic id>/<topic id>-<ledger id>.ledger
    DIR/<last byte of the topic id>/<topic id>-<ledger id>.index
    DIR/pool/<number>-<salt>.pool

All numbers are hexadecimal, 2, 16 and 8 digits. There is no directory of a topic's own: making ten thousand of them
costs more than all their first writes. Files open for writing are kept open, the last used
ones up to a bound; readers open a file for each read (10 microseconds beside a read of a megabyte), so threads
share nothing.

A ledger begins in the pool, whose files all small ledgers share, and goes on in a file of its own once it gets much at
once, or has come to `POOLED_BYTES_MAX` or `EXTENTS_MAX`. Its own file has the same positions, with a hole in front, and
says from where on it counts. A position is read from the pool if the pool has it, and from the own file otherwise.
"""

from __future__ import annotations

import contextlib
import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from danubius.errors import DanubiusError, LedgerDamaged, StorageFailed
from danubius.ledger.entry import LedgerRef
from danubius.ledger.pool import LedgerPool, Piece, read_nothing
from danubius.ledger.store import SMALL_BYTES, Append
from danubius.model.limits import KIB, MIB
from danubius.record.ledger_file import (
    CONTINUED_MAGIC,
    FILE_HEADER_BYTES,
    INDEX_MAGIC,
    INDEX_ROW_BYTES,
    LEDGER_MAGIC,
    LedgerHeader,
    decode_header,
    encode_header,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from danubius.ledger.entry import LedgerMeta
    from danubius.model.buffers import Buffer
    from danubius.model.file_part import FileIdentity
    from danubius.runtime.files import File, Files

OPEN_FILES_MAX: Final = 512
SYNC_EACH_MAX: Final = 8
"""Up to here ledgers are synced one by one; more are synced with the whole file system at once."""
START_WRITING_BYTES: Final = 256 * KIB
"""What is written in such pieces goes to the disk at once: a sync that finds it all waiting holds up the journal's."""
SETTLE_BYTES: Final = 16 * MIB
"""A ledger that got so much is synced without waiting for a checkpoint, and the memory of it used again."""
POOLED_BYTES_MAX: Final = 1 * MIB
EXTENTS_MAX: Final = 64
"""A ledger that was written so often goes on in a file of its own: each place in the pool costs memory."""
QUARANTINE: Final = "quarantine"
_LEDGER: Final = ".ledger"
_INDEX: Final = ".index"
_READ_AHEAD_FROM: Final = 128 * KIB
"""Reads of this size are of somebody who catches up, and reads on."""
_READ_AHEAD_BYTES: Final = 8 * MIB
_READ_AHEAD_STEP: Final = 4 * MIB
_READ_BEHIND_BYTES: Final = 64 * MIB
"""What was read stays in the system's cache for so long: somebody else may follow."""
_NAME: Final = re.compile(r"([0-9a-f]{16})-([0-9a-f]{8})\.(?:ledger|index)")
_GROUPS: Final = 256


class LocalLedgerStore:
    """Small ledgers share files, others have two each."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        *,
        open_files_max: int = OPEN_FILES_MAX,
        small_bytes: int = SMALL_BYTES,
        settle_bytes: int = SETTLE_BYTES,
        pool: LedgerPool | None = None,
    ) -> None:
        self._files = files
        self._directory = directory
        self._open_files_max = open_files_max
        self._small_bytes = small_bytes
        self._settle_bytes = settle_bytes
        self._pool = pool or LedgerPool(files, directory / "pool")
        self._own: dict[LedgerRef, int] = {}
        """Ledgers of this process that have a file of their own, and the position from which on it counts."""
        self._foreign: set[LedgerRef] = set()
        """Ledgers in the pool under whose names there are files that are not theirs."""
        self._open: OrderedDict[LedgerRef, File] = OrderedDict()
        self._unsynced_files: set[LedgerRef] = set()
        """Whose own files were written since the last sync."""
        self._unsettled: dict[LedgerRef, int] = {}
        """How many bytes of own files were written since they were last synced."""
        self._unsynced_names: set[LedgerRef] = set()
        self._groups = [directory / f"{number:02x}" for number in range(_GROUPS)]
        self._made_groups: set[Path] = set()

    # ------------------------------------------------------------ writing

    def create(self, ref: LedgerRef, header: LedgerHeader, buffers: Sequence[Buffer] = ()) -> None:
        self.append_many([Append(ref, header, 0, buffers, sum(map(len, buffers)))])

    def append(self, ref: LedgerRef, at: int, buffers: Sequence[Buffer]) -> None:
        own_from = self._own.get(ref)
        if own_from is not None and own_from <= at:
            self._append_own(ref, at, buffers)
        else:
            self.append_many([Append(ref, None, at, buffers, sum(map(len, buffers)))])

    def append_many(self, appends: Sequence[Append]) -> None:
        pieces: list[Piece] = []
        own = self._own
        for append in appends:
            if append.header is not None:
                piece = self._create(append, append.header)
            elif append.ref in own:
                piece = self._append_behind(append)
            else:
                piece = self._append_pooled(append)
            if piece is not None:
                pieces.append(piece)
        if pieces:
            self._pool.append(pieces)

    def _create(self, append: Append, header: LedgerHeader) -> Piece | None:
        """Start a ledger: in the pool if it is small, and then what is to be written there."""
        ref, _, _, buffers, size = append
        encoded = encode_header(header)
        if size < self._small_bytes and ref not in self._own:
            if self._pool.extents.get(ref) is not None:  # left by an attempt that failed
                self.delete(ref)
            total = FILE_HEADER_BYTES + size
            return Piece(ref, header.epoch, 0, [encoded, *buffers], total, is_first=True)
        self._pool.extents.drop(ref)
        self._own[ref] = 0
        if self._open_own(ref):
            self._files.remove(self._path(ref, _INDEX))
        self._append_own(ref, 0, [encoded, *buffers])
        return None

    def _append_pooled(self, append: Append) -> Piece | None:
        """Go on with a ledger that has no file of its own yet; it gets one if it has become large."""
        ref, _, at, buffers, size = append
        entry = self._pool.extents.get(ref)
        if entry is None:
            # It is of an earlier process, or nobody made it: then this fails.
            self._append_own(ref, at, buffers)
            return None
        is_new = at >= entry.end
        if is_new and (
            size >= self._small_bytes or at + size > POOLED_BYTES_MAX or len(entry) >= EXTENTS_MAX
        ):
            self._open_own(ref)
            self._write_continued(ref, at, entry.epoch)
            self._own[ref] = at
            self._append_own(ref, at, buffers)
            return None
        return Piece(ref, entry.epoch, at, buffers, size) if size else None

    def _append_behind(self, append: Append) -> Piece | None:
        """Write to a ledger with a file of its own, though a part may belong in front of it, in the pool."""
        ref, _, at, buffers, size = append
        own_from = self._own[ref]
        if at >= own_from:
            self._append_own(ref, at, buffers)
            return None
        # This is what is written again after a failed sync: both parts are, and what leads from one to the other.
        entry = self._pool.extents.get(ref)
        assert entry is not None
        data = b"".join(buffers)
        self._write_continued(ref, own_from, entry.epoch)
        if at + size > own_from:
            self._append_own(ref, own_from, [data[own_from - at :]])
        pooled = data[: own_from - at]
        return Piece(ref, entry.epoch, at, [pooled], len(pooled)) if pooled else None

    def _open_own(self, ref: LedgerRef) -> bool:
        """Make an empty file for a ledger; whether an attempt that failed had left something there."""
        self._close(ref)
        self._make_group(ref.topic_id)
        file = self._files.open(self._path(ref, _LEDGER), create=True)
        self._unsynced_names.add(ref)
        self._keep(ref, file)
        has_left = file.size() > 0
        if has_left:
            file.truncate(0)
        return has_left

    def _make_group(self, topic_id: int) -> None:
        group = self._group(topic_id)
        if group not in self._made_groups:
            self._files.mkdir(group)
            self._made_groups.add(group)

    def _write_continued(self, ref: LedgerRef, own_from: int, epoch: int) -> None:
        header = LedgerHeader(ref.topic_id, ref.ledger_id, own_from, epoch, 0)
        self._append_own(ref, 0, [encode_header(header, CONTINUED_MAGIC)])

    def _append_own(self, ref: LedgerRef, at: int, buffers: Sequence[Buffer]) -> None:
        self._unsynced_files.add(ref)
        file = self._file(ref)
        file.pwritev(buffers, at)
        size = sum(map(len, buffers))
        if size >= START_WRITING_BYTES:
            file.start_writing(size, at)
        self._unsettled[ref] = self._unsettled.get(ref, 0) + size

    def append_index(self, ref: LedgerRef, header: LedgerHeader, at_row: int, rows: Buffer) -> None:
        self._unsynced_files.add(ref)
        if at_row == 0:
            self._unsynced_names.add(ref)
            self._make_group(ref.topic_id)
        file = self._files.open(self._path(ref, _INDEX), create=at_row == 0)
        try:
            if at_row == 0:
                file.pwritev([encode_header(header, INDEX_MAGIC), rows], 0)
            else:
                file.pwritev([rows], FILE_HEADER_BYTES + at_row * INDEX_ROW_BYTES)
        finally:
            file.close()

    # ------------------------------------------------------------ reading

    def read(self, ref: LedgerRef, at: int, count: int) -> bytes:
        def read_own(own_at: int, own_count: int) -> bytes:
            if ref in self._foreign:
                return b""
            # What is not synced may be needed from the cache: after a failed sync it is proven and written again.
            is_synced = ref not in self._unsynced_files
            return self._read(self._path(ref, _LEDGER), own_at, own_count, may_forget=is_synced)

        return self._pool.read(ref, at, count, read_own)

    def file_of(self, ref: LedgerRef, at: int, count: int) -> tuple[str, FileIdentity] | None:
        entry = self._pool.extents.get(ref)
        if ref in self._foreign:
            return None
        if entry is not None and any(
            extent.position < at + count and at < extent.end for extent in entry.extents
        ):
            return None  # in the pool, where it may be moved at any time
        path = self._path(ref, _LEDGER)
        identity = self._files.identify(path)
        return None if identity is None else (str(path), identity)

    def read_index(self, ref: LedgerRef, at_row: int, count: int) -> bytes:
        path = self._path(ref, _INDEX)
        try:
            decode_header(self._read(path, 0, FILE_HEADER_BYTES), INDEX_MAGIC)
        except LedgerDamaged:
            return b""
        return self._read(
            path, FILE_HEADER_BYTES + at_row * INDEX_ROW_BYTES, count * INDEX_ROW_BYTES
        )

    # ------------------------------------------------------------ keeping

    def sync(self, refs: Collection[LedgerRef]) -> None:
        pooled, written = self._pool.extents, self._unsynced_files
        own = [ref for ref in refs if ref in written or pooled.get(ref) is None]
        try:
            if len(own) > SYNC_EACH_MAX:
                self._files.sync_all(self._directory)
                self._pool.synced()
            else:
                for ref in own:
                    self._sync_one(ref)
                self._pool.sync()
        except DanubiusError:
            self._pool.sync_failed()
            raise
        self._unsynced_files.difference_update(own)
        for ref in own:
            self._unsettled.pop(ref, None)
        self._unsynced_names.difference_update(own)

    def settle(self) -> None:
        for ref, size in list(self._unsettled.items()):
            if size >= self._settle_bytes:
                self._sync_content(ref)

    def seal(self, ref: LedgerRef) -> None:
        self._own.pop(ref, None)
        self._close(ref)
        self._pool.join_later(ref)

    def tidy(self) -> None:
        self._pool.tidy()

    def recover(self, known: Mapping[LedgerRef, LedgerMeta]) -> None:
        own = self._list_own()
        if any(ref not in own and self._pool.extents.get(ref) is None for ref in known):
            self._pool.keep_dead()
        for ref, meta in known.items():
            entry = self._pool.extents.get(ref)
            if entry is None:
                continue
            if entry.epoch != meta.epoch:
                self._pool.pass_over(ref)
                continue
            if meta.is_sealed:  # what lies behind the end of another is looked at first
                self._pool.extents.cut(ref, meta.data_bytes)
            if ref in own:
                self._settle_own(ref, meta.epoch)
            self._pool.join_later(ref)

    def _settle_own(self, ref: LedgerRef, epoch: int) -> None:
        """A ledger in the pool may go on in a file of its own, or there is one of the same name that is not its."""
        data = self._read(self._path(ref, _LEDGER), 0, FILE_HEADER_BYTES)
        for magic in (CONTINUED_MAGIC, LEDGER_MAGIC):
            with contextlib.suppress(LedgerDamaged):
                header = decode_header(data, magic)
                if header.epoch != epoch:
                    # Its removal was undone by a power loss.
                    self._foreign.add(ref)
                else:
                    self._pool.extents.cut(
                        ref, header.base_offset if magic == CONTINUED_MAGIC else 0
                    )
                return

    def size_of(self, ref: LedgerRef) -> int:
        entry = self._pool.extents.get(ref)
        size = 0 if entry is None else entry.end
        path = self._path(ref, _LEDGER)
        if ref not in self._foreign and self._files.exists(path):
            with contextlib.closing(self._files.open(path, write=False)) as file:
                size = max(size, file.size())
        return size

    def set_aside(self, ref: LedgerRef) -> str:
        """Into `quarantine/` beside the ledgers; what the pool has of it is copied there first."""
        folder = self._directory.parent / QUARANTINE
        self._files.mkdir(folder, sync=True)
        self._close(ref)
        entry = self._pool.extents.get(ref)
        epoch = 0 if entry is None else entry.epoch
        stem = f"{ref.topic_id:016x}-{ref.ledger_id:08x}-{epoch:08x}"
        while any(name.startswith(f"{stem}.") for name in self._files.listdir(folder)):
            stem += "-again"
        if entry is not None:
            data = self._pool.read(ref, 0, entry.end, read_nothing)
            self._files.write_atomic(folder / f"{stem}.pooled", data)
        for suffix in (_INDEX, _LEDGER):
            if self._files.exists(self._path(ref, suffix)):
                self._files.rename(self._path(ref, suffix), folder / f"{stem}{suffix}")
        self._files.sync_dir(folder)
        self._files.sync_dir(self._group(ref.topic_id))
        self._pool.extents.drop(ref)
        return str(folder / stem)

    def truncate(self, ref: LedgerRef, data_bytes: int, index_rows: int) -> None:
        self._pool.extents.cut(ref, data_bytes)
        index_bytes = FILE_HEADER_BYTES + index_rows * INDEX_ROW_BYTES
        for path, size in (
            (self._path(ref, _LEDGER), data_bytes),
            (self._path(ref, _INDEX), index_bytes),
        ):
            if not self._files.exists(path):
                continue
            file = self._files.open(path)
            try:
                if file.size() > size:
                    file.truncate(size)
            finally:
                file.close()

    def delete(self, ref: LedgerRef) -> None:
        self._forget(ref)
        self._pool.extents.drop(ref)
        # The data goes last: an index without a ledger would be listed by nobody.
        self._files.remove(self._path(ref, _INDEX))
        self._files.remove(self._path(ref, _LEDGER))

    def delete_topic(self, topic_id: int) -> None:
        for ref in self._unsynced_files.union(self._own):
            if ref.topic_id == topic_id:
                self._forget(ref)
        self._pool.extents.drop_topic(topic_id)
        group = self._group(topic_id)
        prefix = f"{topic_id:016x}-"
        # Indexes sort before ledgers: an index without a ledger would be listed by nobody.
        for name in self._files.listdir(group):
            if name.startswith(prefix):
                self._files.remove(group / name)

    def list(self) -> list[LedgerRef]:
        return sorted(self._list_own().union(self._pool.extents.refs()))

    def _list_own(self) -> set[LedgerRef]:
        return {
            LedgerRef(int(match[1], 16), int(match[2], 16))
            for group in self._files.listdir(self._directory)
            for name in self._files.listdir(self._directory / group)
            if (match := _NAME.fullmatch(name))
        }

    def close(self) -> None:
        for ref in list(self._open):
            self._close(ref)
        self._pool.close()

    def _forget(self, ref: LedgerRef) -> None:
        self._close(ref)
        self._own.pop(ref, None)
        self._foreign.discard(ref)
        self._unsynced_files.discard(ref)
        self._unsettled.pop(ref, None)
        self._unsynced_names.discard(ref)

    def _group(self, topic_id: int) -> Path:
        return self._groups[topic_id % _GROUPS]

    def _path(self, ref: LedgerRef, suffix: str) -> Path:
        return self._group(ref.topic_id) / f"{ref.topic_id:016x}-{ref.ledger_id:08x}{suffix}"

    def _read(self, path: Path, at: int, count: int, *, may_forget: bool = False) -> bytes:
        try:
            file = self._files.open(path, write=False)
        except StorageFailed:
            if self._files.exists(path):
                raise
            return b""
        try:
            data = file.pread(count, at)
            if len(data) >= _READ_AHEAD_FROM:
                # Once for many reads: the system looks at every page that it was told of, each time it is told.
                if at // _READ_AHEAD_STEP != (at + count) // _READ_AHEAD_STEP:
                    file.read_ahead(_READ_AHEAD_BYTES, at + count)
                behind = at - _READ_BEHIND_BYTES
                if behind > 0 and may_forget:
                    # What is freed here is what the next read takes: memory that was in use a moment ago is cheaper
                    # than any other, above all on virtual machines, whose hosts take back what is free.
                    start = max(0, behind - count)
                    file.forget_cached(start, behind - start)
            return data
        finally:
            file.close()

    def _file(self, ref: LedgerRef) -> File:
        file = self._open.get(ref)
        if file is not None:
            self._open.move_to_end(ref)
            return file
        file = self._files.open(self._path(ref, _LEDGER))
        self._keep(ref, file)
        return file

    def _keep(self, ref: LedgerRef, file: File) -> None:
        self._open[ref] = file
        if len(self._open) > self._open_files_max:
            self._close(next(iter(self._open)))

    def _close(self, ref: LedgerRef) -> None:
        file = self._open.pop(ref, None)
        if file is not None:
            file.close()

    def _sync_content(self, ref: LedgerRef) -> None:
        file = self._file(ref)
        file.datasync()
        # Whoever is near the tail reads from our own cache. Without this the system would keep every byte that was
        # ever written until memory is short, and give each new one memory that nobody used before, which is dear.
        file.forget_cached()
        self._unsettled.pop(ref, None)

    def _sync_one(self, ref: LedgerRef) -> None:
        if ref in self._own or self._pool.extents.get(ref) is None:
            self._sync_content(ref)
        path = self._path(ref, _INDEX)
        # A ledger without a finished block has no index yet.
        if self._files.exists(path):
            with contextlib.closing(self._files.open(path)) as file:
                file.datasync()
        if ref in self._unsynced_names:
            directory = path.parent
            for level in (directory, self._directory, self._directory.parent):
                self._files.sync_dir(level)
