"""`python -m danubius.app.metric_page FILE`: the page of all metrics, made of their declarations."""

from __future__ import annotations

import sys
from pathlib import Path

from danubius.app.metric_catalogue import CATALOGUE, Group, Kind

_INTRODUCTION = """\
# Metrics

This page is made from `src/danubius/app/metric_catalogue.py` by `make docs`; do not edit it.

A broker tells its metrics at `http://HOST:6652/metrics` in Prometheus' text format. They are counted where things
happen anyway and put together when somebody asks, so they cost messages nothing. Counters begin at 0 when the broker
starts.
How to collect them, a dashboard and alerts: [monitoring](operations/monitoring.md).

Besides these there are `process_*` (CPU, memory, open files) and `python_*` (garbage collection, version), as of every
Python program that uses the Prometheus client.
"""


def render_page() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *map(_section, CATALOGUE)])


def _section(group: Group) -> str:
    lines = [f"## {group.title}", ""]
    if group.text:
        lines += [group.text, ""]
    lines += ["| metric | type | labels | unit | meaning |", "|---|---|---|---|---|"]
    for metric in group.metrics:
        labels = list(metric.labels) + (["le"] if metric.kind is Kind.HISTOGRAM else [])
        names = ", ".join(f"`{label}`" for label in labels)
        cells = (f"`{metric.name}`", metric.kind.value, names, metric.unit, metric.text)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render_page(), encoding="utf-8")
