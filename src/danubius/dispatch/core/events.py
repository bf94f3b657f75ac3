"""Events that a subscription is told. Events are per range or per read, never per message."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from danubius.ack.core.failure import FailureRule


class ConsumerJoined(msgspec.Struct, frozen=True, gc=False):
    """A consumer was admitted. It has no credit yet."""

    consumer_id: int
    name: str
    ack_timeout_ns: int = 0
    """What it has not acknowledged after this long comes again; 0 for never."""
    key_filters: tuple[str, ...] = ()
    """Key-Shared: patterns of the keys it takes; none: all."""


class ConsumerLeft(msgspec.Struct, frozen=True, gc=False):
    """A consumer is gone; what it had in flight comes again."""

    consumer_id: int
    is_clean: bool = False
    """It took its leave: what it had does not count as failed."""


class CreditGranted(msgspec.Struct, frozen=True, gc=False):
    """A consumer takes this much more."""

    consumer_id: int
    messages: int
    bytes: int


class BytesSent(msgspec.Struct, frozen=True, gc=False):
    """A delivery took this many bytes of its consumer's credit."""

    consumer_id: int
    bytes: int


class WritableChanged(msgspec.Struct, frozen=True, gc=False):
    """A consumer's connection filled up, or drained."""

    consumer_id: int
    is_writable: bool


class LogExtended(msgspec.Struct, frozen=True, gc=False):
    """Offsets below `end` can be read."""

    end: int


class ReadCompleted(msgspec.Struct, frozen=True, gc=False):
    """The read that was asked for found whole batches with the offsets [first, end).

    A `first` above the asked one means that what lies between is gone for good.
    """

    first: int
    end: int
    size: int
    keys: Sequence[bytes] | None = None
    """One per record of [first, end), empty where there is none, if the read asked for them."""


class ReadFailed(msgspec.Struct, frozen=True, gc=False):
    """The read that was asked for failed; it may succeed later."""


class Acked(msgspec.Struct, frozen=True, gc=False):
    """Ranges were acknowledged, by whomever."""

    ranges: Sequence[tuple[int, int]]
    is_durable: bool = False
    """Whether the journal has it already."""


class Nacked(msgspec.Struct, frozen=True, gc=False):
    """A consumer gives ranges back; what of them it has in flight comes again after the delay."""

    consumer_id: int
    ranges: Sequence[tuple[int, int]]
    delay_ns: int = 0
    """At least so long, however short the failure policy's delay is."""
    reason: str = ""


class PolicyChanged(msgspec.Struct, frozen=True, gc=False):
    """Another failure policy holds, also for what waits and for what failed too often."""

    rule: FailureRule


class Released(msgspec.Struct, frozen=True, gc=False):
    """What failed too often is to be delivered again, counting from the start."""


class Ticked(msgspec.Struct, frozen=True, gc=False):
    """The time of the last WakeAt has come."""


Event = (
    ReadCompleted
    | BytesSent
    | LogExtended
    | Acked
    | CreditGranted
    | WritableChanged
    | Nacked
    | Ticked
    | ConsumerJoined
    | ConsumerLeft
    | ReadFailed
    | PolicyChanged
    | Released
)


def without_keys(event: Event) -> Event:
    """For a story, which must not keep a chunk's worth of keys alive."""
    if isinstance(event, ReadCompleted) and event.keys is not None:
        return ReadCompleted(event.first, event.end, event.size)
    return event
