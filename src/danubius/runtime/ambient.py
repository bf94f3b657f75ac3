"""Time and chance of the process, for those who are not given any: read at each use, replaced as a whole or not at all.

The broker's parts take a `Clock`. What a client stamps, waits for and names comes from here, as it does for the few
places that serve both. A simulated world puts its own in their place, so that a seed is all that happens; nobody else
does. Whoever uses this imports the module and never a name out of it: a name would not be replaced.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

monotonic_ns: Callable[[], int] = time.monotonic_ns
"""Never goes back; for deadlines."""
wall_ns: Callable[[], int] = time.time_ns
"""Since 1970; for stamps."""
chance: Callable[[], float] = random.random
"""From 0 to below 1; for waits that must not be the same for everybody. No secret."""
token: Callable[[int], bytes] = os.urandom
"""So many bytes that nobody else has."""


@contextlib.contextmanager
def replaced(
    clock_ns: Callable[[], int], wall_clock_ns: Callable[[], int], dice: random.Random
) -> Generator[None]:
    """Another time and another chance for the whole process, while it lasts."""
    global monotonic_ns, wall_ns, chance, token  # the point of this module
    before = monotonic_ns, wall_ns, chance, token
    monotonic_ns, wall_ns, chance, token = clock_ns, wall_clock_ns, dice.random, dice.randbytes
    try:
        yield
    finally:
        monotonic_ns, wall_ns, chance, token = before
