"""What a topic is told to be when it is created."""

from __future__ import annotations

import enum

import msgspec

from danubius.errors import InvalidArgument


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
    """fdatasync returned: survives power loss."""


class Retention(msgspec.Struct, frozen=True, gc=False):
    """How long messages stay after every subscription has acknowledged them. None means no limit.

    Unacknowledged messages are never dropped. Whichever bound is reached first frees the oldest ledgers.
    """

    age_ms: int | None = 7 * 24 * 3600 * 1000
    size_bytes: int | None = None


class TopicSpec(msgspec.Struct, frozen=True, gc=False):
    """The settings of a topic."""

    dispatch: Dispatch = Dispatch.RELIABLE
    durability: Durability = Durability.SYNCED
    retention: Retention = Retention()

    def check(self) -> None:
        for name, value in (
            ("age_ms", self.retention.age_ms),
            ("size_bytes", self.retention.size_bytes),
        ):
            if value is not None and value < 0:
                raise InvalidArgument(
                    f"retention.{name} is {value}; it must be 0 or more, or absent for no limit"
                )
