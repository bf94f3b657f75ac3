"""The stores of a server: each opened once, written by one call at a time, and fenced.

Invariants:
- Writing calls of one store are carried out one after the other; what decides whether one may be (epoch, process,
  number of the call) is looked at under the same lock. So a call that its broker gave up never overtakes a later one.
- A claim is durable before the first call under it is carried out, and gets a LedgerStore that was opened for it: as
  drivers expect it, everything that an earlier process wrote is of an earlier process.
- `life` changes whenever what was written since the last good sync may be lost.
- Only stores that somebody claimed are kept open; asking for others costs no memory.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from typing import TYPE_CHECKING, NamedTuple

from danubius.errors import DanubiusError, Overloaded
from danubius.storage_service.bounds import STORES_MAX, TIDY_SECONDS
from danubius.storage_service.claims import CLAIM_TOPIC, read_claim, store_claim

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from danubius.ledger.entry import LedgerRef
    from danubius.ledger.store import LedgerStore
    from danubius.storage_service.claims import Claim, Held

log = logging.getLogger(__name__)


class Fenced(Exception):
    """The call comes from a writer, or from a moment, that is past."""


class Stamp(NamedTuple):
    """Who writes to which store, and the number of the call."""

    store: str
    claim: Claim
    call: int


class Written(NamedTuple):
    """The end of a writing call."""

    life: int
    previous_epoch: int
    """The highest epoch before that of the writer; 0: there was none."""


class _Entry:
    """One store."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.is_gone = False
        """Forgotten while somebody waited for its lock, who has to ask for another."""
        self.store: LedgerStore | None = None
        self.held: Held | None = None
        self.last_call = 0
        self.life = _new_life()


def _new_life() -> int:
    return secrets.randbits(64) | 1


class Stores:
    """What a server has: thread-safe, all methods block."""

    def __init__(
        self, open_backend: Callable[[str], LedgerStore], *, stores_max: int = STORES_MAX
    ) -> None:
        self._open_backend = open_backend
        self._stores_max = stores_max
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._closing = threading.Event()
        self._tidier = threading.Thread(target=self._tidy, name="danubius-tidy", daemon=True)

    def __len__(self) -> int:
        return len(self._entries)

    def start(self) -> None:
        """Begin with what is done in the background."""
        self._tidier.start()

    def close(self) -> None:
        """No call is under way any more: let go of everything."""
        self._closing.set()
        if self._tidier.ident is not None:
            self._tidier.join()
        for entry in self._entries.values():
            if entry.store is not None:
                entry.store.close()

    # ------------------------------------------------------------ writing

    def write(self, stamp: Stamp, work: Callable[[LedgerStore], None], timeout_s: float) -> Written:
        """Carry out a writing call. Raises Fenced, Overloaded if others take too long, and what `work` raises."""
        with self._held(stamp.store, timeout_s) as entry:
            previous = self._admit(entry, stamp)
            assert entry.store is not None
            work(entry.store)
            self._guard(entry, entry.store.settle)
            return Written(entry.life, previous)

    def sync(self, stamp: Stamp, refs: list[LedgerRef], timeout_s: float) -> Written:
        """Make ledgers durable; if that fails, nothing since the last good sync counts as stored."""

        def work(store: LedgerStore) -> None:
            try:
                store.sync(refs)
            except DanubiusError:
                self._entries[stamp.store].life = _new_life()
                raise

        return self.write(stamp, work, timeout_s)

    def _admit(self, entry: _Entry, stamp: Stamp) -> int:
        """Let a writer in or refuse it; returns the highest epoch before it."""
        assert entry.store is not None
        new = stamp.claim
        if entry.held is None or new.epoch > entry.held.claim.epoch:
            if entry.held is not None:
                older, entry.store = entry.store, self._open_backend(entry.name)
                older.close()
            entry.held = store_claim(entry.store, new, entry.held)
            entry.last_call, entry.life = stamp.call, _new_life()
            log.info("store claimed", extra={"store": entry.name, "epoch": new.epoch})
            return entry.held.previous_epoch
        known = entry.held.claim
        if new != known:
            who = "a later start of the broker" if new.epoch < known.epoch else "another process"
            raise Fenced(
                f"the store {entry.name} belongs to {who} with epoch {known.epoch}; this call has epoch {new.epoch}"
            )
        if stamp.call <= entry.last_call:
            raise Fenced(
                f"call {stamp.call} was overtaken by call {entry.last_call} of the same process"
            )
        entry.last_call = stamp.call
        return entry.held.previous_epoch

    def _guard(self, entry: _Entry, step: Callable[[], None]) -> None:
        """Do what is like a sync; a failure is told by the next one."""
        try:
            step()
        except DanubiusError as error:
            entry.life = _new_life()
            log.warning("not synced ahead", extra={"store": entry.name, "error": str(error)})

    # ------------------------------------------------------------ reading

    def reading(self, name: str, timeout_s: float) -> LedgerStore | None:
        """The store to read from, also while it is written; None: nobody ever wrote to it."""
        entry = self._entries.get(name)
        if entry is not None and entry.store is not None:
            return entry.store if entry.held is not None else None
        with self._held(name, timeout_s) as entry:
            return entry.store if entry.held is not None else None

    def is_claimed(self, name: str, timeout_s: float) -> bool:
        """Whether anybody ever wrote to a store. One that was claimed stays so."""
        with self._held(name, timeout_s) as entry:
            return entry.held is not None

    def list(self, name: str, timeout_s: float) -> list[LedgerRef]:
        with self._held(name, timeout_s) as entry:
            assert entry.store is not None
            return [ref for ref in entry.store.list() if ref.topic_id != CLAIM_TOPIC]

    # ------------------------------------------------------------ keeping

    @contextlib.contextmanager
    def _held(self, name: str, timeout_s: float) -> Generator[_Entry]:
        """A store, open and locked; Overloaded if others hold it for too long."""
        while True:
            entry = self._entry(name)
            if not entry.lock.acquire(timeout=timeout_s):
                raise Overloaded(f"the store {name} is busy with an earlier call; try again")
            try:
                if entry.is_gone:
                    continue
                if entry.store is None:
                    self._open(entry)
                yield entry
                return
            finally:
                # A store that nobody claimed is not kept, or asking for names would fill the server.
                if entry.held is None and not entry.is_gone:
                    self._forget(entry)
                entry.lock.release()

    def _entry(self, name: str) -> _Entry:
        with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                if len(self._entries) >= self._stores_max:
                    raise Overloaded(
                        f"this server has {self._stores_max} stores open, and opens no more"
                    )
                entry = self._entries[name] = _Entry(name)
            return entry

    def _forget(self, entry: _Entry) -> None:
        entry.is_gone = True
        with self._lock:
            del self._entries[entry.name]
        if entry.store is not None:
            entry.store.close()

    def _open(self, entry: _Entry) -> None:
        store = self._open_backend(entry.name)
        try:
            entry.held = read_claim(store)
        except BaseException:
            store.close()
            raise
        entry.store = store

    def _tidy(self) -> None:
        while not self._closing.wait(TIDY_SECONDS):
            for entry in list(self._entries.values()):
                # Whoever writes comes first.
                if entry.lock.acquire(blocking=False):
                    try:
                        if entry.store is not None:
                            self._guard(entry, entry.store.tidy)
                    finally:
                        entry.lock.release()
