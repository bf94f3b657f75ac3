"""Replies to operators: one struct a kind of answer, with the lines that lists are made of.

Replies travel as maps with their kind under `reply`. Readers may be older than the broker: fields are only appended,
and what is not known is passed over. Lists come in pages (admin_pages.py).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from danubius.model.policy import Effective, FailurePolicy, Policies
from danubius.model.statistics import (
    BrokerStatistics,
    ConsumerStatistics,
    NamespaceStatistics,
    ProducerStatistics,
    SubscriptionStatistics,
    TopicStatistics,
)
from danubius.model.subscription import SubscriptionType
from danubius.model.topic import Dispatch, Durability

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.errors import DanubiusError

PAYLOAD_START_BYTES: Final = 256
"""How much of a dead letter's payload is shown in a list."""


def kebab(name: str) -> str:
    """`TopicDescribed` as `topic-described`."""
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in name).removeprefix("-")


SettingValue = bool | int | float | str | None

# ---------------------------------------------------------------- lines of lists


class Line(msgspec.Struct, frozen=True, gc=False):
    """A part of replies."""


class NamespaceSummary(Line, frozen=True, gc=False):
    """A namespace in a list."""

    namespace: str
    topics: int = 0
    """Topics, each partition being one."""
    stored_bytes: int = 0
    created_ms: int = 0
    """Milliseconds since 1970, UTC; 0 if it was never created or changed."""


class TopicSummary(Line, frozen=True, gc=False):
    """A topic in a list; a partitioned one is one line."""

    topic: str
    partitions: int = 0
    """0: it is not partitioned."""
    dispatch: Dispatch = Dispatch.RELIABLE
    durability: Durability = Durability.SYNCED
    stored_messages: int = 0
    stored_bytes: int = 0
    producers: int = 0
    subscriptions: int = 0
    consumers: int = 0


class SubscriptionSummary(Line, frozen=True, gc=False):
    """A subscription in a list; its figures are as in SubscriptionStatistics."""

    subscription: str
    type: SubscriptionType
    consumers: int = 0
    backlog_messages: int = 0
    backlog_age_s: float = 0.0
    unacked_messages: int = 0
    is_blocked: bool = False
    idle_s: float = 0.0
    held_back_bytes: int = 0


class TopicPosition(Line, frozen=True, gc=False):
    """Where a subscription stands in one topic or partition."""

    topic: str
    offset: int


class TopicRanges(Line, frozen=True, gc=False):
    """Offsets [first, end) of one topic or partition."""

    topic: str
    ranges: list[tuple[int, int]]


class EventKind(enum.StrEnum):
    """What can happen to a subscription."""

    CREATED = "created"
    RETYPED = "retyped"
    JOINED = "joined"
    LEFT = "left"
    LOST = "lost"
    """A consumer's connection broke."""
    PROMOTED = "promoted"
    """A consumer that stood by became active."""
    TIMED_OUT = "timed-out"
    CONDEMNED = "condemned"
    """Messages failed too often."""
    DEAD_LETTERED = "dead-lettered"
    DISCARDED = "discarded"
    BLOCKED = "blocked"
    UNBLOCKED = "unblocked"
    REDRIVEN = "redriven"
    PURGED = "purged"
    SOUGHT = "sought"
    SKIPPED = "skipped"
    CLEARED = "cleared"
    POLICY_CHANGED = "policy-changed"
    THROTTLED = "throttled"
    FILTERED = "filtered"
    EXPIRED = "expired"
    DROPPED = "dropped"


class SubscriptionEvent(Line, frozen=True, gc=False):
    """Something that happened to a subscription."""

    number: int
    """Rises with every event of the broker."""
    time_ms: int
    """Milliseconds since 1970, UTC."""
    kind: str
    """An `EventKind`; later versions may know more."""
    topic: str
    who: str = ""
    """The consumer it is about, or nobody."""
    detail: str = ""
    """A sentence."""
    count: int = 1
    """How often within a second."""
    messages: int = 0
    """How many messages it was about, all times together; 0 if it was about none."""


class DeadLetter(Line, frozen=True, gc=False):
    """A message that failed too often, in the dead-letter topic."""

    topic: str
    """The dead-letter topic."""
    offset: int
    """In the dead-letter topic."""
    original_topic: str
    original_offset: int
    attempts: int = 0
    """How often it had been delivered."""
    reason: str = ""
    publish_time_us: int = 0
    """Microseconds since 1970, UTC: when it was published first."""
    key: bytes | None = None
    attributes: dict[str, str] = {}
    """Those of the original, and `x-original-…`."""
    payload_bytes: int = 0
    payload_start: bytes = b""
    """The first 256 bytes; read the dead-letter topic for all of it."""


class Setting(Line, frozen=True, gc=False):
    """A setting of the broker, and what holds."""

    path: str
    """Its section and name, as `policies.ttl_ms`."""
    value: SettingValue
    """What holds; null: not set."""
    default: SettingValue
    """What holds where nothing is given. Some bounds of ledgers follow `ledgers.cache_bytes` instead."""
    origin: str
    """Where the value came from: `default`, a file and line, a variable, a flag, or `request`."""
    is_live: bool
    """Whether it can be changed without a restart."""
    text: str = ""
    """What it means."""


class TransactionSummary(Line, frozen=True, gc=False):
    """An open transaction."""

    transaction: int
    state: str = "open"
    """`open` or `committing`."""
    address: str = ""
    """Where its client is connected from, as `host:port`."""
    begun_ms: int = 0
    """Milliseconds since 1970, UTC."""
    deadline_ms: int = 0
    """Milliseconds since 1970, UTC: when it is aborted."""
    staged_messages: int = 0
    staged_bytes: int = 0
    acked_messages: int = 0
    """Messages that it will acknowledge."""


# ---------------------------------------------------------------- replies


class LedgerSummary(Line, frozen=True, gc=False):
    """A ledger in a list."""

    topic: str
    ledger_id: int
    epoch: int
    """Of the broker that wrote it."""
    base_offset: int
    end_offset: int
    bytes: int
    first_time_us: int
    last_time_us: int
    created_ms: int
    is_sealed: bool
    tier: str
    """`local`: on the broker's disk; `both`: in cold storage too; `cold`: in cold storage alone."""
    object: str = ""
    object_bytes: int = 0


class PlaceChecked(Line, frozen=True, gc=False):
    """What was found of a ledger in one place."""

    tier: str
    bytes: int
    """That were read."""
    damage: str = ""
    """What is wrong; empty: nothing."""
    first_offset: int = 0
    """Of the damage, as far as it is known."""
    end_offset: int = 0


class Reply(msgspec.Struct, frozen=True, gc=False, tag_field="reply", tag=kebab):
    """Base of all replies."""


class Page(Reply, frozen=True, gc=False, kw_only=True):
    """A part of a list."""

    next: str = ""
    """Give it as `after` for the next page; empty: this was the last one."""


class Done(Reply, frozen=True, gc=False):
    """It is done, and durable."""


class NamespacesListed(Page, frozen=True, gc=False):
    """Namespaces in order of their names."""

    namespaces: list[NamespaceSummary]


class NamespaceDescribed(Reply, frozen=True, gc=False):
    """One namespace and its policies."""

    namespace: str
    policies: Policies
    """What it sets itself."""
    effective: Effective
    """What holds for its topics unless they say otherwise."""
    topics: int = 0
    """Topics, each partition being one."""
    stored_bytes: int = 0
    created_ms: int = 0
    """Milliseconds since 1970, UTC; 0 if it was never created or changed."""


class NamespaceMeasured(Reply, frozen=True, gc=False):
    """The figures of one namespace."""

    statistics: NamespaceStatistics


class TopicsListed(Page, frozen=True, gc=False):
    """Topics in order of their names."""

    topics: list[TopicSummary]


class TopicDescribed(Reply, frozen=True, gc=False):
    """One topic, its policies and who uses it."""

    topic: str
    dispatch: Dispatch
    durability: Durability
    policies: Policies
    """What it sets itself."""
    effective: Effective
    """What holds for it, all layers taken together."""
    statistics: TopicStatistics
    partitions: int = 0
    """0: it is not partitioned."""
    created_ms: int = 0
    """Milliseconds since 1970, UTC."""
    producers: list[str] = []
    """Names of attached ones, at most 1,000."""
    subscriptions: list[str] = []
    """Names, at most 1,000."""


class TopicMeasured(Reply, frozen=True, gc=False):
    """The figures of one topic."""

    statistics: TopicStatistics


class SubscriptionsListed(Page, frozen=True, gc=False):
    """Subscriptions in order of their names."""

    subscriptions: list[SubscriptionSummary]


class SubscriptionDescribed(Reply, frozen=True, gc=False):
    """One subscription: its policy, its figures, its consumers."""

    topic: str
    subscription: str
    type: SubscriptionType
    failure: FailurePolicy | None
    """Its own; None: that of its topic holds."""
    effective_failure: FailurePolicy
    """What holds."""
    statistics: SubscriptionStatistics
    created_ms: int = 0
    """Milliseconds since 1970, UTC; 0: by a version that did not note it."""
    consumers: list[str] = []
    """Names of attached ones, at most 1,000."""


class PositionsSet(Reply, frozen=True, gc=False):
    """Where the subscription goes on: one line, or one a partition."""

    positions: list[TopicPosition]


class MessagesCounted(Reply, frozen=True, gc=False):
    """How many messages were skipped, cleared, released, sent back or purged."""

    messages: int


class MessagesPeeked(Reply, frozen=True, gc=False):
    """Where the first messages that are not acknowledged lie; they can be read there."""

    ranges: list[TopicRanges]


class EventsListed(Reply, frozen=True, gc=False):
    """What happened to a subscription, the oldest first; only the last 128 events are kept."""

    events: list[SubscriptionEvent]
    next: int = 0
    """Give it as `after` to see what came later, now or some time on."""


class DeadLettersListed(Page, frozen=True, gc=False):
    """Dead letters, the oldest first."""

    dead_letters: list[DeadLetter]


class ProducersListed(Page, frozen=True, gc=False):
    """Attached producers in order of their names."""

    producers: list[ProducerStatistics]


class ConsumersListed(Page, frozen=True, gc=False):
    """Attached consumers in order of subscription and name."""

    consumers: list[ConsumerStatistics]


class TransactionsListed(Page, frozen=True, gc=False):
    """Open transactions in order of their numbers."""

    transactions: list[TransactionSummary]


class LedgersListed(Page, frozen=True, gc=False):
    """The ledgers of a topic, of a partitioned one those of each partition, oldest first."""

    ledgers: list[LedgerSummary]
    tier_url: str = ""
    """Where objects are kept; empty: this broker has no cold storage."""


class TopicOffloading(Reply, frozen=True, gc=False):
    """How far the move of a topic to cold storage has come."""

    until: dict[str, int]
    """Up to which offset, by topic. Given back with the same request, it asks how that goes on."""
    ledgers: int
    """Those that begin below these offsets."""
    stored_ledgers: int
    """How many of them are in cold storage."""
    bytes: int
    stored_bytes: int
    problem: str = ""
    """Why it does not go on for now; empty: it does."""

    @property
    def is_done(self) -> bool:
        return self.stored_ledgers == self.ledgers


class LedgerChecked(Reply, frozen=True, gc=False):
    """What was found of a ledger, in each place where it lies."""

    topic: str
    ledger_id: int
    places: list[PlaceChecked]


class SettingsDescribed(Reply, frozen=True, gc=False):
    """All settings of the broker, by section."""

    settings: list[Setting]


class BrokerDescribed(Reply, frozen=True, gc=False):
    """The broker, its defaults and figures."""

    broker_id: str
    version: str
    epoch: int
    """How often its data directory was taken up."""
    policies: Policies
    """What its settings say for all namespaces."""
    effective: Effective
    """What holds where no namespace or topic says otherwise."""
    statistics: BrokerStatistics
    url: str = ""
    """Where clients connect."""
    started_ms: int = 0
    """Milliseconds since 1970, UTC."""
    unexplained: list[str] = []
    """Where ledgers are that its start found and that no state explains; the first of them."""


AdminReply = (
    Done
    | NamespacesListed
    | NamespaceDescribed
    | NamespaceMeasured
    | TopicsListed
    | TopicDescribed
    | TopicMeasured
    | SubscriptionsListed
    | SubscriptionDescribed
    | PositionsSet
    | MessagesCounted
    | MessagesPeeked
    | EventsListed
    | DeadLettersListed
    | ProducersListed
    | ConsumersListed
    | LedgersListed
    | TopicOffloading
    | LedgerChecked
    | TransactionsListed
    | BrokerDescribed
    | SettingsDescribed
)

OnReply: TypeAlias = "Callable[[AdminReply | DanubiusError], None]"
"""Hears what an operator is answered, or why not; exactly once."""
