"""Policies of namespaces and topics: layers of settings, the nearer one wins.

The broker's defaults, then the namespace's, then the topic's. A layer names only what it sets; the effective policies
have a value for everything. Invariant: a layer that passed `check` makes effective policies that the broker can obey.
"""

from __future__ import annotations

import enum
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from danubius.errors import InvalidArgument
from danubius.model.limits import MESSAGE_BYTES_MAX

FOREVER: Final = -1
"""Retention without an end."""
NEVER: Final = -1
"""Of offloading."""
NO_LIMIT: Final = 0
"""Of limits, rates, quotas and time to live."""
DAY_MS: Final = 24 * 3600 * 1000
YEARS_MS: Final = 100 * 365 * DAY_MS
"""Longer than any sensible period; keeps sums of times inside 64 bits."""
RATE_MAX: Final = 10**12
COUNT_MAX: Final = 10**9
PARTITIONS_MAX: Final = 1000
"""Partitions of one topic."""
UNACKED_MESSAGES_MAX: Final = 1_000_000
"""Messages of one subscription, delivered and not acknowledged."""


class Backoff(enum.StrEnum):
    """How the delay grows from one delivery of a message to the next."""

    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class Exhausted(enum.StrEnum):
    """What becomes of a message that failed too often."""

    DEAD_LETTER = "dead-letter"
    """It moves to the dead-letter topic."""
    DROP = "drop"
    """It counts as acknowledged."""
    BLOCK = "block"
    """Nothing behind it is delivered until an operator decides; with Key-Shared, nothing of its key."""


class QuotaAction(enum.StrEnum):
    """What happens to a publish that finds the quota used up."""

    REFUSE = "refuse"
    DROP_OLDEST = "drop-oldest"


class FailurePolicy(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """When a message that was not acknowledged comes again, how often, and what then."""

    ack_timeout_ms: int = 0
    """After this long without an acknowledgement it is delivered again; 0: only when the consumer goes or says so."""
    backoff: Backoff = Backoff.EXPONENTIAL
    delay_ms: int = 0
    """Before the first redelivery."""
    delay_max_ms: int = 60_000
    jitter: float = 0.0
    """The part of the delay that is spread at random, 0 to 1."""
    redeliveries_max: int | None = None
    """None: for ever."""
    then: Exhausted = Exhausted.DEAD_LETTER
    dead_letter_topic: str = ""
    """Empty: the topic's name, `-`, the subscription's name, `-dlq`."""
    unacked_messages_max: int | UnsetType = UNSET
    """So many may be delivered and not acknowledged, all consumers together. Absent: as many as the broker can keep."""

    def check(self) -> None:
        for name in ("ack_timeout_ms", "delay_ms", "delay_max_ms"):
            _check_range(f"failure.{name}", getattr(self, name), 0, YEARS_MS)
        if self.delay_max_ms < self.delay_ms:
            raise InvalidArgument(
                f"failure.delay_max_ms is {self.delay_max_ms}, less than failure.delay_ms {self.delay_ms}"
            )
        if not 0 <= self.jitter <= 1:
            raise InvalidArgument(f"failure.jitter is {self.jitter}; it must be 0 to 1")
        if self.redeliveries_max is not None:
            _check_range("failure.redeliveries_max", self.redeliveries_max, 0, COUNT_MAX)
        if self.unacked_messages_max is not UNSET:
            name = "failure.unacked_messages_max"
            _check_range(name, self.unacked_messages_max, 1, UNACKED_MESSAGES_MAX)


class Policies(
    msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True
):
    """One layer, or a change of one.

    Absent: as the layer below says (in a change: as it was). None, in a change: back to the layer below.
    """

    retention_age_ms: int | UnsetType | None = UNSET
    """How long acknowledged messages stay; 0: not at all, -1: for ever."""
    retention_bytes: int | UnsetType | None = UNSET
    """How much of what is acknowledged stays; 0: nothing, -1: all."""
    ttl_ms: int | UnsetType | None = UNSET
    """Messages older than this are not delivered; 0: they do not age."""
    delete_after_ack: bool | UnsetType | None = UNSET
    """A plain work queue: what every subscription acknowledged is freed as soon as possible."""
    message_bytes_max: int | UnsetType | None = UNSET
    producers_max: int | UnsetType | None = UNSET
    consumers_max: int | UnsetType | None = UNSET
    """Of all subscriptions of a topic together."""
    subscriptions_max: int | UnsetType | None = UNSET
    subscription_consumers_max: int | UnsetType | None = UNSET
    publish_messages_per_s: int | UnsetType | None = UNSET
    publish_bytes_per_s: int | UnsetType | None = UNSET
    dispatch_messages_per_s: int | UnsetType | None = UNSET
    """To each subscription of a topic; of a namespace: to all of them together."""
    dispatch_bytes_per_s: int | UnsetType | None = UNSET
    quota_bytes: int | UnsetType | None = UNSET
    quota_action: QuotaAction | UnsetType | None = UNSET
    auto_create: bool | UnsetType | None = UNSET
    """Whether a producer may create a topic by opening it. Of namespaces."""
    auto_partitions: int | UnsetType | None = UNSET
    """How many partitions such a topic has; 0: it is not partitioned. Of namespaces."""
    failure: FailurePolicy | UnsetType | None = UNSET
    """For subscriptions that have none of their own."""
    offload_age_ms: int | UnsetType | None = UNSET
    """A ledger goes to cold storage this long after its last message; 0: when it is sealed, -1: never."""
    offload_bytes: int | UnsetType | None = UNSET
    """When more than this is on the broker's disk alone, the oldest goes to cold storage; 0: all of it, -1: never."""
    local_age_ms: int | UnsetType | None = UNSET
    """How long what is in cold storage stays on the broker's disk too, after its last message; -1: for ever."""
    local_bytes: int | UnsetType | None = UNSET
    """How much of the newest of what is in cold storage stays on the broker's disk too; -1: all."""

    def patched(self, change: Policies) -> Policies:
        """This layer after a change."""
        merged: dict[str, Any] = {}
        for name in _NAMES:
            value = getattr(change, name)
            if value is UNSET:
                value = getattr(self, name)
            if value is not None and value is not UNSET:
                merged[name] = value
        return Policies(**merged)

    def check(self) -> None:
        """Refuse what cannot be obeyed, and say what could."""
        for name in _NAMES:
            value = getattr(self, name)
            if value is None or value is UNSET:
                continue
            if isinstance(value, FailurePolicy):
                value.check()
            elif name in _RANGES:
                _check_range(name, value, *_RANGES[name])


class Effective(msgspec.Struct, frozen=True, gc=False):
    """What holds for one topic, all layers taken together."""

    retention_age_ms: int = 7 * DAY_MS
    retention_bytes: int = FOREVER
    ttl_ms: int = NO_LIMIT
    delete_after_ack: bool = False
    message_bytes_max: int = MESSAGE_BYTES_MAX
    producers_max: int = NO_LIMIT
    consumers_max: int = NO_LIMIT
    subscriptions_max: int = NO_LIMIT
    subscription_consumers_max: int = NO_LIMIT
    publish_messages_per_s: int = NO_LIMIT
    publish_bytes_per_s: int = NO_LIMIT
    dispatch_messages_per_s: int = NO_LIMIT
    dispatch_bytes_per_s: int = NO_LIMIT
    quota_bytes: int = NO_LIMIT
    quota_action: QuotaAction = QuotaAction.REFUSE
    auto_create: bool = True
    auto_partitions: int = 0
    failure: FailurePolicy = FailurePolicy()
    offload_age_ms: int = NEVER
    offload_bytes: int = NEVER
    local_age_ms: int = 0
    local_bytes: int = 0

    @property
    def offloads(self) -> bool:
        """Whether ledgers go to cold storage by themselves."""
        return self.offload_age_ms != NEVER or self.offload_bytes != NEVER


def effective(*layers: Policies) -> Effective:
    """The layers on top of the built-in defaults, later ones nearer to the topic."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for name in _NAMES:
            value = getattr(layer, name)
            if value is not UNSET and value is not None:
                merged[name] = value
    return Effective(**merged)


_NAMES: Final = Policies.__struct_fields__
_RANGES: Final[dict[str, tuple[int, int]]] = {
    "retention_age_ms": (FOREVER, YEARS_MS),
    "retention_bytes": (FOREVER, 2**62),
    "ttl_ms": (0, YEARS_MS),
    "message_bytes_max": (1, MESSAGE_BYTES_MAX),
    "producers_max": (0, COUNT_MAX),
    "consumers_max": (0, COUNT_MAX),
    "subscriptions_max": (0, COUNT_MAX),
    "subscription_consumers_max": (0, COUNT_MAX),
    "publish_messages_per_s": (0, RATE_MAX),
    "publish_bytes_per_s": (0, RATE_MAX),
    "dispatch_messages_per_s": (0, RATE_MAX),
    "dispatch_bytes_per_s": (0, RATE_MAX),
    "quota_bytes": (0, 2**62),
    "auto_partitions": (0, PARTITIONS_MAX),
    "offload_age_ms": (NEVER, YEARS_MS),
    "offload_bytes": (NEVER, 2**62),
    "local_age_ms": (FOREVER, YEARS_MS),
    "local_bytes": (FOREVER, 2**62),
}
assert Policies.__struct_fields__ == Effective.__struct_fields__


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidArgument(f"{name} is {value}; it must be {least} to {most}")
