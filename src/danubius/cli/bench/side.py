"""A worker's side of the harness: one job in on stdin, `ready` out, `go` in, one result out.

Used by Danubius' own worker and by those of other systems, so all of them start and stop their
clocks the same way.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import traceback
from array import array
from typing import TYPE_CHECKING

import msgspec

from danubius.cli.bench.payloads import checksum, latency_of, sent_ns_of
from danubius.cli.bench.work import Job, Result

if TYPE_CHECKING:
    from collections.abc import Callable


class Side:
    """Reports one job's progress to the parent."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.work = job.work
        self._started_ns = 0
        self._cpu_s = 0.0

    async def ready(self) -> int:
        """Everything is connected: wait until all are. Returns the start time."""
        return await asyncio.to_thread(self.ready_blocking)

    def ready_blocking(self) -> int:
        # What was set up stays: a walk over it in the middle of a measurement would measure this process.
        gc.collect()
        gc.freeze()
        _say("ready")
        if sys.stdin.readline().strip() != "go":
            raise RuntimeError("the parent ended before the start")
        self._started_ns, self._cpu_s = time.monotonic_ns(), time.process_time()
        return self._started_ns

    def result(self, sink: Sink | None = None) -> Result:
        """Stop the clock; nothing that is measured may come after."""
        ended_ns, cpu_s = time.monotonic_ns(), time.process_time() - self._cpu_s
        warm_up = min(self.work.rate, self.work.count // 10)
        return Result(
            role=self.job.role,
            index=self.job.index,
            count=sink.count if sink else self.work.count,
            checksum=sink.checksum if sink else 0,
            started_ns=self._started_ns,
            ended_ns=ended_ns,
            cpu_s=round(cpu_s, 3),
            latency=latency_of(sink.samples_ns, warm_up=warm_up) if sink else None,
            latency_due=latency_of(sink.due_samples_ns(), warm_up=warm_up) if sink else None,
        )


class Sink:
    """Counts what a consumer received, and keeps times when latency is measured."""

    def __init__(self, job: Job) -> None:
        self.count = 0
        self.checksum = 0
        self.samples_ns: array[int] = array("q")
        self._wanted = job.work.count
        self._received_ns: array[int] = array("q")
        self._step_ns = 10**9 // job.work.rate

    @property
    def is_full(self) -> bool:
        return self.count >= self._wanted

    @property
    def missing(self) -> int:
        return self._wanted - self.count

    def add(self, payloads: list[bytes]) -> None:
        self.count += len(payloads)
        self.checksum += checksum(payloads)

    def add_stamped(self, payload: bytes) -> None:
        now_ns = time.monotonic_ns()
        self.samples_ns.append(now_ns - sent_ns_of(payload))
        self._received_ns.append(now_ns)
        self.add([payload])

    def due_samples_ns(self) -> array[int]:
        """Latency from when each message was due; the first was sent on time, by definition."""
        if not self._received_ns:
            return array("q")
        first_due_ns = self._received_ns[0] - self.samples_ns[0]
        return array(
            "q",
            (
                received_ns - first_due_ns - index * self._step_ns
                for index, received_ns in enumerate(self._received_ns)
            ),
        )


def serve(perform: Callable[[Job], Result]) -> int:
    """The `main` of a worker process."""
    job = msgspec.json.decode(sys.stdin.readline(), type=Job)
    try:
        result = perform(job)
    except BaseException as error:  # noqa: BLE001  # whatever it is, the parent must hear of it
        traceback.print_exc()
        result = Result(role=job.role, index=job.index, error=f"{type(error).__name__}: {error}")
    _say(msgspec.json.encode(result).decode())
    return 1 if result.error else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
