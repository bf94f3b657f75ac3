"""Partitioned topics: how the partitions of `/ns/topic` are called, and which one a key belongs to.

Invariant: the routing is that of Danube's own clients (FNV-1a with 64 bits, modulo the number of partitions), so that
producers of either kind put one key into one partition.
"""

from __future__ import annotations

import re
from typing import Final

from danubius.errors import TopicExists
from danubius.model.ids import TopicName

_PARTITION = re.compile(r"(?P<base>.+)-part-(?P<index>0|[1-9][0-9]{0,5})\Z")
_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_MASK: Final = 0xFFFFFFFFFFFFFFFF


def partition_name(base: TopicName, index: int) -> TopicName:
    """The name of one partition, as an ordinary topic."""
    return TopicName(f"{base}-part-{index}")


def partition_names(base: TopicName, count: int) -> list[TopicName]:
    return [partition_name(base, index) for index in range(count)]


def base_of(name: TopicName) -> tuple[TopicName, int] | None:
    """The partitioned topic that this name would be a partition of, and its number; None if it is no such name."""
    found = _PARTITION.match(name)
    if found is None:
        return None
    return TopicName(found["base"]), int(found["index"])


def fnv1a64(key: bytes) -> int:
    """FNV-1a, 64 bits."""
    number = _FNV_OFFSET
    for byte in key:
        number = (number ^ byte) * _FNV_PRIME & _MASK
    return number


def route(key: bytes, partitions: int) -> int:
    """The partition of a key."""
    return fnv1a64(key) % partitions


def partitioned_error(base: str, partitions: int) -> TopicExists:
    """For those who take a partitioned topic for a plain one: clients that do not know of partitions."""
    last = f" to -part-{partitions - 1}" if partitions > 1 else ""
    return TopicExists(
        f"topic {base} is partitioned into {partitions}: use {base}-part-0{last}, or a newer client"
    )
