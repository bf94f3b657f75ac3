"""Spark's reports become figures; the status file and Prometheus tell them."""

from __future__ import annotations

import urllib.request
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from danubius.errors import InvalidArgument
from danubius.pipeline import status as statuses
from danubius.pipeline.metrics import serve
from danubius.pipeline.progress import Figures, advance, lag_of
from danubius.pipeline.status import QueryStatus, Status
from patience import HANG_S

if TYPE_CHECKING:
    from pathlib import Path


def _report(batch: int = 3, **changes: Any) -> dict[str, Any]:
    return {
        "batchId": batch,
        "numInputRows": 500,
        "durationMs": {"triggerExecution": 250, "addBatch": 200},
        "eventTime": {"watermark": "2026-11-16T08:00:00.000Z"},
        "stateOperators": [{"numRowsTotal": 7}, {"numRowsTotal": 5}],
        "sources": [
            {
                "endOffset": {"/default/a": {"0": 100, "1": 50}},
                "latestOffset": '{"/default/a": {"0": 130, "1": 50, "2": 4}}',
            }
        ],
        "sink": {"numOutputRows": -1},
        "observedMetrics": {"danubius_out": {"rows": 40}},
    } | changes


def test_a_batch_moves_every_figure() -> None:
    assert advance(Figures(batches=2, rows_in=1000, rows_out=1), _report()) == Figures(
        batches=3, batch=3, rows_in=1500, rows_out=41, in_per_second=2000.0, out_per_second=160.0,
        batch_ms=250, lag=34, watermark="2026-11-16T08:00:00.000Z", state_rows=12,
    )  # fmt: skip


def test_a_connect_server_says_the_same_in_another_form() -> None:
    report = _report(
        observedMetrics={
            "danubius_out": {"values": [40], "schema": {"type": "struct", "fields": []}}
        }
    )
    del report["numInputRows"]
    report["sources"][0]["numInputRows"] = 500
    assert advance(Figures(), report) == advance(Figures(), _report())


def test_a_report_without_a_batch_moves_no_total() -> None:
    before = advance(Figures(), _report())
    after = advance(before, _report(4, durationMs={"latestOffset": 3}, eventTime={}))
    assert (after.batches, after.batch, after.rows_in) == (
        before.batches,
        before.batch,
        before.rows_in,
    )
    assert after.in_per_second == 0.0
    assert after.watermark == before.watermark


def test_a_sink_that_counts_its_rows_is_believed_without_an_observation() -> None:
    assert advance(Figures(), _report(observedMetrics={}, sink={"numOutputRows": 9})).rows_out == 9


def test_no_lag_where_sources_do_not_say_it() -> None:
    assert lag_of({"sources": [{"endOffset": "3", "latestOffset": None}]}) is None


def _status() -> Status:
    queries = {"table": QueryStatus("running", 2, "why", advance(Figures(), _report()))}
    return Status("p", "p.toml", 1, "running", "a", "b", None, queries)


def test_a_status_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert statuses.read(tmp_path) is None
    statuses.write(tmp_path, _status())
    assert statuses.read(tmp_path) == _status()
    (tmp_path / statuses.FILE).write_text("{")
    with pytest.raises(InvalidArgument, match="is not a status"):
        statuses.read(tmp_path)


def test_one_run_a_checkpoint(tmp_path: Path) -> None:
    assert not statuses.is_held(tmp_path)
    with statuses.hold(tmp_path):
        assert statuses.is_held(tmp_path)
        with pytest.raises(InvalidArgument, match="in use by process"):
            statuses.hold(tmp_path)
    assert not statuses.is_held(tmp_path)


def test_prometheus_gets_the_figures() -> None:
    port = serve(lambda: [_status()], "127.0.0.1", 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG_S) as answer:
        page = answer.read().decode()
    labels = '{pipeline="p",query="table"}'
    assert f"danubius_pipeline_rows_in_total{labels} 500.0" in page
    assert f"danubius_pipeline_lag_messages{labels} 34.0" in page
    assert f"danubius_pipeline_restarts_total{labels} 2.0" in page
    watermark = f"danubius_pipeline_watermark_timestamp_seconds{labels} "
    (line,) = [line for line in page.splitlines() if line.startswith(watermark)]
    assert float(line.split()[1]) == datetime(2026, 11, 16, 8, tzinfo=UTC).timestamp()
    assert f"danubius_pipeline_up{labels} 1.0" in page
