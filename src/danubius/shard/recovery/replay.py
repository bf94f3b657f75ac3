"""From a data directory to a running broker: the snapshot, then every journal record behind it, in order."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from danubius.errors import DanubiusError, StorageFull
from danubius.ledger.entry import Entry
from danubius.model.ids import Epoch, Offset, ProducerId, TopicId
from danubius.model.limits import MIB
from danubius.publish.core.sequencer import Producer, Run
from danubius.publish.journaling import BATCH_RECORD
from danubius.record.batch import read_header
from danubius.record.header import EXPIRES
from danubius.shard.features.stages.appliers import count_staged, restore_jobs
from danubius.shard.hosting.subscription_appliers import restore_subscription
from danubius.shard.hosting.topic_appliers import restore_topic
from danubius.shard.recovery.survey import batches_of, facts_of, survey_state
from danubius.shard.state.facts import STAGE_LOG, Event, ProducerStarted
from danubius.shard.state.snapshot import newest_stamp_ms

if TYPE_CHECKING:
    from danubius.shard.recovery.survey import Survey
    from danubius.shard.shard import Shard
    from danubius.shard.state.snapshot import TopicState
    from danubius.wal.journal import JournalRecord
    from danubius.wal.ports import SnapshotPort

YIELD_BYTES: Final = 8 * MIB
"""Replay lets the flusher's answers in after this many bytes."""

log = logging.getLogger(__name__)


class Recovery:
    """Rebuilds one broker; used once, before it serves anyone."""

    def __init__(self, shard: Shard, snapshots: SnapshotPort, survey: Survey | None = None) -> None:
        self._shard = shard
        self._snapshots = snapshots
        self._survey = survey
        self._producers: dict[tuple[int, int], Producer] = {}
        """By topic and producer id."""
        self._known_to: dict[int, int] = {}
        """By topic: which records the snapshot has of it, though they lie behind the snapshot's position."""
        self._is_full = False
        """Whether the disk had no room for ledgers."""

    async def run(self) -> int:
        """Recover everything that was committed; returns the position of the snapshot it began from."""
        shard = self._shard
        survey = self._survey or survey_state(self._snapshots, shard.journal)
        snapshot = survey.snapshot
        self._snapshots.set_aside()
        shard.ledgers.position = lambda: shard.committed_position
        shard.ledgers.recover_files(survey.ledger_state)
        shard.ledgers.start()
        shard.numbers.next = snapshot.next_id
        shard.catalog.restore(snapshot.namespaces, snapshot.partitioned)
        for first, end in snapshot.committed:
            shard.committed_transactions.add(first, end)
        restore_jobs(shard, snapshot.jobs)
        for state in snapshot.topics:
            self._restore(state)
        shard.ages.begin(newest_stamp_ms(snapshot))
        await self._replay(survey)
        shard.recovered_position = shard.committed_position
        shard.recovered_next_number = shard.numbers.next
        log.info(
            "recovered",
            extra={
                "topics": len(shard.topics),
                "journal_records": survey.journal_records,
                "journal_bytes": survey.journal_bytes,
                "epoch": shard.epoch,
            },
        )
        return survey.position

    def _restore(self, state: TopicState) -> None:
        topic = restore_topic(self._shard, state)
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
            restore_subscription(self._shard, topic, subscription)

    async def _replay(self, survey: Survey) -> None:
        shard = self._shard
        shard.committed_position = survey.position
        since_yield = 0
        for record in survey.records():
            self._apply(record)
            shard.committed_position = record.end_position
            since_yield += len(record.body)
            if since_yield >= YIELD_BYTES:
                since_yield = 0
                await self._let_flusher_catch_up()
        shard.journal.secure()

    async def _let_flusher_catch_up(self) -> None:
        """Keep what is not in ledgers within its bound; on a full disk the bound is the journal's, which holds it all.

        Such a broker serves what it has, refuses to publish, and writes the ledgers when there is room.
        """
        await asyncio.sleep(0)
        ledgers = self._shard.ledgers
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
                extra={"bytes_max": self._shard.journal.bytes_max, "error": error.message},
            )

    def _apply(self, record: JournalRecord) -> None:
        if record.kind == BATCH_RECORD:
            self._apply_batch(record, record.topic_id, record.body, is_sequenced=True)
            return
        for topic_id, batch in batches_of(record):
            self._apply_batch(record, topic_id, batch, is_sequenced=False)
        for fact in facts_of(record):
            self._apply_event(record, fact)

    def _apply_batch(
        self, record: JournalRecord, topic_id: int, batch: memoryview, *, is_sequenced: bool
    ) -> None:
        """A batch that is not sequenced is the broker's own: what its header says of a producer was true elsewhere."""
        topic = self._shard.topics_by_id.get(TopicId(topic_id))
        if topic is None or self._is_known(record, topic_id):
            return
        header = read_header(batch)
        sequencer = topic.pipeline.sequencer
        assert header.base_offset == sequencer.next_offset, "the survey has looked at it"
        producer = self._producers.get((topic.id, header.producer_id)) if is_sequenced else None
        if producer is not None and producer.epoch != header.producer_epoch:
            producer = None
        sequencer.replay(producer, header.base_sequence, header.count)
        if header.flags & EXPIRES:
            topic.has_expiring = True
        if topic.parent == STAGE_LOG:
            count_staged(self._shard, header)
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
        self._shard.apply(event)
        if isinstance(event, ProducerStarted):
            self._remember(event)

    def _remember(self, started: ProducerStarted) -> None:
        """Batches name their producers by number only."""
        topic = self._shard.topics_by_id.get(TopicId(started.topic_id))
        if topic is not None:
            producer = topic.pipeline.sequencer.producer_or_none(started.name)
            assert producer is not None
            self._producers[topic.id, producer.id] = producer
