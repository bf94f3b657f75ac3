"""The backing that all topics of a broker share: the store, the memory and the threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.ledger.config import LedgerConfig
    from danubius.ledger.core.segment import Ledger
    from danubius.ledger.entry import LedgerMeta, LedgerRef
    from danubius.ledger.index_cache import IndexCache
    from danubius.ledger.read_pool import ReadPool
    from danubius.ledger.store import LedgerStore
    from danubius.ledger.tail_cache import TailCache
    from danubius.ledger.writer import Job


class ColdPlaces(Protocol):
    """Who must know which ledgers have objects. Called on the loop."""

    @property
    def local(self) -> LedgerStore:
        """The disk alone."""
        ...

    def place(self, ref: LedgerRef, meta: LedgerMeta) -> None:
        """The ledger has an object; if it is not local, all reads from now on go there."""
        ...

    def forget(self, ref: LedgerRef) -> None:
        """The ledger, which is local, has no object after all."""
        ...

    def release(self, ref: LedgerRef, meta: LedgerMeta) -> None:
        """The ledger is gone for good, which is durable: its object may go."""
        ...


class Backing(NamedTuple):
    """One per broker."""

    config: LedgerConfig
    store: LedgerStore
    cache: TailCache
    indexes: IndexCache
    reads: ReadPool
    cold_reads: ReadPool
    """Of ledgers that are not local: a slow object store keeps no reads of the disk waiting."""
    cold: ColdPlaces | None
    """None: this broker has no object store."""
    position: Callable[[], int]
    """How far the journal is committed."""
    sealed: list[Ledger]
    """Sealed since the last good flush: their indexes are not stored yet, so they stay in memory."""
    put: Callable[[Job], None]
    """Gives a job to the storage thread."""

    def reads_of(self, ledger: Ledger) -> ReadPool:
        return self.reads if ledger.is_local else self.cold_reads
