"""Metrics, read from the broker's own counters at the moment they are asked for: they cost the data path nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from danubius.broker.broker import Broker
    from danubius.broker.checkpoint import Checkpointer
    from danubius.broker.topic import Topic
    from danubius.edge.binary import BinaryEdge

TOPICS_MAX: Final = 1000
"""Topics with series of their own; of the rest only totals show, or a scrape of 10,000 topics would stall the loop."""


class Metrics:
    """The registry of one broker."""

    def __init__(self, broker: Broker, edge: BinaryEdge, checkpointer: Checkpointer) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._registry.register(_BrokerCollector(broker, edge, checkpointer))

    def render(self) -> tuple[bytes, str]:
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


class _BrokerCollector(Collector):
    def __init__(self, broker: Broker, edge: BinaryEdge, checkpointer: Checkpointer) -> None:
        self._broker = broker
        self._edge = edge
        self._checkpointer = checkpointer

    def collect(self) -> Iterator[Metric]:
        yield from self._traffic()
        yield from self._storage()
        topics = list(self._broker.topics.values())[:TOPICS_MAX]
        yield from _topics(topics)
        yield from _subscriptions(topics)

    def _traffic(self) -> Iterator[Metric]:
        broker = self._broker
        yield _counter(
            "danubius_published_messages", "Messages taken from producers.", broker.messages_in
        )
        yield _counter(
            "danubius_published_bytes", "Bytes of batches taken from producers.", broker.bytes_in
        )
        yield _counter(
            "danubius_delivered_messages",
            "Messages sent to consumers and readers.",
            broker.messages_out,
        )
        yield _counter(
            "danubius_delivered_bytes",
            "Bytes of batches sent to consumers and readers.",
            broker.bytes_out,
        )
        yield _counter(
            "danubius_dropped_messages",
            "Messages lost to slow or absent consumers of non-reliable topics, deleted ones included.",
            broker.messages_dropped,
        )
        yield _gauge(
            "danubius_connections", "Open native connections.", len(self._edge.connections)
        )
        yield _counter(
            "danubius_refused_connections",
            "Connections ended for breaking the protocol.",
            self._edge.refusals,
        )
        yield _gauge("danubius_topics", "Topics hosted.", len(broker.topics))

    def _storage(self) -> Iterator[Metric]:
        journal, ledgers = self._broker.journal, self._broker.ledgers
        yield _gauge(
            "danubius_journal_queued_bytes",
            "Bytes on their way to the journal.",
            journal.queued_bytes,
        )
        yield _gauge(
            "danubius_journal_size_bytes", "Journal since the last checkpoint.", journal.size_bytes
        )
        counters = journal.counters
        yield _counter("danubius_journal_records", "Records journaled.", counters.records)
        yield _counter("danubius_journal_bytes", "Bytes journaled.", counters.record_bytes)
        yield _counter("danubius_journal_groups", "Group commits.", counters.groups)
        yield _counter("danubius_journal_syncs", "fdatasync calls on the journal.", counters.syncs)
        yield _counter(
            "danubius_journal_sync_seconds",
            "Time spent in fdatasync on the journal.",
            counters.sync_ns / 1e9,
        )
        yield _counter("danubius_journal_failures", "Commits that failed.", counters.failures)
        yield _gauge("danubius_cache_bytes", "Tails of topics in memory.", ledgers.cached_bytes)
        yield _gauge(
            "danubius_dirty_bytes", "Committed bytes not yet in ledger files.", ledgers.dirty_bytes
        )
        yield _counter(
            "danubius_checkpoints", "Checkpoints completed.", self._checkpointer.checkpoints
        )


def _topics(topics: list[Topic]) -> Iterable[Metric]:
    ends = GaugeMetricFamily(
        "danubius_topic_end_offset", "Offset of the next message.", labels=["topic"]
    )
    sizes = GaugeMetricFamily("danubius_topic_stored_bytes", "Bytes stored.", labels=["topic"])
    producers = GaugeMetricFamily(
        "danubius_topic_producers", "Producers attached.", labels=["topic"]
    )
    # Subscriptions of a non-reliable topic come and go with their series; what was lost stays here.
    dropped = CounterMetricFamily(
        "danubius_topic_dropped_messages",
        "Messages lost to slow or absent consumers of non-reliable topics.",
        labels=["topic"],
    )
    for topic in topics:
        ends.add_metric([topic.name], topic.log.end_offset)
        sizes.add_metric([topic.name], topic.stored_bytes)
        producers.add_metric([topic.name], len(topic.attached))
        if not topic.is_reliable:
            dropped.add_metric([topic.name], topic.dropped)
    return ends, sizes, producers, dropped


def _subscriptions(topics: list[Topic]) -> Iterable[Metric]:
    labels = ["topic", "subscription"]
    backlog = GaugeMetricFamily(
        "danubius_subscription_backlog_messages", "Messages not acknowledged.", labels=labels
    )
    unacked = GaugeMetricFamily(
        "danubius_subscription_unacked_messages",
        "Messages delivered and not acknowledged.",
        labels=labels,
    )
    consumers = GaugeMetricFamily(
        "danubius_subscription_consumers", "Consumers attached.", labels=labels
    )
    dropped = CounterMetricFamily(
        "danubius_subscription_dropped_messages",
        "Messages lost to slow or absent consumers.",
        labels=labels,
    )
    for topic in topics:
        for subscription in topic.subscriptions.values():
            names = [topic.name, subscription.name]
            backlog.add_metric(names, subscription.cursor.backlog(topic.log.end_offset))
            unacked.add_metric(names, subscription.pump.unacked if subscription.pump else 0)
            consumers.add_metric(names, len(subscription.consumers))
            dropped.add_metric(names, subscription.dropped)
    return backlog, unacked, consumers, dropped


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
