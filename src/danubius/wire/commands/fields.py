"""The types of fields, with the ranges that the decoder enforces."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""An offset, an amount, a duration: fits the signed 64 bits of every language and file format."""
Handle = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
"""A number that the broker gave to a producer or consumer of this connection."""
Unsigned = Annotated[int, msgspec.Meta(ge=0)]
"""Up to 64 bits, as MessagePack allows."""

RANGES_MAX: Final = 50_000
"""Ranges in one Ack or Nack: at 19 bytes each in the worst case, they fit the command part of a frame."""
Ranges = Annotated[list[tuple[Count, Count]], msgspec.Meta(max_length=RANGES_MAX)]
"""Offset ranges, each [first, end)."""


class Access(enum.StrEnum):
    """Whether a producer shares its topic with others."""

    SHARED = "shared"
    """With any number of other shared ones; refused while somebody holds the topic exclusively."""
    EXCLUSIVE = "exclusive"
    """Alone; refused while there is another."""
    WAIT_FOR_EXCLUSIVE = "wait-for-exclusive"
    """Alone; answered when the others are gone, in order of arrival."""
