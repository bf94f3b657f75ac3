"""Settings that the blocking client's `producer`, `consumer` and `reader` take: the same as the asyncio client's."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from danubius.client.options import (
        AccessName,
        CompressionName,
        DispatchName,
        DurabilityName,
        Start,
        SubscriptionTypeName,
    )
    from danubius.model.policy import FailurePolicy


class ProducerSettings(TypedDict, total=False):
    """What `client.producer` takes; see `danubius.Client.producer`."""

    name: str | None
    dispatch: DispatchName
    durability: DurabilityName
    compression: CompressionName | None
    batch_bytes: int
    batch_records: int
    linger: float
    buffer_bytes: int
    send_timeout: float
    access: AccessName
    resume: bool
    chunk_bytes: int | None


class ConsumerSettings(TypedDict, total=False):
    """What `client.consumer` takes; see `danubius.Client.consumer`."""

    type: SubscriptionTypeName
    start: Start
    name: str | None
    prefetch_messages: int
    prefetch_bytes: int
    ack_timeout: float | timedelta | None
    skip_damaged: bool
    failure: FailurePolicy | None
    key_filters: Sequence[str]
    chunk_patience: float


class ReaderSettings(TypedDict, total=False):
    """What `client.reader` takes; see `danubius.Client.reader`."""

    start: Start
    stop_at_end: bool
    fetch_bytes: int
    skip_damaged: bool
