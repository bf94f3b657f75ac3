# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Tables without Spark: files are rows once they are committed, and a batch is committed once."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from danubius.errors import InvalidArgument
from danubius.pipeline import delta, iceberg
from danubius.pipeline.table_files import OPEN_FILES_MAX, Batch, Layout, write_files

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("day", pa.date32())]
)
DAY = dt.date(2026, 11, 16)


def _rows(*ids: int, name: str | None = "a b/ü%", day: dt.date | None = DAY) -> Any:
    return pa.RecordBatch.from_arrays(
        [pa.array(ids, pa.int64()), pa.array([name] * len(ids)), pa.array([day] * len(ids))],
        schema=SCHEMA,
    )


class Delta:
    def __init__(
        self, folder: Path, partition_by: tuple[str, ...] = (), keys: tuple[str, ...] = ()
    ) -> None:
        self.folder = folder / "t"
        self.partition_by = partition_by
        self.layout = delta.layout(self.folder, partition_by, keys)

    def append(self, batch: Batch | None, *rows: Any, overwrite: bool = False) -> bool:
        files = write_files(rows, self.layout)
        return delta.append(self.folder, SCHEMA, self.layout, files, batch, overwrite=overwrite)

    def upsert(self, batch: Batch | None, *rows: Any) -> bool:
        files = write_files(rows, self.layout)
        return delta.upsert(self.folder, SCHEMA, self.layout, files, batch, self.partition_by)

    def rows(self) -> list[dict[str, Any]]:
        return DeltaTable(str(self.folder)).to_pyarrow_table().to_pylist()

    def compact(self) -> None:
        delta.compact(self.folder)

    def files(self) -> int:
        return len(delta.data_files(self.folder)[1])


class Iceberg(Delta):
    def __init__(
        self, folder: Path, partition_by: tuple[str, ...] = (), keys: tuple[str, ...] = ()
    ) -> None:
        super().__init__(folder, partition_by, keys)
        self.place = iceberg.Place(self.folder, None)
        self.layout = iceberg.layout(self.folder, partition_by, keys)

    def append(self, batch: Batch | None, *rows: Any, overwrite: bool = False) -> bool:
        files = write_files(rows, self.layout)
        return iceberg.append(self.place, SCHEMA, self.layout, files, batch, overwrite=overwrite)

    def upsert(self, batch: Batch | None, *rows: Any) -> bool:
        files = write_files(rows, self.layout)
        return iceberg.upsert(self.place, SCHEMA, self.layout, files, batch, self.partition_by)

    def rows(self) -> list[dict[str, Any]]:
        return self.place.load().scan().to_arrow().to_pylist()

    def compact(self) -> None:
        iceberg.compact(self.place)

    def files(self) -> int:
        return len(iceberg.data_files(self.folder, None)[1])


pytestmark = [
    pytest.mark.parametrize("kind", [Delta, Iceberg]),
    pytest.mark.filterwarnings("ignore"),  # of pyiceberg and its database library
]


def _parquet(folder: Path) -> int:
    return len(list(folder.rglob("part-*.parquet")))


def test_a_batch_is_committed_once(tmp_path: Path, kind: type[Delta]) -> None:
    table = kind(tmp_path)
    assert table.append(Batch("q", 0), _rows(1, 2))
    assert table.append(Batch("q", 1), _rows(3))
    assert not table.append(Batch("q", 1), _rows(3))
    assert not table.append(Batch("q", 0), _rows(1, 2))
    assert table.append(Batch("other", 0), _rows(4))
    assert sorted(row["id"] for row in table.rows()) == [1, 2, 3, 4]
    assert _parquet(table.folder) == 3, "the files of the repetitions are gone"


def test_partition_values_come_back_as_they_were(tmp_path: Path, kind: type[Delta]) -> None:
    table = kind(tmp_path, partition_by=("name", "day"))
    later = DAY + dt.timedelta(1)
    table.append(
        None, _rows(1), _rows(2, name="b"), _rows(3, name=None), _rows(4, day=later), _rows(5)
    )
    found = {row["id"]: (row["name"], row["day"]) for row in table.rows()}
    usual = "a b/ü%"
    assert found == {
        1: (usual, DAY),
        2: ("b", DAY),
        3: (None, DAY),
        4: (usual, later),
        5: (usual, DAY),
    }
    assert table.files() == 4
    table.append(None, _rows(6))
    assert table.files() == 5
    table.compact()
    assert table.files() == 4, "a file for every combination of values"
    assert {row["id"]: (row["name"], row["day"]) for row in table.rows()} == found | {6: found[1]}


def test_overwriting_replaces_all_rows(tmp_path: Path, kind: type[Delta]) -> None:
    table = kind(tmp_path)
    table.append(None, _rows(1, 2))
    table.append(None, _rows(3), overwrite=True)
    assert [row["id"] for row in table.rows()] == [3]


def test_upserting_replaces_rows_by_key(tmp_path: Path, kind: type[Delta]) -> None:
    table = kind(tmp_path, keys=("id",))
    assert table.upsert(Batch("q", 0), _rows(1, 2, name="old"))
    assert table.upsert(Batch("q", 1), _rows(2, 3, name="new"))
    assert not table.upsert(Batch("q", 0), _rows(1, 2, name="old"))
    assert {row["id"]: row["name"] for row in table.rows()} == {1: "old", 2: "new", 3: "new"}
    assert _parquet(table.folder / "_staged") == 0


def test_a_task_that_fails_leaves_nothing(tmp_path: Path, kind: type[Delta]) -> None:
    table = kind(tmp_path, partition_by=("name",))

    def rows() -> Any:
        yield _rows(1, name="a")
        yield _rows(2, name="b")
        raise ValueError("the task was killed")

    with pytest.raises(ValueError, match="killed"):
        write_files(rows(), table.layout)
    assert _parquet(tmp_path) == 0


def test_keys_are_never_null(tmp_path: Path, kind: type[Delta]) -> None:
    table = kind(tmp_path, keys=("name",))
    with pytest.raises(InvalidArgument, match="WHERE name IS NOT NULL"):
        table.upsert(None, _rows(1, name=None))


def test_many_partition_values_do_not_open_many_files(tmp_path: Path, kind: type[Delta]) -> None:
    table = kind(tmp_path, partition_by=("id",))
    count = OPEN_FILES_MAX + 6
    files = write_files([_rows(*range(count)), _rows(0)], table.layout)
    assert sum(file.rows for file in files) == count + 1
    assert len(files) == count + 1, "the first value's file had been closed"


def test_unsuitable_partition_columns_are_named(tmp_path: Path, kind: type[Delta]) -> None:
    table = kind(tmp_path)
    batch = pa.RecordBatch.from_arrays([pa.array([1.5])], names=["x"])
    with pytest.raises(InvalidArgument, match="partitioned by x, which is double"):
        write_files([batch], Layout(table.folder, ("x",)))


def test_small_files_become_one(tmp_path: Path, kind: type[Delta]) -> None:
    table = kind(tmp_path)
    for number in range(5):
        table.append(Batch("q", number), _rows(number))
    assert table.files() == 5
    table.compact()
    assert table.files() == 1
    assert sorted(row["id"] for row in table.rows()) == [0, 1, 2, 3, 4]
    assert not table.append(Batch("q", 4), _rows(4)), "which batches were there is still known"
    table.append(Batch("q", 5), _rows(5))
    table.compact()
    table.compact()
    assert table.files() == 1
    assert sorted(row["id"] for row in table.rows()) == [0, 1, 2, 3, 4, 5]


def test_files_of_upserts_are_compacted_too(tmp_path: Path, kind: type[Delta]) -> None:
    table = kind(tmp_path, keys=("id",))
    for number in range(3):
        table.upsert(Batch("q", number), _rows(number, name="old"))
    table.upsert(Batch("q", 3), _rows(1, 7, name="new"))
    before = table.rows()
    table.compact()
    assert table.files() == 1
    assert sorted(map(str, table.rows())) == sorted(map(str, before))
    table.upsert(Batch("q", 4), _rows(7, name="newest"))
    assert {row["id"]: row["name"] for row in table.rows()}[7] == "newest"
