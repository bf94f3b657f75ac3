"""The pulse of the front: whether it is alive, by what it answers and what the machine let it do.

Invariant: however slow the machine is, a front that only waits for a core is not taken for dead; one that sleeps, is
stopped, or runs without ever answering is.
"""

from __future__ import annotations

from typing import Final

MISSED_MAX: Final = 6
"""Answers in a row, before it is taken for dead: counted, so that a machine that was asleep is not a reason."""
ENOUGH_CPU_S: Final = 0.25
"""Who had so much time on a core could have answered: a turn of its loop is a few milliseconds."""


class Pulse:
    """One front; `tick` comes some seconds after each question."""

    def __init__(self) -> None:
        self._missed = 0
        self._cpu_s = 0.0
        """What it had used when it last answered, or last failed to."""
        self._has_answered = False

    def answered(self) -> None:
        self._has_answered = True

    def tick(self, cpu_s: float, is_runnable: bool) -> bool:  # as `Standing` has them
        """Whether it is dead; `cpu_s` is what it has used in its life, and runnable is who runs or waits for a core."""
        if self._has_answered:
            self._missed = 0
        elif is_runnable and cpu_s - self._cpu_s < ENOUGH_CPU_S:
            return False
        else:
            self._missed += 1
        self._has_answered = False
        self._cpu_s = cpu_s
        return self._missed >= MISSED_MAX
