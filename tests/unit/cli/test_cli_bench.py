"""The benchmark's arithmetic: what is counted, and which run counts."""

from __future__ import annotations

import sys
import textwrap
from array import array
from typing import TYPE_CHECKING

import msgspec
import pytest

from danubius.cli.bench.harness import BenchFailed, run_jobs
from danubius.cli.bench.payloads import (
    checksum,
    expected_checksum,
    latency_of,
    make,
    make_stamped,
    sent_ns_of,
)
from danubius.cli.bench.runner import median_of
from danubius.cli.bench.side import Sink
from danubius.cli.bench.work import Job, Latency, Measurement, Work

if TYPE_CHECKING:
    from pathlib import Path

WORK = Work(kind="e2e", url="danube://127.0.0.1:1", topic="/bench/x", count=10)


def measurement(
    rate: float, *, latency: Latency | None = None, is_exact: bool = True
) -> Measurement:
    return Measurement(
        system="danubius", kind="e2e", durability="synced", size=100, count=10, seconds=1.0,
        messages_per_s=rate, megabytes_per_s=1.0, latency=latency, is_exact=is_exact,
    )  # fmt: skip


@pytest.mark.parametrize("size", [16, 100, 1024])
def test_messages_have_their_size_and_their_sum(size: int) -> None:
    payloads = make(0, 1000, size)
    assert {len(payload) for payload in payloads} == {size}
    assert checksum(payloads) == expected_checksum(1000)


def test_a_lost_or_doubled_message_changes_count_or_sum() -> None:
    payloads = make(0, 100, 16)
    assert checksum(payloads[:50] + payloads[51:] + payloads[:1]) != expected_checksum(100)


def test_a_stamp_survives_the_way() -> None:
    payload = make_stamped(7, 123_456_789, 64)
    assert len(payload) == 64
    assert sent_ns_of(payload) == 123_456_789
    assert checksum([payload]) == 7


def test_percentiles_leave_out_the_warm_up() -> None:
    samples = array("q", [10**12] * 10 + [n * 10**6 for n in range(1, 101)])
    assert latency_of(samples, warm_up=10) == Latency(51.0, 91.0, 100.0, 100.0, 100.0)
    assert latency_of(array("q"), warm_up=0) is None


def test_latency_from_the_due_time_counts_a_late_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink(Job(role="consumer", index=0, work=msgspec.structs.replace(WORK, rate=1000)))
    for received_ns, sent_ns in ((1_000_000, 900_000), (5_000_000, 4_900_000)):
        monkeypatch.setattr("time.monotonic_ns", lambda now=received_ns: now)
        sink.add_stamped(make_stamped(sink.count, sent_ns, 16))
    assert list(sink.samples_ns) == [100_000, 100_000]
    assert list(sink.due_samples_ns()) == [100_000, 3_100_000]


def test_the_median_run_counts_and_tells_the_spread() -> None:
    chosen = median_of([measurement(30.0), measurement(10.0), measurement(20.0)])
    assert (chosen.messages_per_s, chosen.slowest_per_s, chosen.fastest_per_s) == (20.0, 10.0, 30.0)
    assert chosen.repeat == 3


def test_each_percentile_has_its_own_median() -> None:
    runs = [
        measurement(1.0, latency=Latency(p50, 1, p99, 1, 1))
        for p50, p99 in ((0.3, 1.0), (0.1, 2.0), (0.2, 9.0))
    ]
    assert median_of(runs).latency == Latency(0.2, 1, 2.0, 1, 1)


def test_one_inexact_run_spoils_the_measurement() -> None:
    assert not median_of([measurement(1.0), measurement(2.0, is_exact=False)]).is_exact


def worker(tmp_path: Path, body: str) -> list[str]:
    script = tmp_path / "worker.py"
    script.write_text(
        "import sys\nfrom danubius.cli.bench.side import Side, serve\ndef perform(job):\n    side = Side(job)\n"
        + textwrap.indent(textwrap.dedent(body), "    ")
        + "\nsys.exit(serve(perform))\n"
    )
    return [sys.executable, str(script)]


def test_workers_start_together(tmp_path: Path) -> None:
    command = worker(tmp_path, "side.ready_blocking()\nreturn side.result()")
    phase = run_jobs(
        command, [Job(role="producer", index=index, work=WORK) for index in (0, 1)], None
    )
    assert [result.index for result in phase.results] == [0, 1]
    latest_start = max(result.started_ns for result in phase.results)
    assert latest_start - min(result.started_ns for result in phase.results) < 30_000_000_000
    assert phase.cpu_broker_s is None


@pytest.mark.parametrize(
    ("body", "timeout_s", "reason"),
    [
        ("raise ValueError('no socket')", 60, "failed before the start: ValueError: no socket"),
        ("side.ready_blocking()\nraise ValueError('lost')", 60, "failed: ValueError: lost"),
        ("side.ready_blocking()\nimport os\nos._exit(3)", 60, "ended without a result"),
        ("side.ready_blocking()\nimport signal\nsignal.pause()", 0.5, "did not finish in time"),
    ],
)
def test_a_worker_that_fails_fails_the_run(
    tmp_path: Path, body: str, timeout_s: float, reason: str
) -> None:
    job = Job(role="consumer", index=0, work=msgspec.structs.replace(WORK, timeout_s=timeout_s))
    with pytest.raises(BenchFailed, match=reason):
        run_jobs(worker(tmp_path, body), [job], None)
