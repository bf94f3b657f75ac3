# pyright: reportUnknownVariableType=false
# (pyarrow comes without types)
"""Schemas of tables, and whether rows fit: the same columns, by their names and types, nested ones included.

Files are bound to a table by the names of their columns, so the order of columns is free. Everything else that differs
is refused: a value of another type makes the table unreadable, a column that the table does not know is read by nobody,
and one that is missing would be null without anybody having said so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from danubius.errors import InvalidArgument
from danubius.pipeline.problems import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DIFFERENCES_MAX: Final = 8
"""How many are told; the sentence has to stay one."""


class UnfitRows(InvalidArgument):
    """A sink's rows and its table have different columns. Trying again does not help."""


def check_columns(names: list[str], **chosen: Iterable[str]) -> None:
    """Every column has a name of its own, and those that the sink names are there."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.lower(), name)) is not name:
            raise UnfitRows(
                f"columns {other} and {name} have the same name for a table, in which upper and lower case are"
                " the same: give one of them another with AS"
            )
    for setting, wanted in chosen.items():
        for name in wanted:
            if name not in names:
                raise UnfitRows(
                    f"{setting} has the column {name}, which the rows do not have{nearest(name, names)}"
                )


def as_held(rows: Any, hold: Callable[[Any], Any], title: str) -> StructType:
    """An Arrow schema as a table gives it back, `hold` saying so of one column: some types are kept as wider ones."""
    fields: list[StructField] = []
    for field in rows:
        try:
            fields += from_arrow_schema(hold(field)).fields
        except Exception as error:
            raise UnfitRows(
                f"{title} cannot hold the column {field.name}, which is {field.type}: cast it to another type"
            ) from error
    return StructType(fields)


def as_arrow(rows: StructType) -> Any:
    """What Spark's rows are in Arrow; UnfitRows names the column that cannot be there."""
    for field in rows.fields:
        try:
            to_arrow_schema(StructType([field]), timezone="UTC")
        except PySparkException as error:
            kind = field.dataType.simpleString()
            raise UnfitRows(
                f"the column {field.name} is {kind}, which tables do not hold: cast it to another type"
            ) from error
    return to_arrow_schema(rows, timezone="UTC")


def check_fit(title: str, table: StructType, rows: StructType, *, nulls: bool = True) -> None:
    """Refuse rows that have other columns than the table. `nulls`: also those that may be null where it may not."""
    found = [*_of_structures("column", "", table, rows, nulls=nulls)]
    if not found:
        return
    told = "; ".join(found[:DIFFERENCES_MAX])
    more = f"; and {len(found) - DIFFERENCES_MAX} more" if len(found) > DIFFERENCES_MAX else ""
    raise UnfitRows(
        f"the rows do not fit {title}: {told}{more}. Nothing was written: select the table's columns with their"
        " types (CAST, AS), or write to another table"
    )


def check_partitions(title: str, table: tuple[str, ...], given: tuple[str, ...]) -> None:
    if table != given:
        is_said = f"by {', '.join(given)}" if given else "not at all"
        there = f"partition_by = [{', '.join(map(repr, table))}]" if table else "no partition_by"
        raise UnfitRows(
            f"{title} is partitioned by {', '.join(table) or 'nothing'}, and the sink would partition it {is_said}."
            f" Nothing was written: use {there}, or write to another table"
        )


def _of_structures(
    noun: str, path: str, table: StructType, rows: StructType, *, nulls: bool
) -> list[str]:
    found: list[str] = []
    theirs = {field.name: field for field in table.fields}
    folded = {name.lower(): name for name in theirs}
    matched: set[str] = set()
    for field in rows.fields:
        known = theirs.get(field.name)
        if known is not None:
            matched.add(known.name)
            found += _of_fields(path + field.name, known, field, nulls=nulls)
        elif (written := folded.get(field.name.lower())) is not None:
            matched.add(written)
            found.append(f"{noun} {path}{field.name} is written {written} in the table")
        else:
            kind = field.dataType.simpleString()
            found.append(f"{noun} {path}{field.name} ({kind}) is not in the table")
    for name, field in theirs.items():
        if name not in matched:
            kind = field.dataType.simpleString()
            found.append(f"{noun} {path}{name} ({kind}) of the table is missing")
    if not found and path and table.names != rows.names:
        found.append(f"the fields of {path[:-1]} are in another order than in the table")
    return found


def _of_fields(path: str, table: StructField, rows: StructField, *, nulls: bool) -> list[str]:
    if nulls and rows.nullable and not table.nullable:
        return [f"column {path} may be null, and must not be in the table"]
    return _of_types(path, table.dataType, rows.dataType, nulls=nulls)


def _of_types(path: str, table: DataType, rows: DataType, *, nulls: bool) -> list[str]:
    match table, rows:
        case StructType(), StructType():
            return _of_structures("field", path + ".", table, rows, nulls=nulls)
        case ArrayType(), ArrayType():
            one = StructField("", table.elementType, table.containsNull)
            other = StructField("", rows.elementType, rows.containsNull)
            return _of_fields(path + "[]", one, other, nulls=nulls)
        case MapType(), MapType():
            one = StructField("", table.valueType, table.valueContainsNull)
            other = StructField("", rows.valueType, rows.valueContainsNull)
            keys = _of_types(path + "[key]", table.keyType, rows.keyType, nulls=nulls)
            return keys + _of_fields(path + "[value]", one, other, nulls=nulls)
        case _ if table == rows:
            return []
        case _:
            kinds = f"{table.simpleString()} in the table and {rows.simpleString()} in the rows"
            return [f"column {path} is {kinds}"]
