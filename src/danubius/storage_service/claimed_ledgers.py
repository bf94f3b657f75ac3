"""A store that a broker writes to itself, without a server: claimed at the start, and without its claim in the list.

Nobody stands between two brokers here, so only a start is fenced: one with an older epoch, or a copy with the same, is
refused. Whoever was there before is not shut out; the lock of the data directory does that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.errors import BrokerReplaced
from danubius.storage_service.claims import CLAIM_TOPIC, Claim, read_claim, store_claim

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from danubius.ledger.entry import LedgerMeta, LedgerRef
    from danubius.ledger.store import Append, LedgerStore
    from danubius.model.buffers import Buffer
    from danubius.record.ledger_file import LedgerHeader


class ClaimedLedgerStore:
    """Another store, with a claim in it; `on_close` ends what the store does not end itself."""

    def __init__(self, store: LedgerStore, on_close: Callable[[], None]) -> None:
        self._store = store
        self._on_close = on_close

    def claim(self, claim: Claim, *, is_known: bool = False) -> int:
        """Take the store; returns the highest epoch before, 0 for a new one.

        `is_known`: it was claimed before; one that nobody has claimed is not taken then, and the answer is 0.
        """
        known = read_claim(self._store)
        if known is not None and known.claim.epoch >= claim.epoch:
            raise BrokerReplaced(
                f"this store belongs to a later start of the broker, with epoch {known.claim.epoch}; this one has "
                f"epoch {claim.epoch}: the data directory is an old copy"
            )
        if known is None and is_known:
            return 0
        return store_claim(self._store, claim, known).previous_epoch

    def create(self, ref: LedgerRef, header: LedgerHeader, buffers: Sequence[Buffer] = ()) -> None:
        self._store.create(ref, header, buffers)

    def append(self, ref: LedgerRef, at: int, buffers: Sequence[Buffer]) -> None:
        self._store.append(ref, at, buffers)

    def append_many(self, appends: Sequence[Append]) -> None:
        self._store.append_many(appends)

    def append_index(self, ref: LedgerRef, header: LedgerHeader, at_row: int, rows: Buffer) -> None:
        self._store.append_index(ref, header, at_row, rows)

    def read(self, ref: LedgerRef, at: int, count: int) -> bytes:
        return self._store.read(ref, at, count)

    def read_index(self, ref: LedgerRef, at_row: int, count: int) -> bytes:
        return self._store.read_index(ref, at_row, count)

    def size_of(self, ref: LedgerRef) -> int:
        return self._store.size_of(ref)

    def set_aside(self, ref: LedgerRef) -> str:
        return self._store.set_aside(ref)

    def sync(self, refs: Collection[LedgerRef]) -> None:
        self._store.sync(refs)

    def settle(self) -> None:
        self._store.settle()

    def seal(self, ref: LedgerRef) -> None:
        self._store.seal(ref)

    def truncate(self, ref: LedgerRef, data_bytes: int, index_rows: int) -> None:
        self._store.truncate(ref, data_bytes, index_rows)

    def recover(self, known: Mapping[LedgerRef, LedgerMeta]) -> None:
        self._store.recover(known)

    def tidy(self) -> None:
        self._store.tidy()

    def delete(self, ref: LedgerRef) -> None:
        self._store.delete(ref)

    def delete_topic(self, topic_id: int) -> None:
        self._store.delete_topic(topic_id)

    def list(self) -> list[LedgerRef]:
        return [ref for ref in self._store.list() if ref.topic_id != CLAIM_TOPIC]

    def close(self) -> None:
        self._store.close()
        self._on_close()
