"""Reading ledgers from the store, proven by their checksums. Runs on read threads, shares nothing.

Errors that say what is wrong with the data are returned as values beside good results; only the
store's own failures are raised.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from danubius.errors import InvalidBatch, LedgerDamaged
from danubius.ledger.core.damage import (
    DamagedRange,
    Run,
    Span,
    confirm,
    find_batches,
    find_runs,
    run_of,
    seek_batch,
)
from danubius.ledger.core.index import BlockIndex, parse_index
from danubius.ledger.entry import Chunk
from danubius.ledger.store import FiledStore, RereadableStore
from danubius.model.file_part import FilePart
from danubius.model.limits import BATCH_BYTES_MAX, MIB
from danubius.record.checksum import crc32c
from danubius.record.header import HEADER_BYTES, read_header
from danubius.record.ledger_file import (
    FILE_HEADER_BYTES,
    INDEX_ROW_BYTES,
    BlockRow,
    LedgerHeader,
    decode_header,
    decode_rows,
)
from danubius.record.scan import iter_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from danubius.ledger.core.damage import Found
    from danubius.ledger.entry import LedgerMeta, LedgerRef
    from danubius.ledger.store import LedgerStore
    from danubius.model.buffers import Buffer
    from danubius.record.batch import RecordBatch

SCAN_BYTES: Final = BATCH_BYTES_MAX + 4 * MIB
"""A window of the scan that rebuilds an index: the largest batch fits with room to spare."""

log = logging.getLogger(__name__)


def read_blocks(
    store: LedgerStore, ref: LedgerRef, rows: Sequence[BlockRow], first: int
) -> Chunk | DamagedRange:
    """Read adjacent blocks in one go, from the batch that holds `first` on.

    What lies behind damage is left out; a read that starts in damage gets its range.
    """
    position = rows[0].position
    data = store.read(ref, position, rows[-1].position + rows[-1].size - position)
    sound = _count_sound(data, rows)
    if sound == 0:
        rows = rows[:1]
        data = _reread(store, ref, rows[0], data[: rows[0].size])
        sound = _count_sound(data, rows)
    if sound == 0:
        return _read_damaged(ref, rows[0], data, first)
    view = memoryview(data)
    stop = rows[sound - 1].position + rows[sound - 1].size - position
    end = rows[sound - 1].end_offset
    start = seek_batch(data, 0, first) if first > rows[0].base_offset else 0
    base = rows[0].base_offset if start == 0 else read_header(data, start).base_offset
    return Chunk(base, end, [view[start:stop]], stop - start)


def point_or_read(
    store: LedgerStore, ref: LedgerRef, rows: Sequence[BlockRow], first: int
) -> Chunk | DamagedRange:
    """Where adjacent blocks lie, for someone who can read them there; where nobody can, as `read_blocks`."""
    begin, end = rows[0].position, rows[-1].position + rows[-1].size
    found = store.file_of(ref, begin, end - begin) if isinstance(store, FiledStore) else None
    if found is None:
        return read_blocks(store, ref, rows, first)
    path, identity = found
    part = FilePart(path, *identity, begin, [(row.size, row.crc) for row in rows])
    return Chunk(rows[0].base_offset, rows[-1].end_offset, [], end - begin, part)


def _count_sound(data: bytes, rows: Sequence[BlockRow]) -> int:
    """How many blocks from the first on pass their checksums."""
    position = rows[0].position
    for number, row in enumerate(rows):
        start = row.position - position
        # The checksum takes bytes as they are; a block cut out of a larger read is copied for it.
        if crc32c(data if len(rows) == 1 else data[start : start + row.size]) != row.crc:
            return number
    return len(rows)


def _reread(store: LedgerStore, ref: LedgerRef, row: BlockRow, data: bytes) -> bytes:
    """A block once more, if there is another way to it; otherwise what is known of it."""
    if not isinstance(store, RereadableStore):
        return data
    again = store.reread(ref, row.position, row.size)
    is_sound = crc32c(again) == row.crc
    log.warning(
        "a block failed its checksum and was read again",
        extra={
            "topic_id": ref.topic_id,
            "ledger_id": ref.ledger_id,
            "first_offset": row.base_offset,
            "outcome": "sound" if is_sound else "damaged",
        },
    )
    return again if is_sound or len(again) > len(data) else data


def _read_damaged(ref: LedgerRef, row: BlockRow, data: bytes, first: int) -> Chunk | DamagedRange:
    damaged_from = row.base_offset
    for run in find_runs(data, row.size, row.base_offset, row.end_offset):
        if first < run.first:
            return DamagedRange(ref, damaged_from, run.first, "the block fails its checksum")
        if first < run.end:
            start = seek_batch(data, run.start, first)
            base = read_header(data, start).base_offset
            return Chunk(base, run.end, [memoryview(data)[start : run.stop]], run.stop - start)
        damaged_from = run.end
    reason = "the block fails its checksum" if len(data) == row.size else "the file is cut short"
    return DamagedRange(ref, damaged_from, row.end_offset, reason)


def find_time_in(buffers: Sequence[Buffer], time_us: int, floor: int) -> int | None:
    """The first offset from `floor` on whose publish time is at or after the time.

    A header's times are what its producer says: they spare looking into a batch, no more. Raises
    InvalidBatch where the buffers are damaged.
    """
    for buffer in buffers:
        for batch in iter_batches(buffer):
            if batch.header.last_time_us < time_us or batch.end_offset <= floor:
                continue
            found = _find_time_in_batch(batch, time_us, floor)
            if found is not None:
                return found
    return None


def _find_time_in_batch(batch: RecordBatch, time_us: int, floor: int) -> int | None:
    try:
        times = batch.publish_times_us()
    except InvalidBatch:
        # Stored as it was sent, and malformed: nobody can read it, so it has no times.
        return None
    for offset, published_us in zip(batch.offsets(), times, strict=True):
        if published_us >= time_us and offset >= floor:
            return offset
    return None


def find_time_on_disk(
    store: LedgerStore, ref: LedgerRef, rows: Sequence[BlockRow], time_us: int, floor: int
) -> int | DamagedRange | None:
    """The same, in stored blocks; the first alone unless `floor` hides what it has."""
    for row in rows:
        data = store.read(ref, row.position, row.size)
        if crc32c(data) != row.crc:
            data = _reread(store, ref, row, data)
        if crc32c(data) != row.crc:
            return DamagedRange(
                ref, row.base_offset, row.end_offset, "the block fails its checksum"
            )
        try:
            found = find_time_in([data], time_us, floor)
        except InvalidBatch as error:
            return DamagedRange(ref, row.base_offset, row.end_offset, error.message)
        if found is not None:
            return found
    return None


def load_index(
    store: LedgerStore, ref: LedgerRef, meta: LedgerMeta, block_bytes: int
) -> BlockIndex:
    """The index of a sealed ledger, from its file; from its first bad or missing row on, from the ledger itself.

    Raises DamagedRange where the bytes are sound, but of another ledger.
    """
    _check_whose(store, ref, meta)
    stored = store.read_index(ref, 0, meta.index_entries)
    if isinstance(store, RereadableStore) and not _is_intact(stored, meta):
        store.forget_cached(ref)
        stored = store.read_index(ref, 0, meta.index_entries)
    try:
        return parse_index(stored, meta)
    except LedgerDamaged as error:
        kept = _sound_prefix(stored, meta)
        if not _is_mere_lag(stored, kept, meta, block_bytes):
            log.warning(
                "ledger index is damaged and will be rebuilt",
                extra={
                    "topic_id": ref.topic_id,
                    "ledger_id": ref.ledger_id,
                    "kept_rows": len(kept),
                    "error": error.message,
                },
            )
        return rebuild_index(store, ref, meta, block_bytes, kept)


def _check_whose(store: LedgerStore, ref: LedgerRef, meta: LedgerMeta) -> None:
    """Every broker counts topics and ledgers from the same numbers: when a ledger was begun tells them apart.

    A header that is not legible says nothing against the blocks, which have checksums of their own.
    """
    try:
        found = decode_header(store.read(ref, 0, FILE_HEADER_BYTES))
    except LedgerDamaged:
        return
    wanted = LedgerHeader(*ref, meta.base_offset, meta.epoch, meta.created_ms)
    if found != wanted:
        raise DamagedRange(
            ref,
            meta.base_offset,
            meta.end_offset,
            f"what is stored there is another ledger, with epoch {found.epoch} and begun at {found.created_ms} ms, "
            f"where this one has epoch {meta.epoch} and was begun at {meta.created_ms} ms: it belongs to "
            "another broker",
        )


def _is_intact(stored: bytes, meta: LedgerMeta) -> bool:
    try:
        parse_index(stored, meta)
    except LedgerDamaged:
        return False
    return True


def _is_mere_lag(
    stored: bytes, kept: Sequence[BlockRow], meta: LedgerMeta, block_bytes: int
) -> bool:
    """Whether the file holds only good rows, and those that it lacks cover less than a block: see `LedgerWriter`."""
    covered = kept[-1].position + kept[-1].size if kept else FILE_HEADER_BYTES
    return len(stored) == len(kept) * INDEX_ROW_BYTES and meta.data_bytes - covered < block_bytes


def _sound_prefix(data: bytes, meta: LedgerMeta) -> list[BlockRow]:
    """The rows before the first that fails its checksum or does not follow its predecessor.

    They are as good as those of an intact index: each has a checksum of its own, and the first starts the ledger.
    """
    rows: list[BlockRow] = []
    offset, position = meta.base_offset, FILE_HEADER_BYTES
    for at in range(0, len(data) - INDEX_ROW_BYTES + 1, INDEX_ROW_BYTES):
        try:
            [row] = decode_rows(data[at : at + INDEX_ROW_BYTES])
        except LedgerDamaged:
            break
        is_next = row.base_offset == offset and row.position == position and row.records > 0
        offset, position = row.end_offset, row.position + row.size
        if not is_next or offset > meta.end_offset or position > meta.data_bytes:
            break
        rows.append(row)
    return rows


def check_ledger(store: LedgerStore, ref: LedgerRef, meta: LedgerMeta, block_bytes: int) -> None:
    """Read a whole ledger and prove every block. Raises LedgerDamaged for the first that fails."""
    index = load_index(store, ref, meta, block_bytes)
    offset = meta.base_offset
    for row in index.rows_from(0):
        if row.base_offset != offset:
            break
        data = store.read(ref, row.position, row.size)
        if crc32c(data) != row.crc:
            reason = "the block fails its checksum"
            raise DamagedRange(ref, row.base_offset, row.end_offset, reason)
        offset = row.end_offset
    if offset < meta.end_offset:
        gap = index.gap_at(offset)
        end = gap[1] if gap is not None and gap[1] is not None else meta.end_offset
        raise DamagedRange(ref, offset, end, "no sound batch was found there")


def rebuild_index(
    store: LedgerStore,
    ref: LedgerRef,
    meta: LedgerMeta,
    block_bytes: int,
    kept: Sequence[BlockRow] = (),
) -> BlockIndex:
    """Scan a ledger behind the rows that are kept for sound batches and index them. Damaged ranges become gaps."""
    start, first = FILE_HEADER_BYTES, meta.base_offset
    if kept:
        start, first = kept[-1].position + kept[-1].size, kept[-1].end_offset
    rows: dict[int, BlockRow] = {}
    runs: list[Run] = []
    for found in _scan(store, ref, start, meta.data_bytes, block_bytes):
        if isinstance(found, BlockRow):
            rows[found.position] = found
            stop = found.position + found.size
            runs.append(Run(found.position, stop, found.base_offset, found.end_offset, True))
        else:
            runs.append(found)
    span = Span(start, meta.data_bytes, first, meta.end_offset)
    return BlockIndex([*kept, *(rows[run.start] for run in confirm(runs, span))])


def _scan(
    store: LedgerStore, ref: LedgerRef, position: int, stop: int, block_bytes: int
) -> Iterator[BlockRow | Run]:
    """Blocks of sound batches, whose offsets are still to be confirmed, and the batches that are not sound."""
    while position < stop:
        data = store.read(ref, position, min(SCAN_BYTES, stop - position))
        is_last = len(data) < SCAN_BYTES or position + len(data) >= stop
        group: list[Found] = []
        done = 0
        for found in find_batches(data, goes_on=not is_last):
            if group and not _belongs(group, found, block_bytes):
                yield _row_of(group, data, position)
                group = []
            if found.is_sound:
                group.append(found)
            else:
                yield run_of(found._replace(position=position + found.position))
            done = found.end
        if group:
            yield _row_of(group, data, position)
        if is_last:
            return
        # A batch may lie across the window's end: the next window starts where the last batch ended,
        # or, if there was none, where one that starts in this window could still be whole.
        position += done or len(data) - BATCH_BYTES_MAX - HEADER_BYTES


def _belongs(group: list[Found], found: Found, block_bytes: int) -> bool:
    last = group[-1]
    return (
        found.is_sound
        and found.position == last.end
        and found.header.base_offset == last.header.end_offset
        and found.end - group[0].position <= block_bytes
    )


def _row_of(group: list[Found], data: bytes, position: int) -> BlockRow:
    start, stop = group[0].position, group[-1].end
    first, end = group[0].header.base_offset, group[-1].header.end_offset
    time_us = max(found.header.last_time_us for found in group)
    return BlockRow(
        first, position + start, stop - start, crc32c(data[start:stop]), time_us, end - first
    )
