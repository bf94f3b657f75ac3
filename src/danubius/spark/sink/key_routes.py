# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow comes without types)
"""Routes of rows to partitions by key: as client producers choose, for whole columns at once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

_FNV_OFFSET: Final = np.uint64(0xCBF29CE484222325)
_FNV_PRIME: Final = np.uint64(0x100000001B3)


def partitions_of(keys: Any, rows: int, partitions: int, turn: int) -> tuple[Any, int]:
    """The partition of each row, and whose turn it is next: rows without a key go round.

    `keys` is a binary or string column without chunks, or None.
    """
    if keys is None or keys.null_count == rows:
        return (np.arange(rows) + turn) % partitions, (turn + rows) % partitions
    homes = (fnv1a64_column(keys) % np.uint64(partitions)).astype(np.int64)
    if keys.null_count:
        missing = np.flatnonzero(~keys.is_valid().to_numpy(zero_copy_only=False))
        homes[missing] = (np.arange(len(missing)) + turn) % partitions
        turn = (turn + len(missing)) % partitions
    return homes, turn


def fnv1a64_column(keys: Any) -> Any:
    """The hash of `model.partitions.fnv1a64`, one step for the n-th byte of all keys."""
    if keys.type not in (pa.binary(), pa.string()):
        keys = keys.cast(pa.binary())
    count, start = len(keys), keys.offset
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[start : start + count + 1].astype(np.int64)
    data = (
        np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    )
    first, lengths = offsets[:-1], np.diff(offsets)
    hashes = np.full(count, _FNV_OFFSET, np.uint64)
    alive = np.flatnonzero(lengths > 0)
    position = 0
    with np.errstate(over="ignore"):
        while alive.size:
            hashes[alive] = (hashes[alive] ^ data[first[alive] + position]) * _FNV_PRIME
            position += 1
            alive = alive[lengths[alive] > position]
    return hashes
