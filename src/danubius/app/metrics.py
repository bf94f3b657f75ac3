"""Metrics, read from the broker's own counters at the moment they are asked for: they cost the data path nothing.

Everything that is told is declared in `metric_catalogue`. A scrape runs on the loop, and messages wait for it: so it is
put together in small steps, between which others have their turn, and its text is written here, not by the Prometheus
client, which takes several times as long.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeVar

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from danubius.admin.statistics import backlog_of, measure_subscription
from danubius.admin.targets import Member
from danubius.app import metric_catalogue as of
from danubius.app.tier_metrics import tier_figures
from danubius.ledger.managed import ManagedLedger
from danubius.shard.features.dead_letters.moving import REDRIVE
from danubius.shard.hosting.admission import Limits
from danubius.tier.object_journal import ObjectJournal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from danubius.app.loop_lag import LoopLag
    from danubius.app.metric_catalogue import Metric
    from danubius.broker.node import Node
    from danubius.edge.grpc.edge import GrpcEdge
    from danubius.edge.native.binary import BinaryEdge
    from danubius.edge.rest.measuring import RequestFigures
    from danubius.runtime.histogram import Histogram
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.state.checkpoint import Checkpointer

ItemT = TypeVar("ItemT")

_SUMMED: Final = (
    (of.ACKED, "acked"),
    (of.REDELIVERED, "redelivered"),
    (of.NACKED, "nacked"),
    (of.TIMED_OUT, "timed_out"),
    (of.DEAD_LETTERED, "dead_lettered"),
    (of.DISCARDED, "discarded"),
    (of.EXPIRED, "expired"),
    (of.FILTERED, "filtered"),
    (of.QUOTA_DROPPED, "quota_dropped"),
)
"""Counters that only subscriptions keep."""
_COUNTED: Final = (*(metric for metric, _ in _SUMMED), of.THROTTLED, of.REFUSED)
_LEVELS: Final = (
    of.PRODUCERS,
    of.SUBSCRIPTIONS,
    of.BLOCKED,
    of.CONSUMERS,
    of.BACKLOG,
    of.DEAD_LETTERS,
    of.UNACKED,
    of.UNMATCHED,
    of.STORED,
    of.LEDGERS,
)
"""What is summed up and may fall."""
STEP: Final = 50
"""Topics or subscriptions whose series are written in one step."""
STEP_OF_TOTALS: Final = 200
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metrics:
    """What one broker tells."""

    def __init__(
        self,
        node: Node,
        edge: BinaryEdge,
        checkpointer: Checkpointer,
        lag: LoopLag,
        requests: RequestFigures,
        grpc: Callable[[], GrpcEdge | None],
    ) -> None:
        """`grpc` is asked with each scrape: that edge opens last, and some brokers have none."""
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._node = node
        self._edge = edge
        self._checkpointer = checkpointer
        self._lag = lag
        self._requests = requests
        self._grpc = grpc
        self._totals = Totals()
        self._turn = asyncio.Lock()

    async def render(self) -> tuple[bytes, str]:
        """The answer to a scrape, and its content type."""
        text = Text()
        async with self._turn:  # totals are compared with those of the scrape before
            for _ in self._steps(text):
                await asyncio.sleep(0)
        return text.encode() + generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _steps(self, text: Text) -> Iterator[None]:
        node = self._node
        self._tell_process(text)
        self._tell_traffic(text)
        tell_storage(text, node, self._checkpointer)
        for metric, values in tier_figures(node.offloading).items():
            text.add_each(
                metric, [(labels(metric, *names), value) for names, value in values.items()]
            )
        yield from self._totals.steps(text, node)
        topics = choose_topics(node)
        text.add(of.TOPICS_WITHOUT_SERIES, len(node.shard.topics) - len(topics))
        for some in slices(topics, STEP):
            yield
            tell_topics(text, node, [topic for topic in some if is_hosted(node, topic)])
        for members in slices(choose_members(topics), STEP):
            yield
            tell_subscriptions(text, node, [one for one in members if is_hosted(node, one.topic)])

    def _tell_process(self, text: Text) -> None:
        about = self._node.about
        text.add_each(of.INFO, [(labels(of.INFO, about.broker_id, about.version), 1)])
        now_ms = self._node.shard.clock.wall_us() // 1000
        text.add(of.UPTIME, max(0, now_ms - about.started_ms) / 1000)
        text.add(of.CONNECTIONS, len(self._edge.connections))
        text.add(of.REFUSED_CONNECTIONS, self._edge.refusals)
        text.add_histogram(of.LOOP_LAG, self._lag.histogram)
        text.add(of.CLOCK_AHEAD, self._node.shard.ages.jump_s)
        text.add(of.CLOCK_JUMPS, self._node.shard.ages.jumps)
        self._tell_grpc(text)
        counts = self._requests.counts.items()
        text.add_each(
            of.REST_REQUESTS,
            [(labels(of.REST_REQUESTS, *asked, status), n) for (asked, status), n in counts],
        )
        for asked, histogram in self._requests.durations.items():
            text.add_histogram(of.REST_DURATION, histogram, *asked)

    def _tell_grpc(self, text: Text) -> None:
        edge = self._grpc()
        text.add(of.GRPC_UP, int(edge is not None and edge.is_up))
        text.add(of.GRPC_RESTARTS, edge.restarts if edge is not None else 0)
        text.add(of.GRPC_CALLS, edge.calls if edge is not None else 0)

    def _tell_traffic(self, text: Text) -> None:
        shard, transactions = self._node.shard, self._node.transactions
        text.add(of.PUBLISHED, shard.messages_in)
        text.add(of.PUBLISHED_BYTES, shard.bytes_in)
        text.add(of.DELIVERED, shard.messages_out)
        text.add(of.DELIVERED_BYTES, shard.bytes_out)
        text.add(of.DROPPED, shard.messages_dropped)
        text.add(of.TOPICS, len(shard.topics))
        text.add(of.TRANSACTIONS, len(transactions))
        text.add(of.TRANSACTION_BYTES, transactions.bytes)
        text.add(of.COMMITTED, transactions.committed)
        text.add(of.ABORTED, transactions.aborted)
        staging = self._node.staging
        text.add(of.STAGES, shard.jobs.stage_count)
        text.add(of.STAGED_BYTES, shard.jobs.bytes)
        text.add(of.COMMITTED_BATCHES, staging.committed)
        text.add(of.EXPIRED_STAGES, staging.expired)


class Text:
    """The exposition format: what belongs to one metric stands together, whenever it was added."""

    def __init__(self) -> None:
        self._parts = {
            metric.name: [
                f"# HELP {metric.name} {metric.text}",
                f"# TYPE {metric.name} {metric.kind}",
            ]
            for metric in of.all_metrics()
        }

    def add(self, metric: Metric, value: float) -> None:
        self.add_each(metric, [("", value)])

    def add_each(self, metric: Metric, samples: Iterable[tuple[str, float]]) -> None:
        """One line a sample; `labels` makes what stands before a value."""
        name = metric.name
        self._parts[name] += [f"{name}{labels} {value}" for labels, value in samples]

    def add_histogram(self, metric: Metric, histogram: Histogram, *values: str) -> None:
        """The series of one histogram; `values` are those of the metric's labels."""
        lines, name = self._parts[metric.name], metric.name
        head = labels(metric, *values) if values else ""
        opening = f"{head[:-1]}," if values else "{"
        below = 0
        for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
            below += count
            lines.append(f'{name}_bucket{opening}le="{bound}"}} {below}')
        lines += [f"{name}_sum{head} {histogram.sum_s}", f"{name}_count{head} {below}"]

    def encode(self) -> bytes:
        return "".join(["\n".join([*lines, ""]) for lines in self._parts.values()]).encode()


def labels(metric: Metric, *values: str) -> str:
    """What stands between a name and a value."""
    if not values:
        return ""
    pairs = zip(metric.labels, values, strict=True)
    return "{" + ",".join(f'{label}="{value.translate(_ESCAPES)}"' for label, value in pairs) + "}"


class Totals:
    """Sums over all topics and subscriptions, also over those that have no series of their own."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._gone: dict[str, int] = {}

    def steps(self, text: Text, node: Node) -> Iterator[None]:
        """Add them up, some topics in each step, then tell them."""
        sums: Counter[Metric] = Counter()
        for topics in slices(list(node.shard.topics_by_id.values()), STEP_OF_TOTALS):
            _count(sums, topics)
            yield
        for metric in _COUNTED:
            self._tell_counter(text, metric, sums[metric])
        for metric in _LEVELS:
            text.add(metric, sums[metric])
        text.add(of.DELAYED, node.delays.messages)

    def _tell_counter(self, text: Text, metric: Metric, live: int) -> None:
        """A counter must not fall when what it was summed over is deleted."""
        name = metric.name
        fall = self._last.get(name, 0) - live
        if fall > 0:
            self._gone[name] = self._gone.get(name, 0) + fall
        self._last[name] = live
        text.add(metric, live + self._gone.get(name, 0))


def _count(sums: Counter[Metric], topics: Sequence[Topic]) -> None:
    members = visible_members(topics)
    for metric, field in _SUMMED:
        sums[metric] += sum(getattr(one.subscription, field) for one in members)
    gates = [topic.gate for topic in topics if isinstance(topic.gate, Limits)]
    sums[of.THROTTLED] += sum(gate.throttled_batches for gate in gates)
    sums[of.REFUSED] += sum(gate.refused_batches for gate in gates)
    pumps = [one.subscription.pump for one in members if one.subscription.pump is not None]
    sums[of.PRODUCERS] += sum(len(topic.attached) for topic in topics)
    sums[of.SUBSCRIPTIONS] += len(members)
    sums[of.BLOCKED] += sum(pump.core.is_blocked for pump in pumps)
    sums[of.CONSUMERS] += sum(len(one.subscription.consumers) for one in members)
    sums[of.BACKLOG] += sum(map(backlog_of, members))
    sums[of.DEAD_LETTERS] += sum(map(backlog_of, dead_letters(topics)))
    sums[of.UNACKED] += sum(pump.unacked for pump in pumps)
    sums[of.UNMATCHED] += sum(pump.core.unmatched for pump in pumps)
    sums[of.STORED] += sum(topic.stored_bytes for topic in topics)
    logs = [topic.log for topic in topics]
    sums[of.LEDGERS] += sum(len(o.ledgers) for o in logs if isinstance(o, ManagedLedger))


def tell_storage(text: Text, node: Node, checkpointer: Checkpointer) -> None:
    shard = node.shard
    journal, ledgers, counters = shard.journal, shard.ledgers, shard.journal.counters
    text.add(of.JOURNAL_QUEUED, journal.queued_bytes)
    text.add(of.JOURNAL_SIZE, journal.size_bytes)
    text.add(of.JOURNAL_RECORDS, counters.records)
    text.add(of.JOURNAL_BYTES, counters.record_bytes)
    text.add(of.JOURNAL_GROUPS, counters.groups)
    text.add(of.JOURNAL_SYNCS, counters.syncs)
    text.add(of.JOURNAL_SYNC_SECONDS, counters.sync_ns / 1e9)
    text.add(of.JOURNAL_FAILURES, counters.failures)
    own = journal if isinstance(journal, ObjectJournal) else None
    text.add(of.JOURNAL_OBJECTS, own.objects_live if own else 0)
    text.add(of.JOURNAL_PUTS, own.puts_under_way if own else 0)
    text.add(of.JOURNAL_RESUMED, own.fenced_again if own else 0)
    parts = (("journal", shard.journal_failure), ("ledgers", ledgers.failure))
    text.add_each(
        of.STORAGE_FAILING,
        [(labels(of.STORAGE_FAILING, part), int(error is not None)) for part, error in parts],
    )
    text.add(of.CONGESTED, int(journal.is_congested or ledgers.is_congested))
    text.add(of.CACHE, ledgers.cached_bytes)
    text.add(of.DIRTY, ledgers.dirty_bytes)
    text.add(of.CHECKPOINTS, checkpointer.checkpoints)
    text.add(of.CHECKPOINT_FAILURES, checkpointer.failures)
    text.add(of.CHECKPOINT_AGE, checkpointer.age_s)


def slices(items: Sequence[ItemT], size: int) -> Iterator[Sequence[ItemT]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def is_hosted(node: Node, topic: Topic) -> bool:
    """It may be gone since the step before."""
    return node.shard.topics_by_id.get(topic.id) is topic


def visible_members(topics: Iterable[Topic]) -> list[Member]:
    """All subscriptions but those that the broker keeps for itself."""
    return [
        Member(topic, one)
        for topic in topics
        for one in topic.subscriptions.values()
        if "~" not in one.name
    ]


def dead_letters(topics: Iterable[Topic]) -> list[Member]:
    """The subscriptions whose backlogs are dead letters."""
    return [Member(t, t.subscriptions[REDRIVE]) for t in topics if REDRIVE in t.subscriptions]


def choose_topics(node: Node) -> list[Topic]:
    """Those that get series: all, or the busiest; of still ones those that hold the most."""
    topics = list(node.shard.topics.values())
    if len(topics) <= of.TOPICS_MAX:
        return topics
    rates = node.rates

    def rank(topic: Topic) -> tuple[float, int]:
        messages_in, _, messages_out, _ = rates.of(topic, 4)
        return messages_in + messages_out, topic.stored_bytes

    return heapq.nlargest(of.TOPICS_MAX, topics, rank)


def tell_topics(text: Text, node: Node, topics: list[Topic]) -> None:
    heads = [(labels(of.TOPIC_END, topic.name), topic) for topic in topics]
    text.add_each(of.TOPIC_END, [(head, topic.log.end_offset) for head, topic in heads])
    text.add_each(of.TOPIC_STORED, [(head, topic.stored_bytes) for head, topic in heads])
    text.add_each(of.TOPIC_PRODUCERS, [(head, len(topic.attached)) for head, topic in heads])
    text.add_each(of.TOPIC_PUBLISHED, [(head, topic.pipeline.messages_in) for head, topic in heads])
    text.add_each(
        of.TOPIC_PUBLISHED_BYTES, [(head, topic.pipeline.bytes_in) for head, topic in heads]
    )
    pending = node.delays.pending
    text.add_each(of.TOPIC_DELAYED, [(head, pending(topic)) for head, topic in heads])
    gates = [(head, topic.gate) for head, topic in heads if isinstance(topic.gate, Limits)]
    text.add_each(of.TOPIC_THROTTLED, [(head, gate.throttled_batches) for head, gate in gates])
    text.add_each(of.TOPIC_REFUSED, [(head, gate.refused_batches) for head, gate in gates])
    # Subscriptions of a non-reliable topic come and go with their series; what was lost stays here.
    text.add_each(
        of.TOPIC_DROPPED, [(head, topic.dropped) for head, topic in heads if not topic.is_reliable]
    )


def choose_members(topics: list[Topic]) -> list[Member]:
    """Those of the subscriptions that get series: all, or the ones with the largest backlogs."""
    members = visible_members(topics)
    if len(members) <= of.SUBSCRIPTIONS_MAX:
        return members
    return heapq.nlargest(of.SUBSCRIPTIONS_MAX, members, backlog_of)


def tell_subscriptions(text: Text, node: Node, members: Sequence[Member]) -> None:
    all_figures = [
        (
            labels(of.SUB_BACKLOG, topic.name, one.name),
            measure_subscription(node, Member(topic, one)),
        )
        for topic, one in members
    ]
    for metric, field in _OF_SUBSCRIPTIONS:
        text.add_each(metric, [(head, int(getattr(one, field))) for head, one in all_figures])
    text.add_each(of.SUB_BACKLOG_AGE, [(head, one.backlog_age_s) for head, one in all_figures])


_OF_SUBSCRIPTIONS: Final = (
    (of.SUB_BACKLOG, "backlog_messages"),
    (of.SUB_BACKLOG_BYTES, "backlog_bytes"),
    (of.SUB_HELD_BACK, "held_back_bytes"),
    (of.SUB_UNACKED, "unacked_messages"),
    (of.SUB_WAITING, "waiting_messages"),
    (of.SUB_UNMATCHED, "unmatched_messages"),
    (of.SUB_BLOCKED, "is_blocked"),
    (of.SUB_CONSUMERS, "consumers"),
    (of.SUB_DELIVERED, "delivered_messages"),
    (of.SUB_REDELIVERED, "redelivered_messages"),
    (of.SUB_ACKED, "acked_messages"),
    (of.SUB_DEAD_LETTERED, "dead_lettered_messages"),
    (of.SUB_DROPPED, "dropped_slow_messages"),
)
"""What of a subscription's figures is told."""
