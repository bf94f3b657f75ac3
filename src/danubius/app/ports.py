"""The outside of a broker: all that it opens on, so that a real one and a simulated one are opened by the same lines.

Network and timers are no port of their own: they are the running event loop's, and `sim.loop` is the twin of that.
Dice and the names that nobody else has come from `runtime.ambient`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from danubius.runtime.clock import SystemClock
from danubius.runtime.files import LocalFiles, raise_open_files_limit
from danubius.runtime.threads import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.runtime.clock import Clock
    from danubius.runtime.files import Files
    from danubius.runtime.threads import Spawn


@dataclass(frozen=True)
class Ports:
    """What a broker stands on; as it is, the machine's."""

    files: Files = field(default_factory=LocalFiles)
    clock: Clock = field(default_factory=SystemClock)
    spawn: Spawn = Worker
    """Makes the threads of journal, ledgers and snapshots."""
    raise_open_files: Callable[[], int] = raise_open_files_limit
    """How many files and connections may be open at once, as many as can be had."""
