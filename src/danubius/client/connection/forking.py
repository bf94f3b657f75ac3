"""Clients in a process that forks (gunicorn's preload, multiprocessing): they stay the parent's.

In the child every call on them fails at once and says what to do. Nothing that the child does or omits reaches the
parent's connections: closing them there would say goodbye for the parent, and answers would be read by either of both.
"""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol

FORKED: Final = (
    "this client was opened before the process forked, and a connection belongs to one process: connect in the child"
    " (gunicorn: in post_fork or at the first request; multiprocessing: in the initializer, or with the start method"
    " spawn)"
)


class Owned(Protocol):
    """Something that one process has for itself."""

    def disown(self) -> None:
        """Called in a child, by the only thread that it has."""
        ...


_owned: Final[weakref.WeakSet[Owned]] = weakref.WeakSet()


def disown_after_fork(owned: Owned) -> None:
    """Have it told, for as long as it lives, in every child."""
    _owned.add(owned)


def _disown_all() -> None:
    for owned in list(_owned):
        owned.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
