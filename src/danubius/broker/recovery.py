"""From a data directory to a running broker: the snapshot, then every journal record behind it, in order."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, assert_never

import msgspec

from danubius.ack.core.cursor import Cursor
from danubius.broker.events import (
    EVENT_RECORD,
    Event,
    LogTrimmed,
    ProducerStarted,
    RangesAcked,
    SubscriptionCreated,
    SubscriptionRemoved,
    SubscriptionRetyped,
    TopicCreated,
    TopicRemoved,
    decode_event,
)
from danubius.broker.snapshot import BrokerSnapshot, TopicState, decode_snapshot
from danubius.errors import DanubiusError, DataDirectoryDamaged
from danubius.ledger.entry import Entry
from danubius.ledger.managed import ManagedLedger
from danubius.model.ids import Epoch, Offset, ProducerId, TopicId
from danubius.model.limits import MIB
from danubius.publish.core.sequencer import Producer, Run
from danubius.publish.journaling import BATCH_RECORD
from danubius.record.batch import read_header

if TYPE_CHECKING:
    from danubius.broker.broker import Broker
    from danubius.broker.topic import Topic
    from danubius.wal.journal import JournalRecord
    from danubius.wal.snapshot import SnapshotStore

YIELD_BYTES: Final = 8 * MIB
"""Replay lets the flusher's answers in after this many bytes."""

log = logging.getLogger(__name__)


class Recovery:
    """Rebuilds one broker; used once, before it serves anyone."""

    def __init__(self, broker: Broker, snapshots: SnapshotStore) -> None:
        self._broker = broker
        self._snapshots = snapshots
        self._producers: dict[tuple[int, int], Producer] = {}
        """By topic and producer id."""
        self.records = 0
        self.bytes = 0

    async def run(self) -> int:
        """Recover everything that was committed; returns the position of the snapshot it began from."""
        stored = self._snapshots.load_latest()
        position, snapshot = 0, BrokerSnapshot(1, [])
        if stored is not None:
            position, snapshot = stored[0], _decode(stored[1])
        broker = self._broker
        broker.ledgers.recover_files({t.topic_id: t.ledgers for t in snapshot.topics})
        broker.ledgers.start()
        broker.next_id = snapshot.next_id
        for state in snapshot.topics:
            self._restore(state)
        await self._replay(position)
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
        broker = self._broker
        created = TopicCreated(state.topic_id, state.name, state.spec, state.created_ms)
        topic = broker.host(created, state.ledgers, state.next_offset, state.start_offset)
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
            cursor = Cursor.decode(subscription.cursor)
            fact = SubscriptionCreated(
                topic.id,
                subscription.subscription_id,
                subscription.name,
                subscription.type,
                cursor.floor,
            )
            broker.host_subscription(topic, fact, cursor)

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
        await asyncio.sleep(0)
        if self._broker.ledgers.is_congested:
            flushed = asyncio.get_running_loop().create_future()
            self._broker.ledgers.flush(flushed.set_result)
            error: DanubiusError | None = await flushed
            if error is not None:
                raise error

    def _apply(self, record: JournalRecord) -> None:
        if record.kind == BATCH_RECORD:
            self._apply_batch(record)
        elif record.kind == EVENT_RECORD:
            try:
                event = decode_event(record.body)
            except msgspec.MsgspecError as error:
                raise DataDirectoryDamaged(
                    f"the journal record at {record.position} is an event this version cannot read: {error}"
                ) from error
            self._apply_event(event)
        else:
            raise DataDirectoryDamaged(
                f"the journal record at {record.position} has the unknown kind {record.kind}"
            )

    def _apply_batch(self, record: JournalRecord) -> None:
        topic = self._topic_or_none(record.topic_id)
        if topic is None:
            return
        header = read_header(record.body)
        sequencer = topic.pipeline.sequencer
        if header.base_offset != sequencer.next_offset:
            raise DataDirectoryDamaged(
                f"the journal holds offset {header.base_offset} of {topic.name} where "
                f"{sequencer.next_offset} must come next"
            )
        producer = self._producers.get((topic.id, header.producer_id))
        if producer is not None and producer.epoch != header.producer_epoch:
            producer = None
        sequencer.replay(producer, header.base_sequence, header.count)
        first = header.base_offset
        topic.log.append(
            Entry(Offset(first), Offset(first + header.count), record.body, header.last_time_us)
        )

    def _apply_event(self, event: Event) -> None:
        broker = self._broker
        match event:
            case RangesAcked():
                self._apply_acks(event)
            case ProducerStarted():
                self._apply_producer(event)
            case TopicCreated(topic_id=topic_id):
                broker.next_id = max(broker.next_id, topic_id + 1)
                broker.host(event, [], 0)
            case TopicRemoved(topic_id=topic_id):
                topic = self._topic_or_none(topic_id)
                if topic is not None:
                    broker.unhost(topic)
            case SubscriptionCreated() | SubscriptionRetyped() | SubscriptionRemoved():
                self._apply_subscription(event)
            case LogTrimmed(topic_id=topic_id, start_offset=start):
                topic = self._topic_or_none(topic_id)
                if topic is not None and isinstance(topic.log, ManagedLedger):
                    topic.log.trim_to(start)
            case _:
                assert_never(event)

    def _apply_acks(self, event: RangesAcked) -> None:
        topic = self._topic_or_none(event.topic_id)
        for subscription in topic.subscriptions.values() if topic else ():
            if subscription.id == event.subscription_id:
                subscription.cursor.ack(event.ranges)

    def _apply_producer(self, event: ProducerStarted) -> None:
        self._broker.next_id = max(self._broker.next_id, event.producer_id + 1)
        topic = self._topic_or_none(event.topic_id)
        if topic is not None:
            producer = topic.pipeline.sequencer.open(
                ProducerId(event.producer_id),
                event.name,
                Epoch(event.epoch),
                resumed=event.resumed,
                is_replay=True,
            )
            self._producers[topic.id, producer.id] = producer

    def _apply_subscription(
        self, event: SubscriptionCreated | SubscriptionRetyped | SubscriptionRemoved
    ) -> None:
        broker = self._broker
        broker.next_id = max(broker.next_id, event.subscription_id + 1)
        topic = self._topic_or_none(event.topic_id)
        if topic is None:
            return
        if isinstance(event, SubscriptionCreated):
            if event.name not in topic.subscriptions:
                broker.host_subscription(topic, event)
            return
        for name, subscription in list(topic.subscriptions.items()):
            if subscription.id == event.subscription_id:
                if isinstance(event, SubscriptionRemoved):
                    del topic.subscriptions[name]
                else:
                    subscription.type = event.type

    def _topic_or_none(self, topic_id: int) -> Topic | None:
        return self._broker.topics_by_id.get(TopicId(topic_id))


def _decode(data: bytes) -> BrokerSnapshot:
    try:
        return decode_snapshot(data)
    except msgspec.MsgspecError as error:
        raise DataDirectoryDamaged(
            f"the snapshot cannot be read by this version: {error}"
        ) from error
