"""The figures of cold storage, for a scrape; declared in `metric_catalogue`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.app import metric_catalogue as of

if TYPE_CHECKING:
    from danubius.app.metric_catalogue import Metric
    from danubius.shard.features.offload.offloading import Offloading


def tier_figures(offloading: Offloading | None) -> dict[Metric, dict[tuple[str, ...], float]]:
    """The values of each metric by those of its labels; 0 everywhere, where there is no cold storage."""
    if offloading is None:
        return {
            metric: dict.fromkeys([("local",), ("cold",)] if metric.labels else [()], 0.0)
            for metric in of.TIER
        }
    figures, store = offloading.figures, offloading.store
    plain: dict[Metric, float] = {
        of.TIER_FAILING: int(bool(offloading.problem)),
        of.TIER_LAG_SECONDS: figures.lag_ms / 1000,
        of.TIER_LAG_BYTES: figures.lag_bytes,
        of.TIER_UPLOADS: figures.uploads,
        of.TIER_UPLOADED_BYTES: figures.uploaded_bytes,
        of.TIER_RECLAIMED: figures.reclaims,
        of.TIER_REMOVED: figures.removals,
        of.TIER_ORPHANS: figures.orphans,
        of.TIER_FAILURES: figures.failures,
        of.TIER_READ_BYTES: store.counts.bytes_read,
        of.TIER_READ_FAILURES: store.counts.failures,
        of.TIER_REREADS: store.counts.rereads,
        of.TIER_CACHE_BYTES: store.cached_bytes,
        of.TIER_CACHE_HITS: store.cache_hits,
        of.TIER_CACHE_MISSES: store.cache_misses,
    }
    return {
        of.TIER_BYTES: {("local",): figures.local_bytes, ("cold",): figures.cold_bytes},
        of.TIER_LEDGERS: {("local",): figures.local_ledgers, ("cold",): figures.cold_ledgers},
        **{metric: {(): value} for metric, value in plain.items()},
    }
