# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What is found in SQL without Spark is what Spark's own parser finds."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from danubius.pipeline.sql_names import names_read
from spark.sql_texts import Maker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES = 120
_RELATION = re.compile(r"UnresolvedRelation \[([^\]]*)\]")
CORNERS = (
    "SELECT * FROM stream", "SELECT * FROM stream s", "SELECT * FROM stream, b", "SELECT * FROM values",
    "SELECT * FROM values v", "SELECT * FROM table", "SELECT * FROM lateral", "SELECT * FROM order, b",
    "SELECT * FROM a window, b", "SELECT from FROM a", "SELECT join FROM a", "SELECT * FROM a (c)", "TABLE c",
    "SELECT * FROM a FOR VERSION AS OF 3, b", "SELECT * FROM a WITH ('x' = 'y') z, b",
    "SELECT * FROM a JOIN b ON offset = 1, c", "WITH a AS (SELECT * FROM a) SELECT * FROM a",
    "WITH RECURSIVE a AS (SELECT 1 UNION ALL SELECT * FROM a) SELECT * FROM a, b",
    "SELECT * FROM a UNPIVOT (v FOR n IN (x, y)), b", "VALUES 1, 2 UNION TABLE c",
    "SELECT * FROM f(TABLE(SELECT * FROM c)), b", "SELECT /*+ BROADCAST(q) */ * FROM a, b",
)  # fmt: skip


def test_names_without_spark_are_those_of_sparks_parser(spark: SparkSession) -> None:
    texts = [Maker(random.Random(seed)).query() for seed in range(QUERIES)]
    compared = 0
    for text in (*CORNERS, *texts):
        expected = _names_by_spark(spark, text)
        if expected is not None:
            compared += 1
            assert sorted(found.name for found in names_read(text)) == expected, text
    assert compared > QUERIES * 0.8, "most of what is made is SQL"


def _names_by_spark(spark: SparkSession, text: str) -> list[str] | None:
    """Of relations that the text itself does not define; None if Spark does not take it."""
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    try:
        plan = session.sessionState().sqlParser().parsePlan(text)
        plan = jvm.org.apache.spark.sql.catalyst.analysis.CTESubstitution.apply(plan)
    except PySparkException:
        return None
    return sorted(name for name in _RELATION.findall(plan.treeString()) if ", " not in name)
