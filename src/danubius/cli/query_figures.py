"""The figures of running queries for people: columns of a table, and a line where nobody watches a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danubius.cli.output import build_table, human_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from danubius.pipeline.status import QueryStatus, Status

COLUMNS: Final = (
    "QUERY",
    "STATE",
    "ROWS IN",
    "ROWS OUT",
    "IN/S",
    "OUT/S",
    "BATCH",
    "MS",
    "LAG",
    "WATERMARK",
    "RESTARTS",
)


_WIDE: Final = 120
"""Columns of characters that a whole table needs; in less, what matters most is shown."""
_DISPENSABLE: Final = ("STATE", "BATCH", "RESTARTS")
_UNDER_WAY: Final = {"waiting", "running", "stopping"}


def rows(status: Status, prefix: str = "", *, is_alive: bool = True) -> list[list[str]]:
    """One for every query; what a run that is gone says it does, it does no longer."""
    return [
        [prefix + name, *_cells(query, is_alive=is_alive)] for name, query in status.queries.items()
    ]


def live_table(statuses: Mapping[str, Status], title: str, width: int) -> Table:
    """What all pipelines do, for a terminal that is so wide."""
    several = len(statuses) > 1
    lines = [
        row
        for name, status in statuses.items()
        for row in rows(status, f"{name}." if several else "")
    ]
    if width >= _WIDE:
        return build_table(COLUMNS, lines, title)
    kept = [at for at, name in enumerate(COLUMNS) if name not in _DISPENSABLE]
    time_at = COLUMNS.index("WATERMARK")
    for line in lines:
        line[time_at] = line[time_at].partition(" ")[2].partition(".")[0] or "-"
        state = line[COLUMNS.index("STATE")]
        if state != "running":
            line[0] += f" {state}"
    return build_table(
        [COLUMNS[at] for at in kept], [[line[at] for at in kept] for line in lines], title
    )


def sentence(query: QueryStatus) -> str:
    """The same in a sentence."""
    figures = query.figures
    if not figures.batches:
        return query.state
    said = [
        f"{query.state}, batch {figures.batch} in {human_count(figures.batch_ms)} ms",
        f"{human_count(figures.rows_in)} rows in ({human_count(figures.in_per_second)}/s)",
        f"{human_count(figures.rows_out)} out ({human_count(figures.out_per_second)}/s)",
    ]
    if figures.lag is not None:
        said.append(f"lag {human_count(figures.lag)}")
    if figures.watermark:
        said.append(f"watermark {_shown_time(figures.watermark)}")
    if query.restarts:
        said.append(f"restarted {query.restarts} times")
    return ", ".join(said)


def _cells(query: QueryStatus, *, is_alive: bool) -> list[str]:
    figures = query.figures
    return [
        query.state if is_alive or query.state not in _UNDER_WAY else "gone",
        human_count(figures.rows_in),
        human_count(figures.rows_out),
        human_count(figures.in_per_second if is_alive else 0),
        human_count(figures.out_per_second if is_alive else 0),
        str(figures.batch) if figures.batches else "-",
        human_count(figures.batch_ms),
        "-" if figures.lag is None else human_count(figures.lag),
        _shown_time(figures.watermark) if figures.watermark else "-",
        str(query.restarts),
    ]


def _shown_time(text: str) -> str:
    """Spark's times without what never differs: 2026-01-31T12:00:00.000Z."""
    return text.replace("T", " ").removesuffix("Z").removesuffix(".000")
