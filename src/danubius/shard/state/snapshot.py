"""The broker's state as of one journal position, as it is stored and read back; topics may be ahead of it.

Fields are only appended, with defaults that say what was true before there was such a field.
"""

from __future__ import annotations

from typing import Final

import msgspec

from danubius.catalog.core.states import NamespaceState, PartitionedState
from danubius.ledger.entry import LedgerMeta
from danubius.model.policy import FailurePolicy, Policies
from danubius.model.subscription import SubscriptionType
from danubius.model.topic import TopicSpec


class ProducerState(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One remembered producer name."""

    producer_id: int
    name: str
    epoch: int
    next_sequence: int
    runs: list[tuple[int, int, int]]


class SubscriptionState(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One subscription with its cursor."""

    subscription_id: int
    name: str
    type: SubscriptionType
    cursor: bytes
    failure: FailurePolicy | None = None
    attempts: list[tuple[int, int, int]] = []
    """First offset, end and number of failed deliveries."""
    created_ms: int = 0


class TopicState(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One topic."""

    topic_id: int
    name: str
    spec: TopicSpec
    created_ms: int
    start_offset: int
    next_offset: int
    ledgers: list[LedgerMeta]
    producers: list[ProducerState]
    subscriptions: list[SubscriptionState]
    policies: Policies | None = None
    parent: int = 0
    watermark: tuple[int, int] = (0, 0)
    """Of a delay log: due time and offset up to which everything is released."""
    has_expiring: bool = False
    position: int = 0
    """Records of the journal before it are in this state, though they may lie behind the snapshot's position."""


class StageState(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One stage; what it holds is in the log of its job."""

    stage_id: int
    batch: int
    task: str
    first: int
    batches: int
    messages: int
    bytes: int
    targets: list[int]


class JobState(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One job that stages; its log is a topic that names it."""

    name: str
    committed: int
    stages: list[StageState] = []
    decision: tuple[int, list[int], int, int] | None = None
    """Batch, stages, and the part [next, end) of the log that is still to be published."""


class BrokerSnapshot(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Everything that recovery needs beside the ledgers and the journal behind `position`."""

    next_id: int
    """Topics, producers and subscriptions draw their numbers from one counter."""
    topics: list[TopicState]
    namespaces: list[NamespaceState] = []
    partitioned: list[PartitionedState] = []
    committed: list[tuple[int, int]] = []
    """Ranges of the transactions that were committed."""
    jobs: list[JobState] = []
    broker_id: str = ""
    """Whose state it is."""
    epoch: int = 0
    """Who saved it: from then on the journal is synced up to the snapshot, and every topic's state, before that."""


class CapturedSnapshot(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The same on its way to disk: topics are encoded one by one, as they are looked at.

    So a broker of many topics does not hold all their states at once, which the garbage collector would then walk.
    """

    next_id: int
    topics: list[msgspec.Raw]
    namespaces: list[NamespaceState]
    partitioned: list[PartitionedState]
    committed: list[tuple[int, int]]
    jobs: list[JobState]
    broker_id: str
    epoch: int


_decoder: Final = msgspec.msgpack.Decoder(BrokerSnapshot)
_encode: Final = msgspec.msgpack.Encoder().encode


def encode_topic(state: TopicState) -> msgspec.Raw:
    return msgspec.Raw(_encode(state))


def encode_snapshot(snapshot: BrokerSnapshot | CapturedSnapshot) -> bytes:
    return _encode(snapshot)


def newest_stamp_ms(snapshot: BrokerSnapshot) -> int:
    """The newest time of the broker's own clock that a snapshot knows; 0: none."""
    topics = snapshot.topics
    return max(
        max((topic.created_ms for topic in topics), default=0),
        max((meta.created_ms for topic in topics for meta in topic.ledgers), default=0),
        max((one.created_ms for topic in topics for one in topic.subscriptions), default=0),
    )


def decode_snapshot(data: bytes) -> BrokerSnapshot:
    return _decoder.decode(data)
