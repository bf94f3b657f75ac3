"""Every metric the broker has, as data: what is not declared here cannot be told, and docs/metrics.md is made of it.

A declared metric is always told, with or without series: who asks for a name that exists gets an answer. Names follow
Prometheus: the unit is the last word, a counter ends in `_total`. Names are never reused for another meaning.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

TOPICS_MAX: Final = 1000
"""Topics with series of their own; of the rest only totals show, or a scrape of 10,000 topics would stall the loop."""
SUBSCRIPTIONS_MAX: Final = 1000
"""Subscriptions with series of their own."""


class Kind(enum.StrEnum):
    """How Prometheus takes it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(msgspec.Struct, frozen=True):
    """One declared metric."""

    name: str
    """As it is scraped."""
    kind: Kind
    unit: str
    text: str
    """What it means, as a sentence."""
    labels: tuple[str, ...] = ()


class Group(msgspec.Struct, frozen=True):
    """Metrics that belong on one part of the page."""

    title: str
    text: str
    metrics: tuple[Metric, ...]


def _counter(name: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(f"danubius_{name}_total", Kind.COUNTER, unit, text, labels)


def _gauge(name: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(f"danubius_{name}", Kind.GAUGE, unit, text, labels)


_SUBSCRIPTION: Final = ("topic", "subscription")

# ---------------------------------------------------------------- the process

INFO = _gauge("info", "", "Always 1; who it is stands in the labels.", "broker", "version")
UPTIME = _gauge("uptime_seconds", "seconds", "Time since the broker was ready.")
LOOP_LAG = Metric(
    "danubius_loop_lag_seconds",
    Kind.HISTOGRAM,
    "seconds",
    "How late the event loop got to a timer, looked at ten times a second: everyone waits at least this long.",
)
CLOCK_AHEAD = _gauge(
    "clock_ahead_seconds", "seconds", "How far the clock jumped, while it is not believed."
)
CLOCK_JUMPS = _counter(
    "clock_jumps", "jumps", "Jumps of the clock ahead, by half a minute or more."
)
CONNECTIONS = _gauge("connections", "connections", "Open native connections.")
REFUSED_CONNECTIONS = _counter(
    "refused_connections",
    "connections",
    "Connections ended for breaking the protocol, or because there were too many.",
)

# ---------------------------------------------------------------- REST

REST_REQUESTS = _counter(
    "rest_requests",
    "requests",
    "Requests answered: `status` is `2xx` and so on, or `none` if the client went before; `route` is the path as "
    "/openapi.json has it, `unknown` for one that leads nowhere.",
    "method",
    "route",
    "status",
)
REST_DURATION = Metric(
    "danubius_rest_request_duration_seconds",
    Kind.HISTOGRAM,
    "seconds",
    "From the head of a request to that of its answer, what it was asked to wait included.",
    ("method", "route"),
)

# ---------------------------------------------------------------- gRPC

GRPC_UP = _gauge(
    "grpc_front_up",
    "",
    "1 while the process that serves clients of Danube is there; 0 while it is not, or if they are not served.",
)
GRPC_RESTARTS = _counter(
    "grpc_front_restarts", "restarts", "How often that process died and was started again."
)
GRPC_CALLS = _gauge(
    "grpc_calls", "calls", "Calls of clients of Danube that are under way, held streams included."
)

# ---------------------------------------------------------------- traffic

PUBLISHED = _counter("published_messages", "messages", "Messages taken from producers.")
PUBLISHED_BYTES = _counter("published_bytes", "bytes", "Bytes of batches taken from producers.")
DELIVERED = _counter(
    "delivered_messages",
    "messages",
    "Messages sent to consumers and readers, redeliveries included.",
)
DELIVERED_BYTES = _counter(
    "delivered_bytes", "bytes", "Bytes of batches sent to consumers and readers."
)
ACKED = _counter("acked_messages", "messages", "Messages acknowledged by consumers.")
REDELIVERED = _counter(
    "redelivered_messages",
    "messages",
    "Messages sent to consumers once more; part of those delivered.",
)
NACKED = _counter("nacked_messages", "messages", "Messages that consumers gave back.")
TIMED_OUT = _counter(
    "timed_out_messages",
    "messages",
    "Messages taken back because their acknowledgement did not come in time.",
)
DEAD_LETTERED = _counter(
    "dead_lettered_messages", "messages", "Messages moved to dead-letter topics."
)
DISCARDED = _counter(
    "discarded_messages",
    "messages",
    "Messages that failed too often and were dropped, as their failure policy says.",
)
EXPIRED = _counter(
    "expired_messages", "messages", "Messages passed over because their time to live was over."
)
FILTERED = _counter(
    "filtered_messages",
    "messages",
    "Messages of non-reliable topics passed over because no consumer's key filter wanted them.",
)
DROPPED = _counter(
    "dropped_messages",
    "messages",
    "Messages lost to slow or absent consumers of non-reliable topics, deleted ones included.",
)
QUOTA_DROPPED = _counter(
    "quota_dropped_messages",
    "messages",
    "Messages deleted before they were acknowledged, to stay within a quota; once for each subscription.",
)
THROTTLED = _counter(
    "throttled_batches",
    "batches",
    "Batches whose answer was held back, or that were sent back to wait, because of a publish rate.",
)
REFUSED = _counter(
    "refused_batches", "batches", "Batches refused because of a quota or a message's size."
)

# ---------------------------------------------------------------- what there is

TOPICS = _gauge("topics", "topics", "Topics hosted, each partition being one.")
TOPICS_WITHOUT_SERIES = _gauge(
    "topics_without_series",
    "topics",
    "Topics that show in totals only, because there are too many.",
)
PRODUCERS = _gauge("producers", "producers", "Producers attached.")
SUBSCRIPTIONS = _gauge("subscriptions", "subscriptions", "Subscriptions of all topics.")
BLOCKED = _gauge(
    "blocked_subscriptions",
    "subscriptions",
    "Subscriptions whose delivery stands still because a message failed too often.",
)
CONSUMERS = _gauge("consumers", "consumers", "Consumers attached.")
BACKLOG = _gauge(
    "backlog_messages", "messages", "Messages not acknowledged, summed over all subscriptions."
)
DEAD_LETTERS = _gauge(
    "dead_letter_messages",
    "messages",
    "Messages in dead-letter topics that were neither sent back nor given up.",
)
UNACKED = _gauge("unacked_messages", "messages", "Messages delivered and not acknowledged.")
UNMATCHED = _gauge(
    "unmatched_messages",
    "messages",
    "Messages read so far that wait because no attached consumer's key filter takes them.",
)
DELAYED = _gauge("delayed_messages", "messages", "Messages that wait for their time.")
TRANSACTIONS = _gauge("transactions", "transactions", "Transactions open.")
TRANSACTION_BYTES = _gauge("transaction_bytes", "bytes", "Memory of what open transactions stage.")
COMMITTED = _counter("committed_transactions", "transactions", "Transactions committed.")
ABORTED = _counter(
    "aborted_transactions", "transactions", "Transactions that ended without a commit."
)
STAGES = _gauge("stages", "stages", "Stages of jobs that wait for a commit.")
STAGED_BYTES = _gauge("staged_bytes", "bytes", "What stages of jobs hold on disk.")
COMMITTED_BATCHES = _counter("committed_batches", "batches", "Batches of jobs committed.")
EXPIRED_STAGES = _counter(
    "expired_stages", "stages", "Stages dropped because their job was silent for too long."
)

# ---------------------------------------------------------------- storage

JOURNAL_QUEUED = _gauge("journal_queued_bytes", "bytes", "Bytes on their way to the journal.")
JOURNAL_SIZE = _gauge("journal_size_bytes", "bytes", "Journal since the last checkpoint.")
JOURNAL_RECORDS = _counter("journal_records", "records", "Records journaled.")
JOURNAL_BYTES = _counter("journal_bytes", "bytes", "Bytes journaled.")
JOURNAL_GROUPS = _counter("journal_groups", "groups", "Group commits.")
JOURNAL_SYNCS = _counter(
    "journal_syncs", "calls", "Syncs of the journal; without a disk, objects stored."
)
JOURNAL_SYNC_SECONDS = _counter(
    "journal_sync_seconds", "seconds", "Time spent in them, one after the other or at once."
)
JOURNAL_OBJECTS = _gauge(
    "journal_objects", "objects", "Without a disk: journal objects that a start would read."
)
JOURNAL_PUTS = _gauge(
    "journal_puts", "puts", "Without a disk: journal objects on their way to the store."
)
JOURNAL_RESUMED = _counter(
    "journal_resumed", "times", "Without a disk: how often the journal went on after a failure."
)
JOURNAL_FAILURES = _counter("journal_failures", "commits", "Commits of the journal that failed.")
STORAGE_FAILING = _gauge(
    "storage_failing",
    "0 or 1",
    "1 while the part cannot write: publishing to reliable topics fails until it is 0 again.",
    "part",
)
CONGESTED = _gauge(
    "publish_congested",
    "0 or 1",
    "1 while publishers are held back because the disk does not keep up.",
)
CACHE = _gauge("cache_bytes", "bytes", "Tails of topics in memory.")
DIRTY = _gauge("dirty_bytes", "bytes", "Committed bytes not yet in ledger files.")
STORED = _gauge("stored_bytes", "bytes", "Bytes in ledgers of all topics.")
LEDGERS = _gauge("ledgers", "ledgers", "Ledgers of all topics.")
CHECKPOINTS = _counter("checkpoints", "checkpoints", "Checkpoints completed.")
CHECKPOINT_FAILURES = _counter(
    "checkpoint_failures", "checkpoints", "Checkpoints that failed; each is tried again."
)
CHECKPOINT_AGE = _gauge(
    "checkpoint_age_seconds",
    "seconds",
    "Time since the last checkpoint, or the start. It grows while nothing is written, too.",
)

# ---------------------------------------------------------------- cold storage

TIER_BYTES = _gauge(
    "tier_bytes",
    "bytes",
    "Bytes of ledgers on the broker's disk, and in cold storage alone.",
    "tier",
)
TIER_LEDGERS = _gauge(
    "tier_ledgers", "ledgers", "Ledgers on the broker's disk, and in cold storage alone.", "tier"
)
TIER_FAILING = _gauge(
    "tier_failing",
    "",
    "Whether cold storage does not work now, or belongs to another broker (0 or 1).",
)
TIER_LAG_SECONDS = _gauge(
    "tier_lag_seconds",
    "seconds",
    "For how long the oldest ledger that should be in cold storage has been due.",
)
TIER_LAG_BYTES = _gauge(
    "tier_lag_bytes", "bytes", "Bytes of ledgers that should be in cold storage and are not."
)
TIER_UPLOADS = _counter("tier_uploads", "ledgers", "Ledgers that were stored and verified.")
TIER_UPLOADED_BYTES = _counter("tier_uploaded_bytes", "bytes", "Bytes of their objects.")
TIER_RECLAIMED = _counter(
    "tier_reclaimed_ledgers",
    "ledgers",
    "Ledgers that left the broker's disk, as cold storage has them.",
)
TIER_REMOVED = _counter(
    "tier_removed_objects",
    "objects",
    "Objects that were removed with their ledgers, orphans included.",
)
TIER_ORPHANS = _counter("tier_orphans", "objects", "Objects that no ledger explained.")
TIER_FAILURES = _counter(
    "tier_failures", "failures", "What failed in cold storage, beside reads; each is tried again."
)
TIER_READ_BYTES = _counter("tier_read_bytes", "bytes", "Bytes read from cold storage for readers.")
TIER_READ_FAILURES = _counter("tier_read_failures", "reads", "Reads from cold storage that failed.")
TIER_REREADS = _counter(
    "tier_rereads",
    "reads",
    "Reads that came cut short, or failed their checksums, and were repeated.",
)
TIER_CACHE_BYTES = _gauge("tier_cache_bytes", "bytes", "Memory that holds what was read.")
TIER_CACHE_HITS = _counter(
    "tier_cache_hits", "segments", "Segments of objects that a reader found in memory."
)
TIER_CACHE_MISSES = _counter(
    "tier_cache_misses", "segments", "Segments of objects that a reader had to wait for."
)

TIER: Final = (
    TIER_BYTES, TIER_LEDGERS, TIER_FAILING, TIER_LAG_SECONDS, TIER_LAG_BYTES, TIER_UPLOADS, TIER_UPLOADED_BYTES,
    TIER_RECLAIMED, TIER_REMOVED, TIER_ORPHANS, TIER_FAILURES, TIER_READ_BYTES, TIER_READ_FAILURES,
    TIER_REREADS, TIER_CACHE_BYTES, TIER_CACHE_HITS, TIER_CACHE_MISSES,
)  # fmt: skip

# ---------------------------------------------------------------- topics

TOPIC_END = _gauge("topic_end_offset", "offset", "Offset of the next message.", "topic")
TOPIC_STORED = _gauge("topic_stored_bytes", "bytes", "Bytes stored.", "topic")
TOPIC_PRODUCERS = _gauge("topic_producers", "producers", "Producers attached.", "topic")
TOPIC_PUBLISHED = _counter(
    "topic_published_messages",
    "messages",
    "Messages stored, or handed on by a non-reliable topic.",
    "topic",
)
TOPIC_PUBLISHED_BYTES = _counter(
    "topic_published_bytes", "bytes", "Bytes of their batches.", "topic"
)
TOPIC_DELAYED = _gauge(
    "topic_delayed_messages", "messages", "Messages that wait for their time.", "topic"
)
TOPIC_THROTTLED = _counter(
    "topic_throttled_batches", "batches", "Batches that a publish rate held back.", "topic"
)
TOPIC_REFUSED = _counter(
    "topic_refused_batches", "batches", "Batches refused for a quota or a message's size.", "topic"
)
TOPIC_DROPPED = _counter(
    "topic_dropped_messages",
    "messages",
    "Messages lost to slow or absent consumers; of non-reliable topics only.",
    "topic",
)

# ---------------------------------------------------------------- subscriptions

SUB_BACKLOG = _gauge(
    "subscription_backlog_messages", "messages", "Messages not acknowledged.", *_SUBSCRIPTION
)
SUB_BACKLOG_BYTES = _gauge(
    "subscription_backlog_bytes",
    "bytes",
    "Bytes of what is not acknowledged, estimated from whole ledgers.",
    *_SUBSCRIPTION,
)
SUB_BACKLOG_AGE = _gauge(
    "subscription_backlog_age_seconds",
    "seconds",
    "Age of the oldest message that is not acknowledged; 0 without a backlog.",
    *_SUBSCRIPTION,
)
SUB_HELD_BACK = _gauge(
    "subscription_held_back_bytes", "bytes", "Kept beyond retention because of it.", *_SUBSCRIPTION
)
SUB_UNACKED = _gauge(
    "subscription_unacked_messages",
    "messages",
    "Messages delivered and not acknowledged.",
    *_SUBSCRIPTION,
)
SUB_WAITING = _gauge(
    "subscription_waiting_messages",
    "messages",
    "Messages that wait to be delivered again.",
    *_SUBSCRIPTION,
)
SUB_UNMATCHED = _gauge(
    "subscription_unmatched_messages",
    "messages",
    "Messages read so far that wait because no attached consumer's key filter takes them.",
    *_SUBSCRIPTION,
)
SUB_BLOCKED = _gauge(
    "subscription_blocked",
    "0 or 1",
    "1 while delivery stands still because a message failed too often.",
    *_SUBSCRIPTION,
)
SUB_CONSUMERS = _gauge("subscription_consumers", "consumers", "Consumers attached.", *_SUBSCRIPTION)
SUB_DELIVERED = _counter(
    "subscription_delivered_messages",
    "messages",
    "Messages sent to consumers, redeliveries included.",
    *_SUBSCRIPTION,
)
SUB_REDELIVERED = _counter(
    "subscription_redelivered_messages",
    "messages",
    "Messages sent to consumers once more.",
    *_SUBSCRIPTION,
)
SUB_ACKED = _counter(
    "subscription_acked_messages", "messages", "Messages acknowledged.", *_SUBSCRIPTION
)
SUB_DEAD_LETTERED = _counter(
    "subscription_dead_lettered_messages",
    "messages",
    "Messages moved to the dead-letter topic.",
    *_SUBSCRIPTION,
)
SUB_DROPPED = _counter(
    "subscription_dropped_messages",
    "messages",
    "Messages of a non-reliable topic lost to slow consumers.",
    *_SUBSCRIPTION,
)

CATALOGUE: Final = (
    Group(
        "The process",
        "",
        (INFO, UPTIME, LOOP_LAG, CLOCK_AHEAD, CLOCK_JUMPS, CONNECTIONS, REFUSED_CONNECTIONS),
    ),
    Group(
        "Traffic",
        "Of the whole broker since it started; deleted topics and subscriptions stay counted.",
        (
            PUBLISHED, PUBLISHED_BYTES, DELIVERED, DELIVERED_BYTES, ACKED, REDELIVERED, NACKED, TIMED_OUT,
            DEAD_LETTERED, DISCARDED, EXPIRED, FILTERED, DROPPED, QUOTA_DROPPED, THROTTLED, REFUSED,
        ),
    ),
    Group(
        "REST",
        "Requests to `/api/v1` since the broker started; what was not asked has no series.",
        (REST_REQUESTS, REST_DURATION),
    ),
    Group(
        "gRPC",
        "Of the edge for clients of Danube; all 0 where there is none.",
        (GRPC_UP, GRPC_RESTARTS, GRPC_CALLS),
    ),
    Group(
        "What there is",
        "Of the whole broker, now.",
        (
            TOPICS, TOPICS_WITHOUT_SERIES, PRODUCERS, SUBSCRIPTIONS, BLOCKED, CONSUMERS, BACKLOG, DEAD_LETTERS, UNACKED,
            UNMATCHED, DELAYED, TRANSACTIONS, TRANSACTION_BYTES, COMMITTED, ABORTED, STAGES, STAGED_BYTES,
            COMMITTED_BATCHES, EXPIRED_STAGES,
        ),
    ),
    Group(
        "Storage",
        "",
        (
            JOURNAL_QUEUED, JOURNAL_SIZE, JOURNAL_RECORDS, JOURNAL_BYTES, JOURNAL_GROUPS, JOURNAL_SYNCS,
            JOURNAL_SYNC_SECONDS, JOURNAL_FAILURES, JOURNAL_OBJECTS, JOURNAL_PUTS, JOURNAL_RESUMED,
            STORAGE_FAILING, CONGESTED, CACHE, DIRTY, STORED, LEDGERS,
            CHECKPOINTS, CHECKPOINT_FAILURES, CHECKPOINT_AGE,
        ),
    ),
    Group(
        "Cold storage",
        "Of a broker that has some, all 0 otherwise. What lies where is counted every few seconds.",
        TIER,
    ),
    Group(
        "Topics",
        f"At most {TOPICS_MAX:,} topics have series: all of them, or else those with the most messages published and "
        "delivered per second. A partition is a topic.",
        (
            TOPIC_END, TOPIC_STORED, TOPIC_PRODUCERS, TOPIC_PUBLISHED, TOPIC_PUBLISHED_BYTES, TOPIC_DELAYED,
            TOPIC_THROTTLED, TOPIC_REFUSED, TOPIC_DROPPED,
        ),
    ),
    Group(
        "Subscriptions",
        f"At most {SUBSCRIPTIONS_MAX:,} subscriptions have series: all those of the topics that have some, or else the "
        "ones with the largest backlogs.",
        (
            SUB_BACKLOG, SUB_BACKLOG_BYTES, SUB_BACKLOG_AGE, SUB_HELD_BACK, SUB_UNACKED, SUB_WAITING, SUB_UNMATCHED,
            SUB_BLOCKED, SUB_CONSUMERS, SUB_DELIVERED, SUB_REDELIVERED, SUB_ACKED, SUB_DEAD_LETTERED, SUB_DROPPED,
        ),
    ),
)  # fmt: skip
"""All of them, in the order of the page."""


def all_metrics() -> list[Metric]:
    return [metric for group in CATALOGUE for metric in group.metrics]
