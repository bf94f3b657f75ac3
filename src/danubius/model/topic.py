"""The specification of a topic: what it is told to be when it is created."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from danubius.errors import InvalidArgument
from danubius.model.policy import FOREVER, YEARS_MS, Effective, Policies

BYTES_MAX: Final = 2**62
"""More than any disk; as far as policies go."""
_ID_BITS: Final = 20
"""Of a topic's number, in its incarnation; the rest is the millisecond of its creation."""


def incarnation_of(created_ms: int, topic_id: int) -> int:
    """Tells a topic from every other that has or had its name, on a broker that began anew as well."""
    return created_ms << _ID_BITS | topic_id & (1 << _ID_BITS) - 1


def is_incarnation_of(incarnation: int, topic_id: int) -> bool:
    """Whether an incarnation may be that of the topic with this number; 0 is nobody's, and says nothing."""
    return not incarnation or (incarnation ^ topic_id) & (1 << _ID_BITS) - 1 == 0


class Dispatch(enum.StrEnum):
    """How messages reach subscribers."""

    RELIABLE = "reliable"
    """Stored, delivered at least once, kept until acknowledged."""
    NON_RELIABLE = "non-reliable"
    """Handed to whoever listens, at most once, never stored."""


class Durability(enum.StrEnum):
    """What is true of a message when its publisher is answered. Reliable topics only."""

    WRITTEN = "written"
    """In the operating system's page cache: survives the broker's death, not the machine's."""
    SYNCED = "synced"
    """Synced, by fdatasync or by a write with RWF_DSYNC: survives power loss."""


class Retention(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """How long messages stay after every subscription has acknowledged them. None means no limit.

    Unacknowledged messages are never dropped. Whichever bound is reached first frees the oldest ledgers.
    """

    age_ms: int | None = 7 * 24 * 3600 * 1000
    size_bytes: int | None = None


class TopicSpec(
    msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True
):
    """The settings of a topic, as they are sent and stored.

    A default is not written, so that readers that do not know a field never see it; hence defaults never change. A
    field that a reader does not know is refused, not passed over: a wish must not be obeyed in part. Fields are never
    taken away, so what was ever stored can be read.
    """

    dispatch: Dispatch = Dispatch.RELIABLE
    durability: Durability = Durability.SYNCED
    retention: Retention | None = None
    """The older way to set it: both bounds are the topic's own. None: as `policies` or the namespace say."""
    policies: Policies = Policies()
    """The topic's own layer."""

    def describe(self) -> str:
        """What differs from the defaults, for a sentence."""
        told = msgspec.json.encode(self).decode()
        return "the defaults" if told == "{}" else told

    def check(self) -> None:
        self.policies.check()
        if self.retention is None:
            return
        for name, value in (
            ("age_ms", self.retention.age_ms),
            ("size_bytes", self.retention.size_bytes),
        ):
            if value is not None and value < 0:
                raise InvalidArgument(
                    f"retention.{name} is {value}; it must be 0 or more, or absent for no limit"
                )

    def layer(self) -> Policies:
        """The topic's own policies; `policies` wins where `retention` speaks of the same."""
        if self.retention is None:
            return Policies().patched(self.policies)
        age_ms, size_bytes = self.retention.age_ms, self.retention.size_bytes
        return Policies(
            retention_age_ms=FOREVER if age_ms is None else min(age_ms, YEARS_MS),
            retention_bytes=FOREVER if size_bytes is None else min(size_bytes, BYTES_MAX),
        ).patched(self.policies)


def retention_of(policies: Effective) -> Retention:
    """What a topic's effective policies say about retention."""
    age_ms, size_bytes = policies.retention_age_ms, policies.retention_bytes
    return Retention(
        None if age_ms == FOREVER else age_ms, None if size_bytes == FOREVER else size_bytes
    )
