"""The fairness benchmark's arithmetic: which window a sample belongs to, what is exact, what is fair."""

from __future__ import annotations

import msgspec
import pytest

from danubius.cli.bench.fairness import (
    BUSY,
    QUIET,
    ROUNDS,
    SETTLE_S,
    QuietSink,
    Timeline,
    busy_seconds,
    is_exact,
    jobs,
    quiet_count,
    ratio,
)
from danubius.cli.bench.harness import Phase
from danubius.cli.bench.payloads import expected_checksum, make_stamped
from danubius.cli.bench.report import print_fairness
from danubius.cli.bench.runner import median_of
from danubius.cli.bench.work import Latency, Measurement, Result, Work

WORK = Work(kind="fairness", url="", topic="/bench/f", topics=3, seconds=4.0)
START_NS = 5_000_000_000
TIMES = Timeline.of(WORK)


def measurement(alone_ms: float, beside_ms: float) -> Measurement:
    return Measurement(
        system="danubius", kind="fairness", durability="synced", size=100, count=10, seconds=1.0,
        topics=1000, messages_per_s=beside_ms, megabytes_per_s=1.0,
        latency=Latency(1.0, 1.0, beside_ms, 1.0, 1.0), latency_alone=Latency(1.0, 1.0, alone_ms, 1.0, 1.0),
    )  # fmt: skip


def phase(*, lost: int = 0, busy_sum: int | None = None) -> Phase:
    quiet = quiet_count(WORK)
    return Phase(
        results=[
            Result(role="producer", index=QUIET, count=quiet),
            Result(
                role="consumer",
                index=QUIET,
                count=quiet - lost,
                checksum=expected_checksum(quiet),
            ),
            Result(role="producer", index=BUSY, count=100),
            Result(
                role="consumer",
                index=BUSY,
                count=100,
                checksum=expected_checksum(100) if busy_sum is None else busy_sum,
            ),
        ],
        cpu_broker_s=None,
        rss_before_bytes=None,
        rss_ready_bytes=None,
        rss_peak_bytes=None,
    )


def test_alone_and_beside_take_turns_and_get_as_much_time() -> None:
    measured = [TIMES.is_beside(at) for at in range(0, TIMES.end, 1_000_000)]
    assert measured.count(True) == measured.count(False) == 4_000
    assert measured.count(None) == 2 * ROUNDS * SETTLE_S * 1_000
    for begin, end in TIMES.busy:
        assert {TIMES.is_beside(at) for at in range(begin, end, 1_000_000)} == {True, None}
    assert quiet_count(WORK) == 3 * TIMES.end // 1_000_000_000
    assert busy_seconds(WORK) == 4.0 + ROUNDS * SETTLE_S


@pytest.mark.parametrize(
    ("at_ns", "alone", "beside"),
    [
        (-1, 0, 0),
        (0, 0, 0),
        (TIMES.settle, 1, 0),
        (TIMES.window - 1, 1, 0),
        (TIMES.window, 0, 0),
        (TIMES.window + TIMES.settle - 1, 0, 0),
        (TIMES.window + TIMES.settle, 0, 1),
        (2 * TIMES.window + TIMES.settle, 1, 0),
        (TIMES.end - 1, 0, 1),
        (TIMES.end, 0, 0),
        (TIMES.end + TIMES.settle, 0, 0),
    ],
)
def test_a_sample_belongs_to_the_window_that_it_was_sent_in(
    at_ns: int, alone: int, beside: int
) -> None:
    sink = QuietSink(WORK, START_NS)
    sink.add(make_stamped(7, START_NS + at_ns, 16), START_NS + at_ns + 2_000_000)
    assert (len(sink.alone_ns), len(sink.beside_ns)) == (alone, beside)
    assert (sink.count, sink.checksum) == (1, 7)
    assert [*sink.alone_ns, *sink.beside_ns] == [2_000_000] * (alone + beside)


def test_the_sink_is_full_with_the_last_message() -> None:
    sink = QuietSink(WORK, START_NS)
    for sequence in range(quiet_count(WORK)):
        assert not sink.is_full
        sink.add(make_stamped(sequence, START_NS, 16), START_NS)
    assert sink.is_full


def test_four_processes_of_two_pairs() -> None:
    assert [(job.role, job.index) for job in jobs(WORK)] == [
        ("producer", QUIET),
        ("consumer", QUIET),
        ("producer", BUSY),
        ("consumer", BUSY),
    ]


def test_a_lost_message_of_either_kind_is_not_exact() -> None:
    assert is_exact(WORK, phase())
    assert not is_exact(WORK, phase(lost=1))
    assert not is_exact(WORK, phase(busy_sum=1))


def test_the_run_with_the_middle_ratio_counts() -> None:
    runs = [measurement(1.0, 9.0), measurement(2.0, 4.0), measurement(1.0, 4.0)]
    assert ratio(median_of(runs)) == 4.0
    assert ratio(msgspec.structs.replace(runs[0], latency_alone=None)) == 0.0


def test_the_table_says_what_is_not_fair(capsys: pytest.CaptureFixture[str]) -> None:
    print_fairness([measurement(1.0, 5.0), measurement(1.0, 5.2)])
    fair, unfair = capsys.readouterr().out.splitlines()[1:]
    assert "yes" in fair
    assert "NO: more than 5" in unfair
    print_fairness([])
    assert not capsys.readouterr().out
