"""The commands of the native protocol: one frozen Struct per opcode, the same for both peers.

A command travels as a MessagePack array of its fields in the order written here. Fields are only ever appended,
with a default, so that an older peer ignores what it does not know and a newer one fills in what is missing.
An integer outside its range is refused like a wrong type. Commands marked "+ batches" are followed, in the same
frame, by raw record batches (see docs/internals/record-batch.md).
"""

from __future__ import annotations

import enum
from typing import Annotated, ClassVar, Final

import msgspec

from danubius.model.subscription import LATEST, Position, SubscriptionType
from danubius.model.topic import TopicSpec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""An offset, an amount, a duration: fits the signed 64 bits of every language and file format."""
Handle = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
"""A number that the broker gave to a producer or consumer of this connection."""
Unsigned = Annotated[int, msgspec.Meta(ge=0)]
"""Up to 64 bits, as MessagePack allows."""

RANGES_MAX: Final = 50_000
"""Ranges in one Ack or Nack: at 19 bytes each in the worst case, they fit the command part of a frame."""
Ranges = Annotated[list[tuple[Count, Count]], msgspec.Meta(max_length=RANGES_MAX)]
"""Offset ranges, each [first, end)."""


class Opcode(enum.IntEnum):
    """The opcode byte of a frame. Numbers are never reused."""

    HELLO = 1
    WELCOME = 2
    PING = 3
    PONG = 4
    ERROR = 5
    DONE = 6
    GOODBYE = 7
    LOOKUP = 16
    LOCATED = 17
    CREATE_TOPIC = 18
    DELETE_TOPIC = 19
    LIST_TOPICS = 20
    TOPICS_LISTED = 21
    DESCRIBE_TOPIC = 22
    TOPIC_DESCRIBED = 23
    RESOLVE_OFFSET = 24
    OFFSET_RESOLVED = 25
    OPEN_PRODUCER = 32
    PRODUCER_OPENED = 33
    PRODUCE = 34
    PRODUCED = 35
    CLOSE_PRODUCER = 36
    PRODUCER_CLOSED = 37
    SUBSCRIBE = 48
    SUBSCRIBED = 49
    FLOW = 50
    DELIVER = 51
    ACK = 52
    NACK = 53
    CLOSE_CONSUMER = 54
    CONSUMER_CLOSED = 55
    CONSUMER_ACTIVE = 56
    FETCH = 64
    FETCHED = 65


class Command(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Base of all commands; `opcode` is the frame's opcode."""

    opcode: ClassVar[Opcode]


# ---------------------------------------------------------------- connection


class Hello(Command, frozen=True):
    """Client, first frame: which protocol versions it speaks and who it is."""

    opcode = Opcode.HELLO
    version_min: Count
    version_max: Count
    client: str
    """Free text for logs, for example `danubius-python/0.1.0`."""


class Welcome(Command, frozen=True):
    """Broker, first frame: the chosen version and the limits that hold on this connection."""

    opcode = Opcode.WELCOME
    version: Count
    broker: str
    frame_bytes_max: Count
    message_bytes_max: Count
    keepalive_ms: Count
    """Either side sends PING after this long without receiving anything, and gives up after three times as long."""


class Ping(Command, frozen=True):
    """Are you there? Answered by Pong with the same correlation id, in any open state, by either side."""

    opcode = Opcode.PING


class Pong(Command, frozen=True):
    """I am."""

    opcode = Opcode.PONG


class Error(Command, frozen=True):
    """The request with this correlation id failed.

    With correlation id 0 and `about`, a command that nobody waits for failed, and the connection lives on; without
    `about`, the connection is about to be closed.
    """

    opcode = Opcode.ERROR
    code: Count
    message: str
    retry: Count
    about: Count = 0
    """The opcode of the command that failed, if it had no correlation id."""
    handle: Handle = 0
    """The producer or consumer which that command named."""
    first: Count = 0
    end: Count = 0
    """The offsets [first, end) that the error is about: a damaged range. To skip it, go on at `end`."""


class Done(Command, frozen=True):
    """The request with this correlation id succeeded and has nothing else to say."""

    opcode = Opcode.DONE


class Goodbye(Command, frozen=True):
    """The sender will close the connection; nothing more is accepted on it."""

    opcode = Opcode.GOODBYE
    reason: str


# ---------------------------------------------------------------- topics


class Lookup(Command, frozen=True):
    """Which broker serves this topic? Answered by Located."""

    opcode = Opcode.LOOKUP
    topic: str


class Located(Command, frozen=True):
    """Dial this URL for the topic."""

    opcode = Opcode.LOCATED
    topic: str
    url: str


class CreateTopic(Command, frozen=True):
    """Create a topic. Answered by Done; TopicExists if it exists with other settings, or at all unless `exist_ok`."""

    opcode = Opcode.CREATE_TOPIC
    topic: str
    spec: TopicSpec
    exist_ok: bool = False


class DeleteTopic(Command, frozen=True):
    """Delete a topic with its messages and subscriptions; ends its producers and consumers. Answered by Done."""

    opcode = Opcode.DELETE_TOPIC
    topic: str


class ListTopics(Command, frozen=True):
    """Names in order, after `after`, at most `limit`. An empty namespace means all. Answered by TopicsListed."""

    opcode = Opcode.LIST_TOPICS
    namespace: str = ""
    after: str = ""
    limit: Count = 1000


class TopicsListed(Command, frozen=True):
    """One page of topic summaries; `more` says that another page follows."""

    opcode = Opcode.TOPICS_LISTED
    topics: list[TopicSummary]
    more: bool


class TopicSummary(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A line of a topic listing."""

    topic: str
    spec: TopicSpec
    start_offset: Count
    end_offset: Count
    stored_bytes: Count
    producers: Count
    subscriptions: Count


class DescribeTopic(Command, frozen=True):
    """Everything known about one topic. Answered by TopicDescribed."""

    opcode = Opcode.DESCRIBE_TOPIC
    topic: str


class SubscriptionSummary(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A line of a topic description."""

    name: str
    type: SubscriptionType
    consumers: list[str]
    floor: Count
    """All offsets below are acknowledged."""
    backlog: Count
    """Messages not yet acknowledged."""
    unacked: Count
    """Messages delivered and not yet acknowledged."""
    dropped: Count
    """Messages lost to slow or absent consumers (non-reliable topics only)."""


class TopicDescribed(Command, frozen=True):
    """The state of one topic."""

    opcode = Opcode.TOPIC_DESCRIBED
    summary: TopicSummary
    ledgers: Count
    subscriptions: list[SubscriptionSummary]
    producers: list[str]


class ResolveOffset(Command, frozen=True):
    """Which offset is this position now? Answered by OffsetResolved."""

    opcode = Opcode.RESOLVE_OFFSET
    topic: str
    position: Position


class OffsetResolved(Command, frozen=True):
    """The offset of a position, and the range that the topic holds."""

    opcode = Opcode.OFFSET_RESOLVED
    offset: Count
    start_offset: Count
    end_offset: Count


# ---------------------------------------------------------------- producing


class OpenProducer(Command, frozen=True):
    """Attach a producer; creates the topic if it does not exist. Answered by ProducerOpened.

    `resume_epoch` 0 starts a new life of the name: the epoch rises and older producers of that name are fenced.
    Otherwise the producer continues after a lost connection and must still hold the current epoch.
    """

    opcode = Opcode.OPEN_PRODUCER
    topic: str
    name: str
    spec: TopicSpec
    """Used when the topic is created; an existing topic must have the same dispatch."""
    resume_epoch: Count = 0


class ProducerOpened(Command, frozen=True):
    """`handle` names the producer on this connection; id and epoch go into every batch's header."""

    opcode = Opcode.PRODUCER_OPENED
    handle: Handle
    producer_id: Unsigned
    producer_epoch: Count
    next_sequence: Count
    """The base sequence that the broker expects of the next new batch."""


class Produce(Command, frozen=True):
    """+ batches (exactly one). Answered by Produced once durable as the topic asks."""

    opcode = Opcode.PRODUCE
    handle: Handle


class Produced(Command, frozen=True):
    """The batch is stored at `offset` (its first record). A repeated batch gets the first answer again."""

    opcode = Opcode.PRODUCED
    offset: Count


class CloseProducer(Command, frozen=True):
    """Detach. Answered by Done."""

    opcode = Opcode.CLOSE_PRODUCER
    handle: Handle


class ProducerClosed(Command, frozen=True):
    """Broker, unasked: the producer was ended (topic deleted, fenced). The handle is gone."""

    opcode = Opcode.PRODUCER_CLOSED
    handle: Handle
    code: Count
    message: str


# ---------------------------------------------------------------- consuming


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


class Fetched(Command, frozen=True):
    """+ batches (zero or more, whole). Records below `first` are to be passed over; go on at `next`."""

    opcode = Opcode.FETCHED
    first: Count
    next: Count
    start_offset: Count
    end_offset: Count


AnyCommand = (
    Hello | Welcome | Ping | Pong | Error | Done | Goodbye
    | Lookup | Located | CreateTopic | DeleteTopic | ListTopics | TopicsListed | DescribeTopic | TopicDescribed
    | ResolveOffset | OffsetResolved
    | OpenProducer | ProducerOpened | Produce | Produced | CloseProducer | ProducerClosed
    | Subscribe | Subscribed | Flow | Deliver | Ack | Nack | CloseConsumer | ConsumerClosed | ConsumerActive
    | Fetch | Fetched
)  # fmt: skip
