"""The storage thread's work: segments into ledger files, index rows behind them, syncs and deletions.

Invariants:
- Jobs are done in the order they were put. A ledger's segments are written in order, each at the
  position that was fixed when it was opened; a failed write is repeated there, later segments wait.
- A segment is reported written only after the store took it; `SyncJob.on_done` runs without an error
  only after everything put before it was written and synced with its index rows.
- A sync ends every open block, as the loop ended it when it asked for the sync. So the rows of an
  unsynced ledger cover its unsynced bytes exactly, and after a failed sync the bytes are read back
  by them, proven by their checksums and written again: what the system lost of them is not taken
  for stored. Rows are kept until they are synced.
- An index lags: rows are stored once they cover a block's worth of bytes, or are `INDEX_ROWS` many.
  Until then they wait here, of each open ledger; a reader that misses them finds the batches itself.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import DanubiusError, StorageFailed
from danubius.ledger.core.segment import WriteJob
from danubius.ledger.leftovers import Leftover, clear
from danubius.ledger.store import SMALL_BYTES, Append
from danubius.model.limits import MIB
from danubius.record.checksum import crc32c
from danubius.record.ledger_file import (
    FILE_HEADER_BYTES,
    INDEX_ROW_BYTES,
    BlockRow,
    LedgerHeader,
    encode_header,
    encode_row,
)
from danubius.runtime.threads import finishing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from danubius.ledger.config import LedgerConfig
    from danubius.ledger.core.segment import Segment
    from danubius.ledger.entry import LedgerRef
    from danubius.ledger.store import LedgerStore
    from danubius.model.buffers import Buffer

WRITE_BYTES: Final = 4 * MIB
"""Bytes of one write and of one report: bounds the memory that is held twice."""
REPORT_SEGMENTS: Final = 256
GROUP_SEGMENTS: Final = 512
"""Segments of small ledgers that are written at once: with their headers what the system takes in one call."""
INDEX_ROWS: Final = 32
"""So many rows are stored even if they cover little: bounds what waits here of a quiet topic."""

log = logging.getLogger(__name__)


class WriteJobs(NamedTuple):
    """Write segments of many ledgers: one item for the thread's inbox, however many topics there are."""

    jobs: list[WriteJob]


class SyncJob(NamedTuple):
    """Write the index rows that are due and sync everything unsynced."""

    on_done: Callable[[DanubiusError | None], None]


class DeleteJob(NamedTuple):
    """Remove ledgers, or a whole topic with the ledgers that are known of it."""

    refs: list[LedgerRef]
    topic_id: int | None


class ClearJob(NamedTuple):
    """Delete the leftovers that are explained, set the others aside; answered with where those are now."""

    leftovers: list[Leftover]
    on_done: Callable[[list[str]], None]


class WakeJob(NamedTuple):
    """Nothing to do: a thread that has had no job keeps no time."""


Job = WriteJob | WriteJobs | SyncJob | DeleteJob | ClearJob | WakeJob


class Written(NamedTuple):
    """A segment is in its file; or, with `data` None, its ledger was deleted before that."""

    segment: Segment
    data: Buffer | None
    block_crc: int


class Report(NamedTuple):
    """What the storage thread tells the loop."""

    written: list[Written]
    failure: DanubiusError | None
    """Why writing does not go on; None once it does."""


class _Unsynced:
    """A ledger with bytes that are not synced yet."""

    __slots__ = (
        "_ledger",
        "block",
        "is_created",
        "is_sealing",
        "pending",
        "ref",
        "rows",
        "rows_at",
    )

    def __init__(self, job: WriteJob) -> None:
        self._ledger = job.ledger
        self.ref = job.ledger.ref
        self.pending: list[Segment] = []
        self.block: BlockRow | None = None
        self.rows: list[BlockRow] = []
        self.rows_at = job.segments[0].block_number if job.segments else 0
        self.is_created = not job.segments or job.segments[0].position > FILE_HEADER_BYTES
        self.is_sealing = False

    @property
    def header(self) -> LedgerHeader:
        return self._ledger.header

    def close_block(self) -> None:
        if self.block is not None:
            self.rows.append(self.block)
            self.block = None

    def add(self, segment: Segment, data: Buffer) -> int:
        """Count a written segment; the checksum of its block so far."""
        if segment.starts_block:
            self.close_block()
        block, count = self.block, segment.end - segment.first
        if block is None:
            assert segment.starts_block
            crc = crc32c(data)
            self.block = BlockRow(
                segment.first, segment.position, segment.size, crc, segment.last_time_us, count
            )
            return crc
        crc = crc32c(data, block.crc)
        time_us = max(block.last_time_us, segment.last_time_us)
        self.block = BlockRow(
            block.base_offset,
            block.position,
            block.size + segment.size,
            crc,
            time_us,
            block.records + count,
        )
        return crc


class _Lag(NamedTuple):
    """Synced blocks of an open ledger that its index file does not have yet."""

    at_row: int
    position: int
    """Where the first of them starts."""
    rows: bytes


class LedgerWriter:
    """State of the storage thread. `handle` is its only entrance."""

    def __init__(
        self,
        config: LedgerConfig,
        store: LedgerStore,
        post: Callable[[Callable[[], None]], object],
        on_report: Callable[[Report], None],
        on_tick: Callable[[], None],
    ) -> None:
        self._config = config
        self._store = store
        self._post = post
        self._on_report = on_report
        self._on_tick = on_tick
        self._unsynced: dict[LedgerRef, _Unsynced] = {}
        self._lags: dict[LedgerRef, _Lag] = {}
        self._written: list[Written] = []
        self._written_bytes = 0
        self._failure: DanubiusError | None = None
        self._must_rewrite = False
        self._now_ns = 0
        self._tick_at_ns = 0
        self._retry_at_ns = 0
        self._retry_ms = config.retry_ms
        self.may_tidy = True
        """False while a start may still be refused: then nothing that was there is removed."""

    def handle(self, jobs: list[Job], now_ns: int) -> int:
        """Do the jobs, and what is due; the time to be called again."""
        self._now_ns = now_ns
        for job in finishing(jobs):
            match job:
                case WriteJob():
                    self._accept([job])
                case WriteJobs():
                    self._accept(job.jobs)
                case SyncJob():
                    self._sync(job)
                case DeleteJob():
                    self._delete(job)
                case ClearJob():
                    places = clear(self._store, job.leftovers)
                    self._post(functools.partial(job.on_done, places))
                case WakeJob():
                    pass
        if self._failure is not None and now_ns >= self._retry_at_ns:
            self._retry()
        self._report()
        if now_ns >= self._tick_at_ns:
            self._tick_at_ns = now_ns + self._config.flush_interval_ms * 1_000_000
            self._tidy()
            self._post(self._on_tick)
        return (
            self._tick_at_ns if self._failure is None else min(self._tick_at_ns, self._retry_at_ns)
        )

    def _accept(self, jobs: Sequence[WriteJob]) -> None:
        ledgers = [self._enqueue(job) for job in jobs]
        if self._failure is not None:
            # They wait for the retry: a full disk is not asked again for every topic.
            return
        try:
            self._write_all(ledgers)
        except DanubiusError as error:
            self._fail(error)
            return
        self._settle()

    def _enqueue(self, job: WriteJob) -> _Unsynced:
        ref = job.ledger.ref
        ledger = self._unsynced.get(ref)
        if ledger is None:
            ledger = self._unsynced[ref] = _Unsynced(job)
        ledger.pending.extend(job.segments)
        ledger.is_sealing = ledger.is_sealing or job.seal
        return ledger

    def _write_all(self, ledgers: Iterable[_Unsynced]) -> None:
        """Write what is pending: of ledgers that got little together, of others one by one."""
        group: list[_Unsynced] = []
        segments = size = 0
        for ledger in ledgers:
            pending = ledger.pending
            if not pending:
                continue
            pending_bytes = pending[0].size if len(pending) == 1 else sum(s.size for s in pending)
            if pending_bytes >= SMALL_BYTES:
                self._write(ledger)
                continue
            if size + pending_bytes > WRITE_BYTES or segments + len(pending) > GROUP_SEGMENTS:
                self._write_group(group)
                group, segments, size = [], 0, 0
            group.append(ledger)
            segments += len(pending)
            size += pending_bytes
        self._write_group(group)

    def _write_group(self, group: Sequence[_Unsynced]) -> None:
        if not group:
            return
        appends: list[Append] = []
        written: list[_Unsynced] = []
        for ledger in group:
            pending = ledger.pending
            data = [_contiguous(segment.buffers) for segment in pending]
            header = None if ledger.is_created else ledger.header
            size = pending[-1].position + pending[-1].size - pending[0].position
            if sum(map(len, data)) != size:
                self._pass_over(ledger)
                continue
            appends.append(Append(ledger.ref, header, pending[0].position, data, size))
            written.append(ledger)
        if not appends:
            return
        self._store.append_many(appends)
        for ledger, append in zip(written, appends, strict=True):
            ledger.is_created = True
            pending, ledger.pending = ledger.pending, []
            self._count(ledger, pending, append.buffers)

    def _pass_over(self, ledger: _Unsynced) -> None:
        """Its topic was deleted, and its memory freed, since it was queued; the DeleteJob is on its way.

        Written without what is gone, it would shift all that is behind it in the same write.
        """
        self._unsynced.pop(ledger.ref, None)
        self._written.extend(Written(segment, None, 0) for segment in ledger.pending)
        ledger.pending = []

    def _count(
        self, ledger: _Unsynced, segments: Sequence[Segment], data: Sequence[Buffer]
    ) -> None:
        """The store took these segments."""
        for segment, content in zip(segments, data, strict=True):
            self._written.append(Written(segment, content, ledger.add(segment, content)))
            self._written_bytes += segment.size
        if self._written_bytes >= WRITE_BYTES or len(self._written) >= REPORT_SEGMENTS:
            self._report()

    def _write(self, ledger: _Unsynced) -> None:
        pending = ledger.pending
        while pending:
            segments, size = pending[:1], pending[0].size
            for segment in pending[1:]:
                if size + segment.size > WRITE_BYTES:
                    break
                segments.append(segment)
                size += segment.size
            data = [_contiguous(segment.buffers) for segment in segments]
            if sum(map(len, data)) != size:
                self._pass_over(ledger)
                return
            if ledger.is_created:
                self._store.append(ledger.ref, segments[0].position, data)
            else:
                self._store.create(ledger.ref, ledger.header, data)
                ledger.is_created = True
            del pending[: len(segments)]
            self._count(ledger, segments, data)

    def _sync(self, job: SyncJob) -> None:
        error: DanubiusError | None = None
        try:
            self._write_everything()
            self._sync_everything()
        except DanubiusError as caught:
            error = caught
            self._fail(caught)
        self._report()
        self._post(functools.partial(job.on_done, error))

    def _write_everything(self) -> None:
        self._write_all(list(self._unsynced.values()))
        self._recover()

    def _sync_everything(self) -> None:
        lags: dict[LedgerRef, _Lag | None] = {}
        for ref, ledger in self._unsynced.items():
            ledger.close_block()
            if self._must_rewrite:
                self._rewrite(ledger)
            lags[ref] = self._index(ledger)
        if self._unsynced:
            self._must_rewrite = True
            self._store.sync(self._unsynced.keys())
        self._must_rewrite = False
        sealed = [ref for ref, ledger in self._unsynced.items() if ledger.is_sealing]
        self._unsynced.clear()
        # Not before the sync is good: until then everything must be ready to be written again.
        for ref, lag in lags.items():
            if lag is None:
                self._lags.pop(ref, None)
            else:
                self._lags[ref] = lag
        for ref in sealed:
            self._lags.pop(ref, None)
            self._store.seal(ref)

    def _index(self, ledger: _Unsynced) -> _Lag | None:
        """Store the rows that the index lacks, if they are due; what it lacks then."""
        lag = self._lags.get(ledger.ref)
        new = ledger.rows
        if lag is None and not new:
            return None
        rows = b"".join(map(encode_row, new))
        if lag is None:
            lag = _Lag(ledger.rows_at, new[0].position, rows)
        elif new:
            lag = lag._replace(rows=lag.rows + rows)
        is_far = bool(new) and (
            new[-1].position + new[-1].size - lag.position >= self._config.block_bytes
            or len(lag.rows) >= INDEX_ROWS * INDEX_ROW_BYTES
        )
        # A sealed ledger of less than a block is left without an index: it is read as quickly as one.
        if is_far or (ledger.is_sealing and lag.at_row > 0):
            self._store.append_index(ledger.ref, ledger.header, lag.at_row, lag.rows)
            return None
        return lag

    def _rewrite(self, ledger: _Unsynced) -> None:
        """Write again what a failed sync may have lost, if the system still shows it intact."""
        if ledger.rows_at == 0:
            self._store.append(ledger.ref, 0, [encode_header(ledger.header)])
        for row in ledger.rows:
            data = self._store.read(ledger.ref, row.position, row.size)
            if crc32c(data) != row.crc:
                raise StorageFailed(
                    f"the disk lost messages {row.base_offset} to {row.end_offset - 1} of topic id "
                    f"{ledger.ref.topic_id} before they were synced; the journal still has them: "
                    "check the disk and restart the broker"
                )
            self._store.append(ledger.ref, row.position, [data])

    def _delete(self, job: DeleteJob) -> None:
        for ref in job.refs:
            self._lags.pop(ref, None)
            ledger = self._unsynced.pop(ref, None)
            if ledger is not None:
                self._written.extend(Written(segment, None, 0) for segment in ledger.pending)
        try:
            if job.topic_id is not None:
                self._store.delete_topic(job.topic_id)
            else:
                for ref in job.refs:
                    self._store.delete(ref)
        except DanubiusError as error:
            # Left-over files are found and removed at the next start.
            log.warning("ledger files not deleted", extra={"error": str(error)})

    def _settle(self) -> None:
        try:
            self._store.settle()
        except DanubiusError as error:
            # A sync failed, and the next one must not be taken at its word.
            self._must_rewrite = True
            log.warning("ledger files not synced ahead", extra={"error": str(error)})

    def _tidy(self) -> None:
        if self._failure is not None or not self.may_tidy:
            return
        try:
            self._store.tidy()
        except DanubiusError as error:
            self._must_rewrite = True
            log.warning("ledger files not tidied up", extra={"error": str(error)})

    def _retry(self) -> None:
        try:
            self._write_everything()
        except DanubiusError as error:
            self._fail(error)

    def _fail(self, error: DanubiusError) -> None:
        if self._failure is None:
            log.error("ledgers cannot be written", extra={"error": str(error)})
        self._failure = error
        self._retry_at_ns = self._now_ns + self._retry_ms * 1_000_000
        self._retry_ms = min(2 * self._retry_ms, self._config.retry_max_ms)
        self._report_now()

    def _recover(self) -> None:
        self._retry_ms = self._config.retry_ms
        if self._failure is not None:
            log.info("ledgers can be written again")
            self._failure = None
            self._report_now()

    def _report(self) -> None:
        if self._written:
            self._report_now()

    def _report_now(self) -> None:
        report = Report(self._written, self._failure)
        self._written = []
        self._written_bytes = 0
        self._post(functools.partial(self._on_report, report))


def _contiguous(buffers: Sequence[Buffer]) -> Buffer:
    """Small batches are copied together once: the checksum needs it, and the cache keeps one buffer instead of many."""
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)
