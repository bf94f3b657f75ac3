"""The views that a statement reads are found without Spark."""

from __future__ import annotations

import pytest

from danubius.pipeline.sql_names import names_read


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM a", ["a"]),
        ("select * from a as x, b y join c on x.i = c.i", ["a", "b", "c"]),
        ("SELECT * FROM (SELECT * FROM a) JOIN `b` USING (k)", ["a", "b"]),
        ("WITH c AS (SELECT * FROM a), d AS (SELECT 1) SELECT * FROM c JOIN d", ["a"]),
        ("SELECT extract(hour FROM at), trim(LEADING 'x' FROM t) FROM a", ["a"]),
        ("SELECT a IS NOT DISTINCT FROM b FROM c", ["c"]),
        ("SELECT 'FROM x', \"JOIN y\" FROM a -- FROM z\n/* FROM w */", ["a"]),
        ("SELECT * FROM range(10)", []),
        ("SELECT * FROM delta.`path`", []),
        ("SELECT * FROM a LATERAL VIEW explode(xs) AS x", ["a"]),
        ("SELECT * FROM a LEFT ANTI JOIN b ON true UNION ALL SELECT * FROM c", ["a", "b", "c"]),
    ],
)
def test_names(sql: str, expected: list[str]) -> None:
    assert [found.name for found in names_read(sql)] == expected


def test_lines() -> None:
    assert [found.line for found in names_read("SELECT 1\nFROM a\nJOIN\n b")] == [1, 3]
