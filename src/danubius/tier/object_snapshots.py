"""Snapshots as objects: the twin of `wal.snapshot` for brokers without a disk.

    diskless/snapshots/<position, 20 digits>-<epoch, 8 hexadecimal digits>

Which of them hold, the journal says (`core/journal_object.py`): a save is nothing before the journal has announced it,
and what it replaces is deleted only after that. So a broker that was replaced can neither bring in a snapshot nor take
one away, whenever its calls arrive.
"""

from __future__ import annotations

import logging
import re
import struct
from typing import TYPE_CHECKING, Final

from danubius.errors import DataDirectoryDamaged, DataDirectoryTooNew, ObjectNotFound
from danubius.record.checksum import crc32c
from danubius.tier.core.journal_object import KEPT_MAX, SnapshotRef
from danubius.tier.journal_objects import passing
from danubius.wal.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.tier.objects import ObjectStore

FORMAT_VERSION: Final = 1
SNAPSHOTS: Final = "snapshots/"
READ_TRIES: Final = 2
_MAGIC: Final = b"DNSO"
_START: Final = struct.Struct("<4sI")
_REST: Final = struct.Struct("<IIQQ")
_HEADER_BYTES: Final = _START.size + _REST.size
_NAME: Final = re.compile(r"([0-9]{20})-([0-9a-f]{8})")

log = logging.getLogger(__name__)


class ObjectSnapshots:
    """A SnapshotPort. Synchronous: call it from a thread."""

    def __init__(
        self, objects: ObjectStore, prefix: str, epoch: int, kept: tuple[SnapshotRef, ...]
    ) -> None:
        self._objects = objects
        self._prefix = prefix + SNAPSHOTS
        self._epoch = epoch
        self.kept = kept
        """Those that hold once the journal has announced them, the newest last. Replaced as a whole."""

    def save(self, position: int, data: bytes, *, is_sole: bool = False) -> int:
        """Store a snapshot; the answer is the position to which the journal may be trimmed."""
        ref = SnapshotRef(position, self._epoch)
        is_known = self.kept[-1:] == (ref,)
        if not is_known:
            # One that may have been announced is never replaced: a later start may stand on it by now.
            rest = _REST.pack(FORMAT_VERSION, 0, position, len(data))
            head = _START.pack(_MAGIC, crc32c(data, crc32c(rest))) + rest
            with passing():
                self._objects.put(self._name(ref), [head, data], replace=True)
        others = tuple(old for old in self.kept if old.position != position)
        kept = 1 if is_sole and is_known else KEPT_MAX
        self.kept = (*others, ref)[-kept:]
        return self.kept[0].position if len(self.kept) >= kept else 0

    def load_latest(self) -> Snapshot | None:
        """The newest whole snapshot; None if there has never been one. Raises DataDirectoryDamaged."""
        for number in range(len(self.kept), 0, -1):
            ref = self.kept[number - 1]
            snapshot = self._load(ref)
            if snapshot is not None:
                self.kept = self.kept[:number]
                return snapshot
            log.error("a snapshot is damaged or missing", extra={"object": self._name(ref)})
        if self.kept:
            raise DataDirectoryDamaged(
                f"no snapshot in {self._objects.url} passes its checksum: restore the store from a copy"
            )
        return None

    def set_aside(self) -> None:
        """Those that hold are named by the journal: `load_latest` has left the others out of `kept`."""

    def oldest_position(self) -> int:
        """From here on the journal is needed by one snapshot or another."""
        return min((ref.position for ref in self.kept), default=0)

    def needless(self, kept: Sequence[SnapshotRef]) -> list[SnapshotRef]:
        """Those before the newest that holds; what is newer may be on its way to hold, or is a later start's."""
        found: list[SnapshotRef] = []
        with passing():
            for info in self._objects.list(self._prefix):
                match = _NAME.fullmatch(info.name.removeprefix(self._prefix))
                if match is not None:
                    ref = SnapshotRef(int(match[1]), int(match[2], 16))
                    if ref not in kept and kept and ref < kept[-1] and ref.epoch <= self._epoch:
                        found.append(ref)
        return found

    def delete(self, ref: SnapshotRef) -> None:
        with passing():
            self._objects.delete(self._name(ref))

    def _load(self, ref: SnapshotRef) -> Snapshot | None:
        for _ in range(READ_TRIES):
            with passing():
                info = self._objects.stat(self._name(ref))
                if info is None:
                    return None
                try:
                    content = self._objects.get(self._name(ref), 0, info.size)
                except ObjectNotFound:
                    return None
            snapshot = self._parse(ref, content)
            if snapshot is not None:
                return snapshot
        return None

    def _parse(self, ref: SnapshotRef, content: bytes) -> Snapshot | None:
        if len(content) < _HEADER_BYTES:
            return None
        magic, crc = _START.unpack_from(content)
        if magic != _MAGIC:
            return None
        version, _, position, size = _REST.unpack_from(content, _START.size)
        data = content[_HEADER_BYTES:]
        if crc != crc32c(data, crc32c(content[_START.size : _HEADER_BYTES])):
            return None
        if version > FORMAT_VERSION:
            raise DataDirectoryTooNew(
                f"{self._name(ref)} has format version {version}, this version of Danubius knows "
                f"{FORMAT_VERSION}: start the version that wrote it, or a newer one"
            )
        return Snapshot(position, data) if (position, size) == (ref.position, len(data)) else None

    def _name(self, ref: SnapshotRef) -> str:
        return f"{self._prefix}{ref.position:020d}-{ref.epoch:08x}"
