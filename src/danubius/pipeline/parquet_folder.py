# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow comes without types)
"""A folder of Parquet files, as Spark's own sink writes it: what columns it has, as one of its files says.

Spark appends whatever it is given and reads the folder by the columns of one file, so this is where rows that do not
fit are refused.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from danubius.pipeline.table_schema import check_columns, check_fit, check_partitions

SPARK_SCHEMA: Final = b"org.apache.spark.sql.parquet.row.metadata"
"""Where Spark writes down the columns of a file, in JSON."""


def check(folder: Path, rows: StructType, partition_by: tuple[str, ...]) -> None:
    """Refuse rows that do not fit what is there; a folder without files takes all."""
    check_columns(rows.names, partition_by=partition_by)
    file = find_file(folder)
    if file is None:
        return
    title = f"the Parquet table {folder}"
    folders = file.relative_to(folder).parts[:-1]
    check_partitions(
        title,
        tuple(unquote(part.split("=", 1)[0]) for part in folders if "=" in part),
        partition_by,
    )
    inside = StructType([field for field in rows.fields if field.name not in partition_by])
    check_fit(title, schema_of(file), inside, nulls=False)


def find_file(folder: Path) -> Path | None:
    """The first by name; what begins with _ or . belongs to no table."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(("_", ".")))
        for name in sorted(files):
            if name.endswith(".parquet") and not name.startswith(("_", ".")):
                return Path(place, name)
    return None


def schema_of(file: Path) -> StructType:
    schema = pq.read_schema(file)
    said = (schema.metadata or {}).get(SPARK_SCHEMA)
    return StructType.fromJson(json.loads(said)) if said else from_arrow_schema(schema)
