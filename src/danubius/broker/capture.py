"""The broker's state, captured for a snapshot: the counterpart of what `recovery` restores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.broker.snapshot import (
    CapturedSnapshot,
    JobState,
    ProducerState,
    StageState,
    SubscriptionState,
    TopicState,
    encode_topic,
)
from danubius.ledger.managed import ManagedLedger

if TYPE_CHECKING:
    from danubius.broker.broker import Broker
    from danubius.broker.subscription import Subscription
    from danubius.broker.topic import Topic
    from danubius.publish.core.stages import Job


def take_snapshot(broker: Broker) -> CapturedSnapshot:
    """The state as of the last commit, hidden topics included."""
    return CapturedSnapshot(
        broker.next_id,
        [encode_topic(_topic_state(topic)) for topic in broker.topics_by_id.values()],
        list(broker.namespaces.values()),
        list(broker.partitioned.values()),
        list(broker.committed_transactions),
        [_job_state(job) for job in broker.jobs.by_name.values()],
    )


def _job_state(job: Job) -> JobState:
    decision = job.decision
    return JobState(
        job.name,
        job.committed,
        [
            StageState(
                s.number, s.batch, s.task, s.first, s.batches, s.messages, s.bytes, list(s.targets)
            )
            for s in job.stages.values()
        ],
        None
        if decision is None
        else (decision.batch, list(decision.stages), decision.next, decision.end),
    )


def _topic_state(topic: Topic) -> TopicState:
    log = topic.log
    is_reliable = isinstance(log, ManagedLedger)
    return TopicState(
        topic.id,
        topic.name,
        topic.spec,
        topic.created_ms,
        log.start_offset if is_reliable else 0,
        topic.pipeline.sequencer.committed_offset if is_reliable else 0,
        log.snapshot() if is_reliable else [],
        _producer_states(topic) if is_reliable else [],
        [_subscription_state(s) for s in topic.subscriptions.values()] if is_reliable else [],
        topic.own_policies,
        topic.parent,
        topic.watermark,
        topic.has_expiring,
    )


def _producer_states(topic: Topic) -> list[ProducerState]:
    return [
        ProducerState(p.id, p.name, p.epoch, p.committed_next, list(p.runs))
        for p in topic.pipeline.sequencer.durable_producers
    ]


def _subscription_state(subscription: Subscription) -> SubscriptionState:
    attempts = subscription.attempts
    return SubscriptionState(
        subscription.id,
        subscription.name,
        subscription.type,
        subscription.cursor.encode(),
        subscription.failure,
        [(one.first, one.end, one.value) for one in attempts] if attempts else [],
        subscription.created_ms,
    )
