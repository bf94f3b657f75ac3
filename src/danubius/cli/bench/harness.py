"""Runs the jobs of one piece of work as processes that start together; collects their reports."""

from __future__ import annotations

import selectors
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING

import msgspec

from danubius.cli.bench.probe import Probe
from danubius.cli.bench.work import Job, Result

if TYPE_CHECKING:
    from collections.abc import Sequence

_READY_TIMEOUT_S = 120.0


class BenchFailed(Exception):
    """A worker failed or did not finish in time."""


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers and the broker did between start and end."""

    results: list[Result]
    cpu_broker_s: float | None
    rss_before_bytes: int | None
    rss_ready_bytes: int | None
    rss_peak_bytes: int | None

    def of(self, role: str) -> list[Result]:
        return [result for result in self.results if result.role == role]


def run_jobs(command: Sequence[str], jobs: Sequence[Job], broker_pid: int | None) -> Phase:
    """Start one process a job with `command`, let all begin at once, wait for all results."""
    probe = Probe(broker_pid)
    rss_before = probe.rss_bytes()
    with ExitStack() as stack:
        workers = [stack.enter_context(_Worker(command, job)) for job in jobs]
        deadline = time.monotonic() + _READY_TIMEOUT_S
        for worker in workers:
            worker.wait_ready(deadline)
        probe.reset_peak()
        rss_ready, cpu_before = probe.rss_bytes(), probe.cpu_s()
        for worker in workers:
            worker.go()
        deadline = time.monotonic() + max(job.work.timeout_s for job in jobs)
        results = [worker.wait_result(deadline) for worker in workers]
        cpu_after = probe.cpu_s()
        return Phase(
            results=results,
            cpu_broker_s=None
            if cpu_before is None or cpu_after is None
            else round(cpu_after - cpu_before, 2),
            rss_before_bytes=rss_before,
            rss_ready_bytes=rss_ready,
            rss_peak_bytes=probe.rss_peak_bytes(),
        )


def worker_command(module: str) -> list[str]:
    return [sys.executable, "-m", module]


class _Worker:
    """One child process and its lines."""

    def __init__(self, command: Sequence[str], job: Job) -> None:
        self._command = command
        self._job = job
        self._name = f"{job.role} {job.index}"

    def __enter__(self) -> _Worker:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._send(msgspec.json.encode(self._job).decode())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def wait_ready(self, deadline: float) -> None:
        line = self._line(deadline)
        if line != "ready":
            raise BenchFailed(f"{self._name} failed before the start: {_reason(line)}")

    def go(self) -> None:
        self._send("go")

    def wait_result(self, deadline: float) -> Result:
        line = self._line(deadline)
        if not line.startswith("{"):
            raise BenchFailed(f"{self._name} ended without a result")
        result = msgspec.json.decode(line, type=Result)
        if result.error:
            raise BenchFailed(f"{self._name} failed: {result.error}")
        return result

    def _send(self, line: str) -> None:
        stdin: IO[str] | None = self._process.stdin
        assert stdin is not None
        stdin.write(line + "\n")
        stdin.flush()

    def _line(self, deadline: float) -> str:
        stdout: IO[str] | None = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise BenchFailed(f"{self._name} did not finish in time")
        return stdout.readline().strip()


def _reason(line: str) -> str:
    if not line.startswith("{"):
        return line or "it ended without a word"
    return msgspec.json.decode(line, type=Result).error or "no reason given"
