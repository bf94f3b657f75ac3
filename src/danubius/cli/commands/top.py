"""`top`: figures that are asked for again and again, until somebody has seen enough."""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

import danubius
from danubius.cli.commands.administering import to_json
from danubius.cli.event_loop import run_async
from danubius.cli.options import F, milliseconds
from danubius.cli.output import build_table, print_json, print_table
from danubius.errors import DanubiusError, NamespaceNotFound, SubscriptionNotFound, TopicNotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from danubius.cli.output import Cell
    from danubius.client.administration import Administration

StructT = TypeVar("StructT", bound=msgspec.Struct)
LineT = TypeVar("LineT")
ResultT = TypeVar("ResultT")

MEASURED_MAX: Final = 200
"""Things that are measured for one picture; more would keep the broker busy with being watched."""
AT_ONCE: Final = 16
"""Questions that are under way at once."""


def top_options(command: F) -> F:
    for option in (
        click.option(
            "--once", is_flag=True, help="One picture, then end; the same as --rounds 1.",
        ),
        click.option(
            "--rounds", type=click.IntRange(1), metavar="N", help="End after so many pictures.",
        ),
        click.option(
            "--interval", type=milliseconds, default="1s", show_default=True, metavar="TIME",
            help="Time between two pictures.",
        ),
        click.option(
            "--lines", type=click.IntRange(1), default=30, show_default=True, metavar="N",
            help="Only the busiest so many.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def run_top(
    url: str,
    look: Callable[[Administration], Awaitable[Sequence[StructT]]],
    columns: Mapping[str, Callable[[StructT], Cell]],
    order: Callable[[StructT], Any],  # Any: whatever compares
    *,
    json: bool,
    **how: Any,  # Any: the values of top_options
) -> None:
    """Look, show the busiest first, wait, look again."""
    rounds = 1 if how["once"] else how["rounds"]

    async def run() -> None:
        async with danubius.connect(url) as client:
            with _Screen(columns, json=json) as screen:
                for turn in itertools.count(1):
                    lines = sorted(await look(client.admin), key=order, reverse=True)
                    screen.show(lines[: how["lines"]])
                    if turn == rounds:
                        return
                    await asyncio.sleep(how["interval"] / 1000)

    run_async(run)


class _Screen:
    """The picture is drawn over the last one on a terminal, and below it elsewhere."""

    def __init__(self, columns: Mapping[str, Callable[[Any], Cell]], *, json: bool) -> None:
        self._columns = columns
        self._json = json
        self._live: Any = None  # Any: rich is imported only where it is needed

    def __enter__(self) -> _Screen:
        if not self._json and sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, lines: Sequence[msgspec.Struct]) -> None:
        if self._json:
            for line in lines:
                print_json(to_json(line))
            sys.stdout.flush()
            return
        rows = [[cell(line) for cell in self._columns.values()] for line in lines]
        if self._live is not None:
            self._live.update(build_table(list(self._columns), rows), refresh=True)
        else:
            print_table(list(self._columns), rows)


async def measure_each(
    lines: Iterable[LineT], measure: Callable[[LineT], Awaitable[ResultT]]
) -> list[ResultT]:
    """Ask about each of the first lines, a few at a time. What went away meanwhile is left out."""
    wanted = list(itertools.islice(lines, MEASURED_MAX))
    found: dict[int, ResultT] = {}
    left = iter(enumerate(wanted))

    async def work() -> None:
        for index, line in left:
            try:
                found[index] = await measure(line)
            except (NamespaceNotFound, SubscriptionNotFound, TopicNotFound):
                continue

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(wanted))):
                group.create_task(work())
    except* DanubiusError as several:
        raise several.exceptions[0] from None
    return [found[index] for index in sorted(found)]
