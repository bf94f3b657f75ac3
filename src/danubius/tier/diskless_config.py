"""Settings of a broker without a disk: how it writes."""

from __future__ import annotations

from typing import Annotated

import msgspec

from danubius.model.limits import KIB, MIB


class DisklessConfig(msgspec.Struct, frozen=True):
    """How a broker without a disk writes. The store is that of [tier]."""

    enabled: bool = False
    """Whether journal, snapshots and ledgers are objects in the store that tier.url names; the disk is not needed."""
    group_ms: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
    """Batches of all topics are gathered for so long into one object. Less: answers sooner, and more puts to pay."""
    group_bytes: Annotated[int, msgspec.Meta(ge=64 * KIB, le=64 * MIB)] = 4 * MIB
    """A group of this size is stored at once."""
    deadline_ms: Annotated[int, msgspec.Meta(ge=100, le=100_000)] = 15_000
    """A group that is not stored by then has failed, and its publishers are told to try again."""
    watch_ms: Annotated[int, msgspec.Meta(ge=100, le=60_000)] = 1000
    """How often a quiet broker with connections asks the store whether another has taken its place."""
