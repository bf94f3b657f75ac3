"""Messages become batches: by size, by count, and when the linger time is over.

The accumulator holds the one open batch of a producer. The columns for keys and attributes exist only once a message
has some, so that payload-only traffic costs one list append a message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from danubius.errors import InvalidArgument


class Draft(NamedTuple):
    """The messages of one batch before encoding: parallel columns."""

    payloads: Sequence[bytes]
    keys: Sequence[bytes | None] | None
    attributes: Sequence[Mapping[str, str] | None] | None


class Accumulator:
    """The open batch of one producer."""

    __slots__ = (
        "_attributes",
        "_keys",
        "_payloads",
        "bytes_max",
        "count",
        "is_full",
        "records_max",
        "size",
    )

    def __init__(self, bytes_max: int, records_max: int) -> None:
        assert bytes_max > 0
        assert records_max > 0
        self.bytes_max = bytes_max
        self.records_max = records_max
        self.size = 0
        self.count = 0
        self.is_full = False
        self._payloads: list[bytes] = []
        self._keys: list[bytes | None] | None = None
        self._attributes: list[Mapping[str, str] | None] | None = None

    def has_room(self, size: int) -> bool:
        """Whether a message of this size may join a batch that is not full; the first one always may."""
        return self.size + size <= self.bytes_max or not self.count

    def add(
        self,
        payload: bytes,
        key: bytes | None,
        attributes: Mapping[str, str] | None,
        size: int,
    ) -> int:
        """Take one message and return its place in the batch."""
        index = self.count
        self.count = index + 1
        self._payloads.append(payload)
        self.size += size
        self.is_full = self.size >= self.bytes_max or self.count >= self.records_max
        if key is not None or self._keys is not None:
            if self._keys is None:
                self._keys = list[bytes | None]([None]) * index
            self._keys.append(key)
        if attributes or self._attributes is not None:
            if self._attributes is None:
                self._attributes = list[Mapping[str, str] | None]([None]) * index
            self._attributes.append(attributes)
        return index

    def take(self) -> Draft:
        """Close the batch and start a new, empty one."""
        draft = Draft(self._payloads, self._keys, self._attributes)
        self._payloads = []
        self._keys = None
        self._attributes = None
        self.count = 0
        self.size = 0
        self.is_full = False
        return draft


def message_size(payload: bytes, key: bytes | None, attributes: Mapping[str, str] | None) -> int:
    """The bytes a message counts for: payload, key and attributes, as the broker's limit has it."""
    size = len(payload)
    if key is not None:
        size += len(key)
    if attributes:
        for name, value in attributes.items():
            size += len(name.encode()) + len(value.encode())
    return size


def message_sizes(draft: Draft) -> list[int]:
    """`message_size` of every message of a draft; at C speed when there are only payloads."""
    if draft.keys is None and draft.attributes is None:
        return list(map(len, draft.payloads))
    count = len(draft.payloads)
    keys = draft.keys if draft.keys is not None else [None] * count
    attributes = draft.attributes if draft.attributes is not None else [None] * count
    return list(map(message_size, draft.payloads, keys, attributes))


def check_columns(draft: Draft) -> None:
    """Refuse columns of different lengths."""
    count = len(draft.payloads)
    for name, column in (("keys", draft.keys), ("attributes", draft.attributes)):
        if column is not None and len(column) != count:
            raise InvalidArgument(
                f"{len(column)} {name} for {count} payloads: give one for each (None for none)"
            )


def split(sizes: Sequence[int], bytes_max: int, records_max: int) -> list[int]:
    """Where each batch ends: rising cut positions, the last one is len(sizes).

    Every batch has at least one message, so one message over `bytes_max` is a batch of its own.
    """
    assert bytes_max > 0
    assert records_max > 0
    count = len(sizes)
    ends = list(accumulate(sizes))
    cuts: list[int] = []
    start = taken = 0
    while start < count:
        stop = bisect_right(ends, taken + bytes_max, start, min(start + records_max, count))
        start = max(stop, start + 1)
        taken = ends[start - 1]
        cuts.append(start)
    return cuts


def cut(draft: Draft, start: int, stop: int) -> Draft:
    """The messages [start, stop) of a draft."""
    return Draft(
        draft.payloads[start:stop],
        None if draft.keys is None else draft.keys[start:stop],
        None if draft.attributes is None else draft.attributes[start:stop],
    )
