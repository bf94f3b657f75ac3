"""Entries of the catalog, as snapshots store them.

Fields are only appended, with defaults that say what was true before there was such a field.
"""

from __future__ import annotations

import msgspec

from danubius.model.policy import Policies
from danubius.model.topic import TopicSpec


class NamespaceState(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One namespace that was created or changed."""

    name: str
    policies: Policies
    created_ms: int


class PartitionedState(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One partitioned topic; its partitions are topics like others."""

    name: str
    partitions: int
    spec: TopicSpec
    created_ms: int
