"""The survey of a snapshot and the journal behind it, gone through from end to end before a start changes anything.

Invariant: nothing is written here, deleted or renamed. What passes can be replayed: every record is sound and is one
that this version knows, and the offsets of every topic follow each other.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from danubius.errors import DataDirectoryDamaged, InvalidBatch
from danubius.ledger.leftovers import Added, State
from danubius.model.limits import MIB
from danubius.model.topic import Durability
from danubius.publish.journaling import BATCH_RECORD
from danubius.record.header import read_header
from danubius.shard.features.transactions.core.transaction import epoch_of
from danubius.shard.state.atomic import ATOMIC_RECORD, decode_atomic
from danubius.shard.state.facts import (
    EVENT_RECORD,
    Event,
    LedgerOffloaded,
    RecordsGivenUp,
    TopicCreated,
    TopicRemoved,
    TransactionCommitted,
    decode_event,
)
from danubius.shard.state.snapshot import BrokerSnapshot, decode_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from danubius.model.topic import TopicSpec
    from danubius.shard.state.snapshot import TopicState
    from danubius.wal.journal import JournalRecord
    from danubius.wal.ports import JournalPort, SnapshotPort

KEPT_BYTES_MAX: Final = 64 * MIB
KEPT_RECORDS_MAX: Final = 100_000
"""So much of the journal is kept for the replay; more is read again."""


class SurveyedTopic:
    """One topic as the snapshot has it, and what the journal adds to that."""

    __slots__ = (
        "first_offset",
        "is_removed",
        "is_synced",
        "name",
        "next_offset",
        "position",
        "replayed_bytes",
    )

    def __init__(self, name: str, spec: TopicSpec, next_offset: int, position: int) -> None:
        self.name = name
        self.is_synced = spec.durability is Durability.SYNCED
        """Whether its messages were synced in the journal before any ledger got them."""
        self.first_offset = next_offset
        """From here on its messages are in the journal."""
        self.next_offset = next_offset
        self.position = position
        """Records of the journal before it are in the snapshot's state."""
        self.replayed_bytes = 0
        """Batches that a replay adds to its ledgers."""
        self.is_removed = False


class Survey:
    """What was found; `records` gives the journal's records once more, for the replay."""

    def __init__(self, journal: JournalPort, position: int, snapshot: BrokerSnapshot) -> None:
        self._journal = journal
        self.position = position
        """Of the snapshot."""
        self.keep_from = position
        """From here on the journal is needed by one snapshot or another."""
        self.snapshot = snapshot
        self.has_snapshot = False
        self.has_given_up = False
        """Whether a repair gave up records of the journal."""
        self.end = position
        """Where the journal ends."""
        self.journal_records = self.journal_bytes = 0
        self.epoch = _epoch_of_snapshot(snapshot)
        """The highest that was seen anywhere."""
        self.topics = {state.topic_id: _surveyed(state) for state in snapshot.topics}
        """All of the snapshot and of the journal, those that were removed too."""
        self._kept: deque[JournalRecord] | None = deque()

    @property
    def reach(self) -> int | None:
        """How far the journal had been synced when the snapshot was saved; None: its version did not see to that."""
        if not self.snapshot.epoch:
            return None
        return max((state.position for state in self.snapshot.topics), default=self.position)

    @property
    def ledger_state(self) -> State:
        """What explains the ledgers that are found."""
        return State(
            {state.topic_id: state.ledgers for state in self.snapshot.topics},
            {
                topic_id: Added(topic.first_offset, topic.replayed_bytes, topic.is_removed)
                for topic_id, topic in self.topics.items()
            },
            self.snapshot.next_id,
            is_certain=not self.has_snapshot or self.snapshot.epoch > 0,
        )

    def go_through(self) -> None:
        """Look at every record behind the snapshot. Raises DataDirectoryDamaged and DataDirectoryTooNew."""
        for record in self._inspect():
            self._look_at(record)
            self.end = record.end_position
            self.journal_records += 1
            self.journal_bytes += len(record.body)
            if self._kept is None:
                continue
            self._kept.append(record)
            if self.journal_bytes > KEPT_BYTES_MAX or self.journal_records > KEPT_RECORDS_MAX:
                self._kept = None

    def records(self) -> Iterator[JournalRecord]:
        """Everything that `go_through` has seen, again; once."""
        if self._kept is None:
            yield from self._inspect()
            return
        while self._kept:
            yield self._kept.popleft()

    def _inspect(self) -> Iterator[JournalRecord]:
        return self._journal.inspect(self.position, keep_from=self.keep_from, reach=self.reach)

    def _look_at(self, record: JournalRecord) -> None:
        if record.kind == BATCH_RECORD:
            self._look_at_batch(record, record.topic_id, record.body)
            return
        for topic_id, batch in batches_of(record):
            self._look_at_batch(record, topic_id, batch)
        for fact in facts_of(record):
            self._look_at_fact(record, fact)

    def _look_at_batch(self, record: JournalRecord, topic_id: int, batch: memoryview) -> None:
        topic = self.topics.get(topic_id)
        if topic is None or topic.is_removed or record.position < topic.position:
            return
        try:
            header = read_header(batch)
        except InvalidBatch as error:
            raise DataDirectoryDamaged(
                f"the journal record at {record.position} is no batch: {error.message}"
            ) from error
        if header.base_offset != topic.next_offset:
            raise DataDirectoryDamaged(
                f"the journal holds offset {header.base_offset} of {topic.name} where {topic.next_offset} must come "
                "next: the journal and the snapshots are not of the same time, or of another broker; restore both "
                "from one copy"
            )
        topic.next_offset += header.count
        topic.replayed_bytes += len(batch)
        self.epoch = max(self.epoch, header.epoch)

    def _look_at_fact(self, record: JournalRecord, fact: Event) -> None:
        match fact:
            case TopicCreated():
                known = self.topics.get(fact.topic_id)
                if known is None or record.position >= known.position:
                    self.topics[fact.topic_id] = SurveyedTopic(fact.name, fact.spec, 0, 0)
            case TopicRemoved():
                known = self.topics.get(fact.topic_id)
                if known is not None and record.position >= known.position:
                    known.is_removed = True
            case TransactionCommitted():
                self.epoch = max(self.epoch, epoch_of(fact.transaction_id))
            case LedgerOffloaded():
                self.epoch = max(self.epoch, fact.epoch)
            case RecordsGivenUp():
                self._skip(fact)
            case _:
                pass

    def _skip(self, fact: RecordsGivenUp) -> None:
        """A repair gave these up: their topics go on behind them."""
        self.has_given_up = True
        for topic_id, _, end in fact.holes:
            topic = self.topics.get(topic_id)
            if topic is not None and not topic.is_removed:
                topic.next_offset = max(topic.next_offset, end)


def survey_state(snapshots: SnapshotPort, journal: JournalPort, broker_id: str = "") -> Survey:
    """Go through all of a broker's state. Raises DataDirectoryDamaged, DataDirectoryTooNew and the disk's errors.

    `broker_id`: whose it must be, if it says so.
    """
    stored = snapshots.load_latest()
    position, snapshot = 0, BrokerSnapshot(1, [])
    if stored is not None:
        position, snapshot = stored[0], _decode(stored[1])
    if broker_id and snapshot.broker_id and snapshot.broker_id != broker_id:
        raise DataDirectoryDamaged(
            f"the snapshots are those of {snapshot.broker_id}, and this is {broker_id}: another broker's files were "
            "put here; restore its own from a copy"
        )
    survey = Survey(journal, position, snapshot)
    survey.has_snapshot = stored is not None
    survey.keep_from = snapshots.oldest_position()
    survey.go_through()
    return survey


def batches_of(record: JournalRecord) -> list[tuple[int, memoryview]]:
    """Topic and bytes of the batches in an atomic record. Raises DataDirectoryDamaged."""
    return _atomic(record)[0] if record.kind == ATOMIC_RECORD else []


def facts_of(record: JournalRecord) -> list[Event]:
    """The facts of a record that is no batch. Raises DataDirectoryDamaged, also for a kind that nobody knows."""
    if record.kind == ATOMIC_RECORD:
        return _atomic(record)[1]
    if record.kind != EVENT_RECORD:
        raise DataDirectoryDamaged(
            f"the journal record at {record.position} has the unknown kind {record.kind}"
        )
    try:
        return [decode_event(record.body)]
    except msgspec.MsgspecError as error:
        raise DataDirectoryDamaged(
            f"the journal record at {record.position} is an event this version cannot read: {error}"
        ) from error


def _atomic(record: JournalRecord) -> tuple[list[tuple[int, memoryview]], list[Event]]:
    try:
        return decode_atomic(record.body)
    except ValueError as error:  # of which those of msgspec are some
        raise DataDirectoryDamaged(
            f"the journal record at {record.position} is an atomic one this version cannot read: {error}"
        ) from error


def _surveyed(state: TopicState) -> SurveyedTopic:
    return SurveyedTopic(state.name, state.spec, state.next_offset, state.position)


def _epoch_of_snapshot(snapshot: BrokerSnapshot) -> int:
    ledgers = [meta.epoch for state in snapshot.topics for meta in state.ledgers[-1:]]
    committed = [epoch_of(end - 1) for _, end in snapshot.committed]
    return max(snapshot.epoch, *ledgers, *committed, 0)


def _decode(data: bytes) -> BrokerSnapshot:
    try:
        return decode_snapshot(data)
    except msgspec.MsgspecError as error:
        raise DataDirectoryDamaged(
            f"the snapshot cannot be read by this version: {error}"
        ) from error
