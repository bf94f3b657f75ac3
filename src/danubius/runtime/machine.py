"""The machine that this process runs on: two processes with the same answer share one running kernel."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def running_machine() -> str:
    """Linux gives each start of a kernel an identity of its own; empty where there is none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
