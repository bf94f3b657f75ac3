"""Estimates that can be made of a topic without reading it: when a message came, how much lies behind it."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.ledger.core.segment import Ledger, Segment

_base_of: Final = attrgetter("base_offset")
_first_of: Final = attrgetter("first")


def time_near(ledgers: Sequence[Ledger], tail: Sequence[Segment], offset: int, end: int) -> int:
    """About when the message at an offset was published, in microseconds since 1970; `end` is that of the topic."""
    if tail and tail[0].first <= offset < end:
        at = bisect_right(tail, offset, key=_first_of) - 1
        before_us = tail[at - 1].last_time_us if at else tail[at].ledger.first_time_us
        first, end, last_us = tail[at].first, tail[at].end, tail[at].last_time_us
    elif ledgers and offset < end:
        at = max(0, bisect_right(ledgers, offset, key=_base_of) - 1)
        ledger = ledgers[at]
        before_us, last_us = ledger.first_time_us, ledger.last_time_us
        first, end = ledger.base_offset, ledger.end_offset
    else:
        return ledgers[-1].last_time_us if ledgers else 0
    before_us = min(before_us, last_us)
    passed = max(0, offset - first)
    return before_us + (last_us - before_us) * passed // max(1, end - first - 1)


def bytes_from(ledgers: Sequence[Ledger], offset: int) -> int:
    """About how many bytes are stored from an offset on; those of a ledger count as if spread evenly."""
    size = 0
    for ledger in reversed(ledgers):
        messages = ledger.end_offset - ledger.base_offset
        if ledger.base_offset >= offset or not messages:
            size += ledger.data_bytes
            continue
        size += ledger.data_bytes * max(0, ledger.end_offset - offset) // messages
        break
    return size
