"""The figures of running queries for people: columns of a table, and a line where nobody watches a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danubius.cli.output import human_count

if TYPE_CHECKING:
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


def rows(status: Status, prefix: str = "") -> list[list[str]]:
    """One for every query."""
    return [[prefix + name, *_cells(query)] for name, query in status.queries.items()]


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


def _cells(query: QueryStatus) -> list[str]:
    figures = query.figures
    return [
        query.state,
        human_count(figures.rows_in),
        human_count(figures.rows_out),
        human_count(figures.in_per_second),
        human_count(figures.out_per_second),
        str(figures.batch) if figures.batches else "-",
        human_count(figures.batch_ms),
        "-" if figures.lag is None else human_count(figures.lag),
        _shown_time(figures.watermark) if figures.watermark else "-",
        str(query.restarts),
    ]


def _shown_time(text: str) -> str:
    """Spark's times without what never differs: 2026-01-31T12:00:00.000Z."""
    return text.replace("T", " ").removesuffix("Z").removesuffix(".000")
