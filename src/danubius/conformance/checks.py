"""Checks, of which a suite is made: each says in one sentence what it asks for, and what was found instead.

A check is a plain function. It raises `Unmet`, or any error of the driver; or it returns a sentence about something
that a driver may do less well, and that its users should know.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Generic, NamedTuple, NoReturn, TypeVar

from danubius.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Given = TypeVar("Given")
_SHOWN_BYTES = 60


class Unmet(AssertionError):
    """The driver did something else than its port says."""


class Check(NamedTuple, Generic[Given]):
    """A sentence, and the function that finds out whether it is true."""

    sentence: str
    run: Callable[[Given], str | None]


class Finding(NamedTuple):
    """What came of a check."""

    sentence: str
    problem: str = ""
    """Empty: it passed."""
    note: str = ""
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return not self.problem


class Suite(Generic[Given]):
    """Checks in the order in which they are written."""

    def __init__(self) -> None:
        self.checks: list[Check[Given]] = []

    def check(
        self, sentence: str
    ) -> Callable[[Callable[[Given], str | None]], Callable[[Given], str | None]]:
        """Add a function to the suite under a sentence."""

        def add(function: Callable[[Given], str | None]) -> Callable[[Given], str | None]:
            self.checks.append(Check(sentence, function))
            return function

        return add

    def run(self, given: Callable[[], Given]) -> Iterator[Finding]:
        """Run every check on a place of its own; one that fails keeps no other from running."""
        clock = SystemClock()
        for sentence, function in self.checks:
            started = clock.monotonic_ns()
            problem, note = "", ""
            try:
                note = function(given()) or ""
            except Unmet as error:
                problem = str(error)
            except Exception as error:  # noqa: BLE001  # whatever a driver raises is what there is to report
                problem = _describe(error)
            yield Finding(sentence, problem, note, (clock.monotonic_ns() - started) / 1e9)


def expect(found: object, wanted: object, what: str) -> None:
    """Raise Unmet unless both are equal."""
    if found != wanted:
        raise Unmet(f"{what} is {_shown(found)}, and should be {_shown(wanted)}")


def expect_raises(kind: type[Exception], function: Callable[[], object], what: str) -> None:
    """Raise Unmet unless the call raises an error of this kind."""
    try:
        found = function()
    except kind:
        return
    except Exception as error:
        raise Unmet(
            f"{what} raises {type(error).__name__} ({error}), not {kind.__name__}"
        ) from error
    raise Unmet(f"{what} gives {_shown(found)}, and should raise {kind.__name__}")


def fail(sentence: str) -> NoReturn:
    raise Unmet(sentence)


def report(findings: Iterable[Finding], write: Callable[[str], None]) -> bool:
    """Write a line a check and a sum; whether all passed."""
    good = bad = 0
    for finding in findings:
        good, bad = good + finding.is_good, bad + (not finding.is_good)
        write(
            f"{'ok  ' if finding.is_good else 'FAIL'}  {finding.sentence} ({finding.seconds:.2f} s)"
        )
        for line in finding.problem.splitlines():
            write(f"      {line}")
        if finding.note:
            write(f"      note: {finding.note}")
    write(f"{good} of {good + bad} checks passed" if bad else f"all {good} checks passed")
    return bad == 0


def _shown(value: object) -> str:
    if isinstance(value, bytes | bytearray) and len(value) > _SHOWN_BYTES:
        return f"{len(value)} bytes {bytes(value[:20])!r}…"
    return repr(value)


def _describe(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error}\nraised in {place.name}, line {place.lineno} of {place.filename}"
