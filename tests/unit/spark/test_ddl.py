"""Spark's DDL, read without Spark."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from danubius.errors import InvalidArgument
from danubius.spark.payloads.ddl import nullable, parse_ddl


def test_columns_of_all_kinds() -> None:
    inner = StructType([StructField("x", IntegerType()), StructField("y", DecimalType(10, 2))])
    assert parse_ddl(
        "id BIGINT NOT NULL COMMENT 'a, b',"
        " `a ``b`: map<string, array<struct<x: int, y decimal(10,2)>>>,\n n timestamp_ntz"
    ) == StructType(
        [
            StructField("id", LongType(), nullable=False),
            StructField("a `b", MapType(StringType(), ArrayType(inner))),
            StructField("n", TimestampNTZType()),
        ]
    )


def test_what_may_be_null_can_be_widened() -> None:
    wide = nullable(parse_ddl("a STRUCT<b: INT NOT NULL> NOT NULL"))
    assert wide == parse_ddl("a STRUCT<b: INT>")


@pytest.mark.parametrize(
    ("ddl", "sentence"),
    [
        ("", "declares no column"),
        ("id", "a type is missing (at the end, character 3)"),
        ("id bigin", "did you mean BIGINT? (at 'bigin', character 4)"),
        ("a int b int", ", is missing (at 'b', character 7)"),
        ("a int, A string", "the column A is declared twice"),
        ("a array<int", "> is missing"),
        ("a decimal(39)", "1 to 38 digits"),
        ("a decimal(x)", "two numbers"),
        ("a int not", "NULL is missing after NOT"),
        ("a int,", "a column name is missing"),
        ("a int comment b", "in quotes is missing after COMMENT"),
        ("a int ;", "this cannot be read (at ';', character 7)"),
        ("a " + "array<" * 100 + "int" + ">" * 100, "more than 64 deep"),
    ],
)
def test_errors_name_the_place(ddl: str, sentence: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_ddl(ddl)
    assert sentence in caught.value.message
