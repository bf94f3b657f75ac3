"""A probe for a journal that failed: it finds out that it works again, although nobody appends to it.

A failure is over when an append succeeds. With no producer left to try, nothing would: so from the failure on, one
append that means nothing is made every second, one at a time, until one is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danubius.shard.state.facts import BARRIER

if TYPE_CHECKING:
    import asyncio

    from danubius.errors import DanubiusError
    from danubius.shard.shard import Shard

INTERVAL_S: Final = 1.0


class JournalProbe:
    """Ticks on the loop; costs nothing while the journal works."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._timer: asyncio.TimerHandle | None = None
        self._is_under_way = False

    def start(self) -> None:
        self._timer = self._shard.loop.call_later(INTERVAL_S, self._tick)

    def stop(self) -> None:
        """Before the journal is closed."""
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Append, if the journal's last word was a failure; the broker hears how it went as with any append."""
        if self._shard.journal_failure is None or self._is_under_way:
            return
        self._is_under_way = True
        self._shard.commit(BARRIER, self._answered)

    def _tick(self) -> None:
        self.look()
        self.start()

    def _answered(self, _error: DanubiusError | None) -> None:
        self._is_under_way = False
