# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow comes without types)
"""`format("danubius_table")`: a sink whose executors write Parquet and whose driver commits to Delta or Iceberg.

Exactly once: Spark repeats a batch under its (query id, batch id) until it is committed, and a commit of a pair that
the table already knows changes nothing and removes the files of the repetition.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from danubius.errors import DanubiusError, InvalidArgument
from danubius.pipeline.table_files import (
    Batch,
    DataFile,
    check_partition_column,
    remove,
    write_files,
)
from danubius.pipeline.table_schema import UnfitRows, as_arrow, check_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

    from danubius.pipeline.table_files import Layout

FORMAT: Final = "danubius_table"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Target:
    """One table, as options say it."""

    folder: str
    format: str
    catalog: str | None
    partition_by: tuple[str, ...]
    keys: tuple[str, ...]
    compact_every: int

    @classmethod
    def of(cls, options: dict[str, str]) -> Target:
        missing = [name for name in ("path", "tableformat") if name not in options]
        if missing:
            raise InvalidArgument(f"the option {missing[0]} is missing")
        return cls(
            options["path"],
            options["tableformat"],
            options.get("catalog"),
            _names(options.get("partitionby", "")),
            _names(options.get("keys", "")),
            int(options.get("compactevery", "0")),
        )

    def layout(self) -> Layout:
        module = _module(self.format)
        return module.layout(Path(self.folder), self.partition_by, self.keys)

    def check(self, schema: StructType) -> None:
        """Refuse rows that the table cannot take, before anything is written."""
        check_columns(schema.names, partition_by=self.partition_by, keys=self.keys)
        rows = as_arrow(schema)
        for name in self.partition_by:
            check_partition_column(name, rows.field(name).type)
        if len(self.partition_by) == len(rows):
            raise UnfitRows("a table needs a column besides those that it is partitioned by")
        _module(self.format).check(self._place(), rows, self.partition_by, self.keys)

    def commit(
        self, schema: Any, files: list[DataFile], batch: Batch | None, *, overwrite: bool = False
    ) -> None:
        module, lay, place = _module(self.format), self.layout(), self._place()
        if self.keys:
            module.upsert(place, schema, lay, files, batch, self.partition_by)
        else:
            module.append(place, schema, lay, files, batch, overwrite=overwrite)
        if self.compact_every and batch and (batch.number + 1) % self.compact_every == 0:
            try:
                module.compact(place)
            except Exception:  # noqa: BLE001 - the batch is committed; the next compaction takes these files too
                _log.warning("compacting %s failed", self.folder, exc_info=True)

    def discard(self, files: list[DataFile]) -> None:
        """Remove what a failed attempt wrote, but nothing that is in the table.

        A commit can fail behind the point where it is made, on a full disk or when its answer is lost.
        """
        # Upserts are copied into the table: what is staged is never part of it.
        known = set[str]() if self.keys else _module(self.format).file_names(self._place())
        remove(self.layout().folder, [file for file in files if Path(file.path).name not in known])

    def _place(self) -> Any:
        folder = Path(self.folder)
        return (
            folder if self.format == "delta" else _module(self.format).Place(folder, self.catalog)
        )


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote, and for which query."""

    files: list[DataFile]
    batch: Batch | None


class TableDataSource(DataSource):
    """Registered by `danubius pipeline run`; options path, tableFormat, catalog, partitionBy, keys, compactEvery."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return TableWriter(_checked(self.options, schema), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        del overwrite
        return TableStreamWriter(_checked(self.options, schema), schema)


class TableWriter(DataSourceArrowWriter):
    """A batch job: all of its rows, or none; inside a streaming query (foreachBatch) once for each batch of it."""

    def __init__(self, target: Target, schema: StructType, overwrite: bool) -> None:
        self._target = target
        self._schema = schema
        self._overwrite = overwrite

    def write(self, iterator: Iterator[Any]) -> Written:
        return Written(write_files(iterator, self._target.layout()), _batch())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        schema = as_arrow(self._schema)
        batch = next((each.batch for each in messages if isinstance(each, Written)), None)
        self._target.commit(schema, _files(messages), batch, overwrite=self._overwrite)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._target.discard(_files(messages))


class TableStreamWriter(DataSourceStreamArrowWriter):
    """A streaming query: every batch once."""

    def __init__(self, target: Target, schema: StructType) -> None:
        self._target = target
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> Written:
        batch = _batch()
        if batch is None:
            raise DanubiusError("Spark did not say which query this task belongs to")
        return Written(write_files(iterator, self._target.layout()), batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        batch = next((each.batch for each in messages if isinstance(each, Written)), None)
        if batch is not None:
            schema = as_arrow(self._schema)
            self._target.commit(schema, _files(messages), Batch(batch.query, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        del batchId
        self._target.discard(_files(messages))


def _checked(options: Any, schema: StructType) -> Target:
    """Called on the driver, once for each job or query, before it has tasks."""
    target = Target.of(_lower(options))
    target.check(schema)
    return target


def _batch() -> Batch | None:
    """Which batch of which query this task works for; None outside streaming queries."""
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    number = context.getLocalProperty("streaming.sql.batchId") if context else None
    return Batch(query, int(number)) if query and number else None


def _files(messages: list[WriterCommitMessage | None]) -> list[DataFile]:
    return [file for message in messages if isinstance(message, Written) for file in message.files]


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _lower(options: Any) -> dict[str, str]:
    """Spark gives options in any case, as they were set."""
    return {name.lower(): value for name, value in dict(options).items()}


def _module(table_format: str) -> Any:
    if table_format == "delta":
        from danubius.pipeline import delta

        return delta
    if table_format == "iceberg":
        from danubius.pipeline import iceberg

        return iceberg
    raise InvalidArgument(f"tableFormat is {table_format}; it must be delta or iceberg")
