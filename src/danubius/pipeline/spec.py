"""A pipeline file's contents, once it is known to be right.

Names are unique among sources and steps, every reference is resolved, and there is no cycle: `reading.read` makes
nothing else. Everything is plain data; nothing here knows Spark.
"""

from __future__ import annotations

from typing import Literal

import msgspec

TableFormat = Literal["parquet", "delta", "iceberg"]
Mode = Literal["append", "update", "complete", "upsert", "overwrite"]


class Watermark(msgspec.Struct, frozen=True):
    """How late rows may be by an event-time column."""

    column: str
    delay: str


class Deduplicate(msgspec.Struct, frozen=True):
    """Which columns make a row the same as another; within the watermark if there is one."""

    columns: tuple[str, ...]


class Table(msgspec.Struct, frozen=True):
    """A table of files: a folder that all executors see."""

    path: str
    format: TableFormat
    catalog: str | None = None
    """Of Iceberg: the address of the catalog's database; a file beside the table unless given."""


class Source(msgspec.Struct, frozen=True):
    """Where rows come from: topics (with the source's options) or a table."""

    name: str
    line: str
    topics: dict[str, str]
    table: Table | None
    is_stream: bool
    schema: str | None
    watermark: Watermark | None
    options: dict[str, str]


class Step(msgspec.Struct, frozen=True):
    """A view over others: Spark SQL, a Python function, or one input passed on; then watermark and deduplication."""

    name: str
    line: str
    sql: str | None
    python: str | None
    inputs: tuple[str, ...]
    arguments: dict[str, object]
    watermark: Watermark | None
    deduplicate: Deduplicate | None


class Trigger(msgspec.Struct, frozen=True):
    """When a streaming query looks for rows: every so often, as fast as it can (0), or until all are read."""

    every_ms: int | None
    """None: all that is there now, then the query ends."""


class Sink(msgspec.Struct, frozen=True):
    """Where rows go. One sink is one query of Spark."""

    name: str
    line: str
    input: str
    topic: str | None
    table: Table | None
    mode: Mode
    keys: tuple[str, ...]
    partition_by: tuple[str, ...]
    compact_every: int
    trigger: Trigger
    checkpoint: str
    after: tuple[str, ...]
    options: dict[str, str]

    @property
    def is_console(self) -> bool:
        return self.topic is None and self.table is None


class Restart(msgspec.Struct, frozen=True):
    """How often and how soon a query that failed is started again."""

    attempts_max: int = 10
    """Failures in a row, without a batch between them, after which the pipeline gives up."""
    first_delay_ms: int = 1_000
    delay_max_ms: int = 60_000


class Pipeline(msgspec.Struct, frozen=True):
    """One file."""

    name: str
    file: str
    url: str
    checkpoint: str
    restart: Restart
    spark: dict[str, str]
    sources: dict[str, Source]
    steps: dict[str, Step]
    sinks: dict[str, Sink]

    def inputs_of(self, name: str) -> tuple[str, ...]:
        """What a view or a sink reads directly."""
        if name in self.steps:
            return self.steps[name].inputs
        return (self.sinks[name].input,) if name in self.sinks else ()

    def upstream(self, name: str) -> set[str]:
        """Every source and step that a sink, a step or a source rests on, itself included if it is one of them."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            each = waiting.pop()
            if each not in found:
                found.add(each)
                waiting += self.steps[each].inputs if each in self.steps else ()
        return found

    def sources_of(self, sink: Sink) -> list[Source]:
        return [
            self.sources[name] for name in sorted(self.upstream(sink.input)) if name in self.sources
        ]

    def is_stream(self, sink: Sink) -> bool:
        return any(source.is_stream for source in self.sources_of(sink))
