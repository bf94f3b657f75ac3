"""From a consumer's subscribing to its end, and reading without one. Flow, Deliver and Ack are the hot ones."""

# ruff: noqa: TC001  # msgspec reads the annotations when the module is imported

from __future__ import annotations

from danubius.model.file_part import FilePart
from danubius.model.policy import FailurePolicy
from danubius.model.subscription import LATEST, Position, SubscriptionType
from danubius.wire.commands.fields import Count, Handle, Ranges
from danubius.wire.commands.opcodes import Command, Opcode


class Subscribe(Command, frozen=True):
    """Attach a consumer; creates the subscription at `start` if it does not exist. Answered by Subscribed."""

    opcode = Opcode.SUBSCRIBE
    topic: str
    subscription: str
    type: SubscriptionType
    consumer: str
    start: Position = LATEST
    ack_timeout_ms: Count = 0
    """Deliver again what this consumer has not acknowledged after this long; 0 means never."""
    skip_damaged: bool = False
    """Pass over stored ranges that fail their checksum instead of ending with LedgerDamaged."""
    key_filters: tuple[str, ...] = ()
    """Key-Shared only: patterns with `*` and `?`; messages whose key matches none of them are not for this consumer."""
    failure: FailurePolicy | None = None
    """Used when the subscription is created; none: what the topic's policies say."""


class Subscribed(Command, frozen=True):
    """`handle` names the consumer on this connection. Nothing is delivered before the first Flow."""

    opcode = Opcode.SUBSCRIBED
    handle: Handle
    is_active: bool
    """False for a standby of a failover subscription."""


class Flow(Command, frozen=True):
    """Consumer grants credit for this many further messages and bytes. Not answered.

    Message credit is exact. Byte credit may be overdrawn by one delivery.
    """

    opcode = Opcode.FLOW
    handle: Handle
    messages: Count
    bytes: Count


class Deliver(Command, frozen=True):
    """+ batches (one or more). Records with an offset in [first, end) are this consumer's; pass over others."""

    opcode = Opcode.DELIVER
    handle: Handle
    first: Count
    end: Count
    messages: Count
    """How many records of the frame are in the range: the message credit it costs."""
    redelivery_count: Count = 0


class Ack(Command, frozen=True):
    """Acknowledge offset ranges [first, end). Answered by Done only if the correlation id is not 0."""

    opcode = Opcode.ACK
    handle: Handle
    ranges: Ranges
    """Cumulative acks are the one range [0, end)."""


class Nack(Command, frozen=True):
    """Deliver these ranges again, after a delay. Answered by Done only if the correlation id is not 0."""

    opcode = Opcode.NACK
    handle: Handle
    ranges: Ranges
    delay_ms: Count = 0
    reason: str = ""
    """What went wrong, kept with a message that ends as a dead letter."""


class CloseConsumer(Command, frozen=True):
    """Detach; what was delivered and not acknowledged goes to the others. Answered by Done."""

    opcode = Opcode.CLOSE_CONSUMER
    handle: Handle


class ConsumerClosed(Command, frozen=True):
    """Broker, unasked: the consumer was ended (topic deleted, replaced, damaged range). The handle is gone."""

    opcode = Opcode.CONSUMER_CLOSED
    handle: Handle
    code: Count
    message: str


class ConsumerActive(Command, frozen=True):
    """Broker, unasked: a standby became active, or the reverse."""

    opcode = Opcode.CONSUMER_ACTIVE
    handle: Handle
    is_active: bool


class Fetch(Command, frozen=True):
    """Read without a subscription. Answered by Fetched, at the latest after `wait_ms`, maybe without batches."""

    opcode = Opcode.FETCH
    topic: str
    start: Position
    bytes_max: Count
    wait_ms: Count = 0
    """How long to wait at the end of the topic for something new."""
    skip_damaged: bool = False
    may_point: bool = False
    """The reader is on the broker's machine, as far as it knows: where batches lie in a file, say so instead."""


class Fetched(Command, frozen=True):
    """+ batches (zero or more, whole). Records below `first` are to be passed over; go on at `next`."""

    opcode = Opcode.FETCHED
    first: Count
    next: Count
    start_offset: Count
    end_offset: Count
    incarnation: Count = 0
    """See OffsetResolved."""
    part: FilePart | None = None
    """Instead of batches, where they lie; only if the fetch said that it may."""
