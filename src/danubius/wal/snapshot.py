"""Snapshots: the broker's state as of a journal position, replaced atomically.

Invariants:
- A snapshot is whole or absent: written aside, synced, renamed, its name synced.
- The last two are kept, so that one damaged file does not end a broker. The journal must be
  trimmed to the position that `save` returns (the older of the two), or the older one is worthless.
  The older one is given up only where the journal would have no room without that.
"""

from __future__ import annotations

import logging
import re
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import DataDirectoryDamaged, DataDirectoryTooNew
from danubius.record.checksum import crc32c

if TYPE_CHECKING:
    from pathlib import Path

    from danubius.runtime.files import Files

FORMAT_VERSION: Final = 1
KEPT: Final = 2
_MAGIC: Final = b"DNSS"
_START: Final = struct.Struct("<4sI")
_REST: Final = struct.Struct("<IIQQ")
_HEADER_BYTES: Final = _START.size + _REST.size
_NAME: Final = re.compile(r"(\d{20})\.snapshot\Z")

log = logging.getLogger(__name__)


class Snapshot(NamedTuple):
    """A state, and the journal position from which to replay on top of it."""

    position: int
    data: bytes


class SnapshotStore:
    """The snapshots in one directory. Synchronous: call it from a thread."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._damaged: list[int] = []
        """Newer than the one that was loaded."""

    def save(self, position: int, data: bytes, *, is_sole: bool = False) -> int:
        """Make a snapshot durable; the answer is the position to which the journal may be trimmed.

        The first snapshot frees nothing: until there is a second, the answer is 0. With `is_sole`,
        for a journal that must have room, a newest one that is already at `position` becomes the
        only one: then everything below it is free.
        """
        self._files.mkdir(self._directory, sync=True)
        is_known = self._positions()[-1:] == [position]
        if not (is_known and self._load(position) == Snapshot(position, data)):
            rest = _REST.pack(FORMAT_VERSION, 0, position, len(data))
            crc = crc32c(data, crc32c(rest))
            self._files.write_atomic(self._path(position), _START.pack(_MAGIC, crc) + rest + data)
        kept = 1 if is_sole and is_known else KEPT
        positions = self._positions()
        for old in positions[:-kept]:
            self._files.remove(self._path(old))
        return positions[-kept] if len(positions) >= kept else 0

    def load_latest(self) -> Snapshot | None:
        """The newest whole snapshot; None if there has never been one. Changes nothing.

        A damaged one is passed over if an older one can take its place; otherwise DataDirectoryDamaged.
        """
        self._damaged = []
        for position in reversed(self._positions()):
            snapshot = self._load(position)
            if snapshot is not None:
                return snapshot
            self._damaged.append(position)
        if self._damaged:
            raise DataDirectoryDamaged(
                f"no snapshot in {self._directory} passes its checksum: restore the directory "
                "from a copy; a repair needs one of them too"
            )
        return None

    def set_aside(self) -> None:
        """Rename those that were passed over to .damaged: they do not count any more."""
        for position in self._damaged:
            path = self._path(position)
            log.error("a snapshot is damaged, using the one before", extra={"path": str(path)})
            self._files.rename(path, path.with_name(path.name + ".damaged"))
        if self._damaged:
            self._files.sync_dir(self._directory)
        self._damaged = []

    def oldest_position(self) -> int:
        """From here on the journal is needed by one snapshot or another."""
        return min(self._positions(), default=0)

    def _load(self, position: int) -> Snapshot | None:
        content = self._files.read_bytes(self._path(position))
        if len(content) < _HEADER_BYTES:
            return None
        magic, crc = _START.unpack_from(content)
        if magic != _MAGIC or crc != crc32c(content[_START.size :]):
            return None
        version, _, stored_position, size = _REST.unpack_from(content, _START.size)
        if version > FORMAT_VERSION:
            raise DataDirectoryTooNew(
                f"{self._path(position)} has format version {version}, this version of Danubius "
                f"knows {FORMAT_VERSION}: start the version that wrote it, or a newer one"
            )
        if stored_position != position or size != len(content) - _HEADER_BYTES:
            return None
        return Snapshot(position, content[_HEADER_BYTES:])

    def _positions(self) -> list[int]:
        names = map(_NAME.match, self._files.listdir(self._directory))
        return sorted(int(name[1]) for name in names if name is not None)

    def _path(self, position: int) -> Path:
        return self._directory / f"{position:020d}.snapshot"
