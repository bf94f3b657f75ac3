"""The time by which the age of things is judged: the clock on the wall, unless it has just jumped ahead.

What is too old goes, and does not come back when the clock does. So a jump ahead is not believed at once: until it has
lasted, time goes on from before it, as fast as the monotonic clock. A clock that goes back is believed at once: it only
makes things younger. Stamps are not judged by this: they say what the clock on the wall said.

- What deletes (retention, times to live, orphans in an object store) waits for `DELETE_HOLD_NS`.
- What only comes too early (delayed messages, moves to an object store) waits for `RELEASE_HOLD_NS`.

A broker that is started under a wrong clock has no time from before it. Retention, which may always be late, then goes
by the newest stamp that the broker's own clock has left in its data, for as long.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from danubius.runtime.clock import Clock

JUMP_US: Final = 30_000_000
"""Less than this at once is a clock being set right."""
RELEASE_HOLD_NS: Final = 120 * 1_000_000_000
DELETE_HOLD_NS: Final = 3600 * 1_000_000_000
START_GAP_US: Final = 3600 * 1_000_000
"""A start whose clock is this far ahead of all that is stored may be one under a wrong clock."""
LOOK_MS: Final = 1_000
"""How often the clocks are compared, whether or not anybody asks."""

log = logging.getLogger(__name__)


class Ages:
    """Compares the two clocks of the machine."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._trusted_us = self._difference_us()
        """The wall clock less the monotonic one, as it was last believed."""
        self._seen_us = self._trusted_us
        self._since_ns = 0
        """When the jump that is not believed was noticed."""
        self._started_ns = clock.monotonic_ns()
        self._newest_us: int | None = None
        self.jumps = 0
        """Jumps ahead since the start of the broker."""

    @property
    def jump_s(self) -> float:
        """How far ahead the wall clock is of what is believed; 0: it is believed."""
        return (self._seen_us - self._trusted_us) / 1e6 if self._is_ahead else 0.0

    @property
    def _is_ahead(self) -> bool:
        return self._seen_us - self._trusted_us > JUMP_US

    def begin(self, newest_ms: int) -> None:
        """The state is recovered, and this is the newest time that the broker's clock has left in it; 0: none."""
        self._started_ns = self._clock.monotonic_ns()
        if newest_ms and self._clock.wall_us() - newest_ms * 1000 > START_GAP_US:
            self._newest_us = newest_ms * 1000

    def look(self) -> None:
        """Compare the clocks."""
        now_ns = self._clock.monotonic_ns()
        seen_us, before_us, was_ahead = self._difference_us(), self._seen_us, self._is_ahead
        self._seen_us = seen_us
        if not self._is_ahead:
            self._settle(seen_us, was_ahead)
        elif not was_ahead or seen_us - before_us > JUMP_US:
            self._since_ns = now_ns
            self.jumps += 1
            log.warning(
                "the clock has jumped ahead: nothing is deleted or released early by it for now",
                extra={"jump_s": round(self.jump_s), "hold_s": DELETE_HOLD_NS // 1_000_000_000},
            )
        elif now_ns - self._since_ns >= DELETE_HOLD_NS:
            log.warning(
                "the clock that jumped ahead is believed", extra={"jump_s": round(self.jump_s)}
            )
            self._trusted_us = seen_us

    def _settle(self, seen_us: int, was_ahead: bool) -> None:
        if was_ahead:
            log.info("the clock that jumped ahead is right again")
        elif self._trusted_us - seen_us > JUMP_US:
            back_s = round((self._trusted_us - seen_us) / 1e6)
            log.warning("the clock has gone back", extra={"back_s": back_s})
        self._trusted_us = seen_us

    def now_us(self, hold_ns: int = DELETE_HOLD_NS) -> int:
        """The time for those who wait so long before they believe a jump ahead."""
        self.look()
        now_ns = self._clock.monotonic_ns()
        is_held = self._is_ahead and now_ns - self._since_ns < hold_ns
        return now_ns // 1000 + (self._trusted_us if is_held else self._seen_us)

    def release_ms(self) -> int:
        """The time for what would only come too early."""
        return self.now_us(RELEASE_HOLD_NS) // 1000

    def retention_ms(self) -> int:
        """The time for what deletes and may always be late."""
        now_us = self.now_us()
        if self._newest_us is not None:
            passed_ns = self._clock.monotonic_ns() - self._started_ns
            if passed_ns < DELETE_HOLD_NS:
                return min(now_us, self._newest_us + passed_ns // 1000) // 1000
            self._newest_us = None
        return now_us // 1000

    def _difference_us(self) -> int:
        return self._clock.wall_us() - self._clock.monotonic_ns() // 1000
