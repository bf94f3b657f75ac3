# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow comes without types)
"""The bridge to Arrow: a body's columns as Arrow arrays over the same memory, and back.

Imported only by those who call it: neither the broker nor the client needs pyarrow. Arrow trusts
the offsets it is given, so every array over foreign bytes is fully validated before anyone sees it.
"""

from __future__ import annotations

import functools
from array import array
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from danubius.errors import InvalidArgument, InvalidBatch
from danubius.record.columns import shift_down

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise InvalidArgument(
        "Arrow columns need the Python package pyarrow: pip install 'danubius[arrow]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.record.columns import Columns, Values
    from danubius.record.header import Header

TIME: Final = pa.timestamp("us", tz="UTC")
_MAP: Final = pa.map_(pa.string(), pa.string())
SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("publish_time", TIME),
        ("key", pa.binary()),
        ("payload", pa.binary()),
        ("attributes", _MAP),
        ("producer", pa.string()),
        ("schema_id", pa.int64()),
        ("schema_version", pa.int32()),
    ]
)
"""The columns of a topic as a DataFrame."""
NAMES: Final[tuple[str, ...]] = tuple(SCHEMA.names)


class ValuesColumn(NamedTuple):
    """An Arrow binary column in this format's terms: offsets from 0, their data, a bit for each value."""

    offsets: bytes
    data: bytes
    validity: int | None


class MapColumn(NamedTuple):
    """An Arrow map column in this format's terms."""

    offsets: bytes
    names: ValuesColumn
    values: ValuesColumn


class Place(NamedTuple):
    """Where the records of a batch are from, which the batch itself does not say."""

    topic: str
    partition: int
    offsets: Sequence[int]


def to_arrow(
    header: Header,
    body: memoryview,
    columns: Columns,
    place: Place,
    names: Sequence[str] = NAMES,
) -> Any:
    """One Arrow record batch with the columns of `SCHEMA`, or only those of these names, in their order."""
    buffer = buffer_of(body)
    arrays = [_column(name, header, buffer, columns, place) for name in names]
    schema = SCHEMA if names is NAMES else pa.schema([SCHEMA.field(name) for name in names])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def buffer_of(body: memoryview) -> Any:
    """The same memory, or a copy where Arrow could not use it."""
    buffer = pa.py_buffer(body)
    return buffer if buffer.address % 8 == 0 else pa.py_buffer(bytes(body))


def _column(name: str, header: Header, buffer: Any, columns: Columns, place: Place) -> Any:
    count = header.count
    match name:
        case "payload":
            return values_of(buffer, columns.payload, pa.binary())
        case "offset":
            return _offsets(place.offsets)
        case "publish_time":
            return _times(buffer, header, columns.times_at)
        case "key":
            return keys_of(buffer, count, columns)
        case "attributes":
            return attributes_of(buffer, count, columns)
        case _:
            value = constant_of(name, header, place.topic, place.partition)
            return pa.repeat(pa.scalar(value, SCHEMA.field(name).type), count)


def constant_of(name: str, header: Header, topic: str, partition: int) -> str | int:
    """What all records of a batch have in common."""
    match name:
        case "topic":
            return topic
        case "partition":
            return partition
        case "producer":
            return f"{header.producer_id:016x}"
        case "schema_id":
            return header.schema_id
        case "schema_version":
            return header.schema_version
        case _:
            raise InvalidArgument(f"a topic has no column {name!r}; it has {', '.join(NAMES)}")


def values_column(name: str, column: Any) -> ValuesColumn:
    """Take a binary or text column, or a part of one, as it lies in memory."""
    values = _flat(name, column, pa.binary())
    validity_buffer, offsets_buffer, data_buffer = values.buffers()
    start, count = values.offset, len(values)
    offsets, first, end = _offsets_from(offsets_buffer, start, count)
    validity = None
    if values.null_count:
        packed = memoryview(validity_buffer)[start // 8 : (start + count + 7) // 8]
        validity = int.from_bytes(packed, "little") >> start % 8 & ((1 << count) - 1)
    data = bytes(memoryview(data_buffer)[first:end]) if first < end else b""
    return ValuesColumn(offsets, data, validity)


def map_column(name: str, column: Any) -> MapColumn | list[dict[str, str]]:
    """Take a map column as it lies in memory; one with nulls comes back as decoded maps."""
    maps = _flat(name, column, _MAP)
    if maps.null_count:
        return [dict(each) if each else {} for each in maps.to_pylist()]
    offsets, first, end = _offsets_from(maps.buffers()[1], maps.offset, len(maps))
    names = values_column(f"{name} (names)", maps.keys.slice(first, end - first))
    values = values_column(f"{name} (values)", maps.items.slice(first, end - first))
    if values.validity is not None:
        raise InvalidArgument(f"the column {name} has values that are null: attributes are text")
    return MapColumn(offsets, names, values)


def _offsets_from(buffer: Any, start: int, count: int) -> tuple[bytes, int, int]:
    """The offsets of a part of a column, counted from 0; and the first and last one as they were."""
    view = memoryview(buffer).cast("B")[4 * start : 4 * (start + count + 1)]
    numbers = view.cast("i")
    first, end = numbers[0], numbers[count]
    return (shift_down(view, first, end) if first else bytes(view)), first, end


def _flat(name: str, column: Any, target: Any) -> Any:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.type == target:
        return column
    try:
        return column.cast(target)
    except pa.ArrowException as error:
        raise InvalidArgument(
            f"the column {name} is {column.type} and cannot become {target}: {error}"
        ) from error


def _offsets(offsets: Sequence[int]) -> Any:
    if not isinstance(offsets, range):
        return pa.array(offsets, pa.int64())
    return ramp_from(offsets.start, len(offsets))


def ramp_from(first: int, count: int) -> Any:
    """The numbers from `first` on."""
    # Rounded up, so that few ramps serve every size.
    ramp = _ramp(1 << (count - 1).bit_length())
    base = pa.scalar(first, pa.int64())
    return pc.add(ramp.slice(0, count), base)  # pyright: ignore[reportAttributeAccessIssue] - made at import


@functools.lru_cache(maxsize=4)
def _ramp(count: int) -> Any:
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(array("q", range(count)))])


def _times(buffer: Any, header: Header, at: int | None) -> Any:
    if at is None:
        return pa.repeat(pa.scalar(header.first_time_us, pa.int64()), header.count).view(TIME)
    times = buffer.slice(at, 8 * header.count)
    return pa.Array.from_buffers(TIME, header.count, [None, times], null_count=0)


def keys_of(buffer: Any, count: int, columns: Columns) -> Any:
    """The key of every record, null where there is none."""
    if columns.key is None:
        return pa.nulls(count, pa.binary())
    validity = None
    if columns.key_validity_at is not None:
        validity = buffer.slice(columns.key_validity_at, (count + 7) // 8)
    return values_of(buffer, columns.key, pa.binary(), validity)


def attributes_of(buffer: Any, count: int, columns: Columns) -> Any:
    """The attributes of every record."""
    if columns.map_offsets_at is None or columns.names is None or columns.values is None:
        return no_attributes(count)
    pairs = (
        values_of(buffer, columns.names, pa.string()),
        values_of(buffer, columns.values, pa.string()),
    )
    return _maps(pairs, buffer.slice(columns.map_offsets_at, 4 * (count + 1)), count)


def no_attributes(count: int) -> Any:
    """So many empty maps."""
    pairs = pa.array([], _MAP.key_type), pa.array([], _MAP.item_type)
    return _maps(pairs, pa.py_buffer(bytes(4 * (count + 1))), count)


def _maps(pairs: tuple[Any, Any], offsets: Any, count: int) -> Any:
    entries = pa.StructArray.from_arrays(pairs, fields=[_MAP.key_field, _MAP.item_field])
    maps = pa.Array.from_buffers(_MAP, count, [None, offsets], null_count=0, children=[entries])
    return _validated(maps)


def values_of(buffer: Any, column: Values, kind: Any, validity: Any = None) -> Any:
    """A column of binary values or text, validated."""
    offsets = buffer.slice(column.offsets_at, 4 * (column.count + 1))
    data = buffer.slice(column.data_at, column.data_bytes)
    return _validated(pa.Array.from_buffers(kind, column.count, [validity, offsets, data]))


def _validated(column: Any) -> Any:
    try:
        column.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidBatch(f"a column of the record batch is malformed: {error}") from error
    return column
