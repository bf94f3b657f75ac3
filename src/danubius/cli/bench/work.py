"""Measurements, asked for and done, as values that travel between processes as JSON lines."""

from __future__ import annotations

from typing import Literal

import msgspec

from danubius.client.options import DurabilityName

Kind = Literal["publish", "e2e", "latency", "fanout", "drain", "topics", "send", "fairness"]
Role = Literal["producer", "consumer"]

KINDS: tuple[Kind, ...] = (
    "publish", "e2e", "latency", "fanout", "drain", "topics", "send", "fairness",
)  # fmt: skip
DEFAULT_COUNTS: dict[Kind, int] = {
    "publish": 2_000_000,
    "e2e": 2_000_000,
    "latency": 10_000,
    "fanout": 1_000_000,
    "drain": 2_000_000,
    "topics": 4_000_000,
    "send": 20_000,
    "fairness": 1,
}
"""Messages a run at 100 B, some seconds of work each on a small machine."""

SIZE_MIN = 16
"""A message carries its sequence number and, for latency, the time it was sent."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work, the same for every system."""

    kind: Kind
    url: str
    topic: str
    size: int = 100
    count: int = 1_000_000
    rate: int = 1_000
    """Messages a second, for latency."""
    subscriptions: int = 1
    topics: int = 1
    tasks: int = 1
    """Concurrent senders, for send."""
    seconds: float = 10.0
    """For fairness: with the busy topic, and without it."""
    durability: DurabilityName = "synced"
    timeout_s: float = 300.0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One process's part of a piece of work."""

    role: Role
    index: int
    work: Work


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds from send to receive, as percentiles."""

    p50: float
    p90: float
    p99: float
    p999: float
    max: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What one process reports. Times are CLOCK_MONOTONIC, the same in all processes."""

    role: Role = "producer"
    index: int = 0
    count: int = 0
    checksum: int = 0
    """The sum of the sequence numbers received."""
    started_ns: int = 0
    ended_ns: int = 0
    cpu_s: float = 0.0
    latency: Latency | None = None
    """From the call of send."""
    latency_due: Latency | None = None
    """From the time the message was due: counts what the producer itself was late."""
    latency_alone: Latency | None = None
    """For fairness: while the busy topic was still."""
    error: str | None = None


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a result table: the median run of `repeat` runs."""

    system: str
    kind: Kind
    durability: str
    size: int
    count: int
    subscriptions: int = 1
    topics: int = 1
    tasks: int = 1
    rate: int = 0
    seconds: float
    messages_per_s: float
    megabytes_per_s: float
    """Payload bytes / 10^6, per subscription."""
    slowest_per_s: float = 0.0
    fastest_per_s: float = 0.0
    latency: Latency | None = None
    latency_due: Latency | None = None
    latency_alone: Latency | None = None
    """For fairness: without the busy topic; `latency` is beside it."""
    cpu_broker_s: float | None = None
    cpu_producer_s: float = 0.0
    cpu_consumer_s: float = 0.0
    rss_peak_mb: float | None = None
    rss_per_topic_kb: float | None = None
    is_exact: bool = True
    repeat: int = 1
    note: str = ""
