"""One direction of a simulated cable between two hosts: how long bytes take, and when they do not come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

RESEND_S: Final = 0.2
"""After this a lost segment is sent again, and later each time."""
RESEND_MAX_S: Final = 5.0


class Link:
    """Its properties may be changed at any time; what is under way is not."""

    def __init__(self, dice: random.Random) -> None:
        self.delay_s = 0.0002
        self.jitter_s = 0.0005
        self.loss = 0.0
        """Share of segments that are lost and sent again: TCP makes a delay of it."""
        self.bytes_per_s = 100e6
        self.pieces = 0.1
        """Share of writes that arrive in arbitrary pieces."""
        self.is_cut = False
        """Nothing comes through, and nobody is told."""
        self._dice = dice

    def transit_s(self, count: int) -> float:
        """How long so many bytes are under way."""
        dice = self._dice
        total_s = self.delay_s + dice.random() * self.jitter_s + count / self.bytes_per_s
        resend_s = RESEND_S
        while self.loss and resend_s < RESEND_MAX_S and dice.random() < self.loss:
            total_s += resend_s
            resend_s *= 2
        return total_s

    def cut_off(self, count: int) -> int:
        """How many of so many bytes go in the next segment."""
        if count > 1 and self.pieces and self._dice.random() < self.pieces:
            return self._dice.randrange(1, count)
        return count

    def patience_s(self, waited_s: float) -> float:
        """When, after it was mended, what has waited for so long is sent again."""
        return self._dice.uniform(0.0, min(RESEND_MAX_S, RESEND_S + waited_s))
