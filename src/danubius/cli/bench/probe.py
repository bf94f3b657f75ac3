"""CPU and memory of processes, from /proc; and how calm and how fast the machine is just now."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_CALIBRATION_LOOPS = 300_000


class Probe:
    """CPU seconds and resident memory of one process. Without a pid it knows nothing."""

    def __init__(self, pid: int | None) -> None:
        self._folder = Path("/proc") / str(pid) if pid is not None else None

    def cpu_s(self) -> float | None:
        if self._folder is None:
            return None
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def rss_bytes(self) -> int | None:
        return self._status("VmRSS")

    def rss_peak_bytes(self) -> int | None:
        """The most it held since `reset_peak`."""
        return self._status("VmHWM")

    def reset_peak(self) -> None:
        if self._folder is not None:
            (self._folder / "clear_refs").write_text("5")

    def _status(self, name: str) -> int | None:
        if self._folder is None:
            return None
        for line in (self._folder / "status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        return None


def busy_cores(interval_s: float = 1.0) -> float:
    """How many cores the whole machine kept busy over the next `interval_s`."""
    before, at = _busy_s(), time.monotonic()
    time.sleep(interval_s)
    return (_busy_s() - before) / (time.monotonic() - at)


def calibration_ms() -> list[float]:
    """CPU milliseconds of a fixed loop, per core: a virtual core may slow down unreported."""
    allowed = os.sched_getaffinity(0)
    found: list[float] = []
    try:
        for core in sorted(allowed):
            os.sched_setaffinity(0, {core})
            found.append(round(min(_loop_ms() for _ in range(3)), 2))
    finally:
        os.sched_setaffinity(0, allowed)
    return found


def _loop_ms() -> float:
    started, total = time.process_time(), 0
    for number in range(_CALIBRATION_LOOPS):
        total += number
    return (time.process_time() - started) * 1000


def _busy_s() -> float:
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    user, nice, system, interrupts, soft_interrupts = (fields[i] for i in (0, 1, 2, 5, 6))
    return (user + nice + system + interrupts + soft_interrupts) / _TICKS_PER_S
