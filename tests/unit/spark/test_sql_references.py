"""Topics in SQL, and the bounds that its conditions give."""

from __future__ import annotations

import pytest

from danubius.errors import InvalidArgument
from danubius.spark.sql.references import Bound, as_typed, find_bounds, parse_query

ORDERS = "danube.`/default/orders`"


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        (f"SELECT * FROM {ORDERS}", ["/default/orders"]),
        ("select * from DANUBE . `/default/orders`", ["/default/orders"]),
        ("select * from `danube`.`/default/orders`", ["/default/orders"]),
        (
            f"SELECT * FROM {ORDERS} JOIN danube.`/eu/users` USING (id)",
            ["/default/orders", "/eu/users"],
        ),
        (f"SELECT {ORDERS}.offset FROM {ORDERS}", ["/default/orders"]),
        (f"SELECT '{ORDERS}'", []),
        (f"SELECT 'it''s {ORDERS}'", []),
        (rf"SELECT 'a\'{ORDERS}'", []),
        (rf"SELECT r'\' FROM {ORDERS}", ["/default/orders"]),
        (f'SELECT "{ORDERS}"', []),
        (f"SELECT 1 -- {ORDERS}", []),
        (f"SELECT 1 /* a /* b */ {ORDERS} */", []),
        (f"SELECT 1 -- it's\nFROM {ORDERS}", ["/default/orders"]),
        ("SELECT `danube./default/orders`", []),
        ("SELECT x.danube.`/default/orders`", []),
        ("SELECT * FROM parquet.`/data/x`", []),
        ("SELECT /* unfinished", []),
        ("SELECT 'unfinished danube.`/a/b", []),
    ],
)
def test_topics_are_found_where_spark_would_see_them(text: str, topics: list[str]) -> None:
    assert parse_query(text).topics == topics


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("SELECT *\nFROM danube.orders", "line 2, position 12: a topic is written in backquotes"),
        ("SELECT * FROM danube.`orders`", "line 1, position 21"),
    ],
)
def test_names_that_are_no_topics_are_refused_with_their_place(text: str, sentence: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_query(text)
    assert sentence in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT a,\n b FROM {ORDERS} o, danube.`/a/b` WHERE x",
        f"SELECT 1 FROM danube .\n `/a/b` x, {ORDERS} y",
    ],
)
def test_views_stand_where_their_topics_stood(text: str) -> None:
    rewritten = parse_query(text).rewritten()
    assert len(rewritten) == len(text)
    assert "`danube./a/b`" in rewritten
    assert rewritten.count("\n") == text.count("\n")
    assert ORDERS not in rewritten
    assert ORDERS in as_typed(rewritten)


def test_tables_are_found_behind_from_and_join() -> None:
    text = f"SELECT delta.`x` FROM delta.`t/a b` delta JOIN\niceberg . `/t/``c` c, {ORDERS} WHERE 'FROM delta.`no`'"
    query = parse_query(text)
    assert [(table.format, table.folder) for table in query.tables] == [
        ("delta", "t/a b"),
        ("iceberg", "/t/`c"),
    ]
    assert query.topics == ["/default/orders"]
    rewritten = query.rewritten()
    assert len(rewritten) == len(text)
    assert "FROM `delta.t/a b` delta" in rewritten
    assert "`iceberg./t/``c`" in rewritten
    assert "SELECT delta.`x`" in rewritten
    assert "delta.`t/a b`" in as_typed("the table `delta.t/a b` cannot be read")


def bounds(where: str, alias: str = "") -> list[Bound]:
    return find_bounds(parse_query(f"SELECT a FROM {ORDERS} {alias} WHERE {where}"))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("offset >= 5", [Bound("offset", ">=", "5")]),
        ("OFFSET > 5 and `offset` < 10", [Bound("offset", ">", "5"), Bound("offset", "<", "10")]),
        ("offset == 5 GROUP BY a HAVING a > 1", [Bound("offset", "=", "5")]),
        ("a = 1 AND offset <= 5 ORDER BY offset LIMIT 3 OFFSET 2", [Bound("offset", "<=", "5")]),
        (
            "publish_time > now() - INTERVAL 1 HOUR",
            [Bound("publish_time", ">", "now() - INTERVAL 1 HOUR")],
        ),
        (
            "publish_time >= TIMESTAMP '2026-01-01'",
            [Bound("publish_time", ">=", "TIMESTAMP '2026-01-01'")],
        ),
        (
            "publish_time = '2026-01-01 10:00:00'",
            [Bound("publish_time", "=", "'2026-01-01 10:00:00'")],
        ),
        ("a BETWEEN 1 AND 2 AND offset > 5", [Bound("offset", ">", "5")]),
        ("(a = 1 AND b = 2) AND offset > 5", [Bound("offset", ">", "5")]),
        ("NOT a = 1 AND offset > 5", [Bound("offset", ">", "5")]),
    ],
)
def test_bounds_that_hold_for_every_row(where: str, expected: list[Bound]) -> None:
    assert bounds(where) == expected


def test_bounds_may_name_the_alias() -> None:
    assert bounds("o.offset > 5", "o") == [Bound("offset", ">", "5")]
    assert bounds("o.offset > 5", "AS o") == [Bound("offset", ">", "5")]
    assert bounds("p.offset > 5", "o") == []


@pytest.mark.parametrize(
    "where",
    [
        "offset > 5 OR a = 1",
        "a = 1 OR b = 2 AND offset > 5",
        "NOT offset > 5",
        "NOT (offset > 5)",
        "(offset > 5 AND a = 1) IS NULL",
        "offset > 5 = false",
        "offset > 5 IS NULL",
        "offset > a",
        "offset > 5 + a",
        "offset > -5",
        "offset > 1.5",
        "offset > 9999999999999999999",
        "offset <> 5",
        "payload.offset > 5",
        "offset BETWEEN 5 AND 10",
        "true BETWEEN false AND offset > 5",
        "CASE WHEN a AND offset > 5 AND b THEN true ELSE true END",
        "a IN (SELECT b FROM x) AND offset > 5",
        "a IS DISTINCT FROM b AND offset > 5",
        "publish_time < now()",
        "publish_time <= TIMESTAMP '2026-01-01'",
        "publish_time > a",
        "publish_time > now() - a",
        "publish_time > now() * 2",
        "publish_time > rand()",
        "offset > 5 UNION ALL TABLE x",
        "offset > 5 |> AGGREGATE count(*)",
    ],
)
def test_conditions_that_are_not_sure_give_no_bound(where: str) -> None:
    assert bounds(where) == []


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT * FROM {ORDERS} o JOIN {ORDERS} p ON o.a = p.a WHERE offset > 5",
        f"SELECT * FROM {ORDERS}, x WHERE offset > 5",
        f"SELECT * FROM {ORDERS} o TABLESAMPLE (5 ROWS) WHERE offset > 5",
        f"WITH t AS (SELECT * FROM {ORDERS} WHERE offset > 5) SELECT * FROM t",
        f"SELECT * FROM (SELECT * FROM {ORDERS}) WHERE offset > 5",
        f"FROM {ORDERS} |> WHERE offset > 5",
        f"SELECT (SELECT max(a) FROM {ORDERS}) FROM x WHERE offset > 5",
    ],
)
def test_queries_of_other_shapes_give_no_bound(text: str) -> None:
    assert find_bounds(parse_query(text)) == []


def test_tables_are_found_wherever_a_query_names_relations() -> None:
    text = "SELECT * FROM (delta.`a` x JOIN b), iceberg.`c` y, delta.d WHERE delta.`no` = 1"
    found = [(table.format, table.folder) for table in parse_query(text).tables]
    assert found == [("delta", "a"), ("iceberg", "c")]
