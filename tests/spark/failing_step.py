"""A step that fails once: when its query is started while a marker is there, which it takes away."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame


def unless(frame: DataFrame, marker: str) -> DataFrame:
    def check(batches: Iterator[Any]) -> Iterator[Any]:
        path = Path(marker)
        if path.exists():
            path.unlink()
            raise ValueError("the marker is there")
        yield from batches

    return frame.select("offset", "payload").mapInArrow(check, "offset LONG, payload BINARY")
