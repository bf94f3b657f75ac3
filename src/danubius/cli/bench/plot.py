"""Measurements as a picture. The only module that needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from danubius.cli.bench.report import label

if TYPE_CHECKING:
    from pathlib import Path

    from danubius.cli.bench.work import Latency, Measurement


def draw(measured: list[Measurement], path: Path) -> None:
    """Bars of messages a second, and percentiles of latency where they were measured."""
    from matplotlib.figure import Figure

    rates = [each for each in measured if each.latency is None]
    latencies = [(each, each.latency) for each in measured if each.latency is not None]
    panels = [rates] * bool(rates) + [latencies] * bool(latencies)
    figure: Any = Figure(
        figsize=(8, 0.6 + 3.2 * len(panels)), layout="constrained"
    )  # Any: matplotlib has no full types
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    index = 0
    if rates:
        _draw_rates(axes[index], rates)
        index += 1
    if latencies:
        _draw_latencies(axes[index], latencies)
    figure.savefig(path)


def _name(measurement: Measurement) -> str:
    return (
        f"{measurement.system} {label(measurement)}, {measurement.durability}, {measurement.size} B"
    )


def _draw_rates(axis: Any, rates: list[Measurement]) -> None:  # Any: matplotlib has no full types
    bars = axis.barh([_name(each) for each in rates], [each.messages_per_s for each in rates])
    axis.bar_label(bars, labels=[f" {each.messages_per_s:,.0f}" for each in rates])
    axis.set_xlabel("messages a second")
    axis.margins(x=0.18)
    axis.invert_yaxis()


def _draw_latencies(
    axis: Any, latencies: list[tuple[Measurement, Latency]]
) -> None:  # Any: as above
    points = ("p50", "p90", "p99", "p99.9", "max")
    for measurement, latency in latencies:
        values = (latency.p50, latency.p90, latency.p99, latency.p999, latency.max)
        axis.plot(points, values, marker="o", label=_name(measurement))
    axis.set_yscale("log")
    axis.set_ylabel("milliseconds")
    axis.set_xlabel("percentile of send to receive")
    axis.legend()
