"""Plans of repairs of a damaged journal: what one would give up, and what it would write. Pure: bytes in, a plan out.

Every gap in the journal gets a record of exactly its size, which says what was there as far as the rest tells
(`RecordsGivenUp`). So no position moves, every record that is sound stays where it is, and the snapshots hold. A start
replays the result as any journal: a topic goes on behind its lost messages, whose offsets are not given again.

What was lost is known from what is left: the next batch of a topic says how many are missing before it, and an
acknowledgement that there was a message. Behind the last of these nothing tells, which the plan says too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.ack.core.cursor import Cursor
from danubius.errors import DataDirectoryDamaged
from danubius.publish.journaling import BATCH_RECORD
from danubius.record.batch import read_header
from danubius.shard.state.atomic import ATOMIC_RECORD, decode_atomic
from danubius.shard.state.facts import (
    EVENT_RECORD,
    ProducerStarted,
    RangesAcked,
    RecordsGivenUp,
    SubscriptionCreated,
    TopicCreated,
    TopicRemoved,
    decode_event,
    encode_event,
)
from danubius.wal.core.format import (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    FileHeader,
    pack_record,
)

if TYPE_CHECKING:
    from danubius.model.buffers import Buffer
    from danubius.shard.state.facts import Event
    from danubius.shard.state.snapshot import BrokerSnapshot
    from danubius.wal.core.salvage import Gap
    from danubius.wal.journal import JournalRecord

HOLE_BYTES_MAX: Final = 28
"""Three numbers in MessagePack. A batch takes more in the journal, so a gap has room for all that were in it."""
FACT_BYTES_MAX: Final = 12
"""The fact of a gap without its holes and its padding."""


class LostMessages(NamedTuple):
    """Messages [first, end) of a topic."""

    topic: str
    first: int
    end: int


class LostSequences(NamedTuple):
    """Sequences [first, end) of a producer: whoever repeats them is told that they are out of order."""

    topic: str
    producer: str
    first: int
    end: int


class Plan:
    """All that a repair does, and all that it costs."""

    def __init__(self) -> None:
        self.gaps: list[Gap] = []
        self.holes: list[list[tuple[int, int, int]]] = []
        """Of each gap."""
        self.messages: list[LostMessages] = []
        self.sequences: list[LostSequences] = []
        self.nameless: dict[int, int] = {}
        """Topics that were created in a gap, by number, and how many of their messages are left without a name."""
        self.doubtful: list[tuple[str, int]] = []
        """Topics that nothing is known of behind the last gap, and the offset of their next message."""
        self.end = 0
        """Where the journal ends: if there was more, nothing tells of it."""
        self.orphans = 0
        """Acknowledgements of subscriptions that were created in a gap."""

    @property
    def lost_bytes(self) -> int:
        return sum(gap.end - gap.first for gap in self.gaps)

    def records(self) -> list[tuple[FileHeader, int, bytes]]:
        """What is to be written: into which file, at which byte."""
        written: list[tuple[FileHeader, int, bytes]] = []
        for gap, holes in zip(self.gaps, self.holes, strict=True):
            at = FILE_HEADER_BYTES + gap.first - gap.file.base
            written.append((gap.file, at, filler(gap, holes)))
        return written


def filler(gap: Gap, holes: list[tuple[int, int, int]]) -> bytes:
    """A record of exactly the size of a gap."""
    room = gap.end - gap.first - RECORD_HEADER_BYTES
    bare = len(encode_event(RecordsGivenUp(holes)))
    # The length of the padding is a number of one to four bytes, and a record ends on a multiple of 8.
    for spare in range(8):
        body = encode_event(RecordsGivenUp(holes, bytes(max(0, room - bare - spare))))
        if 0 <= room - len(body) < 8:
            break
    else:
        raise DataDirectoryDamaged(
            f"the {gap.end - gap.first} bytes at position {gap.first} are too few for what was lost there"
        )
    into: list[Buffer] = []
    pack_record(gap.first, gap.first, 0, gap.file.sequence, len(body), EVENT_RECORD, [body], into)
    return b"".join(into)


class _Topic:
    """What the planner knows of a topic so far."""

    def __init__(self, name: str, next_offset: int, position: int) -> None:
        self.name = name
        self.next_offset = next_offset
        self.position = position
        """Records before it are in the snapshot's state."""
        self.sure_to = 0
        """Behind so many gaps its next offset is known."""
        self.producers: dict[int, tuple[str, int, int]] = {}
        """By number: name, epoch and next sequence."""
        self.subscriptions: set[int] = set()


class Planner:
    """Goes through the journal: `record` and `gap` in order, then `finish`."""

    def __init__(self, snapshot: BrokerSnapshot) -> None:
        self.plan = Plan()
        self._removed: set[int] = set()
        self._topics: dict[int, _Topic] = {}
        self._acked_to: dict[int, int] = {}
        """What cursors of the snapshot say: they may be ahead of it."""
        for state in snapshot.topics:
            topic = _Topic(state.name, state.next_offset, state.position)
            for producer in state.producers:
                known = (producer.name, producer.epoch, producer.next_sequence)
                topic.producers[producer.producer_id] = known
            for subscription in state.subscriptions:
                topic.subscriptions.add(subscription.subscription_id)
                cursor = Cursor.decode(subscription.cursor)
                end = max([cursor.floor, *(end for _, end in cursor.above)])
                self._acked_to[state.topic_id] = max(end, self._acked_to.get(state.topic_id, 0))
            self._topics[state.topic_id] = topic

    # ------------------------------------------------------------ what is there

    def gap(self, gap: Gap) -> None:
        self.plan.gaps.append(gap)
        self.plan.holes.append([])

    def record(self, record: JournalRecord) -> None:
        """Raises DataDirectoryDamaged for one that no repair can make sense of."""
        try:
            if record.kind == BATCH_RECORD:
                self._batch(record, record.topic_id, record.body, is_sequenced=True)
            elif record.kind == EVENT_RECORD:
                self._fact(record, decode_event(record.body))
            elif record.kind == ATOMIC_RECORD:
                batches, facts = decode_atomic(record.body)
                for topic_id, batch in batches:
                    self._batch(record, topic_id, batch, is_sequenced=False)
                for fact in facts:
                    self._fact(record, fact)
            else:
                raise DataDirectoryDamaged(
                    f"the journal record at {record.position} has the unknown kind {record.kind}"
                )
        except ValueError as error:  # of which those of msgspec are some
            raise DataDirectoryDamaged(
                f"the journal record at {record.position} cannot be read by this version: {error}"
            ) from error

    def _batch(
        self, record: JournalRecord, topic_id: int, batch: memoryview, *, is_sequenced: bool
    ) -> None:
        header = read_header(batch)
        topic = self._topics.get(topic_id)
        if topic is None:
            if topic_id not in self._removed:
                nameless = self.plan.nameless
                nameless[topic_id] = nameless.get(topic_id, 0) + header.count
            return
        if record.position < topic.position:
            return
        if header.base_offset < topic.next_offset:
            raise DataDirectoryDamaged(
                f"the journal record at {record.position} has offset {header.base_offset} of {topic.name} where "
                f"{topic.next_offset} must come next: the journal and the snapshots do not belong together"
            )
        self._seen_to(topic_id, topic, header.base_offset)
        topic.next_offset = header.base_offset + header.count
        topic.sure_to = len(self.plan.gaps)
        if is_sequenced:
            self._sequence(topic, header.producer_id, header.base_sequence, header.count)

    def _sequence(self, topic: _Topic, producer_id: int, sequence: int, count: int) -> None:
        known = topic.producers.get(producer_id)
        if known is None:
            return
        name, epoch, expected = known
        if 0 <= expected < sequence:
            self.plan.sequences.append(LostSequences(topic.name, name, expected, sequence))
        topic.producers[producer_id] = (name, epoch, sequence + count)

    def _seen_to(self, topic_id: int, topic: _Topic, end: int) -> None:
        """There were messages up to `end`."""
        if end <= topic.next_offset:
            return
        gaps = range(topic.sure_to, len(self.plan.gaps))
        if not gaps:
            raise DataDirectoryDamaged(
                f"the journal goes from offset {topic.next_offset} of {topic.name} to {end}, and no record is missing "
                "between: the journal and the snapshots do not belong together; restore both from one copy"
            )
        # Of several gaps, any will do; that with the most room has it for sure.
        at = max(gaps, key=self._room)
        self.plan.holes[at].append((topic_id, topic.next_offset, end))
        self.plan.messages.append(LostMessages(topic.name, topic.next_offset, end))
        topic.next_offset = end

    def _room(self, at: int) -> int:
        gap = self.plan.gaps[at]
        used = FACT_BYTES_MAX + HOLE_BYTES_MAX * len(self.plan.holes[at])
        return gap.end - gap.first - RECORD_HEADER_BYTES - used

    def _fact(self, record: JournalRecord, fact: Event) -> None:
        topic_id: int | None = getattr(fact, "topic_id", None)
        topic = None if topic_id is None else self._topics.get(topic_id)
        if topic is not None and record.position < topic.position:
            return
        match fact:
            case TopicCreated():
                self._topics[fact.topic_id] = created = _Topic(fact.name, 0, 0)
                created.sure_to = len(self.plan.gaps)
            case TopicRemoved():
                self._topics.pop(fact.topic_id, None)
                self._removed.add(fact.topic_id)
            case ProducerStarted() if topic is not None:
                next_sequence = -1 if fact.resumed else fact.next_sequence
                topic.producers[fact.producer_id] = (fact.name, fact.epoch, next_sequence)
            case SubscriptionCreated() if topic is not None:
                topic.subscriptions.add(fact.subscription_id)
            case RangesAcked() if topic is not None and fact.ranges:
                self._seen_to(fact.topic_id, topic, max(end for _, end in fact.ranges))
                is_known = fact.subscription_id in topic.subscriptions
                self.plan.orphans += bool(self.plan.gaps) and not is_known
            case RecordsGivenUp():
                self._given_up_before(fact)
            case _:
                pass

    def _given_up_before(self, fact: RecordsGivenUp) -> None:
        """This journal was repaired before."""
        for topic_id, _, end in fact.holes:
            topic = self._topics.get(topic_id)
            if topic is not None:
                topic.next_offset = max(topic.next_offset, end)

    # ------------------------------------------------------------ the end

    def finish(self, end: int) -> Plan:
        """Everything was gone through, up to the position `end`."""
        self.plan.end = end
        gaps = len(self.plan.gaps)
        for topic_id, topic in self._topics.items():
            if topic.sure_to < gaps:
                self._seen_to(topic_id, topic, self._acked_to.get(topic_id, 0))
                self.plan.doubtful.append((topic.name, topic.next_offset))
        return self.plan
