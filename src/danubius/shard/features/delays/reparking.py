"""A delay log that grows old: what still waits at its beginning is stored again at its end, and the beginning is freed.

Otherwise one message that is due in a year would keep a year of released ones on disk. The oldest ledger is emptied,
so that its file goes, then the next, until half of what is stored waits or it is not much. A step moves a few batches
and frees what is before them in one atomic record, so after a crash each is there once: where it was, or where it is.
While a step is under way nothing is released. A moved batch keeps its due time and gets a higher offset, so it stands
behind everything that was released before.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from danubius.errors import DanubiusError, InvalidBatch, OffsetOutOfRange
from danubius.ledger.core.damage import DamagedRange
from danubius.ledger.managed import ManagedLedger
from danubius.model.limits import MIB
from danubius.record.header import read_header
from danubius.shard.features.delays.core.index import ENDLESS, due_of, key_of
from danubius.shard.state.atomic import Append
from danubius.shard.state.facts import LogTrimmed

if TYPE_CHECKING:
    from danubius.ledger.entry import Chunk
    from danubius.model.ids import Offset
    from danubius.shard.features.delays.log import DelayLog
    from danubius.shard.state.atomic import Atomic
    from danubius.shard.state.tokens import OnDone

KEPT_BYTES: Final = 64 * MIB
"""A delay log that is no larger is left as it is."""
SEAL_BYTES: Final = 1 * MIB
STEP_BYTES: Final = 1 * MIB
"""Read at once, so no more than this and one batch is moved at once."""

log = logging.getLogger(__name__)


def wants_repark(source: DelayLog, kept_bytes: int) -> bool:
    """Whether more than half of what is stored was released, and it is much. Then the open ledger is sealed."""
    ledger = source.topic.log
    assert isinstance(ledger, ManagedLedger)
    stored = ledger.stored_bytes
    if source.is_busy or source.scan_from != ENDLESS or stored <= kept_bytes:
        return False
    if 2 * source.bytes >= stored:
        return False
    ledger.seal_open(min(SEAL_BYTES, kept_bytes))
    metas = ledger.ledgers
    # Sealing takes a moment; and what is moved must not come to lie in the ledger that is to go.
    return bool(metas) and metas[0].is_sealed


class Repark:
    """One step: read from the beginning, store again what waits, free all of it."""

    def __init__(self, source: DelayLog, atomic: Atomic, on_done: OnDone) -> None:
        assert isinstance(source.topic.log, ManagedLedger)
        self._source = source
        self._log = source.topic.log
        self._atomic = atomic
        self._on_done = on_done
        self._keys: list[int] = []
        self._end = self._log.start_offset
        self._stop = self._log.ledgers[0].end_offset
        """What is moved is in the oldest ledger."""

    def run(self) -> None:
        """`on_done` is called once, maybe before this returns."""
        if self._end >= self._stop:
            self._on_done(None)
            return
        self._log.read(self._end, STEP_BYTES, self._arrived)

    def _arrived(self, answer: Chunk | DanubiusError) -> None:
        appends: list[Append] = []
        if isinstance(answer, DamagedRange):
            self._end = max(self._end + 1, answer.end)  # a release would not find it either
        elif isinstance(answer, OffsetOutOfRange):
            self._end = max(self._end + 1, self._log.start_offset)
        elif isinstance(answer, DanubiusError):
            self._on_done(answer)
            return
        else:
            try:
                appends = self._pick(answer)
            except InvalidBatch as error:
                self._on_done(error)
                return
            self._end = min(answer.end, self._stop)
        fact = LogTrimmed(self._source.topic.id, self._end)
        try:
            self._atomic.commit(appends, [fact], self._committed)
        except DanubiusError as refusal:
            self._on_done(refusal)

    def _pick(self, chunk: Chunk) -> list[Append]:
        """What of a chunk still waits, in memory of its own."""
        watermark = key_of(*self._source.topic.watermark)
        appends: list[Append] = []
        for buffer in chunk.buffers:
            view = memoryview(buffer)
            at = 0
            while at < len(view):
                header = read_header(view, at)
                key = key_of(header.first_time_us // 1000, header.base_offset)
                if key > watermark and self._end <= header.base_offset < self._stop:
                    batch = memoryview(bytearray(view[at : at + header.length]))
                    appends.append(Append(self._source.topic, batch, header))
                    self._keys.append(key)
                at += header.length
        return appends

    def _committed(self, result: list[Offset] | DanubiusError) -> None:
        if isinstance(result, DanubiusError):
            self._on_done(result)
            return
        moved = {
            old: key_of(due_of(old), offset) for old, offset in zip(self._keys, result, strict=True)
        }
        self._source.index.replace(moved)
        self._on_done(None)
