"""The report of a demo: lines with a name in front, and promises with whether they held."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from danubius.cli.output import print_line, print_text

if TYPE_CHECKING:
    from collections.abc import Sequence


class Check(NamedTuple):
    """One promise, and whether it held."""

    name: str
    text: str
    is_held: bool


def say(name: str, text: str) -> None:
    print_line(f"{name:<11} {text}")


def print_checks(checks: Sequence[Check]) -> bool:
    """Whether all of them held."""
    print_text()
    for check in checks:
        print_line(f"{'ok   ' if check.is_held else 'WRONG'} {check.name:<11} {check.text}")
    return all(check.is_held for check in checks)
