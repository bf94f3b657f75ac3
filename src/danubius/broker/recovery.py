"""From a data directory to a running broker: the snapshot, then every journal record behind it, in order."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from danubius.broker.appliers import apply_fact
from danubius.broker.atomic import ATOMIC_RECORD, decode_atomic
from danubius.broker.events import EVENT_RECORD, STAGE_LOG, Event, ProducerStarted, decode_event
from danubius.broker.recovery_stages import count_staged, restore_jobs
from danubius.broker.recovery_subscriptions import restore_subscription
from danubius.broker.recovery_topics import restore_spaces, restore_topic
from danubius.broker.snapshot import (
    BrokerSnapshot,
    TopicState,
    decode_snapshot,
    newest_stamp_ms,
)
from danubius.errors import DanubiusError, DataDirectoryDamaged, StorageFull
from danubius.ledger.entry import Entry
from danubius.model.ids import Epoch, Offset, ProducerId, TopicId
from danubius.model.limits import MIB
from danubius.publish.core.sequencer import Producer, Run
from danubius.publish.journaling import BATCH_RECORD
from danubius.record.batch import read_header
from danubius.record.header import EXPIRES

if TYPE_CHECKING:
    from danubius.broker.broker import Broker
    from danubius.wal.journal import JournalRecord
    from danubius.wal.ports import SnapshotPort

YIELD_BYTES: Final = 8 * MIB
"""Replay lets the flusher's answers in after this many bytes."""

log = logging.getLogger(__name__)


class Recovery:
    """Rebuilds one broker; used once, before it serves anyone."""

    def __init__(self, broker: Broker, snapshots: SnapshotPort) -> None:
        self._broker = broker
        self._snapshots = snapshots
        self._producers: dict[tuple[int, int], Producer] = {}
        """By topic and producer id."""
        self._known_to: dict[int, int] = {}
        """By topic: which records the snapshot has of it, though they lie behind the snapshot's position."""
        self._is_full = False
        """Whether the disk had no room for ledgers."""
        self.records = 0
        self.bytes = 0

    async def run(self) -> int:
        """Recover everything that was committed; returns the position of the snapshot it began from."""
        stored = self._snapshots.load_latest()
        position, snapshot = 0, BrokerSnapshot(1, [])
        if stored is not None:
            position, snapshot = stored[0], _decode(stored[1])
        broker = self._broker
        broker.ledgers.position = lambda: broker.committed_position
        broker.ledgers.recover_files({t.topic_id: t.ledgers for t in snapshot.topics})
        broker.ledgers.start()
        broker.next_id = snapshot.next_id
        restore_spaces(broker, snapshot)
        restore_jobs(broker, snapshot.jobs)
        for state in snapshot.topics:
            self._restore(state)
        broker.ages.begin(newest_stamp_ms(snapshot))
        await self._replay(position)
        broker.recovered_position = broker.committed_position
        log.info(
            "recovered",
            extra={
                "topics": len(broker.topics),
                "journal_records": self.records,
                "journal_bytes": self.bytes,
                "epoch": broker.epoch,
            },
        )
        return position

    def _restore(self, state: TopicState) -> None:
        topic = restore_topic(self._broker, state)
        self._known_to[topic.id] = state.position
        for stored in state.producers:
            producer = Producer(
                ProducerId(stored.producer_id),
                stored.name,
                Epoch(stored.epoch),
                stored.next_sequence,
            )
            producer.runs.extend(Run(*run) for run in stored.runs)
            topic.pipeline.sequencer.restore(producer)
            self._producers[topic.id, producer.id] = producer
        for subscription in state.subscriptions:
            restore_subscription(self._broker, topic, subscription)

    async def _replay(self, position: int) -> None:
        broker = self._broker
        broker.committed_position = position
        since_yield = 0
        oldest = self._snapshots.oldest_position()
        for record in broker.journal.recover(position, keep_from=oldest):
            self._apply(record)
            broker.committed_position = record.end_position
            self.records += 1
            self.bytes += len(record.body)
            since_yield += len(record.body)
            if since_yield >= YIELD_BYTES:
                since_yield = 0
                await self._let_flusher_catch_up()

    async def _let_flusher_catch_up(self) -> None:
        """Keep what is not in ledgers within its bound; on a full disk the bound is the journal's, which holds it all.

        Such a broker serves what it has, refuses to publish, and writes the ledgers when there is room.
        """
        await asyncio.sleep(0)
        ledgers = self._broker.ledgers
        if not ledgers.is_congested:
            return
        flushed = asyncio.get_running_loop().create_future()
        ledgers.flush(flushed.set_result)
        error: DanubiusError | None = await flushed
        if error is None:
            return
        if not isinstance(error, StorageFull):
            raise error
        if not self._is_full:
            self._is_full = True
            log.error(
                "the disk is full: what the journal holds stays in memory until there is room for ledgers",
                extra={"bytes_max": self._broker.journal.bytes_max, "error": error.message},
            )

    def _apply(self, record: JournalRecord) -> None:
        if record.kind == BATCH_RECORD:
            self._apply_batch(record, record.topic_id, record.body, is_sequenced=True)
        elif record.kind == EVENT_RECORD:
            try:
                event = decode_event(record.body)
            except msgspec.MsgspecError as error:
                raise DataDirectoryDamaged(
                    f"the journal record at {record.position} is an event this version cannot read: {error}"
                ) from error
            self._apply_event(record, event)
        elif record.kind == ATOMIC_RECORD:
            self._apply_atomic(record)
        else:
            raise DataDirectoryDamaged(
                f"the journal record at {record.position} has the unknown kind {record.kind}"
            )

    def _apply_atomic(self, record: JournalRecord) -> None:
        try:
            batches, facts = decode_atomic(record.body)
        except ValueError as error:  # of which those of msgspec are some
            raise DataDirectoryDamaged(
                f"the journal record at {record.position} is an atomic one this version cannot read: {error}"
            ) from error
        for topic_id, batch in batches:
            self._apply_batch(record, topic_id, batch, is_sequenced=False)
        for fact in facts:
            self._apply_event(record, fact)

    def _apply_batch(
        self, record: JournalRecord, topic_id: int, batch: memoryview, *, is_sequenced: bool
    ) -> None:
        """A batch that is not sequenced is the broker's own: what its header says of a producer was true elsewhere."""
        topic = self._broker.topics_by_id.get(TopicId(topic_id))
        if topic is None or self._is_known(record, topic_id):
            return
        header = read_header(batch)
        sequencer = topic.pipeline.sequencer
        if header.base_offset != sequencer.next_offset:
            raise DataDirectoryDamaged(
                f"the journal holds offset {header.base_offset} of {topic.name} where "
                f"{sequencer.next_offset} must come next"
            )
        producer = self._producers.get((topic.id, header.producer_id)) if is_sequenced else None
        if producer is not None and producer.epoch != header.producer_epoch:
            producer = None
        sequencer.replay(producer, header.base_sequence, header.count)
        if header.flags & EXPIRES:
            topic.has_expiring = True
        if topic.parent == STAGE_LOG:
            count_staged(self._broker, header)
        first = header.base_offset
        topic.log.append(
            Entry(Offset(first), Offset(first + header.count), batch, header.last_time_us)
        )

    def _is_known(self, record: JournalRecord, topic_id: int) -> bool:
        return record.position < self._known_to.get(topic_id, 0)

    def _apply_event(self, record: JournalRecord, event: Event) -> None:
        topic_id: int | None = getattr(event, "topic_id", None)
        if topic_id is not None and self._is_known(record, topic_id):
            return
        apply_fact(self._broker, event)
        if isinstance(event, ProducerStarted):
            self._remember(event)

    def _remember(self, started: ProducerStarted) -> None:
        """Batches name their producers by number only."""
        topic = self._broker.topics_by_id.get(TopicId(started.topic_id))
        if topic is not None:
            producer = topic.pipeline.sequencer.producer_or_none(started.name)
            assert producer is not None
            self._producers[topic.id, producer.id] = producer


def _decode(data: bytes) -> BrokerSnapshot:
    try:
        return decode_snapshot(data)
    except msgspec.MsgspecError as error:
        raise DataDirectoryDamaged(
            f"the snapshot cannot be read by this version: {error}"
        ) from error
