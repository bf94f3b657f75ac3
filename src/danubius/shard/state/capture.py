"""The broker's state, captured for a snapshot: the counterpart of what `recovery` restores.

A thousand topics take a dozen milliseconds, so they are looked at in slices, between which the broker goes on. Each
topic's state says as of which position of the journal it is; recovery passes over what lies before it, of that topic.
Invariant: all that is not a topic's own, and the hidden topics to which it refers, is as of the capture's position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.ledger.managed import ManagedLedger
from danubius.shard.state.snapshot import (
    CapturedSnapshot,
    JobState,
    ProducerState,
    StageState,
    SubscriptionState,
    TopicState,
    encode_topic,
)

if TYPE_CHECKING:
    import msgspec

    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard
    from danubius.shard.state.core.stages import Job


class Capture:
    """One capture: `topics` are to be looked at one by one, in any number of turns; then there is a snapshot."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.position = shard.committed_position
        """From here on the journal must be kept for this snapshot."""
        self._namespaces = list(shard.catalog.namespaces.values())
        self._partitioned = list(shard.catalog.partitioned.values())
        self._committed = list(shard.committed_transactions)
        self._jobs = [_job_state(job) for job in shard.jobs.by_name.values()]
        self._states: list[msgspec.Raw] = []
        self.topics: list[Topic] = []
        for topic in shard.topics_by_id.values():
            if topic.parent:
                self.look_at(topic)
            else:
                self.topics.append(topic)

    def look_at(self, topic: Topic) -> None:
        """Take down the state of a topic as of the last commit, if it has not been deleted meanwhile."""
        shard = self._shard
        if shard.topics_by_id.get(topic.id) is topic:
            self._states.append(encode_topic(_topic_state(topic, shard.committed_position)))

    def snapshot(self) -> CapturedSnapshot:
        # Subscriptions and producers of topics that were looked at last may have drawn the latest numbers.
        return CapturedSnapshot(
            self._shard.numbers.next,
            self._states,
            self._namespaces,
            self._partitioned,
            self._committed,
            self._jobs,
            self._shard.broker_id,
            self._shard.epoch,
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


def _topic_state(topic: Topic, position: int) -> TopicState:
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
        position,
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
