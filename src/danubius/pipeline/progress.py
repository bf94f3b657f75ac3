"""The progress that Spark reports about a query, as the few figures that people and Prometheus want. Pure.

Rows out are counted by an observation that every streaming query carries: sinks written in Python report none.
"""

from __future__ import annotations

import json
from typing import Any, Final, cast

import msgspec

OBSERVATION: Final = "danubius_out"
OBSERVED_ROWS: Final = "rows"

Json = dict[str, Any]


class Figures(msgspec.Struct, frozen=True):
    """One query, as of its newest batch, and its totals in this run."""

    batches: int = 0
    batch: int = -1
    rows_in: int = 0
    rows_out: int = 0
    in_per_second: float = 0.0
    out_per_second: float = 0.0
    batch_ms: int = 0
    lag: int | None = None
    """Messages that are in the topics and not yet in a batch; None while Spark does not say."""
    watermark: str | None = None
    state_rows: int = 0


def advance(before: Figures, report: Json) -> Figures:
    """The figures after one more progress report; a report without a batch only moves what can move without one."""
    lag = lag_of(report)
    watermark = cast("str | None", report.get("eventTime", {}).get("watermark"))
    if not is_batch(report):
        return msgspec.structs.replace(
            before, in_per_second=0.0, out_per_second=0.0,
            lag=before.lag if lag is None else lag, watermark=watermark or before.watermark,
        )  # fmt: skip
    rows_in = _rows_in(report)
    rows_out = _rows_out(report)
    batch_ms = int(
        report.get("durationMs", {}).get("triggerExecution") or report.get("batchDuration") or 0
    )
    per_second = 1000 / max(batch_ms, 1)
    return Figures(
        batches=before.batches + 1,
        batch=int(report["batchId"]),
        rows_in=before.rows_in + rows_in,
        rows_out=before.rows_out + rows_out,
        in_per_second=round(rows_in * per_second, 1),
        out_per_second=round(rows_out * per_second, 1),
        batch_ms=batch_ms,
        lag=lag,
        watermark=watermark or before.watermark,
        state_rows=sum(
            int(each.get("numRowsTotal") or 0) for each in report.get("stateOperators", [])
        ),
    )


def is_batch(report: Json) -> bool:
    """Spark also reports that it found nothing to do."""
    return "addBatch" in report.get("durationMs", {})


def lag_of(report: Json) -> int | None:
    """Newest minus reached offset, over all topics and partitions of all sources that say both."""
    total: int | None = None
    for source in report.get("sources", []):
        reached, newest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if reached and newest:
            behind = sum(max(0, newest[slot] - max(0, reached.get(slot, 0))) for slot in newest)
            total = (total or 0) + behind
    return total


def _offsets(value: object) -> dict[tuple[str, str], int]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    if not isinstance(value, dict):
        return {}
    return {
        (topic, partition): offset
        for topic, partitions in cast("dict[str, object]", value).items()
        if isinstance(partitions, dict)
        for partition, offset in cast("dict[str, object]", partitions).items()
        if isinstance(offset, int) and offset >= 0
    }


def _rows_in(report: Json) -> int:
    """In all; a Spark Connect server says it only of each source."""
    total = report.get("numInputRows")
    if total is None:
        total = sum(int(source.get("numInputRows") or 0) for source in report.get("sources", []))
    return int(total)


def _rows_out(report: Json) -> int:
    observed = report.get("observedMetrics", {}).get(OBSERVATION)
    if isinstance(observed, dict):
        row = cast("Json", observed)
        # A Spark Connect server tells the row apart from its schema; it has one column.
        counted = row["values"][0] if "values" in row else row.get(OBSERVED_ROWS)
        return int(counted or 0)
    return max(0, int(report.get("sink", {}).get("numOutputRows") or 0))
