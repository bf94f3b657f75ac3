"""Figures of a storage server, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
)


class Figures:
    """Counters of one server; thread-safe."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._calls = Counter(
            "danubius_storage_calls", "Calls, by method and status.", ["method", "status"],
            registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "danubius_storage_call_seconds", "How long calls took.", ["method"],
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self._written = Counter(
            "danubius_storage_written_bytes", "Bytes of ledgers and indexes that came in.",
            registry=self.registry,
        )  # fmt: skip
        self._read = Counter(
            "danubius_storage_read_bytes", "Bytes of ledgers and indexes that went out.",
            registry=self.registry,
        )  # fmt: skip

    def count_stores(self, count: Callable[[], int]) -> None:
        gauge = Gauge("danubius_storage_stores", "Stores that are open.", registry=self.registry)
        gauge.set_function(count)

    def called(self, method: str, status: str, seconds: float) -> None:
        self._calls.labels(method, status).inc()
        self._seconds.labels(method).observe(seconds)

    def wrote(self, size: int) -> None:
        self._written.inc(size)

    def read(self, size: int) -> None:
        self._read.inc(size)

    def serve(self, host: str, port: int) -> Callable[[], None]:
        """Answer on this port; returns how to end it. Raises OSError if the port is taken."""
        server, thread = start_http_server(port, host, self.registry)

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return end
