"""What a demo says: lines with a name in front, and promises with whether they held."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from collections.abc import Sequence


class Check(NamedTuple):
    """One promise, and whether it held."""

    name: str
    text: str
    is_held: bool


def say(name: str, text: str) -> None:
    click.echo(f"{name:<11} {text}")


def print_checks(checks: Sequence[Check]) -> bool:
    """Whether all of them held."""
    click.echo()
    for check in checks:
        click.echo(f"{'ok   ' if check.is_held else 'WRONG'} {check.name:<11} {check.text}")
    return all(check.is_held for check in checks)
