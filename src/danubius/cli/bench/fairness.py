"""One topic at full speed beside many quiet ones: what the busy one costs them.

One run has windows of the same length, in turn: in one the quiet topics are alone, one message a second each; in the
next one more topic is published to and consumed as fast as it goes. Two of each, so that a machine that changes its
speed meanwhile changes both. Four processes, so that none measures itself: the quiet producer, the quiet consumer, the
busy producer, the busy consumer. A sample belongs to the window that it was sent in; what was sent while things settle,
at the start of each, belongs to none.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

import msgspec

from danubius.cli.bench.payloads import checksum, expected_checksum, latency_of, sent_ns_of
from danubius.cli.bench.work import Job, Work

if TYPE_CHECKING:
    from danubius.cli.bench.harness import Phase
    from danubius.cli.bench.work import Latency, Measurement

QUIET: Final = 0
BUSY: Final = 1
"""The index of a job: which pair the process belongs to."""
ROUNDS: Final = 2
"""How often both are measured."""
SETTLE_S: Final = 2.0
"""At the start of each window: not measured. Less if there is little to measure."""
RATIO_MAX: Final = 5.0
"""A p99 beside the busy topic of at most this many times the p99 without it counts as fair."""
LAST: Final = b"\xff" * 16
"""The last message of the busy topic."""


class Timeline(msgspec.Struct, frozen=True):
    """When is what, in ns since the start. Windows follow each other, alone and beside in turn."""

    settle: int
    window: int
    """One window, settling included."""

    @classmethod
    def of(cls, work: Work) -> Timeline:
        measured = work.seconds / ROUNDS
        settle = int(min(SETTLE_S, measured) * 1e9)
        return cls(settle, settle + int(measured * 1e9))

    @property
    def busy(self) -> list[tuple[int, int]]:
        """When the busy topic is busy."""
        return [
            ((2 * turn + 1) * self.window, (2 * turn + 2) * self.window) for turn in range(ROUNDS)
        ]

    @property
    def end(self) -> int:
        return 2 * ROUNDS * self.window

    def is_beside(self, at: int) -> bool | None:
        """Whether what was sent then was sent beside the busy topic; None: it does not count."""
        turn, within = divmod(at, self.window)
        if within < self.settle or not 0 <= at < self.end:
            return None
        return bool(turn % 2)


def busy_seconds(work: Work) -> float:
    return ROUNDS * Timeline.of(work).window / 1e9


def quiet_count(work: Work) -> int:
    """Messages of all quiet topics from start to end."""
    return int(work.topics * Timeline.of(work).end / 1e9)


def quiet_topic(work: Work, index: int) -> str:
    return f"{work.topic}-{index}"


def jobs(work: Work) -> list[Job]:
    return [
        Job(role=role, index=index, work=work)
        for index in (QUIET, BUSY)
        for role in ("producer", "consumer")
    ]


class QuietSink:
    """What the quiet consumer received, and how long it took, by window."""

    def __init__(self, work: Work, started_ns: int) -> None:
        self._timeline = Timeline.of(work)
        self._started_ns = started_ns
        self._wanted = quiet_count(work)
        self.count = 0
        self.checksum = 0
        self.alone_ns: array[int] = array("q")
        self.beside_ns: array[int] = array("q")

    @property
    def is_full(self) -> bool:
        return self.count >= self._wanted

    def add(self, payload: bytes, now_ns: int) -> None:
        sent_ns = sent_ns_of(payload)
        is_beside = self._timeline.is_beside(sent_ns - self._started_ns)
        if is_beside is not None:
            (self.beside_ns if is_beside else self.alone_ns).append(now_ns - sent_ns)
        self.count += 1
        self.checksum += checksum([payload])

    @property
    def alone(self) -> Latency | None:
        return latency_of(self.alone_ns, warm_up=0)

    @property
    def beside(self) -> Latency | None:
        return latency_of(self.beside_ns, warm_up=0)


def is_exact(work: Work, phase: Phase) -> bool:
    """Every message of the quiet topics and of the busy one came once."""
    (quiet,) = (one for one in phase.of("consumer") if one.index == QUIET)
    (busy,) = (one for one in phase.of("consumer") if one.index == BUSY)
    (source,) = (one for one in phase.of("producer") if one.index == BUSY)
    wanted = quiet_count(work)
    return (
        quiet.count == wanted
        and quiet.checksum == expected_checksum(wanted)
        and busy.count == source.count
        and busy.checksum == expected_checksum(source.count)
    )


def ratio(measured: Measurement) -> float:
    """The p99 beside the busy topic in p99s without it."""
    if measured.latency is None or measured.latency_alone is None:
        return 0.0
    return measured.latency.p99 / max(measured.latency_alone.p99, 0.001)
