"""Topics as Spark DataFrames, in both directions, Arrow all the way.

    from danubius.spark import session
    spark = session()
    spark.read.format("danube").option("topic", "/default/orders").load().show()

PySpark is imported when something of here is used, so that `import danubius` needs none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from danubius.spark.explaining import explain
    from danubius.spark.sessions import session
    from danubius.spark.source import DanubeDataSource

__all__ = ["DanubeDataSource", "explain", "session"]


def __getattr__(name: str) -> Any:
    if name == "DanubeDataSource":
        from danubius.spark.source import DanubeDataSource

        return DanubeDataSource
    if name == "explain":
        from danubius.spark.explaining import explain

        return explain
    if name == "session":
        from danubius.spark.sessions import session

        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
