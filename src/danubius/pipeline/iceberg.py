# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow comes without types)
"""Iceberg tables in a catalog of pyiceberg, committed by the driver.

Invariant: a batch of a query changes a table once. The newest batch of every query is a property of the table, set in
the very transaction that adds the batch, so it outlives the snapshots.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import parquet_files_to_data_files, schema_to_pyarrow
from pyspark.sql.pandas.types import from_arrow_schema

from danubius.errors import InvalidArgument
from danubius.pipeline.table_files import Batch, DataFile, Layout, nullable, nullable_inside, remove
from danubius.pipeline.table_schema import as_held, check_fit, check_partitions

if TYPE_CHECKING:
    from pyiceberg.table import Table

NAMESPACE: Final = "danubius"
SMALL_BYTES: Final = 32 << 20
LARGE_BYTES: Final = 128 << 20
"""Files below the first are put together, up to about the second."""
NAMES: Final = "schema.name-mapping.default"
_BATCH: Final = "danubius.batch."


def layout(folder: Path, partition_by: tuple[str, ...], keys: tuple[str, ...]) -> Layout:
    if keys:
        return Layout(folder / "_staged", keys=keys)
    return Layout(folder / "data", partition_by, keeps_partition_columns=True)


class Place:
    """One table of one catalog: by default a sqlite file `iceberg.db` beside the table's folder."""

    def __init__(self, folder: Path, catalog: str | None) -> None:
        self.folder = folder
        self._uri = catalog or f"sqlite:///{folder.parent / 'iceberg.db'}"

    def has_catalog(self) -> bool:
        """Whether there can be a table; looking for one would make a catalog's file."""
        path = self._uri.removeprefix("sqlite:///")
        return path == self._uri or Path(path).exists()

    def load(self) -> Table:
        return self._catalog().load_table((NAMESPACE, self.folder.name))

    def open(self, schema: Any, partition_by: tuple[str, ...]) -> Table:
        try:
            table = self.load()
        except NoSuchTableError:
            self.folder.mkdir(parents=True, exist_ok=True)
            table = self._catalog().create_table_if_not_exists(
                (NAMESPACE, self.folder.name),
                nullable_inside(schema),
                location=f"file://{self.folder}",
            )
        # Whoever made it may have died here; a table with rows stays as it is.
        if partition_by and not table.spec().fields and table.current_snapshot() is None:
            with table.update_spec() as change:
                for name in partition_by:
                    change.add_identity(name)
        return table

    def _catalog(self) -> SqlCatalog:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        catalog = SqlCatalog(NAMESPACE, uri=self._uri, warehouse=f"file://{self.folder.parent}")
        catalog.create_namespace_if_not_exists(NAMESPACE)
        return catalog


def check(
    place: Place, schema: Any, partition_by: tuple[str, ...], keys: tuple[str, ...] = ()
) -> None:
    """Refuse rows of this Arrow schema that the table cannot take; if there is none, it will have their columns."""
    table: Table | None = None
    if place.has_catalog():
        try:
            table = place.load()
        except NoSuchTableError:
            table = None
    _check(table, place.folder, schema, partition_by, keys)


def append(
    place: Place,
    schema: Any,
    lay: Layout,
    files: list[DataFile],
    batch: Batch | None,
    *,
    overwrite: bool,
) -> bool:
    """Make the files rows of the table; False if this batch was there already."""
    table = place.open(schema, lay.partition_by)
    if _is_committed(table, batch):
        remove(lay.folder, files)
        return False
    _check(table, place.folder, schema, lay.partition_by)
    if files or overwrite:
        with table.transaction() as change:
            if overwrite:
                change.delete(AlwaysTrue())
            if files:
                change.add_files(
                    [f"file://{lay.folder / file.path}" for file in files],
                    check_duplicate_files=False,
                )
            if batch is not None:
                change.set_properties({_BATCH + batch.query: str(batch.number)})
    return True


def upsert(
    place: Place,
    schema: Any,
    lay: Layout,
    files: list[DataFile],
    batch: Batch | None,
    partition_by: tuple[str, ...],
) -> bool:
    """Rows whose keys are there replace them, the others are added; False if this batch was there already."""
    table = place.open(schema, partition_by)
    is_new = not _is_committed(table, batch)
    if is_new:
        _check(table, place.folder, schema, partition_by, lay.keys)
    if is_new and files:
        rows = pa.concat_tables([pq.read_table(lay.folder / file.path) for file in files])
        with table.transaction() as change:
            change.upsert(rows, join_cols=list(lay.keys))
            if batch is not None:
                change.set_properties({_BATCH + batch.query: str(batch.number)})
    remove(lay.folder, files)
    return is_new


def compact(place: Place) -> None:
    """Many small files become few large ones; readers of older snapshots still find the small ones."""
    table = place.load()
    piles = _small_files(table)
    made: list[Path] = []
    try:
        for pile in piles:
            made += [_merge([_local(file.file_path) for file in pile], _schema_of(table))]
        if made:
            replace_files(table, [file for pile in piles for file in pile], made)
    except BaseException:
        known = file_names(place)  # it may have failed behind its commit
        for path in made:
            if path.name not in known:
                path.unlink(missing_ok=True)
        raise


def _small_files(table: Table) -> list[list[Any]]:
    """Those of one partition in piles that make a large file, or as much of one as there is."""
    groups: dict[str, list[Any]] = {}
    for task in table.scan().plan_files():
        if task.delete_files:
            return []  # rows that are gone would come back
        if task.file.file_size_in_bytes < SMALL_BYTES:
            groups.setdefault(str(task.file.partition), []).append(task.file)
    return [pile for group in groups.values() for pile in _bins(group) if len(pile) > 1]


def replace_files(table: Table, old: list[Any], new: list[Path]) -> None:
    with table.transaction() as change:
        if table.name_mapping() is None:  # only upserts so far, whose files number their columns
            change.set_properties({NAMES: table.schema().name_mapping.model_dump_json()})
        with change.update_snapshot().overwrite() as rewrite:
            for file in old:
                rewrite.delete_data_file(file)
            paths = iter([f"file://{path}" for path in new])
            for file in parquet_files_to_data_files(table.io, change.table_metadata, paths):
                rewrite.append_data_file(file)


def _bins(files: list[Any]) -> list[list[Any]]:
    """Files side by side, each pile no larger than a large file."""
    piles: list[list[Any]] = [[]]
    size = 0
    for file in files:
        if piles[-1] and size + file.file_size_in_bytes > LARGE_BYTES:
            piles.append([])
            size = 0
        piles[-1].append(file)
        size += file.file_size_in_bytes
    return piles


def _merge(paths: list[Path], schema: Any) -> Path:
    """One file with the rows of all, some thousand of them in memory at a time."""
    target = paths[0].with_name(f"part-{uuid.uuid4().hex}.zstd.parquet")
    try:
        with pq.ParquetWriter(str(target), schema, compression="zstd") as writer:
            for path in paths:
                with pq.ParquetFile(path) as file:
                    for batch in file.iter_batches():
                        # Files of upserts know the numbers of their columns, added ones must not.
                        writer.write_table(pa.Table.from_batches([batch]).cast(schema))
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return target


def _local(path: str) -> Path:
    return Path(path.removeprefix("file://"))


def data_files(folder: Path, catalog: str | None) -> tuple[Any, list[str]]:
    """The table as it is now: its Arrow schema and its files."""
    try:
        table = Place(folder, catalog).load()
    except NoSuchTableError:
        raise InvalidArgument(f"there is no Iceberg table {folder.name} in the catalog") from None
    plan = list(table.scan().plan_files())
    if any(task.delete_files for task in plan):
        raise InvalidArgument(
            f"the Iceberg table {folder} has delete files, which are not read here: compact it first"
        )
    return _schema_of(table), [str(_local(task.file.file_path)) for task in plan]


def file_names(place: Place) -> set[str]:
    """Of all files that are rows of the table; none if there is no table."""
    try:
        table = place.load()
    except NoSuchTableError:
        return set()
    return {_local(task.file.file_path).name for task in table.scan().plan_files()}


def _schema_of(table: Table) -> Any:
    return nullable(schema_to_pyarrow(table.schema(), include_field_ids=False))


def _check(
    table: Table | None,
    folder: Path,
    schema: Any,
    partition_by: tuple[str, ...],
    keys: tuple[str, ...] = (),
) -> None:
    title = f"the Iceberg table {folder}"
    held = as_held(nullable(schema), _held, title)
    if table is None:
        return
    is_begun = table.spec().fields or table.current_snapshot() is not None
    if is_begun and (not keys or partition_by):
        check_partitions(title, _partitions(table), partition_by)
    # The files that are added say of all columns that they may be null, and Iceberg takes that at its word.
    check_fit(
        title, from_arrow_schema(schema_to_pyarrow(table.schema(), include_field_ids=False)), held
    )


def _held(field: Any) -> Any:
    # What creating a table does; there is no public way to ask.
    convert = Catalog._convert_schema_if_needed  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    converted = convert(pa.schema([field]))
    return schema_to_pyarrow(converted, include_field_ids=False)


def _partitions(table: Table) -> tuple[str, ...]:
    """Columns as they are; a part of them, such as their day, by its own name."""
    names: list[str] = []
    for field in table.spec().fields:
        column = table.schema().find_column_name(field.source_id)
        names.append(column if str(field.transform) == "identity" and column else field.name)
    return tuple(names)


def _is_committed(table: Table, batch: Batch | None) -> bool:
    return (
        batch is not None and int(table.properties.get(_BATCH + batch.query, "-1")) >= batch.number
    )
