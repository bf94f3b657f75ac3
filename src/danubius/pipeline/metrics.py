"""The figures of a run for Prometheus: put together when somebody asks, from the newest status."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from danubius.errors import InvalidArgument
from danubius.pipeline.core.supervision import State

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError:
    raise InvalidArgument(
        "metrics need the Python package prometheus-client: pip install 'danubius[broker]'"
    ) from None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from prometheus_client.core import Metric

    from danubius.pipeline.status import QueryStatus, Status

PREFIX: Final = "danubius_pipeline_"
_LABELS: Final = ("pipeline", "query")


def _watermark_s(query: QueryStatus) -> float:
    text = query.figures.watermark
    return datetime.fromisoformat(text).timestamp() if text else 0.0


_COUNTERS: Final[dict[str, tuple[str, Callable[[QueryStatus], float]]]] = {
    "rows_in": ("Rows read from sources.", lambda q: q.figures.rows_in),
    "rows_out": ("Rows given to the sink.", lambda q: q.figures.rows_out),
    "batches": ("Batches committed.", lambda q: q.figures.batches),
    "restarts": ("Times the query was started again after a failure.", lambda q: q.restarts),
}
_GAUGES: Final[dict[str, tuple[str, Callable[[QueryStatus], float]]]] = {
    "rows_in_per_second": (
        "Rows in a second of the newest batch.",
        lambda q: q.figures.in_per_second,
    ),
    "rows_out_per_second": (
        "Rows out a second of the newest batch.",
        lambda q: q.figures.out_per_second,
    ),
    "batch_seconds": ("How long the newest batch took.", lambda q: q.figures.batch_ms / 1000),
    "lag_messages": (
        "Messages in the topics that no batch has taken yet.",
        lambda q: q.figures.lag or 0,
    ),
    "watermark_timestamp_seconds": (
        "Event time up to which the query is complete; 0: none.",
        _watermark_s,
    ),
    "state_rows": ("Rows that the query keeps between batches.", lambda q: q.figures.state_rows),
    "up": ("1 while the query runs.", lambda q: float(q.state == State.RUNNING.value)),
}


class PipelineCollector(Collector):
    """Asks for the statuses of all pipelines when it is scraped."""

    def __init__(self, statuses: Callable[[], Sequence[Status]]) -> None:
        self._statuses = statuses

    def collect(self) -> Iterable[Metric]:
        queries = [
            ([status.pipeline, name], query)
            for status in self._statuses()
            for name, query in status.queries.items()
        ]
        for name, (text, value) in _COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name, text, labels=_LABELS)
            for labels, each in queries:
                counter.add_metric(labels, value(each))
            yield counter
        for name, (text, value) in _GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=_LABELS)
            for labels, each in queries:
                gauge.add_metric(labels, value(each))
            yield gauge


def serve(statuses: Callable[[], Sequence[Status]], host: str, port: int) -> int:
    """Answer `GET /metrics` until the process ends; returns the port, which 0 lets the system choose."""
    registry = CollectorRegistry()
    registry.register(PipelineCollector(statuses))
    server, _ = start_http_server(port, addr=host, registry=registry)
    return server.server_port
