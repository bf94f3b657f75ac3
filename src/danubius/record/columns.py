"""Columns of a body, where they lie, and how one column of variable-size values is packed and unpacked.

`find_columns` walks a body in constant time per column, whatever the number of records, and leaves
no position outside the body. What it cannot see in constant time (offsets that fall in the middle
of a column) is checked by whoever decodes that column.
"""

from __future__ import annotations

import functools
import itertools
import operator
import struct
from typing import Final

import msgspec

from danubius.errors import InvalidBatch
from danubius.record.header import (
    ATTRIBUTES,
    EXPIRES,
    KEY_NULLS,
    KEYS,
    SPARSE,
    TIMES,
    check_size,
)

_INT32: Final = struct.Struct("<i")
_PAIR: Final = struct.Struct("<ii")
PADDING: Final = tuple(bytes(-rest & 7) for rest in range(8))
"""What `padding` chooses from."""
_BLOCK_RECORDS: Final = 1024
"""Values of one size are unpacked in blocks of this many: it bounds what the cached Structs hold."""
_CACHED_RECORDS_MAX: Final = 16 * 1024


class Values(msgspec.Struct, frozen=True, gc=False):
    """A column of variable-size values: `i32 offsets[count + 1]`, then the data."""

    count: int
    offsets_at: int
    data_at: int
    data_bytes: int


class Columns(msgspec.Struct, frozen=True, gc=False):
    """Positions in a body. Those of absent columns are None."""

    payload: Values
    key: Values | None = None
    key_validity_at: int | None = None
    key_hash_at: int | None = None
    times_at: int | None = None
    map_offsets_at: int | None = None
    names: Values | None = None
    values: Values | None = None
    deltas_at: int | None = None
    expiry_at: int | None = None


def find_columns(body: memoryview, count: int, flags: int) -> Columns:
    """Walk the body. Raises InvalidBatch if a column does not fit or something is left over."""
    payload = _find_values(body, 0, count, "payload")
    end = padded(payload.data_at + payload.data_bytes)
    columns = Columns(payload)
    # Most batches carry payloads only.
    if flags & (KEYS | TIMES | ATTRIBUTES | SPARSE | EXPIRES):
        columns, end = _find_optional(body, end, payload, flags)
    if end != len(body):
        raise InvalidBatch(f"the columns take {end} bytes, but the body has {len(body)}")
    return columns


def _find_optional(body: memoryview, at: int, payload: Values, flags: int) -> tuple[Columns, int]:
    count = payload.count
    key = key_validity_at = key_hash_at = times_at = deltas_at = expiry_at = None
    map_offsets_at = names = values = None
    if flags & KEYS:
        if flags & KEY_NULLS:
            key_validity_at, at = at, _skip(body, at, (count + 7) // 8, "key validity")
        key = _find_values(body, at, count, "key")
        key_hash_at = padded(key.data_at + key.data_bytes)
        at = _skip(body, key_hash_at, 4 * count, "key hash")
    if flags & TIMES:
        times_at, at = at, _skip(body, at, 8 * count, "publish time")
    if flags & ATTRIBUTES:
        map_offsets_at = at
        at, pairs = _find_map_offsets(body, at, count)
        names = _find_values(body, at, pairs, "attribute name")
        values = _find_values(
            body, padded(names.data_at + names.data_bytes), pairs, "attribute value"
        )
        at = padded(values.data_at + values.data_bytes)
    if flags & SPARSE:
        deltas_at, at = at, _skip(body, at, 4 * count, "offset delta")
        _check_deltas(body, deltas_at, count)
    if flags & EXPIRES:
        expiry_at, at = at, _skip(body, at, 8, "expiry")
    columns = Columns(
        payload,
        key,
        key_validity_at,
        key_hash_at,
        times_at,
        map_offsets_at,
        names,
        values,
        deltas_at,
        expiry_at,
    )
    return columns, at


def padded(size: int) -> int:
    """The next multiple of 8."""
    return (size + 7) & ~7


def padding(size: int) -> bytes:
    """The zero bytes that lead to the next multiple of 8."""
    return PADDING[size & 7]


def read_offsets(body: memoryview, column: Values) -> list[int]:
    """The offsets of a column, checked: they start with 0, never fall and end at the data's end."""
    return read_rising(body, column.offsets_at, column.count)


def read_rising(body: memoryview, at: int, count: int) -> list[int]:
    """`i32 offsets[count + 1]` at a position, checked never to fall."""
    offsets = body[at : at + 4 * (count + 1)].cast("i").tolist()
    # Sorting what is sorted is one pass in C, and comparing the same objects another: 6 ns a record.
    if sorted(offsets) != offsets:
        raise InvalidBatch("the offsets of a column fall: the record batch is malformed")
    return offsets


def read_values(body: memoryview, column: Values) -> list[bytes]:
    """All values of a column. Values that have one size, as those of most batches, take a path in C."""
    data = bytes(body[column.data_at : column.data_at + column.data_bytes])
    size, rest = divmod(column.data_bytes, column.count) if column.count else (0, 0)
    if not rest:
        start = column.offsets_at
        # As bytes: memoryviews are compared element by element.
        offsets_bytes = bytes(body[start : start + 4 * (column.count + 1)])
        if offsets_bytes == even_offsets(column.count, size):
            return _split_even(data, column.count, size)
    offsets = read_offsets(body, column)
    return [data[first:end] for first, end in itertools.pairwise(offsets)]


def read_value(body: memoryview, column: Values, index: int) -> bytes:
    """One value of a column."""
    first: int
    end: int
    first, end = _PAIR.unpack_from(body, column.offsets_at + 4 * index)
    if not 0 <= first <= end <= column.data_bytes:
        raise InvalidBatch("the offsets of a column fall: the record batch is malformed")
    return bytes(body[column.data_at + first : column.data_at + end])


def pack_offsets(sizes: list[int]) -> bytes:
    """The offsets buffer of values of these sizes, not padded. Raises MessageTooLarge before int32 would overflow."""
    if sizes and sizes.count(sizes[0]) == len(sizes):
        check_size(sizes[0] * len(sizes), 0, 0)
        return even_offsets(len(sizes), sizes[0])
    offsets = list(itertools.accumulate(sizes, initial=0))
    check_size(offsets[-1], 0, 0)
    return struct.pack(f"<{len(offsets)}i", *offsets)


def shift_down(offsets: memoryview, first: int, end: int) -> bytes:
    """Subtract `first` from every offset.

    One subtraction of long numbers does it for all, six times faster than a loop: as no offset is
    below `first`, no lane of 32 bits borrows from the next. Where one is, the batch is malformed,
    and the borrow shows at the end or is left for the reader of the column to find.
    """
    count = len(offsets) // 4
    ones = int.from_bytes(b"\1\0\0\0" * count, "little")
    try:
        shifted = (int.from_bytes(offsets, "little") - first * ones).to_bytes(4 * count, "little")
    except OverflowError as error:
        raise InvalidBatch("the offsets of a column fall: the record batch is malformed") from error
    if int.from_bytes(shifted[-4:], "little") != end - first:
        raise InvalidBatch("the offsets of a column fall: the record batch is malformed")
    return shifted


def largest_message(body: memoryview, count: int, flags: int) -> int:
    """The size of the largest message in a body: payload, key and attributes. Costs time per record."""
    columns = find_columns(body, count, flags)
    ends = read_offsets(body, columns.payload)
    if columns.key is not None:
        ends = list(map(operator.add, ends, read_offsets(body, columns.key)))
    if columns.map_offsets_at is not None and columns.names and columns.values:
        names, values = read_offsets(body, columns.names), read_offsets(body, columns.values)
        pairs = read_rising(body, columns.map_offsets_at, count)
        ends = [end + names[pair] + values[pair] for end, pair in zip(ends, pairs, strict=True)]
    return max(map(operator.sub, ends[1:], ends))


def even_offsets(count: int, size: int) -> bytes:
    """The offsets buffer of `count` values of one size."""
    if count <= _CACHED_RECORDS_MAX:
        return _even_offsets_cached(count, size)
    return _even_offsets(count, size)


def _even_offsets(count: int, size: int) -> bytes:
    if not size:
        return bytes(4 * (count + 1))
    return struct.pack(f"<{count + 1}i", *range(0, (count + 1) * size, size))


_even_offsets_cached = functools.lru_cache(maxsize=64)(_even_offsets)


def _split_even(data: bytes, count: int, size: int) -> list[bytes]:
    if count <= _BLOCK_RECORDS:
        return list(_splitter(count, size).unpack(data))
    result: list[bytes] = []
    blocks, rest = divmod(count, _BLOCK_RECORDS)
    block = _splitter(_BLOCK_RECORDS, size)
    for number in range(blocks):
        result += block.unpack_from(data, number * block.size)
    if rest:
        result += _splitter(rest, size).unpack_from(data, blocks * block.size)
    return result


@functools.lru_cache(maxsize=64)
def _splitter(count: int, size: int) -> struct.Struct:
    return struct.Struct(f"{size}s" * count)


def _find_values(body: memoryview, at: int, count: int, name: str) -> Values:
    data_at = padded(at + 4 * (count + 1))
    if data_at > len(body):
        raise InvalidBatch(f"the {name} offsets of {count} records do not fit into the body")
    first: int = _INT32.unpack_from(body, at)[0]
    data_bytes: int = _INT32.unpack_from(body, at + 4 * count)[0]
    if first != 0:
        raise InvalidBatch(f"the {name} offsets start with {first}, not with 0")
    if not 0 <= data_bytes <= len(body) - data_at:
        raise InvalidBatch(f"the {name} data of {data_bytes} bytes does not fit into the body")
    return Values(count, at, data_at, data_bytes)


def _find_map_offsets(body: memoryview, at: int, count: int) -> tuple[int, int]:
    end = _skip(body, at, 4 * (count + 1), "attributes")
    first: int = _INT32.unpack_from(body, at)[0]
    pairs: int = _INT32.unpack_from(body, at + 4 * count)[0]
    if first != 0 or pairs < 0:
        raise InvalidBatch(f"the attributes offsets go from {first} to {pairs}")
    return end, pairs


def _skip(body: memoryview, at: int, size: int, name: str) -> int:
    if size > len(body) - at:
        raise InvalidBatch(f"the {name} column does not fit into the body")
    return at + padded(size)


def _check_deltas(body: memoryview, at: int, count: int) -> None:
    first: int = _INT32.unpack_from(body, at)[0]
    last: int = _INT32.unpack_from(body, at + 4 * (count - 1))[0]
    if first < 0 or last - first < count - 1:
        raise InvalidBatch(f"the offset deltas of {count} records go from {first} to {last}")
