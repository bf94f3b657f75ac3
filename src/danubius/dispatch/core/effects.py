"""Effects: what a subscription wants done, in the order given."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from danubius.ack.core.ranges import Segment


class Read(msgspec.Struct, frozen=True, gc=False):
    """Read whole batches from `first` on; answered by ReadCompleted or ReadFailed.

    At most one is outstanding. Nothing at or above `end` is needed.
    """

    first: int
    end: int
    bytes_max: int
    wants_keys: bool = False


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """Hand records of the chunk just read to a consumer."""

    consumer_id: int
    first: int
    end: int
    offsets: Sequence[int] | None = None
    """None for the whole run [first, end); else these, rising, all of them inside of it."""
    redelivery_count: int = 0

    @property
    def messages(self) -> int:
        return self.end - self.first if self.offsets is None else len(self.offsets)


class AckAdvanced(msgspec.Struct, frozen=True, gc=False):
    """These ranges are acknowledged and were not before: make it durable."""

    ranges: Sequence[tuple[int, int]]
    is_durable: bool = False
    """Whether it is already."""


class WakeAt(msgspec.Struct, frozen=True, gc=False):
    """Send Ticked at this time; it replaces an earlier WakeAt."""

    now_ns: int


class ActiveChanged(msgspec.Struct, frozen=True, gc=False):
    """A consumer joined as a standby, or a standby became active."""

    consumer_id: int
    is_active: bool


class Replaced(msgspec.Struct, frozen=True, gc=False):
    """A consumer of the same name took this one's place: it has left."""

    consumer_id: int


class Dropped(msgspec.Struct, frozen=True, gc=False):
    """Messages of a non-reliable topic went by without being delivered."""

    count: int
    is_filtered: bool = False
    """Whether because nobody takes their keys, and not because nobody was there or quick enough."""


class TimedOut(msgspec.Struct, frozen=True, gc=False):
    """Messages were not acknowledged in time; they come again, or failed too often."""

    count: int


class Counted(msgspec.Struct, frozen=True, gc=False):
    """So often have these messages failed by now: make it durable, after what was acknowledged."""

    segments: Sequence[Segment[int]]


class Condemned(msgspec.Struct, frozen=True, gc=False):
    """Messages failed too often: move those that `condemned` of the core names to the dead-letter topic."""

    count: int
    reason: str


class Blocked(msgspec.Struct, frozen=True, gc=False):
    """Messages failed too often: what is behind them waits for an operator."""

    count: int
    reason: str


class Discarded(msgspec.Struct, frozen=True, gc=False):
    """Messages failed too often and count as acknowledged."""

    count: int
    reason: str


Effect = (
    Read
    | Deliver
    | AckAdvanced
    | WakeAt
    | ActiveChanged
    | Replaced
    | Dropped
    | TimedOut
    | Counted
    | Condemned
    | Blocked
    | Discarded
)
