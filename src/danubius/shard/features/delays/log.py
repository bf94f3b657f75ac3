"""One delay log as it is worked on: what waits in it, what is on its way in, and reading batches back out."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from danubius.errors import DanubiusError, InvalidBatch, OffsetOutOfRange
from danubius.ledger.core.damage import DamagedRange
from danubius.ledger.managed import ManagedLedger
from danubius.model.limits import KIB, MIB
from danubius.record.header import read_header
from danubius.shard.features.delays.core.index import ENDLESS, DelayIndex, key_of, offset_of
from danubius.shard.features.delays.wrapper import unwrap
from danubius.shard.state.atomic import Append

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.ledger.entry import Chunk
    from danubius.record.header import Header
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.state.tokens import OnDone

RELEASE_BYTES: Final = 1 * MIB
"""A release ends with the batch that reaches this."""
READ_BYTES: Final = 256 * KIB
SCAN_BYTES: Final = 1 * MIB
"""A step of the scan: a few milliseconds of the loop, if all batches are as small as can be."""
NEVER: Final = 2**63

log = logging.getLogger(__name__)


class DelayLog:
    """The hidden topic behind one topic."""

    __slots__ = (
        "in_flight",
        "index",
        "is_busy",
        "messages",
        "parent",
        "planned",
        "scan_from",
        "topic",
        "wake_ms",
    )

    def __init__(self, parent: Topic, topic: Topic) -> None:
        assert isinstance(topic.log, ManagedLedger)
        self.parent = parent
        self.topic = topic
        self.index = DelayIndex()
        self.in_flight: dict[int, None] = {}
        """Keys of what is on its way through the journal."""
        self.planned = key_of(*topic.watermark)
        """No release went or goes beyond this key; nothing new may come below it."""
        self.scan_from = ENDLESS
        """What is stored from this key on is being looked for: it must not be passed."""
        self.is_busy = False
        """A release is under way: one at a time."""
        self.wake_ms = NEVER
        self.messages = 0
        """What waits, as far as it has been looked through after a start."""

    @property
    def bytes(self) -> int:
        """Of the messages that wait."""
        return self.parent.delayed_bytes

    def count(self, messages: int, size: int) -> None:
        """So much more waits, or less."""
        self.messages += messages
        self.parent.delayed_bytes += size

    def count_anew(self) -> None:
        self.messages = self.parent.delayed_bytes = 0

    @property
    def below(self) -> int:
        """Nothing from this key on may be released now: something before it may still come."""
        return min(min(self.in_flight, default=ENDLESS), self.scan_from)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, nor comes."""
        return not (
            self.index.pending or self.in_flight or self.is_busy or self.scan_from != ENDLESS
        )

    def free_below(self) -> int:
        """Everything below this offset is released; whole sealed ledgers are looked at, no more."""
        ledger = self.topic.log
        assert isinstance(ledger, ManagedLedger)
        if self.is_empty:
            return ledger.end_offset
        due_us = self.topic.watermark[0] * 1000
        start = ledger.start_offset
        for meta in ledger.ledgers:
            if not meta.is_sealed or meta.last_time_us >= due_us:
                break
            start = meta.end_offset
        return start


class Release:
    """Reads due batches, in their order, until there is enough for one record of the journal."""

    def __init__(self, source: DelayLog, keys: list[int], on_read: OnDone) -> None:
        self._source = source
        self._on_read = on_read
        self.keys = keys
        self.done = 0
        """So many of the keys were read, or can never be."""
        self.appends: list[Append] = []
        self._size = 0
        self._chunk: Chunk | None = None
        self._number = self._at = self._offset = 0
        """Where in the chunk: buffer, byte, and the offset that is there."""
        self._is_reading = False
        self._answer: Chunk | DanubiusError | None = None

    def run(self) -> None:
        """Read on; `on_read` is called once, at the end."""
        while self.done < len(self.keys) and self._size < RELEASE_BYTES:
            offset = offset_of(self.keys[self.done])
            if self._seek(offset):
                self._take()
                continue
            answer = self._read(offset)
            if answer is None:
                return
            if isinstance(answer, DamagedRange):
                log.error(
                    "a delayed batch is lost",
                    extra={"topic": self._source.parent.name, "error": answer.message},
                )
                self.done += 1
            elif isinstance(answer, DanubiusError):
                self._on_read(answer)
                return
            else:
                self._chunk, self._number, self._at, self._offset = answer, 0, 0, answer.first
        self._on_read(None)

    def _read(self, offset: int) -> Chunk | DanubiusError | None:
        """The answer, or None if it comes later; then it goes on from there."""
        answer, self._answer = self._answer, None
        if answer is not None:
            return answer
        self._is_reading = True
        self._source.topic.log.read(offset, READ_BYTES, self._arrived)
        self._is_reading = False
        answer, self._answer = self._answer, None
        return answer

    def _arrived(self, answer: Chunk | DanubiusError) -> None:
        self._answer = answer
        if not self._is_reading:
            self.run()

    def _seek(self, offset: int) -> bool:
        """Go forward in the chunk to an offset, if it is there."""
        chunk = self._chunk
        if chunk is None or not self._offset <= offset < chunk.end:
            return False
        while self._offset < offset:
            self._step()
        return True

    def _step(self) -> None:
        assert self._chunk is not None
        buffer = self._chunk.buffers[self._number]
        self._at += read_header(buffer, self._at).length
        self._offset += 1
        if self._at >= len(buffer):
            self._number += 1
            self._at = 0

    def _take(self) -> None:
        assert self._chunk is not None
        batch = unwrap(memoryview(self._chunk.buffers[self._number]), self._at)
        header = read_header(batch)
        self.appends.append(Append(self._source.parent, batch, header))
        self._size += header.length
        self.done += 1
        self._step()


class Scan:
    """Walks a delay log once, in steps, and tells what has not been released."""

    def __init__(
        self,
        source: DelayLog,
        on_found: Callable[[int, Header], None],
        on_step: Callable[[Callable[[], None]], object],
        on_done: OnDone,
    ) -> None:
        ledger = source.topic.log
        self._source = source
        self._on_found = on_found
        self._on_step = on_step
        self._on_done = on_done
        self._next = ledger.start_offset
        self._end = ledger.end_offset

    def run(self) -> None:
        if self._next >= self._end:
            self._on_done(None)
            return
        self._source.topic.log.read(self._next, SCAN_BYTES, self._arrived)

    def _arrived(self, answer: Chunk | DanubiusError) -> None:
        if isinstance(answer, DamagedRange):
            self._next = max(self._next + 1, answer.end)
        elif isinstance(answer, OffsetOutOfRange):
            self._next = max(self._next + 1, self._source.topic.log.start_offset)
        elif isinstance(answer, DanubiusError):
            self._on_done(answer)
            return
        else:
            try:
                self._walk(answer)
            except InvalidBatch as error:
                self._on_done(error)
                return
            self._next = answer.end
        self._on_step(self.run)

    def _walk(self, chunk: Chunk) -> None:
        first_key = self._source.scan_from
        for buffer in chunk.buffers:
            at = 0
            while at < len(buffer):
                header = read_header(buffer, at)
                at += header.length
                key = key_of(header.first_time_us // 1000, header.base_offset)
                if key >= first_key and self._next <= header.base_offset < self._end:
                    self._on_found(key, header)
