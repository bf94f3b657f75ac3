"""Names of the views that a step's SQL reads, found without Spark.

A name with a dot belongs to a catalog and is Spark's to find; a name in `WITH … AS` is the statement's own. A table
that is named by an expression cannot be seen here: Spark reports it when the view is made.
"""

from __future__ import annotations

from typing import NamedTuple

from danubius.spark.sql.relations import relations


class Name(NamedTuple):
    """A view that is read, and how many lines into the statement."""

    name: str
    line: int


def names_read(sql: str) -> list[Name]:
    return [
        Name(found.parts[0], sql.count("\n", 0, found.start))
        for found in relations(sql)
        if len(found.parts) == 1
    ]
