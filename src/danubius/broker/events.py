"""The facts the broker journals beside record batches. Applied in order they rebuild its state.

Each travels as a MessagePack array that starts with its tag. Tags are never reused, fields are only appended.
"""

from __future__ import annotations

from typing import Final

import msgspec

from danubius.model.subscription import SubscriptionType
from danubius.model.topic import TopicSpec

EVENT_RECORD: Final = 2
"""Journal record kind of an event."""


class Fact(msgspec.Struct, frozen=True, gc=False, array_like=True, tag_field="fact"):
    """Base of all events."""


class TopicCreated(Fact, frozen=True, gc=False, tag=1):
    """A topic exists from here on."""

    topic_id: int
    name: str
    spec: TopicSpec
    created_ms: int


class TopicRemoved(Fact, frozen=True, gc=False, tag=2):
    """A topic is gone with all it held."""

    topic_id: int


class ProducerStarted(Fact, frozen=True, gc=False, tag=3):
    """A producer name began a new life."""

    topic_id: int
    producer_id: int
    name: str
    epoch: int
    resumed: bool


class SubscriptionCreated(Fact, frozen=True, gc=False, tag=4):
    """A subscription exists from here on, and owes everything from `floor`."""

    topic_id: int
    subscription_id: int
    name: str
    type: SubscriptionType
    floor: int


class SubscriptionRetyped(Fact, frozen=True, gc=False, tag=5):
    """An idle subscription was taken up with another type."""

    topic_id: int
    subscription_id: int
    type: SubscriptionType


class SubscriptionRemoved(Fact, frozen=True, gc=False, tag=6):
    """A subscription is gone; what it had not acknowledged no longer holds ledgers back."""

    topic_id: int
    subscription_id: int


class RangesAcked(Fact, frozen=True, gc=False, tag=7):
    """Offsets [first, end) of these ranges were acknowledged."""

    topic_id: int
    subscription_id: int
    ranges: list[tuple[int, int]]


class LogTrimmed(Fact, frozen=True, gc=False, tag=8):
    """Ledgers wholly below this offset may be deleted."""

    topic_id: int
    start_offset: int


Event = (
    TopicCreated
    | TopicRemoved
    | ProducerStarted
    | SubscriptionCreated
    | SubscriptionRetyped
    | SubscriptionRemoved
    | RangesAcked
    | LogTrimmed
)

BARRIER: Final = RangesAcked(0, 0, [])
"""A fact about nothing, to find out whether the journal takes one; no topic has the number 0."""

_decoder: Final = msgspec.msgpack.Decoder(Event)
_encoder: Final = msgspec.msgpack.Encoder()


def encode_event(event: Event) -> bytes:
    return _encoder.encode(event)


def decode_event(body: bytes | memoryview) -> Event:
    return _decoder.decode(body)
