"""Asking before something is gone for good: at a terminal a question, elsewhere `--yes` or nothing happens."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from danubius.redaction import visible

if TYPE_CHECKING:
    from danubius.cli.options import F


def yes_option(command: F) -> F:
    return click.option(
        "--yes", "-y", is_flag=True, help="Do not ask; a script, which nobody can ask, must say it."
    )(command)


def check_can_ask(name: str, *, yes: bool) -> None:
    """Refuse a command that deletes where nobody can be asked and nobody has said yes."""
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(
            f"{name} asks before it deletes, and here is nobody to ask: give --yes"
        )


def ask_to_lose(lost: str, *, yes: bool) -> None:
    """Ask whether this may be lost; click.Abort if not."""
    if not yes:
        click.confirm(visible(f"{lost}. Go on?"), abort=True, err=True)
