"""Schemas guessed from JSON, and errors of Spark in a sentence."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from danubius.errors import InvalidArgument, TopicNotFound
from danubius.spark.payloads.ddl import parse_ddl
from danubius.spark.payloads.inference import infer, to_ddl
from danubius.spark.sql.references import Bound
from danubius.spark.sql.topics import check_query, offset_range, plain


def test_fields_of_all_records_come_together() -> None:
    fields, omitted, objects = infer(
        [
            b'{"id":1,"price":1,"ok":true,"n":{"x":"a"},"tags":[],"a b":null}',
            b'{"id":2,"price":1.5,"n":{"y":[1,2]},"tags":["a"],"late":"2026-01-01"}',
            b"oops",
            b"[1]",
            b"\xff",
        ]
    )
    assert objects == 2
    assert omitted == ["a b"]
    expected = (
        "id BIGINT, price DOUBLE, ok BOOLEAN, n STRUCT<x: STRING, y: ARRAY<BIGINT>>,"
        " tags ARRAY<STRING>, late STRING"
    )
    assert fields == parse_ddl(expected)
    assert parse_ddl(to_ddl(fields)) == fields


def test_fields_without_one_type_are_left_out_and_named() -> None:
    fields, omitted, _ = infer(
        [
            b'{"a":1,"b":[1,"x"],"c":{},"d":{"e":null,"f":1},"big":99999999999999999999,"A":2,"`":"q"}',
            b'{"a":"x","b":[],"c":{}}',
        ]
    )
    assert fields == parse_ddl("d STRUCT<f: BIGINT>, big DOUBLE, A BIGINT, ```` STRING")
    assert sorted(omitted) == ["a", "b", "c", "d.e"]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ([], (0, None)),
        ([Bound("offset", ">", "5")], (6, None)),
        ([Bound("offset", ">=", "5"), Bound("offset", "<", "9")], (5, 9)),
        ([Bound("offset", "=", "5")], (5, 6)),
        ([Bound("offset", "<=", "5"), Bound("offset", "<", "9")], (0, 6)),
        ([Bound("offset", ">", "9"), Bound("offset", "<", "5")], (10, 10)),
    ],
)
def test_bounds_of_offsets_become_one_range(
    bounds: list[Bound], expected: tuple[int, int | None]
) -> None:
    assert offset_range(bounds) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'x'. SQLSTATE: 42601 (line 1, pos 19)\n\n== SQL ==\nSELECT",
            "Syntax error at or near 'x' (line 1, position 19)",
        ),
        (
            "[UNRESOLVED_COLUMN] No `nope` in `danube./default/t`. SQLSTATE: 42703; line 1 pos 7;\n'Project [",
            "No `nope` in danube.`/default/t` (line 1, position 7)",
        ),
        (
            "[PYTHON] Failed: Traceback (most\ndanubius.errors.TopicNotFound: topic /a/b does not exist\n SQLSTATE: 38",
            "topic /a/b does not exist",
        ),
        (
            "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n== SQL (line 1) ==\nSELECT 1/0",
            "Division by zero.",
        ),
    ],
)
def test_errors_of_spark_become_one_sentence(text: str, sentence: str) -> None:
    assert plain(PySparkException(text)).message == sentence


def test_errors_of_ours_stay_what_they_are() -> None:
    error = TopicNotFound("it is gone")
    assert plain(error) is error


@pytest.mark.parametrize("text", ["", "  -- nothing", "DROP TABLE x", "INSERT INTO x VALUES (1)"])
def test_what_is_no_question_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        check_query(text)


@pytest.mark.parametrize(
    "text", ["SELECT 1", "(select 1)", "WITH a AS (SELECT 1) TABLE a", "DESCRIBE x"]
)
def test_questions_pass(text: str) -> None:
    assert check_query(text).topics == []
