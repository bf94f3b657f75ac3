"""From a piece of work to a measurement: which processes run, and what their results mean."""

from __future__ import annotations

import contextlib
from statistics import median_low
from typing import Protocol

import msgspec

import danubius
from danubius.cli.bench import fairness
from danubius.cli.bench.harness import BenchFailed, Phase, run_jobs, worker_command
from danubius.cli.bench.payloads import expected_checksum
from danubius.cli.bench.work import Job, Latency, Measurement, Work
from danubius.cli.event_loop import run_async

_MEGA = 10**6


class System(Protocol):
    """A messaging system under test."""

    name: str
    url: str
    pid: int | None

    def command(self) -> list[str]: ...

    def prepare(self, work: Work) -> None: ...

    def stored(self, work: Work) -> int: ...

    def clean(self, work: Work) -> None: ...


class Danubius:
    """A Danubius broker, ours or somebody else's."""

    name = "danubius"

    def __init__(self, url: str, pid: int | None) -> None:
        self.url = url
        self.pid = pid

    def command(self) -> list[str]:
        return worker_command("danubius.cli.bench.worker")

    def prepare(self, work: Work) -> None:
        async def create() -> None:
            async with danubius.connect(work.url) as client:
                await client.create_topic(work.topic, durability=work.durability)
                for index in range(work.topics if work.kind == "fairness" else 0):
                    name = fairness.quiet_topic(work, index)
                    await client.create_topic(name, durability=work.durability)

        if work.kind != "topics":
            run_async(create)

    def stored(self, work: Work) -> int:
        async def ask() -> int:
            async with danubius.connect(work.url) as client:
                if work.kind != "topics":
                    described = await client.describe_topic(work.topic)
                    return described.summary.end_offset
                namespace = work.topic.split("/")[1]
                found = await client.list_topics(namespace)
                # Every topic got one message before the start.
                mine = [topic for topic in found if topic.topic.startswith(work.topic + "-")]
                return sum(topic.end_offset - 1 for topic in mine)

        return run_async(ask)

    def clean(self, work: Work) -> None:
        async def delete() -> None:
            async with danubius.connect(work.url) as client:
                names = [work.topic]
                if work.kind == "fairness":
                    names += [fairness.quiet_topic(work, index) for index in range(work.topics)]
                if work.kind == "topics":
                    names = [f"{work.topic}-{index}" for index in range(work.topics)]
                for name in names:
                    # A run that failed early has not made them all, and its own error is what counts.
                    with contextlib.suppress(danubius.TopicNotFound):
                        await client.delete_topic(name)

        run_async(delete)


def measure(system: System, work: Work) -> Measurement:
    """One run. The topic is fresh before and gone after."""
    system.prepare(work)
    try:
        phase = _run(system, work)
        is_exact = _is_exact(system, work, phase)
    finally:
        system.clean(work)
    if work.kind == "fairness":  # the rate is the busy topic's
        count, seconds = phase.of("producer")[fairness.BUSY].count, fairness.busy_seconds(work)
    else:
        count, seconds = work.count, _seconds(phase)
    per_s = count / seconds
    per_topic = None
    if work.kind == "topics" and phase.rss_before_bytes and phase.rss_ready_bytes:
        per_topic = (phase.rss_ready_bytes - phase.rss_before_bytes) / work.topics / 1024
    consumers = phase.of("consumer")
    has_latency = work.kind in {"latency", "fairness"}
    return Measurement(
        system=system.name,
        kind=work.kind,
        durability=work.durability,
        size=work.size,
        count=count,
        subscriptions=work.subscriptions,
        topics=work.topics,
        tasks=work.tasks,
        rate=work.rate if work.kind == "latency" else 0,
        seconds=round(seconds, 4),
        messages_per_s=round(per_s, 1),
        megabytes_per_s=round(per_s * work.size / _MEGA, 2),
        slowest_per_s=round(per_s, 1),
        fastest_per_s=round(per_s, 1),
        latency=consumers[0].latency if has_latency else None,
        latency_due=consumers[0].latency_due if work.kind == "latency" else None,
        latency_alone=consumers[0].latency_alone if has_latency else None,
        cpu_broker_s=phase.cpu_broker_s,
        cpu_producer_s=round(sum(result.cpu_s for result in phase.of("producer")), 2),
        cpu_consumer_s=round(sum(result.cpu_s for result in consumers), 2),
        rss_peak_mb=phase.rss_peak_bytes and round(phase.rss_peak_bytes / 2**20, 1),
        rss_per_topic_kb=per_topic and round(per_topic, 1),
        is_exact=is_exact,
    )


def median_of(runs: list[Measurement]) -> Measurement:
    """The run in the middle by its rate; of latencies each percentile by itself, and of fairness by the ratio."""
    assert runs
    is_fairness = runs[0].kind == "fairness"
    keys = [fairness.ratio(run) if is_fairness else run.messages_per_s for run in runs]
    middle = runs[keys.index(median_low(keys))]
    if middle.latency is not None and not is_fairness:
        middle = msgspec.structs.replace(middle, latency=_medians(runs))
    rates = [run.messages_per_s for run in runs]
    return msgspec.structs.replace(
        middle,
        repeat=len(runs),
        slowest_per_s=min(rates),
        fastest_per_s=max(rates),
        is_exact=all(run.is_exact for run in runs),
    )


def _medians(runs: list[Measurement]) -> Latency:
    measured = [run.latency for run in runs if run.latency is not None]
    return Latency(
        *(
            median_low([getattr(one, name) for one in measured])
            for name in Latency.__struct_fields__
        )
    )


def _run(system: System, work: Work) -> Phase:
    if work.kind == "fairness":
        return run_jobs(system.command(), fairness.jobs(work), system.pid)
    producer = Job(role="producer", index=0, work=work)
    consumers = [
        Job(role="consumer", index=index, work=work) for index in range(_consumer_count(work))
    ]
    if work.kind == "drain":
        filled = run_jobs(system.command(), [producer], system.pid)
        if filled.results[0].count != work.count:
            raise BenchFailed("the backlog was not written in full")
        return run_jobs(system.command(), consumers, system.pid)
    return run_jobs(system.command(), [producer, *consumers], system.pid)


def _consumer_count(work: Work) -> int:
    match work.kind:
        case "publish" | "topics" | "send":
            return 0
        case "fairness":
            return 2
        case "fanout":
            return work.subscriptions
        case "e2e" | "latency" | "drain":
            return 1


def _seconds(phase: Phase) -> float:
    """From the start of what is measured to the end of its last process."""
    producers, consumers = phase.of("producer"), phase.of("consumer")
    started = min(result.started_ns for result in (producers or consumers))
    ended = max(result.ended_ns for result in (consumers or producers))
    return max((ended - started) / 1e9, 1e-9)


def _is_exact(system: System, work: Work, phase: Phase) -> bool:
    """Every message came once: by count and sum at each consumer, by count in the store."""
    if work.kind == "fairness":
        return fairness.is_exact(work, phase)
    wanted = expected_checksum(work.count)
    arrived = all(
        result.count == work.count and result.checksum == wanted for result in phase.of("consumer")
    )
    return arrived and system.stored(work) == work.count
