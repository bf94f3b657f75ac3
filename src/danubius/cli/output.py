"""Output of commands: tables and progress for people, JSON lines for programs.

Tables and JSON go to stdout, progress and notes to stderr, so that output can be piped while a person watches. Rich is
imported by what needs it: most commands print without. What others wrote (names, reasons, errors) never reaches a
terminal raw: control characters are written out, here and for payloads in `message_lines`. No command prints but
through these two.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import click
import msgspec

from danubius.redaction import redact, visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.progress import Progress
    from rich.table import Table


class Cell(Protocol):
    """Anything with a text form."""

    def __str__(self) -> str: ...


def print_line(text: str = "", *, err: bool = False) -> None:
    """One line, whatever is in it: names and reasons come from others."""
    click.echo(visible(redact(text)), err=err)


def print_text(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Several lines of our own making."""
    click.echo(visible(redact(text), keep="\n\t"), err=err, nl=nl)


def print_json(value: object) -> None:
    """One JSON object on one line."""
    click.echo(json_text(value))


def json_text(value: object) -> str:
    """JSON in which every character is to be seen: a terminal obeys none, and it says the same."""
    text = msgspec.json.encode(value).decode()
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], title: str = "") -> None:
    """A table, cut to the width of a terminal but never to a pipe."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 10_000
    console.print(build_table(columns, rows, title))


def build_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], title: str = "") -> Table:
    """Numbers stand on the right."""
    from rich.table import Table

    table = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
    )
    for index, column in enumerate(columns):
        is_numeric = bool(rows) and all(_is_number(row[index]) for row in rows)
        table.add_column(column, justify="right" if is_numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(visible(redact(str(cell))) for cell in row))
    return table


def print_facts(facts: Mapping[str, Cell]) -> None:
    """Names and values, one pair a line."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        print_line(f"{name:<{width}}  {value}")


def note(text: str) -> None:
    """A remark for a person at a terminal; silent when nobody watches."""
    if sys.stderr.isatty():
        print_line(text, err=True)


def human_bytes(size: int) -> str:
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def human_count(number: float) -> str:
    return f"{number:,.0f}"


class Meter(Protocol):
    """Progress of one piece of work."""

    def advance(self, steps: int) -> None: ...


class _Silent:
    def advance(self, steps: int) -> None:
        del steps


class _Bar:
    def __init__(self, progress: Progress, label: str, total: int | None) -> None:
        self._progress = progress
        self._task = progress.add_task(label, total=total)

    def advance(self, steps: int) -> None:
        self._progress.advance(self._task, steps)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def meter(label: str, total: int | None) -> AbstractContextManager[Meter]:
    """A progress bar on stderr when it is a terminal, else nothing."""
    if not sys.stderr.isatty():
        return nullcontext(_Silent())
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns: list[Any] = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
    ]  # Any: rich's union
    return _Bar(
        Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True),
        label,
        total,
    )


def _is_number(cell: Cell) -> bool:
    text = str(cell).replace(",", "").replace(" ", "")
    return bool(text) and (text[0].isdigit() or text == "-")
