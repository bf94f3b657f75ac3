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
from danubius.ledger.leftovers import find_newer
from danubius.model.ids import Epoch
from danubius.record.checksum import crc32c
from danubius.wal.segments import MARK_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from danubius.ledger.leftovers import Leftover
    from danubius.ledger.store import LedgerStore
    from danubius.runtime.files import Files, HeldLock
    from danubius.shard.recovery.survey import Survey

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
NOTHING: Final = "nothing"
JOURNAL: Final = "journal"
SNAPSHOT: Final = "journal and snapshot"
_CHECKSUM: Final = b',"checksum":"'
"""The last field: crc32c of all bytes before it. Files of earlier versions have none."""


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `danubius.json` says."""

    format: int
    broker_id: str
    epoch: int
    store_id: str = ""
    """Under which its objects are kept; empty: it was never used with an object store."""
    holds: str = ""
    """What must be found beside this file; empty: it was last written by a version that did not say."""


class _Checked(msgspec.Struct):
    """The part of the file that says whether the rest is as it was written."""

    checksum: str = ""


class DataDirectory:
    """A data directory that this process holds: opened, looked at, then taken up, which is the first change to it."""

    def __init__(
        self, path: Path, files: Files, lock: HeldLock, identity: Identity, before: bytes | None
    ) -> None:
        self.path = path
        self._files = files
        self._lock = lock
        self._identity = identity
        self._before = before
        """What the file was when this process came; None: there was none."""
        self.broker_id = identity.broker_id
        self.known_epoch = identity.epoch
        """That of the last start, as far as the file knows; 0: there was none."""
        self.epoch = Epoch(identity.epoch)
        """Of this start, once the directory is taken up."""

    @classmethod
    def open(cls, path: Path, files: Files, new_broker_id: str) -> DataDirectory:
        """Hold the directory, making it if needed. Nothing in it is changed but the lock."""
        files.mkdir(path, sync=True)
        lock = files.lock(path / "lock")
        try:
            identity, before = _look_up(path, files, new_broker_id)
        except BaseException:
            lock.release()
            raise
        return cls(path, files, lock, identity, before)

    def check(self, survey: Survey, *, has_ledgers: bool) -> None:
        """Refuse a directory from which something is missing that was there. Raises DataDirectoryDamaged."""
        holds = self._identity.holds
        if survey.has_snapshot:
            return
        if holds == SNAPSHOT:
            raise DataDirectoryDamaged(
                f"{self.snapshots} has no snapshot, while {self.path} had some: it is not mounted yet, or was deleted; "
                "put it back as it was, or restore the whole directory from a copy. If there is none, "
                f"`danubius storage repair --data-dir {self.path} --dry-run` says whether the journal is enough"
            )
        if survey.end:
            return  # from the first record on: a broker that died before it saved anything
        if holds == JOURNAL or has_ledgers or (not holds and self.known_epoch > 1):
            raise DataDirectoryDamaged(
                f"{self.path} was used, and has neither a journal nor a snapshot: {self.journal} and {self.snapshots} "
                "are not mounted yet, or were deleted; put them back as they were, or restore the whole directory from "
                "a copy. If nothing was ever stored in it, remove the directory"
            )

    def check_ledgers(self, survey: Survey) -> None:
        """Refuse a directory whose ledgers are gone, all of them. Raises DataDirectoryDamaged."""
        expected = sum(
            meta.is_local and meta.data_bytes > 0
            for state in survey.snapshot.topics
            for meta in state.ledgers
        )
        if expected and not self._files.listdir(self.ledgers):
            raise DataDirectoryDamaged(
                f"{self.ledgers} is empty, while {expected} ledgers must be there: it is not mounted yet, or was "
                "deleted; put it back as it was, or restore the whole directory from a copy"
            )

    def check_age(self, survey: Survey, store: LedgerStore, leftovers: Iterable[Leftover]) -> None:
        """Refuse snapshots and a journal that are older than the ledgers. Raises DataDirectoryDamaged.

        A journal that does not say how far it was synced may be older, and so may one that a repair gave a part up of.
        A power loss may take the end of what is not synced from the journal and leave it to a ledger of the same life.
        """
        mark = self.journal / MARK_NAME
        if survey.has_given_up or not self._files.exists(mark):
            return
        ends = {topic_id: topic.next_offset for topic_id, topic in survey.topics.items()}
        telling = [
            one
            for one in leftovers
            if one.epoch > survey.epoch
            or (one.is_behind and survey.topics[one.ref.topic_id].is_synced)
        ]
        newer = find_newer(store, telling, ends)
        if newer is None:
            return
        topic = survey.topics[newer.ref.topic_id]
        raise DataDirectoryDamaged(
            f"{self.ledgers} has message {newer.offset} of {topic.name}, while {self.snapshots} and {self.journal} "
            f"end at {topic.next_offset}: they are of an older copy, or the ledgers are another broker's; restore all "
            "of them from one copy. Only if this directory is itself a copy, made while the broker ran, or nothing "
            f"newer is left, remove {mark} and start again: what is newer is then kept in quarantine/"
        )

    def take_up(self, highest_epoch: int = 0) -> None:
        """Everything was looked at: begin a new epoch, above all that were seen anywhere."""
        identity = self._identity
        self.epoch = Epoch(max(identity.epoch, highest_epoch) + 1)
        self._write(
            msgspec.structs.replace(
                identity, epoch=self.epoch, format=max(identity.format, FORMAT_VERSION)
            )
        )

    def put_back(self) -> None:
        """This start is refused after all: leave the directory as it was."""
        file = self.path / "danubius.json"
        if self._before is None:
            self._files.remove(file)
        else:
            self._files.write_atomic(file, self._before)

    @property
    def holds(self) -> str:
        """What must be found in the directory beside `danubius.json`."""
        return self._identity.holds

    def mark(self, holds: str) -> None:
        """From here on the directory has a journal, or a snapshot too: one without them has lost them."""
        if self._identity.holds != holds:
            self._write(msgspec.structs.replace(self._identity, holds=holds))

    def _write(self, identity: Identity) -> None:
        _write_identity(self.path / "danubius.json", self._files, identity)
        self._identity = identity

    @property
    def store_id(self) -> str:
        """Under which its objects are kept; empty: it was never used with an object store."""
        return self._identity.store_id

    def use_tier(self, new_store_id: str) -> str:
        """Under which name its objects are kept in any object store: the same for as long as the directory exists."""
        if not self._identity.store_id:
            version = max(self._identity.format, TIERED_VERSION)
            identity = msgspec.structs.replace(self._identity, format=version)
            self._write(msgspec.structs.replace(identity, store_id=new_store_id))
        return self._identity.store_id

    def raise_format(self) -> None:
        """From here on ledgers may lie elsewhere, which older versions must not take for lost."""
        version = max(self._identity.format, TIERED_VERSION)
        self._write(msgspec.structs.replace(self._identity, format=version))

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


def read_identity(path: Path, files: Files) -> Identity:
    """Who the data directory at `path` says it is. Raises DataDirectoryDamaged, DataDirectoryTooNew."""
    file = path / "danubius.json"
    return _decode_identity(files.read_bytes(file), file)


def _look_up(path: Path, files: Files, new_broker_id: str) -> tuple[Identity, bytes | None]:
    file = path / "danubius.json"
    if files.exists(file):
        return read_identity(path, files), files.read_bytes(file)
    if any(files.exists(path / name) for name in ("journal", "ledgers", "snapshots")):
        raise DataDirectoryDamaged(
            f"{path} holds data but no danubius.json, which tells its format; restore that file from a backup, "
            "or choose another --data-dir"
        )
    return Identity(FORMAT_VERSION, new_broker_id, 0, holds=NOTHING), None
