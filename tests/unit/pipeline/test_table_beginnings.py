# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Tables whose maker died before they were complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from danubius.pipeline.iceberg import Place

if TYPE_CHECKING:
    from pathlib import Path


def test_an_iceberg_table_that_was_not_partitioned_yet(tmp_path: Path) -> None:
    place = Place(tmp_path / "table", None)
    schema = pa.schema([("day", pa.string()), ("n", pa.int64())])
    assert not place.open(schema, ()).spec().fields
    assert [field.name for field in place.open(schema, ("day",)).spec().fields] == ["day"]
