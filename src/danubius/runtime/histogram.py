"""Histograms of how often something took up to how long: counts below fixed bounds, as Prometheus wants them."""

from __future__ import annotations

from bisect import bisect_left


class Histogram:
    """How often a duration was up to each bound, and beyond all of them."""

    __slots__ = ("bounds", "counts", "sum_s")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        """In seconds, rising."""
        self.counts = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def add(self, duration_s: float) -> None:
        duration_s = max(0.0, duration_s)
        self.counts[bisect_left(self.bounds, duration_s)] += 1
        self.sum_s += duration_s
