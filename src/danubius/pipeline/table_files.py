# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false
# (pyarrow comes without types)
"""Files that executors write for a table: Arrow batches become Parquet files, one for every partition value of a task.

Files get names that were never used before and belong to nobody until the driver commits them, so a task that is tried
again, or twice at once, does no harm. A task that fails removes its own.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from danubius.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

OPEN_FILES_MAX: Final = 64
"""Partition values that a task writes at once; one more closes the file that was opened first."""
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"


class Batch(NamedTuple):
    """Which batch of which query a commit is; None for a batch job, which commits once."""

    query: str
    number: int


@dataclass(frozen=True)
class DataFile:
    """One Parquet file: its place below the table's folder, and what is in it."""

    path: str
    bytes: int
    rows: int
    values: dict[str, str | None]


@dataclass(frozen=True)
class Layout:
    """How the files of a table are laid out."""

    folder: Path
    partition_by: tuple[str, ...] = ()
    keeps_partition_columns: bool = False
    """Iceberg's files hold them; Delta's leave them to the log."""
    keys: tuple[str, ...] = ()
    """Columns that must not be null."""


def write_files(batches: Iterable[Any], layout: Layout) -> list[DataFile]:
    """Write all rows; on an error nothing is left behind."""
    with _Files(layout) as files:
        for batch in batches:
            if batch.num_rows:
                _check_keys(batch, layout.keys)
                for values, rows in _split(batch, layout.partition_by):
                    files.write(values, rows)
        return files.close()


def _check_keys(batch: Any, keys: tuple[str, ...]) -> None:
    for key in keys:
        if batch.column(key).null_count:
            raise InvalidArgument(
                f"the key column {key} has rows without a value: leave them out with WHERE {key} IS NOT NULL"
            )


def remove(folder: Path, files: Iterable[DataFile]) -> None:
    for file in files:
        (folder / file.path).unlink(missing_ok=True)


def nullable(schema: Any) -> Any:
    """The schema with every column optional: whether a column may be null depends on the query, not on the table."""
    return pa.schema([field.with_nullable(True) for field in schema])


def nullable_inside(schema: Any) -> Any:
    """The same with fields of structures, and values of arrays and maps, optional too: for a new table."""
    return pa.schema([_optional(field) for field in schema])


def _optional(field: Any) -> Any:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_optional(kind.field(at)) for at in range(kind.num_fields)])
    elif pa.types.is_list(kind):
        kind = pa.list_(_optional(kind.value_field))
    elif pa.types.is_map(kind):
        key = kind.key_field
        if pa.types.is_nested(key.type):
            key = _optional(key).with_nullable(False)
        kind = pa.map_(key, _optional(kind.item_field))
    return pa.field(field.name, kind, nullable=True, metadata=field.metadata)


class _Files:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._open: dict[tuple[str | None, ...], tuple[str, Any]] = {}
        self._rows: dict[str, int] = {}
        self._done: list[DataFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            return
        for path, writer in self._open.values():
            with contextlib.suppress(Exception):  # the first error is the one to tell
                writer.close()
            (self._layout.folder / path).unlink(missing_ok=True)
        remove(self._layout.folder, self._done)

    def write(self, values: tuple[str | None, ...], rows: Any) -> None:
        layout = self._layout
        if layout.partition_by and not layout.keeps_partition_columns:
            rows = rows.drop_columns(list(layout.partition_by))
        schema = nullable(rows.schema)
        rows = pa.RecordBatch.from_arrays(rows.columns, schema=schema)
        if values not in self._open:
            if len(self._open) >= OPEN_FILES_MAX:
                self._close(next(iter(self._open)))
            self._open[values] = self._create(values, schema)
        path, writer = self._open[values]
        writer.write_batch(rows)
        self._rows[path] += rows.num_rows

    def close(self) -> list[DataFile]:
        for values in list(self._open):
            self._close(values)
        return self._done

    def _create(self, values: tuple[str | None, ...], schema: Any) -> tuple[str, Any]:
        folders = [
            f"{quote(name)}={NO_VALUE if value is None else quote(value, safe='')}"
            for name, value in zip(self._layout.partition_by, values, strict=True)
        ]
        path = "/".join([*folders, f"part-{uuid.uuid4().hex}.zstd.parquet"])
        place = self._layout.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        self._rows[path] = 0
        return path, pq.ParquetWriter(str(place), schema, compression="zstd")

    def _close(self, values: tuple[str | None, ...]) -> None:
        path, writer = self._open[values]
        writer.close()
        del self._open[values]
        size = (self._layout.folder / path).stat().st_size
        named = dict(zip(self._layout.partition_by, values, strict=True))
        self._done.append(DataFile(path, size, self._rows.pop(path), named))


def _split(batch: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str | None, ...], Any]]:
    """The rows of every combination of partition values; the work is Arrow's, a step a combination."""
    if not names:
        yield (), batch
        return
    columns = [batch.column(name) for name in names]
    for name, column in zip(names, columns, strict=True):
        check_partition_column(name, column.type)
    distinct = pa.table(columns, names=list(names)).group_by(list(names)).aggregate([])
    for row in distinct.to_pylist():
        mask = None
        for name, column in zip(names, columns, strict=True):
            value = row[name]
            is_it = (
                pc.is_null(column)
                if value is None
                else pc.equal(column, pa.scalar(value, column.type))
            )
            is_it = pc.fill_null(is_it, False)
            mask = is_it if mask is None else pc.and_(mask, is_it)
        yield tuple(_as_text(row[name]) for name in names), batch.filter(mask)


def check_partition_column(name: str, kind: Any) -> None:
    """Only values that have one way to be written can be names of folders."""
    if not (
        pa.types.is_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_date(kind)
        or pa.types.is_boolean(kind)
    ):
        raise InvalidArgument(
            f"a table cannot be partitioned by {name}, which is {kind}: use a text, a whole number, a date or a boolean"
        )


def _as_text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, dt.date) else str(value)
