"""Python workers of Spark: what they know of each other, and what makes a worker quick from its second task on.

Spark's worker daemon collects garbage after every task, and with Arrow and PySpark imported that takes some 30 ms. What
is alive after the first tasks stays alive as long as the worker: frozen, it costs nothing.
"""

from __future__ import annotations

import gc
import os
from typing import Final

_FREEZES: Final = 2
"""Imports go on in the first task; the second one has everything."""

SLOTS: Final = "DANUBIUS_SPARK_SLOTS"
"""In the environment of a local Spark: how many tasks run at once."""

_frozen: dict[int, int] = {}


def task_slots() -> int:
    """How many tasks run at once; 0: nobody has said so."""
    said = os.environ.get(SLOTS, "")
    return int(said) if said.isdecimal() else 0


def settle() -> None:
    """Call at the beginning of a task."""
    pid = os.getpid()
    count = _frozen.get(pid, 0)
    if count < _FREEZES:
        _frozen.clear()
        _frozen[pid] = count + 1
        gc.collect()
        gc.freeze()
