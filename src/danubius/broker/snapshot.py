"""The broker's state as of one journal position, as it is stored and read back."""

from __future__ import annotations

from typing import Final

import msgspec

from danubius.ledger.entry import LedgerMeta
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


class BrokerSnapshot(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Everything that recovery needs beside the ledgers and the journal behind `position`."""

    next_id: int
    """Topics, producers and subscriptions draw their numbers from one counter."""
    topics: list[TopicState]


_decoder: Final = msgspec.msgpack.Decoder(BrokerSnapshot)


def encode_snapshot(snapshot: BrokerSnapshot) -> bytes:
    return msgspec.msgpack.encode(snapshot)


def decode_snapshot(data: bytes) -> BrokerSnapshot:
    return _decoder.decode(data)
