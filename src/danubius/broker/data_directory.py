"""The data directory: who may use it, which format it has, and how often it was taken up.

danubius.json    format version, broker id, epoch (rises with every start), under a checksum
lock             held by the running broker
journal/         see docs/internals/journal.md
snapshots/       the broker's state, the last two
ledgers/         see docs/internals/ledger.md
ledger-store.json   where ledgers are kept, if not there (app/ledger_stores.py)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from danubius.errors import DataDirectoryDamaged, DataDirectoryTooNew, StorageFull
from danubius.model.ids import Epoch
from danubius.record.checksum import crc32c

if TYPE_CHECKING:
    from pathlib import Path

    from danubius.runtime.files import Files, HeldLock

FORMAT_VERSION: Final = 4
"""Written by every start, unless there is a higher one; all from 1 on are read.

1   as of the first version
2   the journal may hold atomic records (kind 3) and facts from tag 9 on, snapshots and facts more fields, batches the
    flags EXPIRES and CHUNK: nothing was taken away, but a version that knows only 1 would lose what it does not know
3   ledgers may lie in pool files, in whole or in front: a version that knows only 2 would take them for lost
4   the states of topics in a snapshot may be ahead of it, and there are facts from tag 20 on: a version that knows
    only 3 would apply records twice, and not know what is staged
"""
TIERED_VERSION: Final = 5
"""Written once ledgers lie elsewhere, in an object store or wherever ledger-store.json says: a version that knows
only 4 would take them for lost."""
_FILE_BYTES: Final = 512
"""danubius.json is padded with spaces to one sector, which a disk writes whole or not at all."""
_CHECKSUM: Final = b',"checksum":"'
"""The last field: crc32c of all bytes before it. Files of earlier versions have none."""


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `danubius.json` says."""

    format: int
    broker_id: str
    epoch: int
    store_id: str = ""
    """Under which its objects are kept; empty: it was never used with an object store."""


class _Checked(msgspec.Struct):
    """The part of the file that says whether the rest is as it was written."""

    checksum: str = ""


class DataDirectory:
    """A data directory that this process holds."""

    def __init__(self, path: Path, files: Files, lock: HeldLock, identity: Identity) -> None:
        self.path = path
        self._files = files
        self._lock = lock
        self._identity = identity
        self.broker_id = identity.broker_id
        self.epoch = Epoch(identity.epoch)

    @classmethod
    def open(cls, path: Path, files: Files, new_broker_id: str) -> DataDirectory:
        """Take the directory, creating it if needed; every call gets a higher epoch."""
        files.mkdir(path, sync=True)
        lock = files.lock(path / "lock")
        try:
            identity = _next_identity(path, files, new_broker_id)
            _write_identity(path / "danubius.json", files, identity)
        except BaseException:
            lock.release()
            raise
        return cls(path, files, lock, identity)

    def use_tier(self, new_store_id: str) -> str:
        """Under which name its objects are kept in any object store: the same for as long as the directory exists."""
        if not self._identity.store_id:
            self._identity = msgspec.structs.replace(self._identity, store_id=new_store_id)
            self.raise_format()
        return self._identity.store_id

    def raise_format(self) -> None:
        """From here on ledgers may lie elsewhere, which older versions must not take for lost."""
        version = max(self._identity.format, TIERED_VERSION)
        self._identity = msgspec.structs.replace(self._identity, format=version)
        _write_identity(self.path / "danubius.json", self._files, self._identity)

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def snapshots(self) -> Path:
        return self.path / "snapshots"

    @property
    def ledgers(self) -> Path:
        return self.path / "ledgers"

    def release(self) -> None:
        self._lock.release()


def _write_identity(file: Path, files: Files, identity: Identity) -> None:
    data = encode_identity(identity)
    try:
        files.write_atomic(file, data)
    except StorageFull:
        if not files.exists(file):
            raise
        # What is stored can be read and served all the same. The sector exists: writing it again takes no space.
        target = files.open(file)
        try:
            target.pwritev([data], 0)
            target.datasync()
        finally:
            target.close()


def encode_identity(identity: Identity) -> bytes:
    """What `danubius.json` holds."""
    fields = msgspec.json.encode(identity)[:-1]
    return (fields + _CHECKSUM + b'%08x"}' % crc32c(fields)).ljust(_FILE_BYTES)


def _decode_identity(data: bytes, file: Path) -> Identity:
    try:
        known = msgspec.json.decode(data, type=Identity)
        checksum = msgspec.json.decode(data, type=_Checked).checksum
    except msgspec.MsgspecError as error:
        raise DataDirectoryDamaged(
            f"{file} is damaged ({error}): restore this one file from a copy, however old"
        ) from error
    if known.format > TIERED_VERSION:
        raise DataDirectoryTooNew(
            f"{file.parent} has format {known.format}, this version of Danubius reads up to {TIERED_VERSION}; "
            "start a newer version on it, or choose another --data-dir"
        )
    fields = data[: max(0, data.rfind(_CHECKSUM))]
    if checksum and checksum != f"{crc32c(fields):08x}":
        raise DataDirectoryDamaged(
            f"{file} fails its checksum, so what it says is not what a broker wrote: restore this one file from a "
            "copy, however old"
        )
    return known


def _next_identity(path: Path, files: Files, new_broker_id: str) -> Identity:
    file = path / "danubius.json"
    if not files.exists(file):
        if any(files.exists(path / name) for name in ("journal", "ledgers", "snapshots")):
            raise DataDirectoryDamaged(
                f"{path} holds data but no danubius.json, which tells its format; restore that file from a backup, "
                "or choose another --data-dir"
            )
        return Identity(FORMAT_VERSION, new_broker_id, 1)
    known = _decode_identity(files.read_bytes(file), file)
    version = max(known.format, FORMAT_VERSION)
    return Identity(version, known.broker_id, known.epoch + 1, known.store_id)
