"""The home of a broker without a disk: below `diskless/` of an object store, in place of a data directory and its lock.

    diskless/identity.json             who it is, once for all
    diskless/epochs/<epoch>            a start, or a life after a failure; the process that has it
    diskless/journal/<slot>            core/journal_object.py
    diskless/snapshots/<position>-…    object_snapshots.py
    diskless/ledgers/…                 core/pieces.py

Invariant: whoever has come through `open` is the only one who commits, until another comes through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from danubius.errors import DataDirectoryDamaged, DataDirectoryTooNew, TierMisconfigured
from danubius.model.ids import Epoch
from danubius.tier.core.fencing import ListEpochs, take_epoch, take_over
from danubius.tier.journal_objects import EPOCHS, JournalObjects
from danubius.tier.object_ledgers import ObjectLedgerStore
from danubius.tier.object_snapshots import SNAPSHOTS, ObjectSnapshots

if TYPE_CHECKING:
    from danubius.tier.core.journal_object import Author, Walk
    from danubius.tier.objects import ObjectStore

PREFIX: Final = "diskless/"
FORMAT_VERSION: Final = 1
_IDENTITY: Final = PREFIX + "identity.json"
_IDENTITY_BYTES_MAX: Final = 4096


class Identity(msgspec.Struct, frozen=True):
    """What `identity.json` says."""

    format: int
    broker_id: str


class ObjectHome:
    """A place that this process has taken, and what counts of what lies there."""

    def __init__(self, objects: ObjectStore, broker_id: str, author: Author, found: Walk) -> None:
        self._objects = objects
        self.broker_id = broker_id
        self.author = author
        self.epoch = Epoch(author.epoch)
        self.found = found
        self.journal_objects = JournalObjects(objects, PREFIX)
        self.snapshots = ObjectSnapshots(objects, PREFIX, author.epoch, found.kept)
        self.ledgers = ObjectLedgerStore(objects, f"{PREFIX}ledgers/", epoch_max=author.epoch)

    @classmethod
    def open(
        cls, objects: ObjectStore, new_broker_id: str, process: int, deadline_s: float
    ) -> ObjectHome:
        """Take the place over from whoever has it. Blocks; raises DanubiusError.

        A store that does not refuse by itself to replace an object is TierMisconfigured: two brokers could have it.
        """
        if not objects.refuses(f"{PREFIX}probes/{process:016x}"):
            raise TierMisconfigured(
                f"{objects.url} does not refuse to replace an object (put if absent, If-None-Match), and without that "
                "two brokers could write to it at once: it is not for a broker without a disk; S3, GCS, Azure Blob and "
                "fs:// are, and any store can keep ledgers (--ledger-store object) or be cold storage (--tier-url)"
            )
        journal = JournalObjects(objects, PREFIX)
        _check_used(objects, journal)
        identity = _identify(objects, new_broker_id)
        author = journal.run(take_epoch(process, journal.last_epoch()), deadline_s)
        return cls(objects, identity.broker_id, author, journal.run(take_over(author), deadline_s))

    @property
    def url(self) -> str:
        return self._objects.url

    def later_start(self) -> int:
        """The number of a start behind this one; 0: there is none."""
        numbers = self.journal_objects.answer(ListEpochs()).numbers
        return max((number for number in numbers if number > self.author.epoch), default=0)

    def close(self) -> None:
        self._objects.close()


def _check_used(objects: ObjectStore, journal: JournalObjects) -> None:
    """Refuse a place from which something is missing that was there. Changes nothing; raises DataDirectoryDamaged."""
    is_known = objects.stat(_IDENTITY) is not None
    if not is_known and next(iter(objects.list(PREFIX + EPOCHS)), None) is not None:
        raise DataDirectoryDamaged(
            f"{objects.url} has the starts of a broker, and not who it is: {_IDENTITY} is missing; restore it from a "
            "copy"
        )
    if journal.has_records():
        return
    first = f"{PREFIX}{SNAPSHOTS}{0:020d}-"
    snapshots = (info.name for info in objects.list(PREFIX + SNAPSHOTS))
    has_state = any(not name.startswith(first) for name in snapshots)
    if has_state or next(iter(objects.list(f"{PREFIX}ledgers/")), None) is not None:
        raise DataDirectoryDamaged(
            f"{objects.url} has snapshots or ledgers, and no journal: {PREFIX}journal/ was deleted, or is of another "
            "place; restore it from a copy"
        )


def _identify(objects: ObjectStore, new_broker_id: str) -> Identity:
    new = Identity(FORMAT_VERSION, new_broker_id)
    if objects.put(_IDENTITY, [msgspec.json.encode(new)]):
        return new
    info = objects.stat(_IDENTITY)
    data = objects.get(_IDENTITY, 0, min(_IDENTITY_BYTES_MAX, info.size if info else 0))
    try:
        found = msgspec.json.decode(data, type=Identity)
    except msgspec.MsgspecError as error:
        raise DataDirectoryDamaged(f"{_IDENTITY} in {objects.url} is damaged: {error}") from error
    if found.format > FORMAT_VERSION:
        raise DataDirectoryTooNew(
            f"{objects.url} has format {found.format}, this version of Danubius reads up to {FORMAT_VERSION}: "
            "start a newer version on it, or choose another prefix"
        )
    return found
