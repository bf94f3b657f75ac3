"""Queries made by dice, with every way that Spark's grammar has to name a relation, and many that look like one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

VIEWS: Final = ("a", "b", "c", "orders", "`od d`", "Stream_1")
OTHERS: Final = ("delta.`/x/y`", "cat.db.t", "range(10)", "explode(array(1, 2))", "VALUES (1), (2)")
JOINS: Final = (
    "JOIN", "LEFT JOIN", "INNER JOIN", "FULL OUTER JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN", "CROSS JOIN",
    "NATURAL JOIN",
)  # fmt: skip
EXPRESSIONS: Final = (
    "1", "x", "'FROM q'", '"JOIN q"', "r'\\'", "x.from_q", "extract(hour FROM x)", "trim(BOTH 'q' FROM y)",
    "substring(y FROM 2 FOR 3)", "overlay(y PLACING 'q' FROM 1)", "x IS DISTINCT FROM y", "x IS NOT DISTINCT FROM y",
    "array(1, 2)[0]", "CASE WHEN x THEN y ELSE z END", "count(*)", "transform(x, i -> i + 1)", "x.y.z", "`from`",
    "`q``q`", "-1.5e3", "x BETWEEN 1 AND 2", "offset", "named_struct('join', 1)", "/* FROM q /* JOIN q */ */ x",
    "x -- FROM q\n", "CAST(x AS ARRAY<STRUCT<y: INT>>)", "sum(x) OVER (PARTITION BY y, z ORDER BY w)", "x AS from_q",
)  # fmt: skip


class Maker:
    """Makes queries, one behind the other."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._budget = 0

    def query(self) -> str:
        self._budget = 14
        return self._query(0)

    def _maybe(self, chance: float, text: str) -> str:
        return text if self._dice.random() < chance else ""

    def _query(self, depth: int) -> str:
        body = self._select(depth)
        if self._may_go(depth, 0.2):
            operator = self._dice.choice(("UNION ALL", "UNION", "EXCEPT", "INTERSECT", "MINUS"))
            other = self._dice.choice(
                (f"TABLE {self._view()}", f"({self._query(depth + 1)})", self._select(depth + 1))
            )
            body = f"{body} {operator} {other}"
        if self._may_go(depth, 0.25):
            body = f"WITH {self._common_tables(depth)} {body}"
        return body

    def _may_go(self, depth: int, chance: float) -> bool:
        self._budget -= 1
        return depth < 4 and self._budget > 0 and self._dice.random() < chance

    def _common_tables(self, depth: int) -> str:
        tables: list[str] = []
        for _ in range(self._dice.randint(1, 2)):
            columns = self._dice.choice(("", "", "(p)", " (p, q)"))
            word = " AS " if columns else self._dice.choice((" AS ", " "))
            tables.append(f"{self._view()}{columns}{word}({self._query(depth + 1)})")
        names = {each.split("(")[0].split(" ")[0].lower() for each in tables}
        return ", ".join(tables) if len(names) == len(tables) else tables[0]

    def _select(self, depth: int) -> str:
        columns = ", ".join(self._expression(depth) for _ in range(self._dice.randint(1, 3)))
        start = self._dice.choice(("SELECT", "select", "SELECT DISTINCT"))
        lists = self._relations(depth)
        tail = self._tail(depth)
        if self._may_go(depth, 0.1):
            return f"FROM {lists} {start} {columns}"
        if self._may_go(depth, 0.1):
            join = f"|> JOIN {self._relation(depth)} ON x = y " if self._may_go(depth, 0.5) else ""
            return f"FROM {lists} {join}|> WHERE {self._plain()} |> SELECT x, y"
        return f"{start} {columns} FROM {lists}{tail}"

    def _relations(self, depth: int) -> str:
        found = [self._joined(depth)]
        while self._may_go(depth, 0.4):
            found.append(self._joined(depth))
        return self._dice.choice((", ", ",", " ,\n")).join(found)

    def _joined(self, depth: int) -> str:
        text = self._relation(depth)
        while self._may_go(depth, 0.3):
            join = self._dice.choice(JOINS)
            other = self._relation(depth)
            needs = "" if join in {"CROSS JOIN", "NATURAL JOIN"} else self._condition(depth)
            text = f"{text} {join} {other}{needs}"
        return text

    def _condition(self, depth: int) -> str:
        if self._dice.random() < 0.4:
            return self._dice.choice((" USING (x)", " USING (x, y)"))
        return f" ON {self._plain()} = {self._operand(depth)}"

    def _operand(self, depth: int) -> str:
        if self._may_go(depth, 0.15):
            return f"(SELECT max(x) FROM {self._relations(depth + 1)})"
        return self._plain()

    def _relation(self, depth: int) -> str:
        if self._dice.random() < 0.28 and self._may_go(depth, 1):
            text = self._dice.choice(
                (
                    f"({self._query(depth + 1)})",
                    f"({self._joined(depth + 1)})",
                    f"LATERAL (SELECT 1 FROM {self._relations(depth + 1)})",
                )
            )
            return text + self._alias()
        if self._dice.random() < 0.3:
            text = self._dice.choice(
                (
                    f"STREAM {self._view()}",
                    f"STREAM({self._view()})",
                    f"f(TABLE({self._view()}), 1)",
                    f"IDENTIFIER('{self._dice.choice('abc')}')",
                    "LATERAL explode(x)",
                    *OTHERS,
                )
            )
            return text + self._maybe(0.3, " AS t")
        sample = self._dice.choice((" TABLESAMPLE (10 PERCENT)", " TABLESAMPLE (5 ROWS)"))
        return self._view() + self._maybe(0.15, sample) + self._alias()

    def _alias(self) -> str:
        return self._dice.choice(("", "", " t", " AS t", " t (p)", " AS t (p, q)", " `t t`"))

    def _tail(self, depth: int) -> str:
        text = self._maybe(0.15, " LATERAL VIEW explode(x) v AS p, q")
        text += self._maybe(0.1, " PIVOT (sum(x) FOR y IN (1, 2))")
        if self._may_go(depth, 0.25):
            test = self._dice.choice(("x IN", "EXISTS", "y ="))
            text += f" WHERE {test} ({self._query(depth + 1)})"
        text += self._maybe(0.15, f" GROUP BY {self._plain()}, y")
        text += self._maybe(0.1, " HAVING count(*) > 1")
        text += self._maybe(0.1, " WINDOW w AS (PARTITION BY x), v AS (ORDER BY y)")
        text += self._maybe(0.15, f" ORDER BY {self._plain()}, y DESC")
        return text + self._maybe(0.1, " LIMIT 3 OFFSET 2")

    def _expression(self, depth: int) -> str:
        return self._operand(depth) if self._may_go(depth, 0.2) else self._dice.choice(EXPRESSIONS)

    def _plain(self) -> str:
        return self._dice.choice(EXPRESSIONS[:22])

    def _view(self) -> str:
        return self._dice.choice(VIEWS)
