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
        ("SELECT * FROM (a JOIN b)", ["a", "b"]),
        ("SELECT * FROM ((a JOIN b ON true) x JOIN c), d", ["a", "b", "c", "d"]),
        ("SELECT * FROM a x (c), b", ["a", "b"]),
        ("SELECT * FROM a AS x (c, d), b", ["a", "b"]),
        ("SELECT * FROM a TABLESAMPLE (10 PERCENT) x, b", ["a", "b"]),
        ("SELECT * FROM a JOIN b ON a.i = b.i, d", ["a", "b", "d"]),
        ("SELECT * FROM a JOIN b USING (i, j), d", ["a", "b", "d"]),
        ("SELECT * FROM LATERAL explode(array(1)) x, b", ["b"]),
        ("SELECT * FROM a, LATERAL (SELECT * FROM b) x, c", ["a", "b", "c"]),
        ("SELECT * FROM STREAM a, STREAM(b) JOIN c", ["a", "b", "c"]),
        ("SELECT * FROM stream JOIN b", ["stream", "b"]),
        ("SELECT * FROM stream, values v", ["stream", "values"]),
        ("SELECT * FROM VALUES (1, 2), (3, 4) AS v, b", ["b"]),
        ("SELECT * FROM VALUES 1, cast(2 AS INT) AS v, b", ["b"]),
        ("SELECT * FROM a LATERAL VIEW explode(x) v AS p, q", ["a"]),
        ("SELECT * FROM a GROUP BY x, y ORDER BY z, w", ["a"]),
        ("SELECT x, 1 IN (SELECT i FROM b) FROM a WINDOW w AS (ORDER BY y), v AS (w)", ["b", "a"]),
        ("WITH a AS (SELECT * FROM a) SELECT * FROM a", ["a"]),
        ("WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n FROM r) SELECT * FROM r", []),
        ("SELECT * FROM (WITH b AS (SELECT 1) SELECT * FROM b), b", ["b"]),
        ("WITH b (SELECT * FROM a) SELECT * FROM B", ["a"]),
        ("FROM a |> JOIN b USING (i) |> SELECT x, y |> UNION ALL TABLE c", ["a", "b", "c"]),
        ("FROM a SELECT x, y", ["a"]),
        ("SELECT * FROM f(TABLE(a), 1) x, g(TABLE b), h(TABLE(SELECT * FROM c))", ["a", "b", "c"]),
        (
            "SELECT * FROM IDENTIFIER('a') x, IDENTIFIER('db.t'), IDENTIFIER(concat('a', 'b'))",
            ["a"],
        ),
        ("SELECT from, join, x.from FROM a", ["a"]),
        ("SELECT * FROM " + "(" * 300 + "a" + ")" * 300 + ", b", ["b"]),
        ("SELECT * FROM a) , b FROM c (", ["a"]),
    ],
)
def test_names(sql: str, expected: list[str]) -> None:
    assert [found.name for found in names_read(sql)] == expected


def test_lines() -> None:
    assert [found.line for found in names_read("SELECT 1\nFROM a\nJOIN\n b")] == [1, 3]
