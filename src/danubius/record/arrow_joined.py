# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow comes without types)
"""Many record batches as one of Arrow: what `to_arrow` makes of each, joined, at a fraction of the cost.

Only payloads, keys and attributes are taken batch by batch. What all records of a batch have in common is mostly the
same for the next one too, so those columns are made once for all of them, as are offsets that go on.
"""

from __future__ import annotations

import functools
from array import array
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from danubius.record.arrow import (
    SCHEMA,
    TIME,
    attributes_of,
    buffer_of,
    constant_of,
    keys_of,
    no_attributes,
    ramp_from,
    values_of,
)

import pyarrow as pa  # isort: skip  # behind ours, which says how to install it

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.record.batch import RecordBatch


class Part(NamedTuple):
    """Records [first, stop) of a batch."""

    batch: RecordBatch
    first: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.first

    @property
    def is_whole(self) -> bool:
        return self.rows == self.batch.header.count


def to_arrow_joined(
    parts: Sequence[Part], topic: str, partition: int, names: Sequence[str]
) -> Any:  # pyarrow comes without types
    """One `pyarrow.RecordBatch` with the columns of these names, in their order."""
    columns = [_column(name, parts, topic, partition) for name in names]
    return pa.RecordBatch.from_arrays(columns, schema=_schema(tuple(names)))


@functools.lru_cache(maxsize=16)
def _schema(names: tuple[str, ...]) -> Any:
    return pa.schema([SCHEMA.field(name) for name in names])


def _column(name: str, parts: Sequence[Part], topic: str, partition: int) -> Any:
    match name:
        case "payload":
            return _joined([_payloads(part) for part in parts])
        case "offset":
            return _offsets(parts)
        case "publish_time":
            return _times(parts)
        case "key":
            return _keys(parts)
        case "attributes":
            return _attributes(parts)
        case _:
            return _constants(name, parts, topic, partition)


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _cut(column: Any, part: Part) -> Any:
    return column if part.is_whole else column.slice(part.first, part.rows)


def _payloads(part: Part) -> Any:
    batch = part.batch
    return _cut(values_of(buffer_of(batch.body), batch.columns.payload, pa.binary()), part)


def _keys(parts: Sequence[Part]) -> Any:
    if not any(part.batch.has_keys for part in parts):
        return pa.nulls(sum(part.rows for part in parts), pa.binary())
    return _joined([_cut(_keys_of(part.batch), part) for part in parts])


def _keys_of(batch: RecordBatch) -> Any:
    return keys_of(buffer_of(batch.body), batch.header.count, batch.columns)


def _attributes(parts: Sequence[Part]) -> Any:
    if not any(part.batch.has_attributes for part in parts):
        return no_attributes(sum(part.rows for part in parts))
    return _joined([_cut(_attributes_of(part.batch), part) for part in parts])


def _attributes_of(batch: RecordBatch) -> Any:
    return attributes_of(buffer_of(batch.body), batch.header.count, batch.columns)


def _offsets(parts: Sequence[Part]) -> Any:
    runs: list[list[int]] = []
    for part in parts:
        batch = part.batch
        if batch.is_sparse:
            return _joined([_own_offsets(part) for part in parts])
        first = batch.base_offset + part.first
        if runs and runs[-1][1] == first:
            runs[-1][1] += part.rows
        else:
            runs.append([first, first + part.rows])
    return _joined([ramp_from(first, end - first) for first, end in runs])


def _own_offsets(part: Part) -> Any:
    offsets = part.batch.offsets()[part.first : part.stop]
    return pa.array(offsets, pa.int64())


def _times(parts: Sequence[Part]) -> Any:
    times = array("q")
    for batch, first, stop in parts:
        at = batch.columns.times_at
        if at is None:
            times += array("q", [batch.header.first_time_us]) * (stop - first)
        else:
            times.frombytes(batch.body[at + 8 * first : at + 8 * stop])
    return pa.Array.from_buffers(TIME, len(times), [None, pa.py_buffer(times)], null_count=0)


def _constants(name: str, parts: Sequence[Part], topic: str, partition: int) -> Any:
    """What all records of a batch have in common, and mostly those of its neighbours too."""
    values = ((constant_of(name, part.batch.header, topic, partition), part.rows) for part in parts)
    return _joined(
        [
            _repeated(name, value, sum(count for _, count in same))
            for value, same in groupby(values, key=lambda one: one[0])
        ]
    )


def _repeated(name: str, value: str | int, count: int) -> Any:
    # Rounded up, so that few columns serve every size.
    return _long(name, value, 1 << (count - 1).bit_length()).slice(0, count)


@functools.lru_cache(maxsize=8)
def _long(name: str, value: str | int, count: int) -> Any:
    return pa.repeat(pa.scalar(value, SCHEMA.field(name).type), count)
