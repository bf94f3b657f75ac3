"""An error that is raised more than once.

Raising one instance again and again lets its traceback grow, and lets callers see each other's notes and causes.
"""

from __future__ import annotations

import copy
from typing import TypeVar

from danubius.errors import DanubiusError

ErrorT = TypeVar("ErrorT", bound=DanubiusError)


def fresh(error: ErrorT) -> ErrorT:
    """The same error as a new instance, without traceback, and with a list of notes of its own."""
    again = copy.copy(error)
    again.__cause__ = error.__cause__
    notes = getattr(error, "__notes__", None)
    if notes is not None:
        again.__notes__ = list(notes)
    return again
