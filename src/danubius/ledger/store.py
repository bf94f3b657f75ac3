"""The port behind which ledgers are kept: named append-only byte sequences with an index beside each.

Invariants every driver keeps:
- Writing methods are called by one thread, reading ones (`read`, `read_index`) by many at once,
  also while the same ledger is written or deleted.
- Positions are explicit, so a call that failed half-way is repeated as it was.
- A read beyond the end, or of a ledger that does not exist, returns fewer bytes; whoever reads knows
  how many there must be.
- Nothing is durable before `sync` returned. After a failed `sync` the bytes written since the last
  good one must be written again before the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, runtime_checkable

from danubius.model.limits import KIB

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from danubius.ledger.entry import LedgerMeta, LedgerRef
    from danubius.model.buffers import Buffer
    from danubius.model.file_part import FileIdentity
    from danubius.record.ledger_file import LedgerHeader

SMALL_BYTES: Final = 64 * KIB
"""A ledger that gets less than this at once is better written together with others."""


class Append(NamedTuple):
    """Bytes for one ledger: `append`, or with a header `create`."""

    ref: LedgerRef
    header: LedgerHeader | None
    at: int
    buffers: Sequence[Buffer]
    size: int


class LedgerStore(Protocol):
    """A place for ledgers. All methods may block; failures are StorageFull or StorageFailed."""

    def create(self, ref: LedgerRef, header: LedgerHeader, buffers: Sequence[Buffer] = ()) -> None:
        """Make a ledger of its header and what follows it; what was there under this name is gone."""
        ...

    def append(self, ref: LedgerRef, at: int, buffers: Sequence[Buffer]) -> None:
        """Write buffers back to back from position `at` of the ledger file, its header included."""
        ...

    def append_many(self, appends: Sequence[Append]) -> None:
        """Create or append to many ledgers; if it fails, all of it is to be repeated, as always."""
        ...

    def append_index(self, ref: LedgerRef, header: LedgerHeader, at_row: int, rows: Buffer) -> None:
        """Write index rows from row number `at_row` on, and the index header with row 0."""
        ...

    def read(self, ref: LedgerRef, at: int, count: int) -> bytes: ...

    def read_index(self, ref: LedgerRef, at_row: int, count: int) -> bytes:
        """Rows as they were written; the header is checked, and a damaged one leaves no rows."""
        ...

    def size_of(self, ref: LedgerRef) -> int:
        """How long a ledger is, its header included; 0 for one that does not exist."""
        ...

    def set_aside(self, ref: LedgerRef) -> str:
        """Take a ledger out of the store without deleting a byte of it; says where it is now.

        Empty: this store cannot do that, and the ledger is left where it is.
        """
        ...

    def sync(self, refs: Collection[LedgerRef]) -> None:
        """Make ledgers, indexes and their names durable."""
        ...

    def settle(self) -> None:
        """Called after writes: make durable what has become much, so that the next `sync` holds up nobody for long.

        An error means what one of `sync` means.
        """
        ...

    def seal(self, ref: LedgerRef) -> None:
        """No more writes will come: give up what is held open for them."""
        ...

    def truncate(self, ref: LedgerRef, data_bytes: int, index_rows: int) -> None:
        """Cut what a crashed process wrote behind the last checkpoint. Never lengthens."""
        ...

    def recover(self, known: Mapping[LedgerRef, LedgerMeta]) -> None:
        """Tell the ledgers of the snapshot, before anything is written. What others wrote under them is not read.

        Changes nothing that is stored.
        """
        ...

    def tidy(self) -> None:
        """Do a little of what need not be done at once. An error means what one of `sync` means."""
        ...

    def delete(self, ref: LedgerRef) -> None:
        """Remove one ledger; absent is fine."""
        ...

    def delete_topic(self, topic_id: int) -> None:
        """Remove all ledgers of a topic; absent is fine."""
        ...

    def list(self) -> list[LedgerRef]:
        """All ledgers that exist, sorted."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class FiledStore(Protocol):
    """A store of files that others on this machine may read too."""

    def file_of(self, ref: LedgerRef, at: int, count: int) -> tuple[str, FileIdentity] | None:
        """The file that has these bytes of the ledger, at the same position; None if there is no such file."""
        ...


@runtime_checkable
class RereadableStore(Protocol):
    """A store that has more than one way to the same bytes."""

    def reread(self, ref: LedgerRef, at: int, count: int) -> bytes:
        """What `read` gave fails its checksum: read it again, past every cache and from wherever else it lies."""
        ...

    def forget_cached(self, ref: LedgerRef) -> None:
        """What is cached of a ledger is doubtful: the next reads are made anew."""
        ...
