"""The bounds of one subscription."""

from __future__ import annotations

from typing import Final

import msgspec

from danubius.model.limits import GIB, KIB, MIB
from danubius.model.policy import UNACKED_MESSAGES_MAX
from danubius.model.subscription import SubscriptionType


class WindowLimits(msgspec.Struct, frozen=True, gc=False):
    """How much one subscription may have open, hold back and read at once."""

    unacked_messages_max: int = UNACKED_MESSAGES_MAX
    """Delivered or given back, and not acknowledged: beyond it nothing new is delivered."""
    unacked_bytes_max: int = 2 * GIB
    """The same in bytes, estimated from the mean size of what was read."""
    keyed_messages_max: int = 200_000
    """Key-Shared remembers every open message by itself, so its window is smaller."""
    held_messages_max: int = 100_000
    """Key-Shared: messages that wait for their key or its owner and are remembered, an eighth of it of one key.

    What waits beyond that is read once more when it may go.
    """
    keys_behind_max: int = 100_000
    """Key-Shared: keys with messages that have to be read once more, those that no consumer takes among them."""
    read_bytes_max: int = 4 * MIB
    """The target of one read: large enough to amortise it, small enough to be fair."""
    keyed_read_bytes_max: int = 64 * KIB
    """The same for Key-Shared, which looks at each message and cuts each batch: about 5 ms if both are small."""
    retry_ns_min: int = 100_000_000
    retry_ns_max: int = 5_000_000_000
    """A read that failed is tried again after a wait that doubles between these."""
    story_events_max: int = 16
    """Events kept for a post-mortem; a broker may have ten thousand subscriptions."""

    def open_max(self, kind: SubscriptionType) -> int:
        """How many messages may be open: with consumers, or waiting to come again."""
        if kind is SubscriptionType.KEY_SHARED:
            return min(self.unacked_messages_max, self.keyed_messages_max)
        return self.unacked_messages_max


DEFAULT_LIMITS: Final = WindowLimits()
