"""Ledgers in files of one directory tree: the default.

    DIR/<last byte of the topic id>/<topic id>-<ledger id>.ledger
    DIR/<last byte of the topic id>/<topic id>-<ledger id>.index

All numbers are hexadecimal, 2, 16 and 8 digits. There is no directory of a topic's own: making ten thousand of them
costs more than all their first writes. Files open for writing are kept open, the last used
ones up to a bound; readers open a file for each read (10 microseconds beside a read of a megabyte), so threads
share nothing.
"""

from __future__ import annotations

import contextlib
import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from danubius.errors import LedgerDamaged, StorageFailed
from danubius.ledger.core.format import (
    FILE_HEADER_BYTES,
    INDEX_MAGIC,
    INDEX_ROW_BYTES,
    LedgerHeader,
    decode_header,
    encode_header,
)
from danubius.ledger.entry import LedgerRef
from danubius.model.limits import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from danubius.ledger.entry import Buffer
    from danubius.runtime.files import File, Files

OPEN_FILES_MAX: Final = 512
SYNC_EACH_MAX: Final = 8
"""Up to here ledgers are synced one by one; more are synced with the whole file system at once."""
_LEDGER: Final = ".ledger"
_INDEX: Final = ".index"
_READ_AHEAD_FROM: Final = 128 * KIB
"""Reads of this size are of somebody who catches up, and reads on."""
_READ_AHEAD_BYTES: Final = 8 * MIB
_NAME: Final = re.compile(r"([0-9a-f]{16})-([0-9a-f]{8})\.ledger")
_GROUPS: Final = 256


class LocalLedgerStore:
    """Two files a ledger."""

    def __init__(
        self, files: Files, directory: Path, *, open_files_max: int = OPEN_FILES_MAX
    ) -> None:
        self._files = files
        self._directory = directory
        self._open_files_max = open_files_max
        self._open: OrderedDict[LedgerRef, File] = OrderedDict()
        self._unsynced_names: set[LedgerRef] = set()
        self._groups = [directory / f"{number:02x}" for number in range(_GROUPS)]
        self._made_groups: set[Path] = set()

    def create(self, ref: LedgerRef, header: LedgerHeader, buffers: Sequence[Buffer] = ()) -> None:
        self._close(ref)
        group = self._group(ref.topic_id)
        if group not in self._made_groups:
            self._files.mkdir(group)
            self._made_groups.add(group)
        file = self._files.open(self._path(ref, _LEDGER), create=True)
        self._unsynced_names.add(ref)
        self._keep(ref, file)
        if file.size():  # left by an attempt that failed
            self._files.remove(self._path(ref, _INDEX))
            file.truncate(0)
        file.pwritev([encode_header(header), *buffers], 0)

    def append(self, ref: LedgerRef, at: int, buffers: Sequence[Buffer]) -> None:
        self._file(ref).pwritev(buffers, at)

    def append_index(self, ref: LedgerRef, header: LedgerHeader, at_row: int, rows: Buffer) -> None:
        if at_row == 0:
            self._unsynced_names.add(ref)
        file = self._files.open(self._path(ref, _INDEX), create=at_row == 0)
        try:
            if at_row == 0:
                file.pwritev([encode_header(header, INDEX_MAGIC), rows], 0)
            else:
                file.pwritev([rows], FILE_HEADER_BYTES + at_row * INDEX_ROW_BYTES)
        finally:
            file.close()

    def read(self, ref: LedgerRef, at: int, count: int) -> bytes:
        return self._read(self._path(ref, _LEDGER), at, count)

    def read_index(self, ref: LedgerRef, at_row: int, count: int) -> bytes:
        path = self._path(ref, _INDEX)
        try:
            decode_header(self._read(path, 0, FILE_HEADER_BYTES), INDEX_MAGIC)
        except LedgerDamaged:
            return b""
        return self._read(
            path, FILE_HEADER_BYTES + at_row * INDEX_ROW_BYTES, count * INDEX_ROW_BYTES
        )

    def sync(self, refs: Collection[LedgerRef]) -> None:
        if len(refs) > SYNC_EACH_MAX:
            self._files.sync_all(self._directory)
        else:
            for ref in refs:
                self._sync_one(ref)
        self._unsynced_names.difference_update(refs)

    def seal(self, ref: LedgerRef) -> None:
        self._close(ref)

    def truncate(self, ref: LedgerRef, data_bytes: int, index_rows: int) -> None:
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
        self._close(ref)
        self._unsynced_names.discard(ref)
        # The data goes last: an index without a ledger would be listed by nobody.
        self._files.remove(self._path(ref, _INDEX))
        self._files.remove(self._path(ref, _LEDGER))

    def delete_topic(self, topic_id: int) -> None:
        for ref in [ref for ref in self._open if ref.topic_id == topic_id]:
            self._close(ref)
        self._unsynced_names = {ref for ref in self._unsynced_names if ref.topic_id != topic_id}
        group = self._group(topic_id)
        prefix = f"{topic_id:016x}-"
        # Indexes sort before ledgers: an index without a ledger would be listed by nobody.
        for name in self._files.listdir(group):
            if name.startswith(prefix):
                self._files.remove(group / name)

    def list(self) -> list[LedgerRef]:
        return sorted(
            LedgerRef(int(match[1], 16), int(match[2], 16))
            for group in self._files.listdir(self._directory)
            for name in self._files.listdir(self._directory / group)
            if (match := _NAME.fullmatch(name))
        )

    def close(self) -> None:
        for ref in list(self._open):
            self._close(ref)

    def _group(self, topic_id: int) -> Path:
        return self._groups[topic_id % _GROUPS]

    def _path(self, ref: LedgerRef, suffix: str) -> Path:
        return self._group(ref.topic_id) / f"{ref.topic_id:016x}-{ref.ledger_id:08x}{suffix}"

    def _read(self, path: Path, at: int, count: int) -> bytes:
        try:
            file = self._files.open(path, write=False)
        except StorageFailed:
            if self._files.exists(path):
                raise
            return b""
        try:
            data = file.pread(count, at)
            if len(data) >= _READ_AHEAD_FROM:
                file.read_ahead(_READ_AHEAD_BYTES, at + count)
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

    def _sync_one(self, ref: LedgerRef) -> None:
        file = self._file(ref)
        file.datasync()
        # Whoever is near the tail reads from our own cache. Without this the system would keep every byte that was ever
        # written until memory is short, and give each new one memory that nobody used before, which is dear.
        file.forget_cached()
        path = self._path(ref, _INDEX)
        # A ledger without a finished block has no index yet.
        if self._files.exists(path):
            with contextlib.closing(self._files.open(path)) as file:
                file.datasync()
        if ref in self._unsynced_names:
            directory = path.parent
            for level in (directory, self._directory, self._directory.parent):
                self._files.sync_dir(level)
