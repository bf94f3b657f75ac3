"""Settings of one broker's behaviour; every value has a default that suits a laptop and a server alike."""

from __future__ import annotations

from typing import Annotated

import msgspec

from danubius.model.limits import GIB, KIB, MESSAGE_BYTES_MAX, MIB
from danubius.model.policy import Policies

Positive = Annotated[int, msgspec.Meta(ge=1)]


class BrokerConfig(msgspec.Struct, frozen=True):
    """Settings of the broker itself; journal and ledgers have their own."""

    message_bytes_max: Annotated[int, msgspec.Meta(ge=1, le=MESSAGE_BYTES_MAX)] = MESSAGE_BYTES_MAX
    """Larger messages are refused at publish."""
    connections_max: Positive = 10_000
    """Further connections are refused with TooManyConnections."""
    connection_handles_max: Positive = 20_000
    """Producers and consumers of one connection together; more are refused with LimitReached."""
    topics_max: Positive = 100_000
    """Topics of the broker, each partition one; more are refused with LimitReached. Each costs memory and time."""
    namespace_topics_max: Positive = 50_000
    """The same for one namespace, so that none can take all."""
    topic_subscriptions_max: Positive = 10_000
    """Subscriptions of one topic, whatever its policy `subscriptions_max` says; more are refused with LimitReached."""
    keepalive_ms: Positive = 10_000
    """A peer silent for this long is pinged; after three times as long it is cut off."""
    handshake_timeout_ms: Positive = 10_000
    """A connection must say HELLO within this time."""
    publish_queue_bytes_max: Positive = 32 * MIB
    """Bytes on their way to the disk; above it publishing connections are not read from until half of it is written."""
    ring_bytes_max: Positive = 16 * MIB
    """What a non-reliable topic holds for consumers that lag; beyond it the oldest is dropped and counted."""
    ack_journal_interval_ms: Positive = 50
    """Acknowledgements are gathered this long before they are journaled and confirmed: what a crash may redeliver."""
    checkpoint_bytes: Annotated[int, msgspec.Meta(ge=MIB, le=64 * GIB)] = 64 * MIB
    """Journal bytes between checkpoints. Less: quicker restarts, and journal files that are used again while the page
    cache still has them. More: fewer syncs of all ledgers."""
    checkpoint_topic_bytes: Annotated[int, msgspec.Meta(ge=0, le=MIB)] = 64 * KIB
    """So many bytes more for every topic, as a checkpoint looks at each; up to half of what the journal holds."""
    checkpoint_interval_ms: Positive = 60_000
    """A checkpoint is also made this long after the last, if anything was journaled."""
    retention_interval_ms: Positive = 10_000
    """How often ledgers are looked over for deletion."""
    policies: Policies = Policies()
    """The layer under all namespaces."""
    auto_create_namespaces: bool = True
    """Whether creating a topic may create its namespace; otherwise NamespaceNotFound."""
    delay_entries_max: Positive = 1_000_000
    """Entries of delayed batches known in memory; those due later are looked up again in time."""
    transaction_bytes_max: Annotated[int, msgspec.Meta(ge=KIB, le=64 * MIB)] = 64 * MIB
    """What one transaction may stage: it becomes one journal record, which others wait behind."""
    transactions_bytes_max: Positive = 256 * MIB
    """What all open transactions together may stage; more is refused with Overloaded."""
    transactions_max: Positive = 10_000
    """Open transactions; more are refused with Overloaded."""
    transaction_timeout_max_ms: Positive = 15 * 60 * 1000
    """A transaction is aborted after this long whatever it asked for."""
    stages_max: Positive = 10_000
    """Stages that wait for a commit, and jobs that have any; more are refused with Overloaded."""
    stages_bytes_max: Positive = 16 * GIB
    """What all stages together may hold on disk; more is refused with Overloaded."""
    stage_idle_max_ms: Positive = 6 * 60 * 60 * 1000
    """The stages of a job that was silent for this long are dropped."""
    stage_jobs_max: Positive = 10_000
    """Jobs whose last batch is remembered, so that it is not published again."""
