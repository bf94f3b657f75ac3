"""The cyclic garbage collector, kept away from what has come to stay.

Nearly everything in a broker dies by its reference count. So cycles are looked for seldom, a few milliseconds at a
time, and never among what lives long: what recovery built, and topics once there are many more of them. Walking ten
thousand topics takes a third of a second in which nobody is served.

What is frozen and becomes part of a dead cycle is never freed. That is at most what was alive at a few moments: topics
grow by a tenth, and by a thousand, from one to the next.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

THRESHOLDS: Final = (2000, 500, 100)
"""The first is how many new objects are looked at in one go, which everybody waits for: a few milliseconds."""
INTERVAL_MS: Final = 500
GROWTH_MIN: Final = 1000


class Collector:
    """Decides when to freeze what there is."""

    def __init__(self, count_topics: Callable[[], int]) -> None:
        self._count_topics = count_topics
        self._frozen_topics = 0

    def start(self) -> None:
        gc.collect()
        gc.set_threshold(*THRESHOLDS)
        self._freeze()

    def tick(self) -> None:
        if self._count_topics() >= self._frozen_topics * 1.1 + GROWTH_MIN:
            self._freeze()

    def _freeze(self) -> None:
        gc.freeze()
        self._frozen_topics = self._count_topics()
