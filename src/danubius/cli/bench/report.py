"""Measurements as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.cli.bench.fairness import RATIO_MAX, ratio
from danubius.cli.output import human_count, print_table

if TYPE_CHECKING:
    from danubius.cli.bench.work import Latency, Measurement

_COLUMNS = (
    "MEASURED", "DURABILITY", "SIZE", "MESSAGES", "MSG/S", "MB/S", "P50 MS", "P99 MS",
    "CPU S B/P/C", "RSS PEAK MB", "EXACT",
)  # fmt: skip

_FAIRNESS_COLUMNS = (
    "QUIET TOPICS", "ALONE P50 MS", "ALONE P99 MS", "BESIDE P50 MS", "BESIDE P99 MS", "P99 RATIO",
    "FAIR", "BUSY MSG/S",
)  # fmt: skip


def print_measurements(measured: list[Measurement]) -> None:
    print_table(_COLUMNS, [_row(measurement) for measurement in measured])


def print_fairness(measured: list[Measurement]) -> None:
    """What a busy topic costs the quiet ones; nothing if that was not measured."""
    rows = [_fairness_row(each, each.latency, each.latency_alone) for each in measured]
    if rows:
        print_table(_FAIRNESS_COLUMNS, rows)


def label(measurement: Measurement) -> str:
    """What was measured, in a few words."""
    match measurement.kind:
        case "fanout":
            return f"fanout x{measurement.subscriptions}"
        case "topics":
            return f"{human_count(measurement.topics)} topics"
        case "send":
            return f"send, {measurement.tasks} task{'s' if measurement.tasks > 1 else ''}"
        case "fairness":
            return f"fairness, {human_count(measurement.topics)} quiet"
        case "latency":
            return f"latency at {human_count(measurement.rate)}/s"
        case _:
            return measurement.kind


def _row(measurement: Measurement) -> tuple[str, ...]:
    latency = measurement.latency
    broker = "?" if measurement.cpu_broker_s is None else f"{measurement.cpu_broker_s:.1f}"
    memory = "?" if measurement.rss_peak_mb is None else f"{measurement.rss_peak_mb:.0f}"
    if measurement.rss_per_topic_kb is not None and measurement.topics >= 100:
        memory += f" ({measurement.rss_per_topic_kb:.1f} KB a topic)"
    return (
        label(measurement),
        measurement.durability,
        str(measurement.size),
        human_count(measurement.count),
        human_count(measurement.messages_per_s),
        f"{measurement.megabytes_per_s:.1f}",
        f"{latency.p50:.3f}" if latency else "-",
        f"{latency.p99:.3f}" if latency else "-",
        f"{broker}/{measurement.cpu_producer_s:.1f}/{measurement.cpu_consumer_s:.1f}",
        memory,
        "yes" if measurement.is_exact else "NO",
    )


def _fairness_row(
    measurement: Measurement, beside: Latency | None, alone: Latency | None
) -> tuple[str, ...]:
    found = ratio(measurement)
    figures = [
        f"{figure:.3f}"
        for latency in (alone, beside)
        for figure in ((latency.p50, latency.p99) if latency else (0.0, 0.0))
    ]
    return (
        human_count(measurement.topics),
        *figures,
        f"{found:.1f}",
        "yes" if found <= RATIO_MAX else f"NO: more than {RATIO_MAX:g}",
        human_count(measurement.messages_per_s),
    )
