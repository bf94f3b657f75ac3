"""What commands print: tables and progress for people, JSON lines for programs.

Tables and JSON go to stdout, progress and notes to stderr, so that output can be piped while a
person watches. Rich is imported by what needs it: most commands print without.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import click
import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.progress import Progress
    from rich.table import Table


class Cell(Protocol):
    """Anything with a text form."""

    def __str__(self) -> str: ...


def print_json(value: object) -> None:
    """One JSON object on one line."""
    click.echo(msgspec.json.encode(value).decode())


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
        table.add_row(*(str(cell) for cell in row))
    return table


def print_facts(facts: Mapping[str, Cell]) -> None:
    """Names and values, one pair a line."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {value}")


def note(text: str) -> None:
    """A remark for a person at a terminal; silent when nobody watches."""
    if sys.stderr.isatty():
        click.echo(text, err=True)


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
