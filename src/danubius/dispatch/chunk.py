"""Cutting a chunk of whole batches into what single consumers get.

A whole chunk for one consumer is passed on untouched, however many batches it has. Only when it is
divided are the headers of its batches looked at, once, and only a batch that is itself divided is
copied. No frame grows beyond FETCH_BYTES_MAX, unless one batch alone does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from danubius.errors import DanubiusError
from danubius.model.limits import FETCH_BYTES_MAX
from danubius.record.batch import RecordBatch, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from danubius.model.buffers import Buffer


KEY_BYTES_MAX: Final = 1024
"""How much of a key Key-Shared looks at."""
_DIGEST_BYTES: Final = 32


class Chunk(Protocol):
    """Whole batches in offset order; a buffer holds one or more of them back to back."""

    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def buffers(self) -> Sequence[Buffer]: ...
    @property
    def size(self) -> int: ...


class Frame(NamedTuple):
    """The records of one delivery: those of `buffers` with an offset in [first, end)."""

    first: int
    end: int
    messages: int
    size: int
    buffers: Sequence[Buffer]


class ChunkCutter:
    """One chunk while its deliveries are cut."""

    __slots__ = ("_batches", "_chunk", "_ends", "_parsed")

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self._batches: list[memoryview] = []
        self._ends: list[int] = []
        self._parsed: dict[int, RecordBatch] = {}

    def keys(self) -> list[bytes]:
        """The key of every record of the chunk, empty where there is none."""
        self._index()
        return list(chain.from_iterable(map(self._keys_of, range(len(self._batches)))))

    def cut(self, first: int, end: int, offsets: Sequence[int] | None) -> Iterator[Frame]:
        """The frames for the run [first, end), or for single offsets, in order."""
        chunk = self._chunk
        is_whole = offsets is None and first == chunk.first and end == chunk.end
        if is_whole and chunk.size <= FETCH_BYTES_MAX:
            yield Frame(first, end, end - first, chunk.size, chunk.buffers)
            return
        self._index()
        pieces = self._cut_run(first, end) if offsets is None else self._pick(offsets)
        yield from _gather(pieces)

    def _cut_run(self, first: int, end: int) -> Iterator[Frame]:
        at = bisect_right(self._ends, first)
        while first < end:
            base = self._base_of(at)
            stop = min(end, self._ends[at])
            buffer = self._batches[at]
            if first > base or stop < self._ends[at]:
                buffer = self._divide(at, range(first - base, stop - base))
            yield Frame(first, stop, stop - first, len(buffer), (buffer,))
            first = stop
            at += 1

    def _pick(self, offsets: Sequence[int]) -> Iterator[Frame]:
        start = 0
        while start < len(offsets):
            at = bisect_right(self._ends, offsets[start])
            stop = bisect_left(offsets, self._ends[at], start)
            base = self._base_of(at)
            buffer = self._divide(at, [offset - base for offset in offsets[start:stop]])
            first, end = offsets[start], offsets[stop - 1] + 1
            yield Frame(first, end, stop - start, len(buffer), (buffer,))
            start = stop

    def _divide(self, at: int, indexes: Sequence[int]) -> memoryview:
        try:
            return self._parse(at).select(indexes).buffer
        except DanubiusError:
            # A batch whose columns contradict each other was admitted, since only its reader looks
            # at them: whole, it shows its consumer what is wrong and stops nobody else.
            return self._batches[at]

    def _keys_of(self, at: int) -> list[bytes]:
        try:
            keys = self._parse(at).key_values()
        except DanubiusError:  # malformed, see above: any consumer will do
            keys = None
        if keys is None:
            return [b""] * (self._ends[at] - self._base_of(at))
        return keys if max(map(len, keys)) <= KEY_BYTES_MAX else list(map(_shorten, keys))

    def _parse(self, at: int) -> RecordBatch:
        batch = self._parsed.get(at)
        if batch is None:
            batch = self._parsed[at] = RecordBatch.parse(self._batches[at], verify=False)
        return batch

    def _base_of(self, at: int) -> int:
        return self._ends[at - 1] if at else self._chunk.first

    def _index(self) -> None:
        """Find the batches. They follow each other without gaps, in buffers and in offsets."""
        if self._batches:
            return
        for buffer in self._chunk.buffers:
            view = memoryview(buffer)
            at = 0
            while at < len(view):
                header = read_header(view, at)
                self._batches.append(view[at : at + header.length])
                self._ends.append(header.base_offset + header.count)
                at += header.length
        assert self._ends[-1] == self._chunk.end, "the chunk's batches do not fill its range"


def _shorten(key: bytes) -> bytes:
    """Subscriptions remember keys: of a long one its beginning, and what tells it from others."""
    if len(key) <= KEY_BYTES_MAX:
        return key
    return key[: KEY_BYTES_MAX - _DIGEST_BYTES] + blake2b(key, digest_size=_DIGEST_BYTES).digest()


def _gather(pieces: Iterator[Frame]) -> Iterator[Frame]:
    """Join neighbouring pieces into frames that keep to the limit."""
    held: list[Frame] = []
    size = 0
    for piece in pieces:
        if held and size + piece.size > FETCH_BYTES_MAX:
            yield _join(held, size)
            held, size = [], 0
        held.append(piece)
        size += piece.size
    if held:
        yield _join(held, size)


def _join(pieces: list[Frame], size: int) -> Frame:
    messages = sum(piece.messages for piece in pieces)
    buffers = [buffer for piece in pieces for buffer in piece.buffers]
    return Frame(pieces[0].first, pieces[-1].end, messages, size, buffers)
