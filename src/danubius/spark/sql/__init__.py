"""SQL over topics: `Topics`, and what is found in a text without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from danubius.spark.sql.topics import Topics

__all__ = ["Topics"]


def __getattr__(name: str) -> Any:
    if name == "Topics":
        from danubius.spark.sql.topics import Topics

        return Topics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
