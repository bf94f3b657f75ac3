# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
"""Rows that do not fit a table are refused before a byte is written, and the columns are named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    StructField,
    StructType,
)

from danubius.errors import InvalidArgument
from danubius.pipeline import iceberg, parquet_folder
from danubius.pipeline.table_files import Batch, DataFile, write_files
from danubius.pipeline.tables import TableDataSource, Target
from danubius.spark.payloads.ddl import parse_ddl

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")  # of pyiceberg and its database library

USUAL = "id BIGINT, name STRING"
DIFFERENT = [
    ("id STRING, name STRING", "column id is bigint in the table and string in the rows"),
    ("id INT, name STRING", "column id is bigint in the table and int in the rows"),
    ("id BIGINT, name STRING, extra DOUBLE", r"column extra \(double\) is not in the table"),
    ("id BIGINT", r"column name \(string\) of the table is missing"),
    ("ID BIGINT, name STRING", "column ID is written id in the table"),
    ("id BIGINT, name BINARY, x INT, y INT", "name is string .*; column x .*; column y "),
]
NESTED = (
    "id BIGINT, s STRUCT<x: INT, y: STRUCT<z: STRING>>, l ARRAY<STRUCT<a: INT>>, m MAP<STRING, INT>"
)
DIFFERENT_INSIDE = [
    (("z: STRING", "z: DATE"), "column s.y.z is string in the table and date in the rows"),
    (("x: INT, ", ""), r"field s.x \(int\) of the table is missing"),
    (("x: INT", "x: INT, w: INT"), r"field s.w \(int\) is not in the table"),
    (("x: INT", "X: INT"), "field s.X is written x in the table"),
    (("a: INT", "a: BIGINT"), r"column l\[\].a is int in the table and bigint in the rows"),
    (("STRING, INT>", "STRING, STRING>"), r"column m\[value\] is int in the table and string"),
    (("STRING, INT>", "BIGINT, INT>"), r"column m\[key\] is string in the table and bigint"),
    (("m MAP<STRING, INT>", "m ARRAY<INT>"), "column m is map<string,int> in the table and array"),
    (
        ("x: INT, y: STRUCT<z: STRING>", "y: STRUCT<z: STRING>, x: INT"),
        "fields of s are in another order",
    ),
]


def _schema(ddl: str) -> StructType:
    return parse_ddl(ddl)


class Sink:
    """One table, as a query of a pipeline writes to it."""

    def __init__(self, folder: Path, table_format: str) -> None:
        self.folder = folder / "t"
        self.format = table_format
        self.number = 0

    def target(self, partition_by: tuple[str, ...] = (), keys: tuple[str, ...] = ()) -> Target:
        return Target(str(self.folder), self.format, None, partition_by, keys, 0)

    def write(
        self,
        ddl: str,
        rows: Iterable[dict[str, Any]],
        partition_by: tuple[str, ...] = (),
        keys: tuple[str, ...] = (),
    ) -> list[DataFile]:
        """Tasks and a commit; what the tasks wrote if it is refused."""
        schema = to_arrow_schema(_schema(ddl), timezone="UTC")
        target = self.target(partition_by, keys)
        batch = pa.RecordBatch.from_pylist(list(rows), schema=schema)
        files = write_files([batch], target.layout())
        target.commit(schema, files, Batch("q", self.number))
        self.number += 1
        return files

    def rows(self) -> list[dict[str, Any]]:
        if self.format == "delta":
            return DeltaTable(str(self.folder)).to_pyarrow_table().to_pylist()
        return iceberg.Place(self.folder, None).load().scan().to_arrow().to_pylist()

    def content(self) -> dict[str, bytes]:
        return {
            str(path): path.read_bytes()
            for path in sorted(self.folder.parent.rglob("*"))
            if path.is_file()
        }


@pytest.fixture(params=["delta", "iceberg"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Sink:
    return Sink(tmp_path, request.param)


def _row(ddl: str) -> dict[str, Any]:
    return dict.fromkeys(_schema(ddl).names)


@pytest.mark.parametrize("keys", [(), ("id",)])
@pytest.mark.parametrize(("ddl", "reason"), DIFFERENT)
def test_a_commit_of_other_columns_is_refused_and_the_table_stays_readable(
    sink: Sink, ddl: str, reason: str, keys: tuple[str, ...]
) -> None:
    sink.write(USUAL, [{"id": 1, "name": "a"}], keys=keys)
    others = tuple(_schema(ddl).names[:1]) if keys else ()
    row = _row(ddl) | dict.fromkeys(others, "7" if "id STRING" in ddl else 7)
    with pytest.raises(InvalidArgument, match=reason):
        sink.write(ddl, [row], keys=others)
    assert sink.rows() == [{"id": 1, "name": "a"}]


@pytest.mark.parametrize(("ddl", "reason"), DIFFERENT)
def test_other_columns_are_refused_before_anything_is_written(
    sink: Sink, ddl: str, reason: str
) -> None:
    sink.write(USUAL, [{"id": 1, "name": "a"}])
    before = sink.content()
    options = {"path": str(sink.folder), "tableFormat": sink.format}
    source = TableDataSource(options)
    with pytest.raises(InvalidArgument, match=reason):
        source.streamWriter(_schema(ddl), overwrite=False)
    for overwrite in (False, True):
        with pytest.raises(InvalidArgument, match=reason):
            source.writer(_schema(ddl), overwrite=overwrite)
    assert sink.content() == before


def test_looking_at_a_table_that_is_not_there_makes_nothing(sink: Sink) -> None:
    sink.target().check(_schema(USUAL))
    assert not list(sink.folder.parent.iterdir())


def test_fields_inside_of_columns_are_compared_too(sink: Sink) -> None:
    sink.write(NESTED, [{"id": 1}])
    sink.target().check(_schema(NESTED))
    for change, reason in DIFFERENT_INSIDE:
        with pytest.raises(InvalidArgument, match=reason):
            sink.target().check(_schema(NESTED.replace(*change)))


def test_the_order_of_columns_and_whether_they_may_be_null_are_the_querys_own(sink: Sink) -> None:
    certain = "id BIGINT NOT NULL, l ARRAY<INT>, s STRUCT<x: INT NOT NULL>"
    uncertain = "s STRUCT<x: INT>, id BIGINT, l ARRAY<INT>"
    first, second = {"id": 1, "l": [1], "s": {"x": 1}}, {"id": None, "l": [None], "s": {"x": None}}
    for ddl, row in ((certain, first), (uncertain, second), (certain, first)):
        sink.target().check(_schema(ddl))
        sink.write(ddl, [row])
    assert sorted(map(str, sink.rows())) == sorted(map(str, [first, second, first]))


def test_types_that_a_table_keeps_as_wider_ones_fit_it_again(sink: Sink) -> None:
    ddl = "a TINYINT, b SMALLINT, c DECIMAL(20,3), d TIMESTAMP, e TIMESTAMP_NTZ, f BINARY, g FLOAT, h DATE"
    sink.write(ddl, [_row(ddl)])
    sink.target().check(_schema(ddl))
    sink.write(ddl, [_row(ddl)])
    assert len(sink.rows()) == 2


def test_another_partitioning_than_the_tables_is_refused(sink: Sink) -> None:
    cases = (((), ("name",)), (("name",), ()), (("name",), ("id",)))
    for number, (partition_by, other) in enumerate(cases):
        table = Sink(sink.folder / str(number), sink.format)
        table.write(USUAL, [{"id": 1, "name": "a"}], partition_by)
        with pytest.raises(InvalidArgument, match="is partitioned by"):
            table.target(other).check(_schema(USUAL))
        with pytest.raises(InvalidArgument, match="is partitioned by"):
            table.write(USUAL, [{"id": 2, "name": "b"}], other)
        table.write(USUAL, [{"id": 2, "name": "b"}], partition_by)
        assert sorted(row["id"] for row in table.rows()) == [1, 2]


@pytest.mark.parametrize(
    ("ddl", "partition_by", "keys", "reason"),
    [
        ("id BIGINT", ("day",), (), "partition_by has the column day, which the rows do not have"),
        ("id BIGINT", (), ("idd",), "keys has the column idd.*did you mean id"),
        ("id BIGINT, x DOUBLE", ("x",), (), "cannot be partitioned by x, which is double"),
        ("id BIGINT", ("id",), (), "a table needs a column besides"),
    ],
)
def test_rows_that_no_table_can_take_are_refused(
    sink: Sink, ddl: str, partition_by: tuple[str, ...], keys: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        sink.target(partition_by, keys).check(_schema(ddl))
    assert not list(sink.folder.parent.iterdir())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"x": DayTimeIntervalType()}, "cannot hold the column x"),
        ({"x": CalendarIntervalType()}, "column x is interval, which tables do not hold"),
        ({"x": IntegerType(), "X": IntegerType()}, "columns x and X have the same name"),
    ],
)
def test_columns_that_no_table_can_have_are_refused(
    sink: Sink, fields: dict[str, DataType], reason: str
) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        sink.target().check(StructType([StructField(*each) for each in fields.items()]))
    assert not list(sink.folder.parent.iterdir())


def test_what_others_ask_of_a_delta_table_is_not_passed_over(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "delta")
    table = DeltaTable.create(str(sink.folder), pa.schema([("id", pa.int64())]))
    table.alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(InvalidArgument, match="has the constraint positive"):
        sink.target().check(_schema("id BIGINT"))
    sink.target(keys=("id",)).check(_schema("id BIGINT"))  # a merge sees to them
    mapped = Sink(tmp_path / "mapped", "delta")
    settings = {"delta.columnMapping.mode": "name"}
    DeltaTable.create(str(mapped.folder), pa.schema([("id", pa.int64())]), configuration=settings)
    with pytest.raises(InvalidArgument, match="mapped columns"):
        mapped.target().check(_schema("id BIGINT"))


def test_columns_that_must_not_be_null_are_named(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "delta")
    DeltaTable.create(str(sink.folder), pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    with pytest.raises(InvalidArgument, match="column id may be null, and must not be"):
        sink.target().check(_schema("id BIGINT"))
    sink.target().check(_schema("id BIGINT NOT NULL"))


@pytest.mark.parametrize(("ddl", "reason"), DIFFERENT)
def test_a_parquet_folder_refuses_other_columns_too(tmp_path: Path, ddl: str, reason: str) -> None:
    folder = tmp_path / "t"
    parquet_folder.check(folder, _schema(USUAL), ())
    (folder / "_spark_metadata").mkdir(parents=True)
    (folder / "_spark_metadata" / "0.parquet").write_text("no table's file")
    parquet_folder.check(folder, _schema(ddl), ())
    rows = pa.table({"id": [1], "name": ["a"]})
    pq.write_table(rows, folder / "part-0.parquet")
    parquet_folder.check(folder, _schema("name STRING, id BIGINT NOT NULL"), ())
    with pytest.raises(InvalidArgument, match=reason):
        parquet_folder.check(folder, _schema(ddl), ())


def test_a_parquet_folder_knows_its_partitions_and_what_spark_wrote_into_its_files(
    tmp_path: Path,
) -> None:
    spark_schema = _schema("id TINYINT")
    metadata = {parquet_folder.SPARK_SCHEMA: spark_schema.json()}
    place = tmp_path / "day=2026-11-16" / "part-0.parquet"
    place.parent.mkdir()
    schema = pa.schema([("id", pa.int32())], metadata=metadata)
    pq.write_table(pa.table({"id": pa.array([1], pa.int32())}, schema=schema), place)
    rows = _schema("id TINYINT, day DATE")
    parquet_folder.check(tmp_path, rows, ("day",))
    with pytest.raises(InvalidArgument, match="is partitioned by day"):
        parquet_folder.check(tmp_path, rows, ())
    with pytest.raises(InvalidArgument, match="column id is tinyint in the table and int"):
        parquet_folder.check(tmp_path, _schema("id INT, day DATE"), ("day",))
