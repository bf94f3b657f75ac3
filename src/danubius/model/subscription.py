"""Subscriptions: who may read, from where, and when a message comes again."""

from __future__ import annotations

import enum
from typing import Final

import msgspec


class SubscriptionType(enum.StrEnum):
    """How the consumers of one subscription share its messages."""

    EXCLUSIVE = "exclusive"
    """One consumer at a time; a second is refused while the first is alive."""
    SHARED = "shared"
    """Messages are spread over all consumers."""
    FAILOVER = "failover"
    """One consumer is active, the others stand by in order of arrival."""
    KEY_SHARED = "key-shared"
    """All messages of one key go to one consumer, in order."""


class AtOffset(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag="offset"):
    """Start at this offset."""

    offset: int


class AtTime(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag="time"):
    """Start at the first message published at or after this time (microseconds since 1970, UTC)."""

    time_us: int


class AtEarliest(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag="earliest"):
    """Start at the oldest message that is still there."""


class AtLatest(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag="latest"):
    """Start behind the newest message."""


Position = AtOffset | AtTime | AtEarliest | AtLatest

EARLIEST: Final = AtEarliest()
LATEST: Final = AtLatest()
