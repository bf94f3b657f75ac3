"""A decided batch on its way into its topics: read from the log of its job, published by atomic records.

What fits one record is decided and published by it. Otherwise the decision is a fact of its own, and every record that
follows says how far it has come: so whoever goes on, now or in the next life of the broker, publishes nothing twice.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Final

from danubius.errors import DanubiusError, OffsetOutOfRange
from danubius.ledger.core.damage import DamagedRange
from danubius.model.ids import TopicId
from danubius.model.limits import MIB
from danubius.record.batch import read_header
from danubius.shard.features.stages.wrapper import stage_of, target_of, unwrap_staged
from danubius.shard.state.atomic import Append
from danubius.shard.state.facts import BatchAdvanced, BatchDecided

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.ledger.entry import Chunk
    from danubius.model.ids import Offset
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard
    from danubius.shard.state.atomic import Atomic
    from danubius.shard.state.facts import Event
    from danubius.shard.state.tokens import OnDone


WHOLE_BYTES: Final = 32 * MIB
"""A batch up to here appears at once."""
SLICE_BYTES: Final = 8 * MIB
"""What a larger one is published by: others have their turn between two slices."""
SLICE_COUNT: Final = 10_000
READ_BYTES: Final = 4 * MIB

log = logging.getLogger(__name__)


class Publishing:
    """One batch of one job. Before it is decided a failure ends it; from then on it is tried until it is done."""

    def __init__(
        self,
        shard: Shard,
        atomic: Atomic,
        source: Topic | None,
        decided: BatchDecided,
        *,
        size: int,
    ) -> None:
        """`source` is the log of the job, without which the batch is empty; `size` is 0 if it was decided before."""
        self._shard = shard
        self._atomic = atomic
        self._source = source
        self._fact = decided
        self._stages = frozenset(decided.stages)
        self._is_whole = 0 < size <= WHOLE_BYTES
        self._slice_bytes = 2 * WHOLE_BYTES if self._is_whole else SLICE_BYTES
        self._next = decided.first
        self._appends: list[Append] = []
        self._size = 0
        self._is_reading = self._is_stalled = False
        self._answer: Chunk | DanubiusError | None = None
        self.batch = decided.batch
        self.is_decided = False
        self.waiting: list[OnDone] = []
        """Who hears how it went."""
        self.on_end: Callable[[], None] = _nothing
        """Called once, before those who wait."""

    def start(self) -> None:
        """Decide it. What is small enough is read first, and decided by the record that publishes it."""
        if self._is_whole:
            self._read_on()
            return

        def done(error: DanubiusError | None) -> None:
            if error is None:
                self.go_on()
            else:
                self._failed(error)

        self._shard.commit(self._fact, done)

    def go_on(self) -> None:
        """It is decided: publish it from where it has come to."""
        self.is_decided = True
        self._shard.loop.call_soon(self._read_on)

    # ------------------------------------------------------------ reading

    def _read_on(self) -> None:
        """Gather a slice; what is not in memory comes later, and it goes on from there."""
        while not self._is_slice_full():
            answer = self._read()
            if answer is None:
                return
            if isinstance(answer, (DamagedRange, OffsetOutOfRange)) and self.is_decided:
                # Nothing can bring it back, and the rest must not wait for it.
                log.error(
                    "a staged batch is lost",
                    extra={"job": self._fact.job, "batch": self.batch, "error": answer.message},
                )
                behind = answer.end if isinstance(answer, DamagedRange) else 0
                self._next = max(self._next + 1, behind)
            elif isinstance(answer, DanubiusError):
                self._failed(answer)
                return
            else:
                self._take(answer)
        self._publish()

    def _is_slice_full(self) -> bool:
        return (
            self._next >= self._fact.end
            or self._size >= self._slice_bytes
            or len(self._appends) >= SLICE_COUNT
        )

    def _read(self) -> Chunk | DanubiusError | None:
        answer, self._answer = self._answer, None
        if answer is not None:
            return answer
        assert self._source is not None
        self._is_reading = True
        self._source.log.read(self._next, READ_BYTES, self._arrived)
        self._is_reading = False
        answer, self._answer = self._answer, None
        return answer

    def _arrived(self, answer: Chunk | DanubiusError) -> None:
        self._answer = answer
        if not self._is_reading:
            self._read_on()

    def _take(self, chunk: Chunk) -> None:
        """All of the chunk that is in the batch; every wrapper has one offset."""
        topics = self._shard.topics_by_id
        for buffer in chunk.buffers:
            at = 0
            while at < len(buffer):
                wrapper = read_header(buffer, at)
                if self._next <= wrapper.base_offset < self._fact.end:
                    if stage_of(wrapper) in self._stages:
                        topic = topics.get(TopicId(target_of(wrapper)))
                        if topic is not None:
                            batch = unwrap_staged(memoryview(buffer), at)
                            self._appends.append(Append(topic, batch, read_header(batch)))
                            self._size += len(batch)
                    self._next = wrapper.base_offset + 1
                at += wrapper.length

    # ------------------------------------------------------------ publishing

    def _publish(self) -> None:
        # A topic that was deleted since the decision takes its messages with it.
        appends = [append for append in self._appends if not append.topic.is_deleting]
        self._appends, self._size = [], 0
        is_done = self._next >= self._fact.end
        facts: list[Event] = [BatchAdvanced(self._fact.job, self.batch, self._next, is_done)]
        if not self.is_decided:
            assert is_done, "what is not decided yet is published as a whole"
            facts.insert(0, self._fact)
        try:
            on_done = functools.partial(self._on_published, appends, is_done=is_done)
            self._atomic.commit(appends, facts, on_done)
        except DanubiusError as error:
            self._failed(error)

    def _on_published(
        self, appends: list[Append], result: list[Offset] | DanubiusError, *, is_done: bool
    ) -> None:
        if isinstance(result, DanubiusError):
            self._failed(result)
            return
        shard = self._shard
        for append in appends:
            shard.messages_in += append.header.count
            shard.bytes_in += append.header.length
        if is_done:
            self._end(None)
        else:
            shard.loop.call_soon(self._read_on)

    def _failed(self, error: DanubiusError) -> None:
        if not self.is_decided:
            # Those who hear of it may ask again, which must not come before all failures are known.
            self._shard.loop.call_soon(self._end, error)
            return
        log.warning(
            "a decided batch waits on",
            extra={"job": self._fact.job, "batch": self.batch, "error": error.message},
        )
        self._appends, self._size = [], 0
        job = self._shard.jobs.by_name.get(self._fact.job)
        if job is None or job.decision is None:
            return
        self._next = job.decision.next
        self._is_stalled = True

    def retry(self) -> None:
        """Time has passed: if it could not be published then, try again."""
        if self._is_stalled:
            self._is_stalled = False
            self._read_on()

    def _end(self, error: DanubiusError | None) -> None:
        self.on_end()
        waiting, self.waiting = self.waiting, []
        for on_done in waiting:
            on_done(error)


def _nothing() -> None:
    """Stand in for a callback that nobody asked for."""
