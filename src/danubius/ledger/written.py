"""Reading what is written of a ledger: its index first, then blocks, on threads that fit where it lies.

Called on the loop. Callers pass `again`, which repeats their whole question: while an index was on its way, ledgers may
have been deleted or moved.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from danubius.errors import DanubiusError, StorageFailed
from danubius.ledger.core.damage import DamagedRange
from danubius.ledger.reader import find_time_on_disk, load_index, point_or_read, read_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.ledger.backing import Backing
    from danubius.ledger.core.index import BlockIndex
    from danubius.ledger.core.segment import Ledger
    from danubius.ledger.entry import Chunk

    OnChunk = Callable[[Chunk | DanubiusError], None]
    OnFound = Callable[[int | DanubiusError | None], None]


def read_written(  # noqa: PLR0913  # a question, and where its answer goes
    backing: Backing,
    ledger: Ledger,
    first: int,
    bytes_max: int,
    again: Callable[[], None],
    on_done: OnChunk,
    *,
    may_point: bool = False,
) -> None:
    """Whole batches from the one that holds `first` on; `may_point`: or where they lie."""
    if ledger.is_lost:
        on_done(given_up(ledger))
        return
    index = _index_or_load(backing, ledger, again, on_done)
    if index is None:
        return
    gap = index.gap_at(first)
    if gap is not None:
        end = gap[1] or ledger.end_offset
        on_done(DamagedRange(ledger.ref, gap[0], end, "no sound batch was found there"))
        return
    read = point_or_read if may_point else read_blocks
    work = functools.partial(read, backing.store, ledger.ref, index.plan(first, bytes_max), first)
    backing.reads_of(ledger).submit(work, on_done)


def given_up(ledger: Ledger) -> DamagedRange:
    """What a read of it gets if a repair of the journal has put it in the place of what was lost."""
    reason = "they could not be read from the journal, and were given up when it was repaired"
    return DamagedRange(ledger.ref, ledger.base_offset, ledger.end_offset, reason)


def find_time_written(
    backing: Backing,
    ledger: Ledger,
    time_us: int,
    floor: int,
    again: Callable[[], None],
    on_done: OnFound,
) -> None:
    """The first offset from `floor` on with such a publish time; None if the ledger has none."""
    index = _index_or_load(backing, ledger, again, on_done)
    if index is None:
        return
    number = max(index.find_time(time_us), index.find(floor))
    rows = index.rows_from(number)
    work = functools.partial(find_time_on_disk, backing.store, ledger.ref, rows, time_us, floor)
    backing.reads_of(ledger).submit(work, on_done)


def _index_or_load(
    backing: Backing,
    ledger: Ledger,
    again: Callable[[], None],
    on_failed: Callable[[DanubiusError], None],
) -> BlockIndex | None:
    """The index if it is in memory; otherwise it is loaded, and then the question is asked again."""
    if not ledger.is_local and backing.cold is None:
        on_failed(
            StorageFailed(
                f"messages {ledger.base_offset} to {ledger.end_offset - 1} are in cold storage, as "
                f"{ledger.object_name}, and this broker was started without it: give it --tier-url"
            )
        )
        return None
    index = ledger.index or backing.indexes.get(ledger.ref)
    if index is not None:
        return index

    def loaded(result: BlockIndex | DanubiusError) -> None:
        if isinstance(result, DanubiusError):
            on_failed(result)
            return
        backing.indexes.put(ledger.ref, result)
        again()

    work = functools.partial(
        load_index, backing.store, ledger.ref, ledger.meta, backing.config.block_bytes
    )
    backing.reads_of(ledger).submit(work, loaded)
    return None
