# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow comes without types)
"""Iceberg tables in a catalog of pyiceberg, committed by the driver.

Invariant: a batch of a query changes a table once. The newest batch of every query is a property of the table, set in
the very transaction that adds the batch, so it outlives the snapshots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import schema_to_pyarrow

from danubius.errors import InvalidArgument
from danubius.pipeline.table_files import Batch, DataFile, Layout, nullable, remove

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table

NAMESPACE: Final = "danubius"
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

    def load(self) -> Table:
        return self._catalog().load_table((NAMESPACE, self.folder.name))

    def open(self, schema: Any, partition_by: tuple[str, ...]) -> Table:
        try:
            return self.load()
        except NoSuchTableError:
            self.folder.mkdir(parents=True, exist_ok=True)
        table = self._catalog().create_table_if_not_exists(
            (NAMESPACE, self.folder.name), nullable(schema), location=f"file://{self.folder}"
        )
        if partition_by and not table.spec().fields:
            with table.update_spec() as change:
                for name in partition_by:
                    change.add_identity(name)
        return table

    def _catalog(self) -> SqlCatalog:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        catalog = SqlCatalog(NAMESPACE, uri=self._uri, warehouse=f"file://{self.folder.parent}")
        catalog.create_namespace_if_not_exists(NAMESPACE)
        return catalog


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
    if is_new and files:
        rows = pa.concat_tables([pq.read_table(lay.folder / file.path) for file in files])
        with table.transaction() as change:
            change.upsert(rows, join_cols=list(lay.keys))
            if batch is not None:
                change.set_properties({_BATCH + batch.query: str(batch.number)})
    remove(lay.folder, files)
    return is_new


def data_files(folder: Path, catalog: str | None) -> tuple[Any, list[str]]:
    """The table as it is now: its Arrow schema and its files."""
    table = Place(folder, catalog).load()
    plan = list(table.scan().plan_files())
    if any(task.delete_files for task in plan):
        raise InvalidArgument(
            f"the Iceberg table {folder} has delete files, which are not read here: compact it first"
        )
    schema = nullable(schema_to_pyarrow(table.schema(), include_field_ids=False))
    return schema, [task.file.file_path.removeprefix("file://") for task in plan]


def _is_committed(table: Table, batch: Batch | None) -> bool:
    return (
        batch is not None and int(table.properties.get(_BATCH + batch.query, "-1")) >= batch.number
    )
