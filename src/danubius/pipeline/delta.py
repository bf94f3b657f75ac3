# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow comes without types)
"""Delta tables, committed by the driver: files become rows in one log entry that names (query, batch).

Invariant: a batch of a query changes a table once. The log's own application transactions say which were there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction
from pyspark.sql.pandas.types import from_arrow_schema

from danubius.errors import InvalidArgument
from danubius.pipeline.table_files import Batch, DataFile, Layout, nullable_inside, remove
from danubius.pipeline.table_schema import UnfitRows, as_held, check_fit, check_partitions

if TYPE_CHECKING:
    from pathlib import Path


def layout(folder: Path, partition_by: tuple[str, ...], keys: tuple[str, ...]) -> Layout:
    """Upserts are staged beside the table: the merge reads and removes them."""
    return Layout(folder / "_staged", keys=keys) if keys else Layout(folder, partition_by)


def check(
    folder: Path, schema: Any, partition_by: tuple[str, ...], keys: tuple[str, ...] = ()
) -> None:
    """Refuse rows of this Arrow schema that the table cannot take; if there is none, it will have their columns."""
    is_there = DeltaTable.is_deltatable(str(folder))
    _check(DeltaTable(str(folder)) if is_there else None, folder, schema, partition_by, keys)


def append(
    folder: Path,
    schema: Any,
    lay: Layout,
    files: list[DataFile],
    batch: Batch | None,
    *,
    overwrite: bool,
) -> bool:
    """Make the files rows of the table; False if this batch was there already."""
    table = _open(folder, schema, lay.partition_by)
    if _is_committed(table, batch):
        remove(lay.folder, files)
        return False
    _check(table, folder, schema, lay.partition_by)
    if files or overwrite:
        table.create_write_transaction(
            [_action(lay.folder, file) for file in files],
            "overwrite" if overwrite else "append",
            table.schema(),
            list(lay.partition_by),
            commit_properties=_properties(batch),
        )
    return True


def upsert(
    folder: Path,
    schema: Any,
    lay: Layout,
    files: list[DataFile],
    batch: Batch | None,
    partition_by: tuple[str, ...],
) -> bool:
    """Rows whose keys are there replace them, the others are added; False if this batch was there already."""
    table = _open(folder, schema, partition_by)
    is_new = not _is_committed(table, batch)
    if is_new:
        _check(table, folder, schema, partition_by, lay.keys)
    if is_new and files:
        staged = ds.dataset([str(lay.folder / file.path) for file in files], format="parquet")
        condition = " AND ".join(f'old."{key}" = new."{key}"' for key in lay.keys)
        table.merge(
            staged.scanner().to_reader(),
            condition,
            source_alias="new",
            target_alias="old",
            commit_properties=_properties(batch),
        ).when_matched_update_all().when_not_matched_insert_all().execute()
    remove(lay.folder, files)
    return is_new


def compact(folder: Path) -> None:
    """Many small files become few large ones; readers of older versions still find the small ones."""
    DeltaTable(str(folder)).optimize.compact()


def data_files(folder: Path) -> tuple[Any, list[str]]:
    """The table as it is now: its Arrow schema and its files."""
    if not DeltaTable.is_deltatable(str(folder)):
        raise InvalidArgument(f"there is no Delta table in {folder}")
    table = DeltaTable(str(folder))
    return pa.schema(table.schema().to_arrow()), table.file_uris()


def file_names(folder: Path) -> set[str]:
    """Of all files that are rows of the table; none if there is no table."""
    if not DeltaTable.is_deltatable(str(folder)):
        return set()
    return {uri.rsplit("/", 1)[-1] for uri in DeltaTable(str(folder)).file_uris()}


def _open(folder: Path, schema: Any, partition_by: tuple[str, ...]) -> DeltaTable:
    if DeltaTable.is_deltatable(str(folder)):
        return DeltaTable(str(folder))
    return DeltaTable.create(
        str(folder), nullable_inside(schema), mode="ignore", partition_by=list(partition_by)
    )


def _check(
    table: DeltaTable | None,
    folder: Path,
    schema: Any,
    partition_by: tuple[str, ...],
    keys: tuple[str, ...] = (),
) -> None:
    title = f"the Delta table {folder}"
    held = as_held(schema, _held, title)
    if table is None:
        return
    # A merge is delta-rs' own work: it writes as the table asks, and only what the sink says must agree.
    if not keys or partition_by:
        check_partitions(title, tuple(table.metadata().partition_columns), partition_by)
    if not keys and (wish := _unknown_wish(table)):
        raise UnfitRows(
            f"{title} has {wish}, which files that are added do not obey. Nothing was written: use mode ="
            ' "upsert", or write to another table'
        )
    check_fit(title, from_arrow_schema(pa.schema(table.schema().to_arrow())), held)


def _held(field: Any) -> Any:
    return pa.schema(Schema.from_arrow(pa.schema([field])).to_arrow())


def _unknown_wish(table: DeltaTable) -> str:
    """What somebody else has asked of this table and whoever writes its files must see to."""
    settings = table.metadata().configuration
    if settings.get("delta.columnMapping.mode", "none") != "none":
        return "mapped columns (delta.columnMapping.mode)"
    rules = [name for name in settings if name.startswith("delta.constraints.")]
    if rules:
        return f"the constraint {rules[0].removeprefix('delta.constraints.')}"
    for field in table.schema().fields:
        for wish in ("delta.generationExpression", "delta.invariants"):
            if wish in field.metadata:
                return f"{wish} on the column {field.name}"
    return ""


def _is_committed(table: DeltaTable, batch: Batch | None) -> bool:
    if batch is None:
        return False
    newest = table.transaction_version(batch.query)
    return newest is not None and newest >= batch.number


def _properties(batch: Batch | None) -> CommitProperties | None:
    return batch and CommitProperties(app_transactions=[Transaction(batch.query, batch.number)])


def _action(folder: Path, file: DataFile) -> AddAction:
    written_ms = int((folder / file.path).stat().st_mtime * 1000)
    stats = json.dumps({"numRecords": file.rows})
    return AddAction(file.path, file.bytes, file.values, written_ms, data_change=True, stats=stats)
