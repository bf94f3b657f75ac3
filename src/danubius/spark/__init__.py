"""Topics as Spark DataFrames, in both directions, Arrow all the way.

    from danubius.spark import session
    spark = session()
    spark.read.format("danube").option("topic", "/default/orders").load().show()

PySpark is imported when something of here is used, so that `import danubius` needs none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from danubius.spark.cluster.sessions import session
    from danubius.spark.data_source import DanubeDataSource
    from danubius.spark.source.explaining import explain

__all__ = ["DanubeDataSource", "explain", "session"]


def __getattr__(name: str) -> Any:
    if name == "DanubeDataSource":
        from danubius.spark.data_source import DanubeDataSource

        return DanubeDataSource
    if name == "explain":
        from danubius.spark.source.explaining import explain

        return explain
    if name == "session":
        from danubius.spark.cluster.sessions import session

        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
