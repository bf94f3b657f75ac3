# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
"""A commit may be reported as failed though it was made: what became rows of a table is never removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from danubius.pipeline import delta, iceberg
from danubius.pipeline.table_files import Batch, DataFile, write_files
from danubius.pipeline.tables import TableStreamWriter, TableWriter, Target, Written

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("id", pa.int64())])
SPARK_SCHEMA = StructType([StructField("id", LongType())])


class Sink:
    """One table, and what tasks write for it."""

    def __init__(self, folder: Path, table_format: str) -> None:
        self.folder = folder / "t"
        self.target = Target(str(self.folder), table_format, None, (), (), 0)

    def write(self, *ids: int) -> list[DataFile]:
        batch = pa.RecordBatch.from_arrays([pa.array(ids, pa.int64())], schema=SCHEMA)
        return write_files([batch], self.target.layout())

    def commit(self, files: list[DataFile], number: int) -> None:
        self.target.commit(SCHEMA, files, Batch("q", number))

    def exists(self, files: list[DataFile]) -> bool:
        return any((self.target.layout().folder / file.path).exists() for file in files)

    def ids(self) -> list[int]:
        if self.target.format == "delta":
            _, paths = delta.data_files(self.folder)
        else:
            _, paths = iceberg.data_files(self.folder, None)
        return sorted(i for path in paths for i in pq.read_table(path)["id"].to_pylist())


@pytest.fixture(params=["delta", "iceberg"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Sink:
    return Sink(tmp_path, request.param)


def abort_stream(sink: Sink, files: list[DataFile], number: int) -> None:
    writer = TableStreamWriter(sink.target, SPARK_SCHEMA)
    writer.abort([Written(files, Batch("q", number)), None], number)


def test_rows_stay_though_spark_takes_their_commit_for_failed(sink: Sink) -> None:
    files = sink.write(1, 2)
    sink.commit(files, 0)
    abort_stream(sink, files, 0)
    assert sink.ids() == [1, 2]
    TableWriter(sink.target, SPARK_SCHEMA, overwrite=False).abort([Written(files, None)])
    assert sink.ids() == [1, 2]


def test_what_never_became_rows_is_removed(sink: Sink) -> None:
    before = sink.write(1)
    abort_stream(sink, before, 0)  # there is no table yet
    assert not sink.exists(before)
    sink.commit(sink.write(2), 0)
    later = sink.write(3)
    abort_stream(sink, later, 1)
    assert not sink.exists(later)
    assert sink.ids() == [2]


def test_a_compaction_that_ends_behind_its_commit_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink(tmp_path, "iceberg")
    for number in range(3):
        sink.commit(sink.write(number), number)
    replace = iceberg.replace_files

    def replace_and_end(*arguments: Any) -> None:
        replace(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(iceberg, "replace_files", replace_and_end)
    with pytest.raises(KeyboardInterrupt):
        iceberg.compact(iceberg.Place(sink.folder, None))
    assert sink.ids() == [0, 1, 2]
