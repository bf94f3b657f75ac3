"""Cutting a part out of a batch: a run of records without decoding them, or single records.

The result is a batch of its own: uncompressed, with its own checksum, the same producer and schema,
and every record keeps its offset and its sequence. Both are `base + delta`, where the delta of a
dense batch is the record's index.
"""

from __future__ import annotations

import itertools
import operator
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import InvalidBatch
from danubius.record.columns import Columns, Values, pack_offsets, padded, padding, shift_down
from danubius.record.header import SPARSE, Codec, Header, stamp
from danubius.record.seal import seal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from danubius.model.buffers import Buffer

_INT32: Final = struct.Struct("<i")


class Rows(NamedTuple):
    """Which records to pick (rising indexes, at least two), and the values that were decoded already."""

    indexes: Sequence[int]
    payloads: list[bytes] | None
    key_values: list[bytes] | None


class _Part:
    """The cut body as it grows, and what its header will say."""

    __slots__ = ("buffers", "bytes", "delta", "first_time_us", "flags", "last_time_us")

    def __init__(self, header: Header, delta: int) -> None:
        self.buffers: list[Buffer] = []
        self.bytes = 0
        self.delta = delta
        self.flags = header.flags
        self.first_time_us = header.first_time_us
        self.last_time_us = header.last_time_us

    def add(self, buffer: Buffer) -> None:
        """Add one buffer of the format, padded."""
        self.buffers += (buffer, padding(len(buffer)))
        self.bytes += padded(len(buffer))

    def add_times(self, times: memoryview) -> None:
        view = times.cast("q")
        self.first_time_us, self.last_time_us = view[0], max(view)
        self.add(times)

    def seal(self, header: Header, count: int) -> bytearray:
        batch = seal(
            self.buffers,
            self.bytes,
            Codec.NONE,
            (
                self.flags,
                count,
                header.producer_id,
                header.producer_epoch,
                header.schema_version,
                header.base_sequence + self.delta,
                self.first_time_us,
                self.last_time_us,
                header.schema_id,
            ),
        )
        stamp(batch, header.base_offset + self.delta, header.epoch)
        return batch


def cut_run(header: Header, body: memoryview, columns: Columns, start: int, stop: int) -> bytearray:
    """The records from `start` to before `stop`."""
    part = _Part(header, start)
    _cut_values(part, body, columns.payload, start, stop)
    if columns.key is not None and columns.key_hash_at is not None:
        if columns.key_validity_at is not None:
            bits = _validity(body, columns.key_validity_at, header.count) >> start
            _add_validity(part, bits, stop - start)
        _cut_values(part, body, columns.key, start, stop)
        part.add(body[columns.key_hash_at + 4 * start : columns.key_hash_at + 4 * stop])
    if columns.times_at is not None:
        part.add_times(body[columns.times_at + 8 * start : columns.times_at + 8 * stop])
    if columns.map_offsets_at is not None and columns.names and columns.values:
        pairs = columns.names.count
        at = columns.map_offsets_at
        first, end = _cut_offsets(part, body, at, start, stop, pairs)
        _cut_values(part, body, columns.names, first, end)
        _cut_values(part, body, columns.values, first, end)
    if columns.deltas_at is not None:
        deltas = body[columns.deltas_at : columns.deltas_at + 4 * header.count].cast("i")
        _add_deltas(part, deltas[start:stop].tolist())
    _copy_expiry(part, body, columns)
    return part.seal(header, stop - start)


def cut_rows(header: Header, body: memoryview, columns: Columns, rows: Rows) -> bytearray:
    """The records at single indexes."""
    indexes = rows.indexes
    count = header.count
    pick = operator.itemgetter(*indexes)
    part = _Part(header, indexes[0])
    _add_values(part, _pick_values(body, columns.payload, indexes, rows.payloads))
    if columns.key is not None and columns.key_hash_at is not None:
        if columns.key_validity_at is not None:
            at = columns.key_validity_at
            text = "".join(
                ["1" if body[at + (i >> 3)] >> (i & 7) & 1 else "0" for i in reversed(indexes)]
            )
            _add_validity(part, int(text, 2), len(indexes))
        _add_values(part, _pick_values(body, columns.key, indexes, rows.key_values))
        hashes = body[columns.key_hash_at : columns.key_hash_at + 4 * count].cast("I")
        part.add(struct.pack(f"<{len(indexes)}I", *pick(hashes)))
    if columns.times_at is not None:
        times = body[columns.times_at : columns.times_at + 8 * count].cast("q")
        part.add_times(memoryview(struct.pack(f"<{len(indexes)}q", *pick(times))))
    if columns.map_offsets_at is not None and columns.names and columns.values:
        _add_maps(part, body, columns, indexes)
    deltas: Sequence[int] = range(count)
    if columns.deltas_at is not None:
        deltas = body[columns.deltas_at : columns.deltas_at + 4 * count].cast("i")
    _add_deltas(part, list(pick(deltas)))
    _copy_expiry(part, body, columns)
    return part.seal(header, len(indexes))


def _copy_expiry(part: _Part, body: memoryview, columns: Columns) -> None:
    """The last buffer: one time for all records, so also for some of them."""
    if columns.expiry_at is not None:
        part.add(body[columns.expiry_at : columns.expiry_at + 8])


def _cut_offsets(
    part: _Part, body: memoryview, at: int, start: int, stop: int, limit: int
) -> tuple[int, int]:
    """Cut an offsets buffer so that it starts with 0 again; returns the first and last offset before that."""
    first: int = _INT32.unpack_from(body, at + 4 * start)[0]
    end: int = _INT32.unpack_from(body, at + 4 * stop)[0]
    if not 0 <= first <= end <= limit:
        raise InvalidBatch("the offsets of a column fall: the record batch is malformed")
    offsets = body[at + 4 * start : at + 4 * (stop + 1)]
    part.add(shift_down(offsets, first, end) if first else offsets)
    return first, end


def _cut_values(part: _Part, body: memoryview, column: Values, start: int, stop: int) -> None:
    first, end = _cut_offsets(part, body, column.offsets_at, start, stop, column.data_bytes)
    part.add(body[column.data_at + first : column.data_at + end])


def _pick_values(
    body: memoryview, column: Values, indexes: Sequence[int], decoded: list[bytes] | None
) -> Sequence[Buffer]:
    if decoded is not None:
        return operator.itemgetter(*indexes)(decoded)
    offsets = body[column.offsets_at : column.offsets_at + 4 * (column.count + 1)].cast("i")
    data = body[column.data_at : column.data_at + column.data_bytes]
    return [data[first:end] for first, end in _pick_ranges(offsets, indexes, len(data))]


def _pick_ranges(
    offsets: memoryview, indexes: Sequence[int], limit: int
) -> Iterator[tuple[int, int]]:
    """The ranges of single values. They never overlap: so together they are no more than is there."""
    floor = 0
    for index in indexes:
        first, end = offsets[index], offsets[index + 1]
        if not floor <= first <= end <= limit:
            raise InvalidBatch("the offsets of a column fall: the record batch is malformed")
        floor = end
        yield first, end


def _add_values(part: _Part, values: Sequence[Buffer]) -> None:
    offsets = pack_offsets(list(map(len, values)))
    part.add(offsets)
    part.add(b"".join(values))


def _add_maps(part: _Part, body: memoryview, columns: Columns, indexes: Sequence[int]) -> None:
    assert columns.map_offsets_at is not None
    assert columns.names is not None
    assert columns.values is not None
    at = columns.map_offsets_at
    offsets = body[at : at + 4 * (columns.payload.count + 1)].cast("i")
    pairs: list[int] = []
    sizes: list[int] = []
    for first, end in _pick_ranges(offsets, indexes, columns.names.count):
        pairs += range(first, end)
        sizes.append(end - first)
    part.add(pack_offsets(sizes))
    _add_values(part, _pick_values(body, columns.names, pairs, None))
    _add_values(part, _pick_values(body, columns.values, pairs, None))


def _validity(body: memoryview, at: int, count: int) -> int:
    return int.from_bytes(body[at : at + (count + 7) // 8], "little")


def _add_validity(part: _Part, bits: int, count: int) -> None:
    part.add((bits & ((1 << count) - 1)).to_bytes((count + 7) // 8, "little"))


def _add_deltas(part: _Part, deltas: list[int]) -> None:
    """Add the offset deltas, counted from the first one; a run of offsets needs none."""
    first, last = deltas[0], deltas[-1]
    if not all(map(operator.lt, deltas, itertools.islice(deltas, 1, None))) or first < 0:
        raise InvalidBatch("the offset deltas do not rise: the record batch is malformed")
    part.delta = first
    if last - first == len(deltas) - 1:
        part.flags &= ~SPARSE
        return
    part.flags |= SPARSE
    part.add(struct.pack(f"<{len(deltas)}i", *[delta - first for delta in deltas]))
