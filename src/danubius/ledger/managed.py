"""The log of one reliable topic: its ledgers in cold storage and on disk, its tail in memory, read as one stream.

Invariants:
- Offsets are contiguous: `append` takes only the entry that starts at `end_offset`.
- The ledgers cover [their first base offset, end_offset) without gaps; only the last can be open.
- The tail is the newest segments, contiguous up to `end_offset`; everything below it is written.
- An object belongs to the loop; callbacks run there, synchronously if the tail has the answer.
- There is no file before something is written, and a ledger of an earlier process is never written.
- A ledger whose files are gone or going has a verified object, and is read from there.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from danubius.errors import DanubiusError, OffsetOutOfRange, TopicDeleted
from danubius.ledger.core.damage import DamagedRange
from danubius.ledger.core.estimates import bytes_from, time_near
from danubius.ledger.core.retention import SEAL_AGE_MIN_MS, plan_drop
from danubius.ledger.core.segment import ENTRY_MEMORY_BYTES, Ledger, State, WriteJob
from danubius.ledger.entry import Chunk, LedgerRef, TierSizes
from danubius.ledger.reader import find_time_in
from danubius.ledger.writer import DeleteJob
from danubius.ledger.written import find_time_written, given_up, read_written
from danubius.model.limits import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from danubius.ledger.backing import Backing
    from danubius.ledger.core.segment import Segment
    from danubius.ledger.entry import Entry, LedgerMeta, StoredObject
    from danubius.model.buffers import Buffer
    from danubius.model.topic import Retention

    OnChunk = Callable[[Chunk | DanubiusError], None]
    OnOffset = Callable[[int | DanubiusError], None]

LEDGER_BYTES_MIN: Final = 1 * MIB
"""However little is to be kept, ledgers are not smaller: each is a file."""
_base_of: Final = attrgetter("base_offset")
_first_of: Final = attrgetter("first")
_id_of: Final = attrgetter("ref.ledger_id")


class ManagedLedger:
    """One per reliable topic."""

    __slots__ = (
        "__weakref__",
        "_backing",
        "_end",
        "_epoch",
        "_is_deleted",
        "_ledgers",
        "_open",
        "_start",
        "_tail",
        "_topic_id",
        "known_ledgers_end",
        "ledger_bytes_max",
        "next_ledger_id",
        "unhanded_cost",
        "unhanded_since_ms",
    )

    def __init__(
        self, backing: Backing, topic_id: int, epoch: int, metas: list[LedgerMeta], next_offset: int
    ) -> None:
        assert not metas or metas[-1].end_offset == next_offset
        self._backing = backing
        self._topic_id, self._epoch = topic_id, epoch
        self._ledgers = [Ledger.from_meta(topic_id, meta) for meta in metas]
        self.known_ledgers_end = metas[-1].ledger_id + 1 if metas else 0
        self.next_ledger_id = (
            self.known_ledgers_end
        )  # what was known below, and is not, was deleted
        self._start = metas[0].base_offset if metas else next_offset
        self._end = next_offset
        self._open: Ledger | None = None
        self._tail: list[Segment] = []
        self._is_deleted = False
        self.unhanded_cost = self.unhanded_since_ms = 0
        for ledger in self._ledgers:
            self._place(ledger)
        self.ledger_bytes_max = backing.config.ledger_bytes_max
        """A ledger is sealed before it grows beyond this; less than configured where little is to be kept."""

    @property
    def start_offset(self) -> int:
        """The oldest offset that can be read."""
        return self._start

    @property
    def end_offset(self) -> int:
        """The offset of the next message."""
        return self._end

    @property
    def stored_bytes(self) -> int:
        return sum(ledger.data_bytes for ledger in self._ledgers)

    @property
    def ledgers(self) -> list[LedgerMeta]:
        return [ledger.meta for ledger in self._ledgers]

    # ------------------------------------------------------------ writing

    def append(self, entry: Entry) -> None:
        """Make a committed batch visible. It is written to its ledger in the background."""
        assert entry.first == self._end, "offsets are contiguous"
        size = entry.buffer.nbytes
        ledger = self._open
        if ledger is None or self._is_full(ledger, size):
            ledger = self._roll()
        opened = ledger.append(entry, size, self._backing.config.block_bytes)
        self._end = entry.end
        if opened is not None:
            self._tail.append(opened)
            cost = opened.cost
        else:
            cost = size + ENTRY_MEMORY_BYTES
        self._backing.cache.appended(self, cost)

    def skip_to(self, offset: int) -> None:
        """Go on at `offset`: what lies between is lost, and a ledger without a file stands for it."""
        assert offset > self._end
        self._seal()
        before = self._ledgers[-1].last_time_us if self._ledgers else 0
        lost = self._begin()
        lost.give_up(offset, before, self._backing.position())
        self._end = offset

    def snapshot(self) -> list[LedgerMeta]:
        """All ledgers with everything appended, as they will be once it is written.

        The open block ends here, so that the state can be restored by cutting files at block ends.
        """
        self.close_block()
        return self.ledgers

    def take_unwritten(self) -> WriteJob | None:
        ledger = self._open
        return None if ledger is None else self._job_of(ledger)

    def close_block(self) -> None:
        if self._open is not None:
            self._open.close_block()

    def _is_full(self, ledger: Ledger, size: int) -> bool:
        config = self._backing.config
        return (
            ledger.data_bytes + size > self.ledger_bytes_max
            or ledger.blocks >= config.ledger_blocks_max
            or self._backing.cache.now_ms - ledger.created_ms >= config.ledger_age_max_ms
        )

    def _roll(self) -> Ledger:
        self._seal()
        self._open = self._begin()
        return self._open

    def _begin(self) -> Ledger:
        ref = LedgerRef(self._topic_id, self.next_ledger_id)
        self.next_ledger_id += 1
        ledger = Ledger(ref, self._epoch, self._end, self._backing.cache.now_ms)
        ledger.tail = self
        self._ledgers.append(ledger)
        return ledger

    def _seal(self) -> None:
        ledger, self._open = self._open, None
        if ledger is not None:
            ledger.seal(self._backing.position())
            self._backing.sealed.append(ledger)
            job = self._job_of(ledger)
            assert job is not None
            self._backing.put(job)

    def _job_of(self, ledger: Ledger) -> WriteJob | None:
        segments = ledger.take_unwritten()
        self._backing.cache.handed_over(self)
        if segments or ledger.is_sealed:
            return WriteJob(ledger, segments, ledger.is_sealed)
        return None

    # ------------------------------------------------------------ the cache's call

    def forget_oldest(self, segment: Segment) -> None:
        assert self._tail[0] is segment
        del self._tail[0]

    # ------------------------------------------------------------ reading

    def read(
        self, first: int, bytes_max: int, on_done: OnChunk, *, may_point: bool = False
    ) -> None:
        """Read whole batches from `first` on: at least one, or an empty chunk at the end.

        The chunk stays within `bytes_max` unless its first block alone is larger. Damage is a
        `DamagedRange`: a caller that may skip it goes on at its `end`. `may_point`: the chunk may say in which file the
        batches lie, instead of having them; damage is for the caller to find then.
        """
        tail = self._tail
        if tail and tail[0].first <= first < self._end:
            on_done(self._read_tail(first, bytes_max))
        elif first == self._end and not self._is_deleted:
            on_done(Chunk(first, first, [], 0))
        else:
            problem = self._refusal(first)
            if problem is not None:
                on_done(problem)
            else:
                self._read_written(first, bytes_max, on_done, may_point=may_point)

    def _refusal(self, first: int) -> DanubiusError | None:
        if self._is_deleted:
            return TopicDeleted("the topic was deleted")
        if not self._start <= first <= self._end:
            return OffsetOutOfRange(
                f"offset {first} is not in the topic; it holds {self._start} to {self._end} "
                "(the next to be written)"
            )
        return None

    def _read_tail(self, first: int, bytes_max: int) -> Chunk | DamagedRange:
        tail = self._tail
        at = bisect_right(tail, first, key=_first_of) - 1
        if tail[at].end <= first:  # a hole
            return given_up(self._ledgers[bisect_right(self._ledgers, first, key=_base_of) - 1])
        buffers: list[Buffer] = []
        gathered = tail[at].gather(first, bytes_max, buffers)
        base, end, size = gathered.first, gathered.end, gathered.size
        while at + 1 < len(tail) and end == tail[at + 1].first and size < bytes_max:
            at += 1
            gathered = tail[at].gather(end, bytes_max - size, buffers)
            end = gathered.end
            size += gathered.size
        return Chunk(base, end, buffers, size)

    def _read_written(
        self, first: int, bytes_max: int, on_done: OnChunk, *, may_point: bool
    ) -> None:
        ledger = self._ledgers[bisect_right(self._ledgers, first, key=_base_of) - 1]
        again = functools.partial(self.read, first, bytes_max, on_done, may_point=may_point)
        arrived = functools.partial(self._arrived, first, on_done)
        read_written(self._backing, ledger, first, bytes_max, again, arrived, may_point=may_point)

    def _arrived(self, first: int, on_done: OnChunk, result: Chunk | DanubiusError) -> None:
        # What was deleted under the reader is gone, whether the read was quicker or found damage.
        on_done(self._refusal(first) or result)

    # ------------------------------------------------------------ finding a time

    def find_time(self, time_us: int, on_done: OnOffset) -> None:
        """The first offset whose publish time is at or after the time; `end_offset` if there is none."""
        self._find_time(time_us, self._start, on_done)

    def _find_time(self, time_us: int, floor: int, on_done: OnOffset) -> None:
        """The same, from `floor` on, ledger by ledger; those whose times are all earlier are passed by."""
        if self._is_deleted:
            on_done(TopicDeleted("the topic was deleted"))
            return
        for ledger in self._ledgers:
            if ledger.last_time_us < time_us or ledger.end_offset <= floor:
                continue
            floor = max(floor, ledger.base_offset)
            unwritten = self._unwritten_from(ledger, floor)
            written_end = unwritten[0].first if unwritten else ledger.end_offset
            if floor < written_end:
                again = functools.partial(self._find_time, time_us, floor, on_done)
                found = functools.partial(self._found_time, time_us, written_end, on_done)
                find_time_written(self._backing, ledger, time_us, floor, again, found)
            else:
                self._find_time_in_tail(ledger, unwritten, time_us, floor, on_done)
            return
        on_done(self._end)

    def _unwritten_from(self, ledger: Ledger, floor: int) -> list[Segment]:
        return [
            segment
            for segment in self._tail
            if segment.ledger is ledger
            and segment.state is not State.WRITTEN
            and segment.end > floor
        ]

    def _find_time_in_tail(
        self, ledger: Ledger, unwritten: list[Segment], time_us: int, floor: int, on_done: OnOffset
    ) -> None:
        buffers = [
            buffer
            for segment in unwritten
            if segment.last_time_us >= time_us
            for buffer in segment.buffers
        ]
        # Off the loop: a batch of times may be a million long, or compressed.
        self._backing.reads.submit(
            functools.partial(find_time_in, buffers, time_us, floor),
            functools.partial(self._found_time, time_us, ledger.end_offset, on_done),
        )

    def _found_time(
        self, time_us: int, searched_end: int, on_done: OnOffset, result: int | DanubiusError | None
    ) -> None:
        if result is None:
            self._find_time(time_us, searched_end, on_done)
        elif isinstance(result, DamagedRange) and result.end <= self._start:
            # It was deleted under the search, not damaged.
            self._find_time(time_us, self._start, on_done)
        else:
            on_done(result)

    def time_near(self, offset: int) -> int:
        """About when the message at an offset was published, in microseconds since 1970; reads nothing."""
        return time_near(self._ledgers, self._tail, offset, self._end)

    def bytes_from(self, offset: int) -> int:
        """About how many bytes are stored from an offset on; those of a ledger count as if spread evenly."""
        return bytes_from(self._ledgers, offset)

    # ------------------------------------------------------------ cold storage

    def warm_ledgers(self) -> list[tuple[LedgerMeta, int]]:
        """From the first that is on disk on, with how far the journal was committed when each was sealed."""
        start = next((at for at, one in enumerate(self._ledgers) if one.is_local), None)
        warm = [] if start is None else self._ledgers[start:]
        return [(ledger.meta, ledger.sealed_position) for ledger in warm]

    def has_ledger(self, ledger_id: int, epoch: int) -> bool:
        ledger = self._ledger_or_none(ledger_id)
        return ledger is not None and ledger.epoch == epoch

    def sizes(self) -> TierSizes:
        """How much lies where."""
        local = cold = stored = ledgers = 0
        for ledger in self._ledgers:
            if ledger.is_local:
                local += ledger.data_bytes
            else:
                cold += ledger.data_bytes
                ledgers += 1
            if ledger.object_name:
                stored += 1
        return TierSizes(local, cold, len(self._ledgers) - ledgers, ledgers, stored)

    def offloaded(self, ledger_id: int, epoch: int, stored: StoredObject) -> None:
        """A ledger has a verified object, which is durable knowledge. One that is gone by now is passed over."""
        ledger = self._ledger_or_none(ledger_id)
        if ledger is not None and ledger.epoch == epoch and ledger.is_sealed:
            ledger.store(stored)
            self._place(ledger)

    def reclaim(self, ledger_ids: Sequence[int]) -> None:
        """These are read from their objects from now on, which is durable; their files go."""
        gone: list[LedgerRef] = []
        for ledger_id in ledger_ids:
            ledger = self._ledger_or_none(ledger_id)
            if ledger is not None and ledger.is_local and ledger.object_name:
                ledger.is_local = False
                self._place(ledger)
                gone.append(ledger.ref)
        if gone:
            self._backing.put(DeleteJob(gone, None))

    def object_lost(self, ledger_id: int) -> None:
        """A ledger that is still on disk has no object after all: as if it had never been stored."""
        ledger = self._ledger_or_none(ledger_id)
        if ledger is not None and ledger.is_local:
            ledger.object_name, ledger.object_bytes, ledger.object_crc = "", 0, 0
            if self._backing.cold is not None:
                self._backing.cold.forget(ledger.ref)

    def _ledger_or_none(self, ledger_id: int) -> Ledger | None:
        at = bisect_left(self._ledgers, ledger_id, key=_id_of)
        if at < len(self._ledgers) and self._ledgers[at].ref.ledger_id == ledger_id:
            return self._ledgers[at]
        return None

    def _place(self, ledger: Ledger) -> None:
        if self._backing.cold is not None and ledger.object_name:
            self._backing.cold.place(ledger.ref, ledger.meta)

    # ------------------------------------------------------------ letting go

    def is_young(self, now_ms: int) -> bool:
        """Whether it has one ledger at the most, which no age can seal yet: then there is nothing to let go of."""
        ledgers = self._ledgers
        if not ledgers:
            return True
        first = ledgers[0]
        young_ms = min(self._backing.config.ledger_age_max_ms, SEAL_AGE_MIN_MS)
        return not first.is_sealed and now_ms - first.created_ms < young_ms

    def plan_trim(self, floor: int, retention: Retention, now_ms: int) -> int:
        """Where the topic would start without the ledgers that may go; seals an aged open one."""
        if self._open is not None:
            age_max_ms = self._backing.config.ledger_age_max_ms
            if retention.age_ms is not None:
                age_max_ms = min(age_max_ms, max(retention.age_ms, SEAL_AGE_MIN_MS))
            if now_ms - self._open.created_ms >= age_max_ms:
                self._seal()
        if not self._ledgers or not self._ledgers[0].is_sealed:
            return self._start
        count = plan_drop(self.ledgers, floor, retention, now_ms)
        return max(self._start, self._ledgers[count - 1].end_offset) if count else self._start

    def seal_open(self, bytes_min: int, created_before_ms: int = 0) -> None:
        """End the open ledger if it has so many bytes or is as old, so that it can go with the others."""
        ledger = self._open
        if ledger is not None and (
            ledger.data_bytes >= bytes_min or ledger.created_ms < created_before_ms
        ):
            self._seal()

    def limit_ledgers(self, kept_bytes: int) -> None:
        """Make ledgers small enough that a bound on what is kept can be honoured: an eighth of it."""
        configured = self._backing.config.ledger_bytes_max
        self.ledger_bytes_max = min(configured, max(kept_bytes // 8, LEDGER_BYTES_MIN))

    def would_free(self, start: int) -> bool:
        """Whether `trim_to` would change anything."""
        first = self._ledgers[0] if self._ledgers else None
        return start > self._start or (
            first is not None and first.is_sealed and first.end_offset <= start
        )

    def trim_to(self, start: int) -> None:
        """Let the topic start at `start`; sealed ledgers wholly below it are deleted."""
        assert start <= self._end
        self._start = max(self._start, start)
        ledgers = self._ledgers
        count, size = 0, len(ledgers)
        while count < size and ledgers[count].is_sealed and ledgers[count].end_offset <= start:
            count += 1
        if count == 0:
            return
        dropped = ledgers[:count]
        del ledgers[:count]
        self._drop_segments(ledgers[0].base_offset if ledgers else self._end)
        self._release(dropped)
        self._backing.put(DeleteJob([ledger.ref for ledger in dropped], None))

    def trim(self, floor: int, retention: Retention, now_ms: int) -> int:
        """Delete the ledgers that may go; the new start offset."""
        if (start := self.plan_trim(floor, retention, now_ms)) > self._start:
            self.trim_to(start)
        return self._start

    def close(self) -> None:
        """Hand over what is unwritten; the topic stays as it is."""
        if (job := self.take_unwritten()) is not None:
            self._backing.put(job)

    def delete(self) -> None:
        """Remove the topic's ledgers and forget its tail. Readers hear TopicDeleted."""
        if self._is_deleted:
            return
        self._is_deleted = True
        unhanded = sum(segment.cost for segment in self._open.unwritten) if self._open else 0
        self._backing.cache.forget(self, unhanded)
        self._drop_segments(self._end)
        self._release(self._ledgers)
        refs = [ledger.ref for ledger in self._ledgers]
        self._ledgers, self._open = [], None
        self._start = self._end
        self._backing.put(DeleteJob(refs, self._topic_id))

    def _release(self, dropped: Iterable[Ledger]) -> None:
        backing = self._backing
        for ledger in dropped:
            backing.indexes.drop(ledger.ref)
            if backing.cold is not None and ledger.object_name:
                backing.cold.release(ledger.ref, ledger.meta)

    def _drop_segments(self, below: int) -> None:
        count = 0
        while count < len(self._tail) and self._tail[count].end <= below:
            self._backing.cache.drop(self._tail[count])
            count += 1
        del self._tail[:count]

    def check(self) -> None:
        """Assert the invariants."""
        end = self._ledgers[0].base_offset if self._ledgers else self._end
        for ledger in self._ledgers:
            assert ledger.base_offset == end
            assert ledger.is_sealed or ledger is self._open
            end = ledger.end_offset
        assert end == self._end
        assert self._start <= self._end
        lost = {one.base_offset: one.end_offset for one in self._ledgers if one.is_lost}
        if self._tail:
            assert lost.get(self._tail[-1].end, self._tail[-1].end) == self._end
        for left, right in zip(self._tail, self._tail[1:], strict=False):
            assert lost.get(left.end, left.end) == right.first
            assert left.state >= right.state
