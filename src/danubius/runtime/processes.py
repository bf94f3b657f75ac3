"""Processes as the kernel knows them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

_PROCESSES: Final = Path("/proc")
_RUNNABLE: Final = "R"
_USER_TICKS: Final = 11
"""The first of two fields after the state: on a core for itself, and in the kernel."""


class Standing(NamedTuple):
    """A process at one moment."""

    cpu_s: float
    """On a core since it began, all threads together."""
    is_runnable: bool
    """Whether one of its threads runs, or waits for a core."""


UNKNOWN: Final = Standing(0.0, is_runnable=False)


def standing(pid: int) -> Standing:
    """UNKNOWN if it has ended, or the system does not tell."""
    folder = _PROCESSES / str(pid)
    try:
        _, *numbers = _fields(folder / "stat")
        states = [_fields(thread / "stat")[0] for thread in (folder / "task").iterdir()]
    except OSError:
        return UNKNOWN
    ticks = sum(map(int, numbers[_USER_TICKS - 1 : _USER_TICKS + 1]))
    return Standing(ticks / os.sysconf("SC_CLK_TCK"), _RUNNABLE in states)


def _fields(file: Path) -> list[str]:
    """From the state on: the name before it may contain anything."""
    return file.read_text().rpartition(")")[2].split()
