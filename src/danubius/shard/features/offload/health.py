"""The health of cold storage: what failed last, when to try again, and when it is over.

Kinds of work are told apart: a store that can be read and not written to must not look healthy after every read.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from danubius.errors import DanubiusError, ShuttingDown

if TYPE_CHECKING:
    from danubius.runtime.clock import Clock
    from danubius.shard.features.offload.figures import OffloadFigures
    from danubius.tier.config import TierConfig

log = logging.getLogger(__name__)


class TierHealth:
    """One per broker. After a failure the store is left alone for a while that doubles."""

    def __init__(self, config: TierConfig, clock: Clock, figures: OffloadFigures, url: str) -> None:
        self._config = config
        self._clock = clock
        self._figures = figures
        self._url = url
        self._failing: set[str] = set()
        """The kinds of work that failed when they were last tried."""
        self._retry_ms = config.retry_ms
        self._retry_at_ns = 0
        self.failure: DanubiusError | None = None
        """Why the object store cannot be used at the moment."""

    @property
    def may_try(self) -> bool:
        return self._clock.monotonic_ns() >= self._retry_at_ns

    def failed(self, error: DanubiusError, what: str) -> None:
        if isinstance(error, ShuttingDown):
            return
        self._figures.failures += 1
        if self.failure is None or self.failure.code != error.code:
            log.error(
                "cold storage cannot be used: everything stays on the broker's disk, and it is tried again",
                extra={"url": self._url, "what": what, "error": str(error)},
            )
        self.failure = error
        self._failing.add(what)
        if self.may_try:
            self._retry_at_ns = self._clock.monotonic_ns() + self._retry_ms * 1_000_000
            self._retry_ms = min(2 * self._retry_ms, self._config.retry_max_ms)

    def succeeded(self, what: str, *, is_idle: bool = False) -> None:
        """One kind of work was done. It is over when none fails any more, or nothing is left that could."""
        self._failing.discard(what)
        if is_idle:
            self._failing.clear()
        if self.failure is not None and not self._failing:
            self.failure = None
            self._retry_ms = self._config.retry_ms
            self._retry_at_ns = 0
            log.info("cold storage works again", extra={"url": self._url})
