"""Finding, creating, deleting, listing and describing topics."""

from __future__ import annotations

import msgspec

from danubius.model.subscription import Position, SubscriptionType
from danubius.model.topic import TopicSpec
from danubius.wire.commands.fields import Count
from danubius.wire.commands.opcodes import Command, Opcode


class Lookup(Command, frozen=True):
    """Which broker serves this topic, and is it partitioned? Answered by Located."""

    opcode = Opcode.LOOKUP
    topic: str
    watch: bool = False
    """Tell this connection by TopicChanged, from now on, when the number of partitions changes."""


class Located(Command, frozen=True):
    """Dial this URL for the topic, unless it is the one that Welcome gave: then it is served here."""

    opcode = Opcode.LOCATED
    topic: str
    url: str
    partitions: Count = 0
    """0: an ordinary topic. Otherwise the partitions are the topics `{topic}-part-0` to `-part-{partitions - 1}`."""


class CreateTopic(Command, frozen=True):
    """Create a topic. Answered by Done; TopicExists if it exists with other settings, or at all unless `exist_ok`."""

    opcode = Opcode.CREATE_TOPIC
    topic: str
    spec: TopicSpec
    exist_ok: bool = False
    partitions: Count = 0
    """0: an ordinary topic. Otherwise that many, all of them or none."""


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


class TopicSummary(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A line of a topic listing."""

    topic: str
    spec: TopicSpec
    start_offset: Count
    end_offset: Count
    stored_bytes: Count
    producers: Count
    subscriptions: Count
    incarnation: Count = 0
    """See OffsetResolved; 0 for a partitioned topic as a whole."""


class TopicsListed(Command, frozen=True):
    """One page of topic summaries; `more` says that another page follows."""

    opcode = Opcode.TOPICS_LISTED
    topics: list[TopicSummary]
    more: bool


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
    incarnation: Count = 0
    """Another number for every topic that ever had this name, so that one made anew is seen; 0: not said."""


class TopicChanged(Command, frozen=True):
    """Broker, unasked, to who looked it up with `watch`: the topic has this many partitions now."""

    opcode = Opcode.TOPIC_CHANGED
    topic: str
    partitions: Count
