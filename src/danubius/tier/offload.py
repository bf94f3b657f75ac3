"""The work of offloading at the object store: upload and verify ledgers, remove objects, find orphans, hold the fence.

All of it blocks, and runs on threads of its own; it shares nothing with the loop but what it is handed. Decisions are
the planner's and the broker's: here is no state beside the life that claimed the store.

Invariants:
- A ledger's bytes are proven block by block on their way into the object: damage stays local, and is told.
- An object counts when its size and its footer were read back as they must be, or, with `verify = "full"`, all of it.
- Nothing is deleted without a look at who owns the store, right before.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from danubius.errors import (
    DanubiusError,
    LedgerDamaged,
    ObjectNotFound,
    ShuttingDown,
    StorageFailed,
    UnsupportedVersion,
)
from danubius.ledger.entry import LedgerRef, StoredObject
from danubius.ledger.read_pool import ReadPool
from danubius.ledger.reader import load_index
from danubius.runtime.pacing import Pace
from danubius.runtime.threads import Worker
from danubius.tier.core.object_format import Footer, object_name
from danubius.tier.packing import LedgerPacker
from danubius.tier.unpacking import check_object, read_footer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from danubius.ledger.entry import LedgerMeta
    from danubius.ledger.store import LedgerStore
    from danubius.runtime.threads import Spawn
    from danubius.tier.config import TierConfig
    from danubius.tier.objects import ObjectStore

    Post = Callable[[Callable[[], None]], object]

QUEUED_MAX: Final = 1024
LISTED_MAX: Final = 1_000_000
"""Objects that one search for orphans looks at."""
OWNER: Final = "owner"
_OWNER_BYTES_MAX: Final = 4096

log = logging.getLogger(__name__)


class Owner(msgspec.Struct, frozen=True):
    """Whose life the objects of one store id belong to: the highest epoch that came."""

    epoch: int
    life: str


class Place(NamedTuple):
    """Who this broker is to the object store."""

    store_id: str
    owner: Owner

    @property
    def owner_name(self) -> str:
        return owner_name(self.store_id)


def owner_name(store_id: str) -> str:
    return f"{store_id}/{OWNER}"


def read_owner(objects: ObjectStore, name: str) -> Owner | None:
    """What a store says of its owner; None: nothing. Raises StorageFailed, also if it is not legible."""
    try:
        content = objects.get(name, 0, _OWNER_BYTES_MAX)
    except ObjectNotFound:
        return None
    try:
        return msgspec.json.decode(content, type=Owner)
    except msgspec.MsgspecError as error:
        raise StorageFailed(f"{name} is not legible: {error}") from error


class Removed(NamedTuple):
    """What became of a removal."""

    owner: Owner
    """Who owns the store; if that is another, nothing more was removed."""
    names: list[str]
    error: DanubiusError | None
    """Why the rest of the names were not removed."""


class TierWork:
    """The blocking calls. Each may raise StorageFailed, TierMisconfigured or ShuttingDown."""

    def __init__(
        self,
        config: TierConfig,
        store: LedgerStore,
        objects: ObjectStore,
        place: Place,
        block_bytes: int,
    ) -> None:
        self._config = config
        self._store = store
        self.objects = objects
        self.place = place
        self._block_bytes = block_bytes
        self.pace = Pace(config.upload_bytes_per_s)

    def name_of(self, ref: LedgerRef, epoch: int) -> str:
        return object_name(self.place.store_id, ref.topic_id, ref.ledger_id, epoch)

    # ------------------------------------------------------------ the fence

    def claim(self) -> Owner:
        """Take the store over from an earlier life; the answer is whose it is."""
        mine = self.place.owner
        found = self._owner_or_none()
        if found is not None and (found == mine or found.epoch >= mine.epoch):
            return found
        self.objects.put(self.place.owner_name, [msgspec.json.encode(mine)], replace=True)
        return self.owner()

    def owner(self) -> Owner:
        """Whose the store is now, once it was claimed."""
        owner = self._owner_or_none()
        if owner is None:
            raise StorageFailed(f"{self.place.owner_name} is not in {self.objects.url} any more")
        return owner

    def _owner_or_none(self) -> Owner | None:
        return read_owner(self.objects, self.place.owner_name)

    # ------------------------------------------------------------ putting

    def upload(self, ref: LedgerRef, meta: LedgerMeta) -> StoredObject:
        """Store a sealed ledger, unless it is stored already, and prove it. Raises LedgerDamaged too."""
        name = self.name_of(ref, meta.epoch)
        rows = load_index(self._store, ref, meta, self._block_bytes).rows_from(0)
        packer = LedgerPacker(self._store, ref, meta, rows)
        if not self.objects.put(name, self._paced(packer)):
            # Of an earlier attempt: what it must be is found out by reading the ledger, not by asking the object.
            for _ in packer.parts():
                self._check_running()
        problem = self._problem(name, _footer_of(packer))
        if problem is not None:
            log.warning("an object is stored again", extra={"object": name, "problem": problem})
            self.objects.put(name, self._paced(packer), replace=True)
            problem = self._problem(name, _footer_of(packer))
        if problem is not None:
            raise StorageFailed(f"{name} was stored, and {problem}")
        footer = _footer_of(packer)
        return StoredObject(name, footer.object_bytes, footer.data_crc, footer.index_rows)

    def _paced(self, packer: LedgerPacker) -> Iterator[bytes]:
        for part in packer.parts():
            if not self.pace.wait(len(part)):
                self._check_running()
            yield part

    def _check_running(self) -> None:
        if self.pace.has_ended:
            raise ShuttingDown("the broker is stopping and uploads no more")

    def _problem(self, name: str, expected: Footer) -> str | None:
        """What is wrong with an object that must have this footer; None if nothing is."""
        try:
            is_full = self._config.verify == "full"
            found = check_object(self.objects, name) if is_full else read_footer(self.objects, name)
        except ObjectNotFound:
            return "it is not there"
        except (LedgerDamaged, UnsupportedVersion) as error:
            return error.message
        return None if found == expected else "it is the object of another ledger"

    # ------------------------------------------------------------ letting go

    def still_stored(self, topic_id: int, metas: Sequence[LedgerMeta]) -> list[LedgerMeta]:
        """Which of these ledgers still have their objects, so that their files may go."""
        sound: list[LedgerMeta] = []
        for meta in metas:
            problem = self._lost(topic_id, meta)
            if problem is None:
                sound.append(meta)
            else:
                log.error(
                    "an object is lost or damaged; its ledger stays on disk and is stored again",
                    extra={"object": meta.object_name, "problem": problem},
                )
        return sound

    def _lost(self, topic_id: int, meta: LedgerMeta) -> str | None:
        try:
            footer = read_footer(self.objects, meta.object_name)
        except ObjectNotFound:
            return "it is not there"
        except (LedgerDamaged, UnsupportedVersion) as error:
            return error.message
        found = (footer.topic_id, footer.ledger_id, footer.epoch, footer.data_crc)
        is_its = found == (topic_id, meta.ledger_id, meta.epoch, meta.object_crc)
        return None if is_its else "it is the object of another ledger"

    def check(self, topic_id: int, meta: LedgerMeta) -> None:
        """Read a ledger's object from end to end. Raises LedgerDamaged or ObjectNotFound, and says what is wrong."""
        footer = check_object(self.objects, meta.object_name)
        found = (footer.topic_id, footer.ledger_id, footer.epoch, footer.data_crc)
        if found != (topic_id, meta.ledger_id, meta.epoch, meta.object_crc):
            raise LedgerDamaged(f"the object {meta.object_name} is of another ledger")

    def remove(self, names: Sequence[str]) -> Removed:
        """Remove objects while the store is ours; the rest is to be tried again."""
        removed: list[str] = []
        owner = self.place.owner
        for name in names:
            try:
                self._check_running()
                owner = self.owner()
                if owner != self.place.owner:
                    break
                self.objects.delete(name)
            except DanubiusError as error:
                return Removed(owner, removed, error)
            removed.append(name)
        return Removed(owner, removed, None)

    def objects_until(self, modified_ms: int) -> list[str]:
        """All objects under our store id that were stored until a time; one that says no time counts."""
        listed = itertools.islice(self.objects.list(f"{self.place.store_id}/"), LISTED_MAX)
        return [
            info.name
            for info in listed
            if info.name != self.place.owner_name and info.modified_ms <= modified_ms
        ]


def _footer_of(packer: LedgerPacker) -> Footer:
    assert packer.footer is not None, "all parts were taken"
    return packer.footer


class TierThreads:
    """Where the work is done: uploads on threads of their own, everything else on one."""

    def __init__(
        self, config: TierConfig, work: TierWork, post: Post, spawn: Spawn = Worker
    ) -> None:
        self.work = work
        self.uploads = ReadPool(config.uploads_at_once, QUEUED_MAX, post, spawn, "offload")
        self.chores = ReadPool(1, QUEUED_MAX, post, spawn, "tier")
        self.checks = ReadPool(1, QUEUED_MAX, post, spawn, "tier-check")

    def start(self) -> None:
        self.uploads.start()
        self.chores.start()
        self.checks.start()

    def close(self) -> None:
        """What is under way is given up: the next start goes on."""
        self.work.pace.end()
        self.uploads.close()
        self.chores.close()
        self.checks.close()
