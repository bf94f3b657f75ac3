"""Reading ahead, which fetches before it is asked: whoever reads on gets the next segments of an object ahead of time.

A *stream* is a reader as far as it shows: reads of one ledger that follow each other. The further it goes the more is
fetched ahead of it, up to a bound; a read that follows nothing gets nothing ahead, unless it begins a ledger.
Decisions alone: no IO, and the caller keeps several threads apart.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from danubius.ledger.entry import LedgerRef

STREAMS_MAX: Final = 256
"""Readers that are told apart; those silent for longest are forgotten."""


class _Stream(NamedTuple):
    window: int
    """How many segments ahead it is to be."""
    fetched: int
    """Segments below this one were asked for."""


class ReadAhead:
    """The streams of all ledgers."""

    def __init__(self, window_max: int, streams_max: int = STREAMS_MAX) -> None:
        self._window_max = window_max
        self._streams_max = streams_max
        self._streams: OrderedDict[tuple[LedgerRef, int], _Stream] = OrderedDict()
        """By the ledger and the last segment that was read."""

    def note(self, ref: LedgerRef, first: int, last: int) -> range:
        """Segments `first` to `last` are read: which to fetch now. They may lie behind the ledger's end."""
        streams = self._streams
        stream = streams.pop((ref, first), None) or streams.pop((ref, first - 1), None)
        if stream is None:
            stream = _Stream(1 if first == 0 else 0, last + 1)
        else:
            stream = _Stream(min(max(1, 2 * stream.window), self._window_max), stream.fetched)
        start = max(stream.fetched, last + 1)
        stop = max(start, last + 1 + min(stream.window, self._window_max))
        streams[ref, last] = _Stream(stream.window, stop)
        if len(streams) > self._streams_max:
            streams.popitem(last=False)
        return range(start, stop)

    def check(self) -> None:
        assert len(self._streams) <= self._streams_max
        for (_, last), stream in self._streams.items():
            assert 0 <= stream.window <= max(1, self._window_max)
            assert stream.fetched > last
