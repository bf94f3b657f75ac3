"""Reading what ledgers have in pool files, while these are written and compacted. Runs on any thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import StorageFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from danubius.ledger.core.extents import Entry, Extent, ExtentMap
    from danubius.ledger.entry import LedgerRef
    from danubius.runtime.files import File, Files

LOOKUPS_MAX: Final = 8
"""So often a read looks where bytes lie that are moved all the time."""


class Move(NamedTuple):
    """A copy that will count once it is synced."""

    ref: LedgerRef
    old: Extent
    new: Extent


class Join(NamedTuple):
    """A copy of all that the pool has of a ledger, in one piece, that will count once it is synced."""

    ref: LedgerRef
    before: Entry
    new: Extent


class PoolFile:
    """One file. `handle` is open while there is something to write or to sync."""

    __slots__ = ("handle", "is_unreadable", "key", "path", "rows", "salt", "size")

    def __init__(self, key: int, path: Path, salt: int) -> None:
        self.key = key
        self.path = path
        self.salt = salt
        self.size = 0
        self.handle: File | None = None
        self.rows: bytearray | None = None
        """The footer to be written; None if there is one."""
        self.is_unreadable = False


class PoolReader:
    """Shares the map of extents and the known files with the pool, and changes neither."""

    def __init__(self, files: Files, extents: ExtentMap, known: dict[int, PoolFile]) -> None:
        self._files = files
        self._extents = extents
        self._known = known

    def read(
        self, ref: LedgerRef, at: int, count: int, read_own: Callable[[int, int], bytes]
    ) -> bytes:
        """Bytes of a ledger; those that are not in the pool come from `read_own`.

        What is nowhere, but has something behind it, reads as zeros: the checksums will tell.
        """
        entry = self._extents.get(ref)
        for lookup in range(LOOKUPS_MAX):
            if entry is None:
                break
            accepts_loss = lookup == LOOKUPS_MAX - 1
            data = self._read_entry(entry, at, count, read_own, accepts_loss=accepts_loss)
            if data is not None:
                return data
            entry = self._extents.get(ref)
        return read_own(at, count)

    def _read_entry(
        self,
        entry: Entry,
        at: int,
        count: int,
        read_own: Callable[[int, int], bytes],
        *,
        accepts_loss: bool,
    ) -> bytes | None:
        end = at + count
        parts: list[bytes] = []
        with _Handles(self._files, self._known) as handles:
            for extent in entry.extents:
                if extent.end <= at or extent.position >= end:
                    continue
                if extent.position > at:
                    wanted = extent.position - at
                    parts.append(read_own(at, wanted).ljust(wanted, b"\0"))
                    at = extent.position
                wanted = min(extent.end, end) - at
                handle = handles.get(extent.file)
                if handle is None and not accepts_loss:
                    return None
                data = handle.pread(wanted, extent.offset + at - extent.position) if handle else b""
                parts.append(data.ljust(wanted, b"\0"))
                at += wanted
        if at < end:
            parts.append(read_own(at, end - at))
        return parts[0] if len(parts) == 1 else b"".join(parts)


class _Handles:
    """Pool files opened for one read."""

    def __init__(self, files: Files, known: dict[int, PoolFile]) -> None:
        self._files = files
        self._known = known
        self._open: dict[int, File] = {}

    def __enter__(self) -> _Handles:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._open.values():
            handle.close()

    def get(self, key: int) -> File | None:
        """None if the file was removed."""
        handle = self._open.get(key)
        if handle is None:
            file = self._known.get(key)
            if file is None:
                return None
            try:
                handle = self._files.open(file.path, write=False)
            except StorageFailed:
                if self._files.exists(file.path):
                    raise
                return None
            self._open[key] = handle
        return handle
