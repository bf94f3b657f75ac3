"""Retries: what to do about an error, and how long to wait before the next attempt.

Waits grow by a factor of two up to a bound, each with jitter, so that a thousand clients that lost one broker
do not come back in the same millisecond.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from danubius.errors import (
    ClientClosed,
    DanubiusError,
    HandleNotFound,
    OutOfSequence,
    ProducerFenced,
    Retry,
    TopicDeleted,
    TopicNotFound,
)

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_DELAY_S: Final = 0.05
DELAY_MAX_S: Final = 1.0
STEADY_SESSION_S: Final = 5.0
"""A session that lived this long was a good one."""


class Backoff:
    """The waits of one series of attempts; `draw` gives numbers in [0, 1)."""

    __slots__ = ("_attempts", "_draw", "_first_s", "_max_s")

    def __init__(
        self,
        draw: Callable[[], float],
        *,
        first_s: float = FIRST_DELAY_S,
        max_s: float = DELAY_MAX_S,
    ) -> None:
        assert 0 < first_s <= max_s
        self._draw = draw
        self._first_s = first_s
        self._max_s = max_s
        self._attempts = 0

    @property
    def attempts(self) -> int:
        return self._attempts

    def next_delay_s(self) -> float:
        """Between half and all of the current step: spread out, and never zero."""
        # 2**30 steps are far above any bound; the cap only keeps the power small.
        step = min(self._max_s, self._first_s * 2 ** min(self._attempts, 30))
        self._attempts += 1
        return step * (0.5 + 0.5 * self._draw())

    def reset(self) -> None:
        self._attempts = 0


class RedialPace:
    """The waits before dialling, over all losses of one connection.

    The waits start anew only after a session that lived: a broker that shakes hands and hangs up, again and again, is
    dialled as seldom as one that is not there.
    """

    __slots__ = ("_backoff", "_up_since_s")

    def __init__(self, draw: Callable[[], float]) -> None:
        self._backoff = Backoff(draw)
        self._up_since_s: float | None = None

    @property
    def attempts(self) -> int:
        """Since the last session that lived."""
        return self._backoff.attempts

    def up(self, now_s: float) -> None:
        """A session begins."""
        self._up_since_s = now_s

    def lost(self, now_s: float) -> None:
        """It is over."""
        if self._up_since_s is not None and now_s - self._up_since_s >= STEADY_SESSION_S:
            self._backoff.reset()
        self._up_since_s = None

    def next_delay_s(self) -> float:
        return self._backoff.next_delay_s()


class Verdict(enum.Enum):
    """What a producer does about a refused batch."""

    RESEND = "resend"
    """Wait, then send everything that is not acknowledged again, in order."""
    LOOK_AGAIN = "look again"
    """Another broker has the topic: find it, resume there, then send what it lacks."""
    REOPEN = "reopen"
    """Ask the broker where it stands, then send again what it lacks."""
    FAIL_BATCH = "fail batch"
    """These messages can never be stored; those behind them can."""
    FAIL_PRODUCER = "fail producer"
    """No message of this producer will be stored any more."""


_ENDS_PRODUCER = (ProducerFenced, TopicDeleted, TopicNotFound, ClientClosed)
_LOST_STEP = (HandleNotFound, OutOfSequence)


def judge_refusal(error: DanubiusError) -> Verdict:
    """Classify the broker's refusal of a batch."""
    if isinstance(error, _ENDS_PRODUCER):
        return Verdict.FAIL_PRODUCER
    if error.retry is Retry.AFTER_LOOKUP:
        return Verdict.LOOK_AGAIN
    if isinstance(error, _LOST_STEP):
        return Verdict.REOPEN
    return Verdict.RESEND if error.is_retryable else Verdict.FAIL_BATCH
