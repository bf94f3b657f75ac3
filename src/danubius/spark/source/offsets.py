"""Offsets as Spark keeps them, and as people write them in options.

    {"/default/orders": {"0": 1200, "1": 1180}, "incarnations": {"/default/orders": {"0": 18…, "1": 18…}}}

A topic that is not partitioned has partition 0. An offset is the next one to read. In options, -2 means earliest and
-1 latest. Invariants: topics and partitions are always written in order, so that the same offsets are the same text, by
which Spark sees that nothing new came; a partition that an offset does not name has not been read at all, so it is
read from its beginning, which is how new partitions and topics join a running query. The incarnations say of which
topic of that name the offsets are: one that was made anew has another. People leave them out.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from danubius.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

EARLIEST: Final = -2
LATEST: Final = -1
EXAMPLE: Final = '{"/default/orders": {"0": 1200, "1": -2}}'

SYMBOLIC: Final = "startingOffsets"
"""The one key of the offset of a query that has not looked yet where it begins: no topic is called so."""

INCARNATIONS: Final = "incarnations"
"""The key beside the topics; theirs begin with a slash."""


class Slot(NamedTuple):
    """A partition of a topic, ordered by topic and number."""

    topic: str
    partition: int


Offsets = dict[Slot, int]
"""The next offset of each partition."""
Incarnations = dict[Slot, int]
"""Which of all topics that ever had its name a partition is; brokers that do not say it leave it out."""


def to_json(offsets: Mapping[Slot, int], incarnations: Mapping[Slot, int]) -> dict[str, Any]:
    """As a dict for Spark to write down."""
    told = _nested(offsets)
    lives = {slot: incarnations[slot] for slot in offsets if incarnations.get(slot)}
    if lives:
        told[INCARNATIONS] = _nested(lives)
    return told


def _nested(numbers: Mapping[Slot, int]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for slot in sorted(numbers):
        result.setdefault(slot.topic, {})[str(slot.partition)] = numbers[slot]
    return result


def incarnations_of(value: Mapping[str, Any], what: str) -> Incarnations:
    """What `to_json` wrote beside the offsets; nothing in the offsets of people and of earlier versions."""
    return from_json(value.get(INCARNATIONS, {}), what)


def from_json(value: object, what: str) -> Offsets:
    """Read the offsets that `to_json` wrote or a person did; `what` names it in errors."""
    offsets: Offsets = {}
    for topic, partitions in _mapping(value, what).items():
        if topic == INCARNATIONS:
            continue
        for number, offset in _mapping(partitions, f"{what}, topic {topic}").items():
            if not number.isascii() or not number.isdecimal() or len(number) > 6:
                raise InvalidArgument(
                    f"{what}: {number!r} is not the number of a partition of {topic}; write {EXAMPLE}"
                )
            if type(offset) is not int or offset < EARLIEST:
                raise InvalidArgument(
                    f"{what}: the offset of partition {number} of {topic} is {offset!r}; it must be a whole number,"
                    f" or -2 for earliest, -1 for latest, as in {EXAMPLE}"
                )
            offsets[Slot(topic, int(number))] = offset
    return offsets


def parse(text: str, what: str) -> Offsets:
    """Read offsets that a person wrote as JSON."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"{what} is not valid JSON ({error}): write {EXAMPLE}") from None
    return from_json(value, what)


def is_symbolic(value: Mapping[str, Any]) -> bool:
    """Whether Spark's offset is the beginning of a query that has not been looked up."""
    return SYMBOLIC in value


def _mapping(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what}: {value!r} is not a JSON object; write {EXAMPLE}")
    return cast("dict[str, object]", value)
