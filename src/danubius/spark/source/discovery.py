"""Discovery: which partitions an option means, what they hold, where a time or a word lies in them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from danubius.errors import DanubiusError, InvalidArgument, TopicNotFound
from danubius.model import subscription
from danubius.model.ids import TopicName
from danubius.model.partitions import base_of, partition_name
from danubius.spark.source.offsets import EARLIEST, LATEST, Slot
from danubius.wire.commands import (
    DescribeTopic,
    ListTopics,
    Located,
    Lookup,
    OffsetResolved,
    ResolveOffset,
    TopicDescribed,
    TopicsListed,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from danubius.model.subscription import Position
    from danubius.spark.connection.fetching import FetchClient
    from danubius.spark.source.offsets import Offsets
    from danubius.spark.source.options import Boundary, ReadOptions

PAGE: Final = 1_000

Names = dict[Slot, str]
"""What the broker calls each partition."""


class Extent(msgspec.Struct, frozen=True, gc=False):
    """What a partition holds now: [start, end)."""

    start: int
    end: int
    record_bytes: float = 0.0
    """Of a stored record, on average; 0 if it was not asked for."""
    incarnation: int = 0
    """Which of all topics that ever had this name; 0: the broker does not say."""


def find_partitions(client: FetchClient, options: ReadOptions) -> Names:
    """All partitions that the options mean, by topic and number. A pattern may match nothing; a named topic must be."""
    wanted: dict[str, list[str]] = {topic: [] for topic in options.topics}
    pattern = None if options.pattern is None else re.compile(options.pattern)
    if pattern is not None:
        wanted = _matching(client, pattern)
    commands = [Lookup(topic) for topic in wanted]
    names: Names = {}
    for (topic, plain), command, answer in zip(
        wanted.items(), commands, client.request_all(commands), strict=True
    ):
        if pattern is not None and isinstance(answer, TopicNotFound):
            names |= {Slot(name, 0): name for name in plain}
            continue
        located = client.check(command, answer, Located)
        if not located.partitions:
            names |= {Slot(name, 0): name for name in plain}
        if pattern is None or pattern.fullmatch(topic):
            names |= _partitions(topic, located.partitions)
    return dict(sorted(names.items()))


def _partitions(topic: str, count: int) -> Names:
    if not count:
        return {Slot(topic, 0): topic}
    return {Slot(topic, at): partition_name(TopicName(topic), at) for at in range(count)}


def _matching(client: FetchClient, pattern: re.Pattern[str]) -> dict[str, list[str]]:
    """The topics whose whole name matches, each with those that are only called like partitions of it.

    The list that brokers give has partitions in it, not the topics they belong to.
    """
    found: dict[str, list[str]] = {}
    after = ""
    while True:
        page = client.request(ListTopics("", after, PAGE), TopicsListed)
        for summary in page.topics:
            member = base_of(TopicName(summary.topic))
            base = summary.topic if member is None else member[0]
            if pattern.fullmatch(base):
                found.setdefault(base, [])
            if member is not None and pattern.fullmatch(summary.topic):
                found.setdefault(base, []).append(summary.topic)
        if not page.more or not page.topics:
            return dict(sorted(found.items()))
        after = page.topics[-1].topic


def measure(
    client: FetchClient, names: Mapping[Slot, str], *, sizes: bool = False
) -> dict[Slot, Extent | DanubiusError]:
    """What each partition holds, or why that cannot be said: it was deleted."""
    if not sizes:
        commands = [ResolveOffset(name, subscription.LATEST) for name in names.values()]
        answers = client.request_all(commands)
    else:
        described = [DescribeTopic(name) for name in names.values()]
        answers = client.request_all(described)
    extents: dict[Slot, Extent | DanubiusError] = {}
    for slot, answer in zip(names, answers, strict=True):
        if isinstance(answer, DanubiusError):
            extents[slot] = answer
            continue
        reply = answer[0]
        if isinstance(reply, OffsetResolved):
            extents[slot] = Extent(
                reply.start_offset, reply.end_offset, incarnation=reply.incarnation
            )
        elif isinstance(reply, TopicDescribed):
            line = reply.summary
            held = line.end_offset - line.start_offset
            average = line.stored_bytes / held if held else 0.0
            extents[slot] = Extent(line.start_offset, line.end_offset, average, line.incarnation)
    return extents


def resolve(
    client: FetchClient, boundary: Boundary, names: Mapping[Slot, str], what: str
) -> Offsets:
    """The offsets of a boundary, for every partition."""
    if boundary.offsets is None:
        positions = dict.fromkeys(names, _position(boundary))
    else:
        offsets = boundary.per_slot()
        _check_complete(offsets, names, what)
        positions = {slot: _at(offsets[slot]) for slot in names}
    commands = [ResolveOffset(names[slot], position) for slot, position in positions.items()]
    resolved: Offsets = {}
    for slot, command, answer in zip(names, commands, client.request_all(commands), strict=True):
        if isinstance(answer, DanubiusError):
            raise type(answer)(f"{what}: {answer.message}") from None
        resolved[slot] = client.check(command, answer, OffsetResolved).offset
    return resolved


def _position(boundary: Boundary) -> Position:
    if boundary.time_us is not None:
        return subscription.AtTime(boundary.time_us)
    assert boundary.common is not None
    return _at(boundary.common)


def _at(offset: int) -> Position:
    if offset == EARLIEST:
        return subscription.EARLIEST
    return subscription.LATEST if offset == LATEST else subscription.AtOffset(offset)


def _check_complete(offsets: Offsets, names: Iterable[Slot], what: str) -> None:
    """Whoever writes offsets means all partitions: one left out by mistake would be read from anywhere."""
    known = set(names)
    if strange := sorted(set(offsets) - known):
        raise InvalidArgument(
            f"{what} names {_list(strange)}, which is not read here; there is {_list(sorted(known))}"
        )
    if missing := sorted(known - set(offsets)):
        raise InvalidArgument(
            f"{what} does not name {_list(missing)}: add it, with -2 for earliest or -1 for latest"
        )


def _list(slots: Sequence[Slot]) -> str:
    shown = ", ".join(f"partition {slot.partition} of {slot.topic}" for slot in slots[:5])
    return f"{shown} and {len(slots) - 5} more" if len(slots) > 5 else shown or "no partition"
