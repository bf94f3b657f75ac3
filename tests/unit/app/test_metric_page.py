"""The page of metrics and the dashboard say what the broker tells, no more and no less."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from danubius.app.metric_catalogue import Kind, all_metrics
from danubius.app.metric_page import render_page

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = ROOT / "deploy" / "grafana" / "danubius.json"
MONITORING = ROOT / "docs" / "operations" / "monitoring.md"
NAME = re.compile(r"\b(?:danubius|process|python)_[a-z_]+\b")
OF_THE_CLIENT = {
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_open_fds",
    "process_max_fds",
}


def known_names() -> set[str]:
    names = set(OF_THE_CLIENT)
    for metric in all_metrics():
        names.add(metric.name)
        if metric.kind is Kind.HISTOGRAM:
            names |= {f"{metric.name}_{part}" for part in ("bucket", "sum", "count")}
    return names


def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text())


def queries() -> list[str]:
    panels = dashboard()["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert page == render_page(), "run `make docs`"


def test_names_are_declared_once_and_as_prometheus_wants_them() -> None:
    metrics = all_metrics()
    assert len({metric.name for metric in metrics}) == len(metrics)
    for metric in metrics:
        assert re.fullmatch(r"danubius_[a-z][a-z_]*[a-z]", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert metric.text.endswith(".")
        assert "\n" not in metric.text


@pytest.mark.parametrize("query", queries())
def test_the_dashboard_asks_for_metrics_that_exist(query: str) -> None:
    names = set(NAME.findall(query))
    assert names
    assert names <= known_names()


def test_every_query_uses_the_labels_its_metrics_have() -> None:
    labels = {metric.name: set(metric.labels) for metric in all_metrics()}
    for query in queries():
        for name, selector in re.findall(r"(danubius_[a-z_]+)\{([^}]*)\}", query):
            used = set(re.findall(r"(\w+)=~", selector)) - {"instance"}
            assert used <= labels.get(name, set()), query


def test_every_panel_has_a_place_a_source_and_a_description() -> None:
    content = dashboard()
    panels = [panel for panel in content["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in content["panels"]}) == len(content["panels"])
    variables = {variable["name"] for variable in content["templating"]["list"]}
    assert {"datasource", "instance", "topic"} == variables
    for panel in panels:
        assert panel["targets"]
        assert panel["title"]
        assert panel["description"].endswith(".")
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
    cells = [
        (x, y)
        for panel in content["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert max(x for x, _ in cells) < 24


def test_the_page_about_monitoring_names_metrics_that_exist() -> None:
    names = set(NAME.findall(MONITORING.read_text()))
    assert names
    assert names <= known_names()
