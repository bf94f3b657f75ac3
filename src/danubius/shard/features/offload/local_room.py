"""Room for ledgers on the broker's disk: near the bound all that may go to cold storage goes, at it nothing comes in.

The count of a round over all topics is some seconds old; what was journaled since is added, so it is never too low.
Where that would refuse publishers, it is counted exactly.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from danubius.errors import StorageFull
from danubius.ledger.managed import ManagedLedger

if TYPE_CHECKING:
    from danubius.shard.features.offload.figures import OffloadFigures
    from danubius.shard.shard import Shard

PRESSED: Final = 0.8
"""From this part of the bound on everything that may go goes."""

log = logging.getLogger(__name__)


class LocalRoom:
    """The bound, and whether it is reached."""

    def __init__(self, shard: Shard, figures: OffloadFigures, bytes_max: int) -> None:
        self._shard = shard
        self._figures = figures
        self._bytes_max = bytes_max

    @property
    def is_pressed(self) -> bool:
        bound = self._bytes_max
        return bool(bound) and self._figures.local_bytes_most() >= bound * PRESSED

    def look(self, problem: str) -> None:
        """Refuse to publish while there is no room, and say why that does not pass by itself."""
        if not self._bytes_max:
            return
        local_bytes = self._figures.local_bytes_most()
        if local_bytes >= self._bytes_max:
            local_bytes = self._count()
            self._figures.recount(local_bytes)
        pressure = self._shard.pressure
        if local_bytes < self._bytes_max:
            if pressure.refusal is not None:
                pressure.refusal = None
                log.info("there is room on disk again", extra={"local_bytes": local_bytes})
            return
        why = self._why(problem)
        if pressure.refusal is None:
            log.error("publishing is refused", extra={"why": why, "local_bytes": local_bytes})
        pressure.refusal = StorageFull(
            f"ledgers take {local_bytes} bytes of this broker's disk, and {self._bytes_max} is the bound "
            f"(tier.local_bytes_max): {why}"
        )

    def _count(self) -> int:
        return sum(
            topic.log.sizes().local_bytes
            for topic in self._shard.topics_by_id.values()
            if isinstance(topic.log, ManagedLedger)
        )

    def _why(self, problem: str) -> str:
        if problem:
            return f"nothing can be moved to cold storage, because {problem}"
        if self._figures.lag_bytes:
            return "moving to cold storage does not keep up; try again later"
        return "no topic has more that its policies (offload_age_ms, offload_bytes) let go there"
