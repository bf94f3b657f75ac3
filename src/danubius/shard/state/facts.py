"""The facts the broker journals beside record batches. Applied in order they rebuild its state.

Each travels as a MessagePack array that starts with its tag. Tags are never reused, fields are only appended, with
defaults that say what was true before there was such a field.
"""

from __future__ import annotations

from typing import Final

import msgspec

from danubius.model.policy import FailurePolicy, Policies
from danubius.model.subscription import SubscriptionType
from danubius.model.topic import TopicSpec

EVENT_RECORD: Final = 2
"""Journal record kind of an event."""
STAGE_LOG: Final = -1
"""In the place of a parent: this topic is the log of a job's stages."""


class Fact(msgspec.Struct, frozen=True, gc=False, array_like=True, tag_field="fact"):
    """Base of all events."""


class TopicCreated(Fact, frozen=True, gc=False, tag=1):
    """A topic exists from here on."""

    topic_id: int
    name: str
    spec: TopicSpec
    created_ms: int
    policies: Policies | None = None
    parent: int = 0
    """The topic whose delay log this is; 0: it is a topic of its own; `STAGE_LOG`: stages of a job wait in it."""


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
    next_sequence: int = 0
    """Where its sequence goes on, unless it was resumed: then the first batch says so."""


class SubscriptionCreated(Fact, frozen=True, gc=False, tag=4):
    """A subscription exists from here on, and owes everything from `floor`."""

    topic_id: int
    subscription_id: int
    name: str
    type: SubscriptionType
    floor: int
    failure: FailurePolicy | None = None
    created_ms: int = 0


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


class NamespaceCreated(Fact, frozen=True, gc=False, tag=9):
    """A namespace exists from here on."""

    name: str
    policies: Policies
    created_ms: int


class NamespaceChanged(Fact, frozen=True, gc=False, tag=10):
    """These are the namespace's policies from here on: the whole layer, not the change."""

    name: str
    policies: Policies


class NamespaceRemoved(Fact, frozen=True, gc=False, tag=11):
    """A namespace is gone."""

    name: str


class TopicChanged(Fact, frozen=True, gc=False, tag=12):
    """These are the topic's own policies from here on: the whole layer, not the change."""

    topic_id: int
    policies: Policies


class PartitionsSet(Fact, frozen=True, gc=False, tag=13):
    """A partitioned topic exists with so many partitions; again when it grows or its settings change."""

    name: str
    partitions: int
    spec: TopicSpec
    created_ms: int


class PartitionsRemoved(Fact, frozen=True, gc=False, tag=14):
    """A partitioned topic is gone; its partitions are topics with facts of their own."""

    name: str


class SubscriptionChanged(Fact, frozen=True, gc=False, tag=15):
    """A subscription got another failure policy; None: that of its topic."""

    topic_id: int
    subscription_id: int
    failure: FailurePolicy | None


class SubscriptionMoved(Fact, frozen=True, gc=False, tag=16):
    """A subscription owes everything from `floor` and nothing below, whatever was acknowledged before."""

    topic_id: int
    subscription_id: int
    floor: int


class AttemptsCounted(Fact, frozen=True, gc=False, tag=17):
    """Messages [first, end) of each segment were delivered so many times without success."""

    topic_id: int
    subscription_id: int
    segments: list[tuple[int, int, int]]


class DelayAdvanced(Fact, frozen=True, gc=False, tag=18):
    """Everything in this delay log up to this pair, by due time and then by offset, is released."""

    topic_id: int
    due_ms: int
    offset: int


class TransactionCommitted(Fact, frozen=True, gc=False, tag=19):
    """A transaction is done; only in the atomic record that holds what it did."""

    transaction_id: int


class StageOpened(Fact, frozen=True, gc=False, tag=20):
    """An attempt of a task began to write for a batch of the job whose log this is."""

    topic_id: int
    stage_id: int
    batch: int
    task: str
    first: int
    """Nothing of it is below this offset of the log."""


class StagesDropped(Fact, frozen=True, gc=False, tag=21):
    """These stages will never be published."""

    topic_id: int
    stages: list[int]


class BatchDecided(Fact, frozen=True, gc=False, tag=22):
    """These stages, which are in [first, end) of the job's log, are what the batch consists of, for ever."""

    job: str
    batch: int
    stages: list[int]
    first: int
    end: int


class BatchAdvanced(Fact, frozen=True, gc=False, tag=23):
    """A decided batch is published below this offset of the job's log; only in the atomic record that did so."""

    job: str
    batch: int
    next_offset: int
    is_done: bool


class LedgerOffloaded(Fact, frozen=True, gc=False, tag=24):
    """A sealed ledger has a verified copy in the object store; or has lost it, and has none."""

    topic_id: int
    ledger_id: int
    epoch: int
    name: str
    """Empty: its object is lost or damaged, while the ledger itself is still on disk."""
    object_bytes: int
    data_crc: int
    index_rows: int


class LedgersReclaimed(Fact, frozen=True, gc=False, tag=25):
    """These ledgers are read from their objects from here on; their files may go."""

    topic_id: int
    ledger_ids: list[int]


class RecordsGivenUp(Fact, frozen=True, gc=False, tag=26):
    """A repair put this in the place of records that could not be read: it is as long as they were."""

    holes: list[tuple[int, int, int]] = []
    """Topic, and the messages [first, end) that were in them, as far as others tell."""
    padding: bytes = b""


Event = (
    TopicCreated
    | TopicRemoved
    | ProducerStarted
    | SubscriptionCreated
    | SubscriptionRetyped
    | SubscriptionRemoved
    | RangesAcked
    | LogTrimmed
    | NamespaceCreated
    | NamespaceChanged
    | NamespaceRemoved
    | TopicChanged
    | PartitionsSet
    | PartitionsRemoved
    | SubscriptionChanged
    | SubscriptionMoved
    | AttemptsCounted
    | DelayAdvanced
    | TransactionCommitted
    | StageOpened
    | StagesDropped
    | BatchDecided
    | BatchAdvanced
    | LedgerOffloaded
    | LedgersReclaimed
    | RecordsGivenUp
)

BARRIER: Final = RangesAcked(0, 0, [])
"""A fact about nothing, to find out whether the journal takes one; no topic has the number 0."""

_decoder: Final = msgspec.msgpack.Decoder(Event)
_encoder: Final = msgspec.msgpack.Encoder()


def encode_event(event: Event) -> bytes:
    return _encoder.encode(event)


def decode_event(body: bytes | memoryview) -> Event:
    return _decoder.decode(body)
