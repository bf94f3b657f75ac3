"""Fencing: how a start takes the journal from whoever wrote it, and how a writer gives up what it has under way.

Generators that ask for calls of the store and are sent the answers: so a test can let two of them, and a writer, take
turns in any order. Only *put if absent* is needed, and it must be atomic. There is no lease and no clock.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import BrokerReplaced, DataDirectoryDamaged, StorageFailed
from danubius.tier.core.journal_object import (
    PUTS_AT_ONCE,
    REACH,
    Author,
    SlotHeader,
    fence,
    slot_name,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from danubius.tier.core.journal_object import Walk

ROUNDS_MAX: Final = 100
"""A writer that is faster than a start for so long is not replaced."""


class ListEpochs(NamedTuple):
    """Answered with all numbers of starts, as a set."""


class PutEpoch(NamedTuple):
    """Answered with the process that has the number: the one that asks, if it was free."""

    author: Author


class ListSlots(NamedTuple):
    """Answered with all slots that are filled, as a set."""


class PutFence(NamedTuple):
    """Answered with the header that is in the slot: this one, if it was empty."""

    header: SlotHeader


class ReadSlots(NamedTuple):
    """Answered with the headers of those that are there, by slot. Raises DataDirectoryDamaged for one that is none."""

    slots: list[int]


Call = ListEpochs | PutEpoch | ListSlots | PutFence | ReadSlots


_NONE: Final[Mapping[int, SlotHeader]] = MappingProxyType({})


class Answer(NamedTuple):
    """What a call was answered with; the one field that belongs to it."""

    numbers: frozenset[int] = frozenset()
    process: int = 0
    headers: Mapping[int, SlotHeader] = _NONE


def take_epoch(process: int, seen: int = 0) -> Generator[Call, Answer, Author]:
    """A number for a start, above all others, and above what was seen elsewhere."""
    answer = yield ListEpochs()
    epoch = max(answer.numbers, default=0)
    epoch = max(epoch, seen)
    for _ in range(ROUNDS_MAX):
        epoch += 1
        answer = yield PutEpoch(Author(epoch, process))
        if answer.process == process:
            return Author(epoch, process)
    raise StorageFailed(f"{ROUNDS_MAX} starts of this broker at once: try again")


def take_over(author: Author) -> Generator[Call, Answer, Walk]:
    """Stop whoever writes; returns what counts of the journal. Raises BrokerReplaced and DataDirectoryDamaged."""
    for _ in range(ROUNDS_MAX):
        yield from _check_latest(author)
        answer = yield ListSlots()
        # Not the very next one: the race for that would be lost again and again.
        block = max(answer.numbers, default=-1) + REACH
        answer = yield PutFence(fence(author, block))
        if answer.headers[block].author == author:
            found = yield from _freeze(author, block)
            if found is not None:
                return found
    raise StorageFailed(
        f"the broker that writes was faster {ROUNDS_MAX} times than this start could stop it: "
        "stop it first, or try again"
    )


def _check_latest(author: Author) -> Generator[Call, Answer, None]:
    answer = yield ListEpochs()
    later = max(answer.numbers)
    if later > author.epoch:
        raise BrokerReplaced(
            f"start {later} of this broker takes the store; this is start {author.epoch}"
        )


def _freeze(author: Author, block: int) -> Generator[Call, Answer, Walk | None]:
    """Fill what the writer may have begun; None if the block stops nobody, as the writer has passed it."""
    # It may have filled everything before the block, and so have begun what is within its reach from there.
    top = block + REACH - 1
    answer = yield ListSlots()
    slots = answer.numbers
    if max(slots) > top:
        return None
    headers: dict[int, SlotHeader] = {block: fence(author, block)}
    floor = yield from _find_floor(slots, headers)
    answer = yield ReadSlots(sorted(slot for slot in slots if slot >= floor))
    headers.update(answer.headers)
    _check_promises(set(range(floor, top + 1)) - slots, headers.values())
    holes = [slot for slot in range(top, -1, -1) if slot not in slots]
    floor = yield from _fill(author, holes, floor, headers)
    # What a later start has trimmed meanwhile would have been taken for holes.
    yield from _check_latest(author)
    if floor > block:
        # The block was put where something had been trimmed.
        return None
    later = max(header.author.epoch for header in headers.values())
    if later > author.epoch:
        raise BrokerReplaced(
            f"start {later} of this broker has the store; this is start {author.epoch}"
        )
    found = _count(headers, floor, top)
    if found.floor < floor:
        # The higher claim is void, so nothing was deleted by it, and what it would have made needless is needed.
        answer = yield ReadSlots(list(range(found.floor, floor)))
        yield from _check_latest(author)
        headers.update(answer.headers)
        found = _count(headers, found.floor, top)
    return found


def _count(headers: Mapping[int, SlotHeader], floor: int, top: int) -> Walk:
    gone = next((slot for slot in range(floor, top + 1) if slot not in headers), None)
    if gone is not None:
        raise DataDirectoryDamaged(
            f"the journal's object {slot_name(gone)} was there and is gone, while it is needed: restore it from a copy"
        )
    return walk([headers[slot] for slot in range(floor, top + 1)])


def _fill(
    author: Author, holes: list[int], floor: int, headers: dict[int, SlotHeader]
) -> Generator[Call, Answer, int]:
    """Put fences into the slots that are empty; returns the highest claim.

    Downwards: what was filled meanwhile tells what was deleted meanwhile, before that could be taken for a hole.
    """
    for slot in holes:
        if slot < floor:
            break
        if slot not in headers:
            answer = yield PutFence(fence(author, slot))
            headers.update(answer.headers)
        floor = max(floor, headers[slot].floor)
    return floor


def _find_floor(
    slots: frozenset[int], headers: dict[int, SlotHeader]
) -> Generator[Call, Answer, int]:
    """The highest claim of what lies there: that of the highest object with records."""
    for slot in sorted(slots, reverse=True):
        if slot not in headers:
            answer = yield ReadSlots([slot])
            headers.update(answer.headers)
        header = headers.get(slot)
        if header is not None and not header.is_fence:
            return header.floor
    return 0


def _check_promises(holes: set[int], headers: Iterable[SlotHeader]) -> None:
    promise = max((header.promise for header in headers), default=0)
    lost = min((slot for slot in holes if slot < promise), default=None)
    if lost is not None:
        raise DataDirectoryDamaged(
            f"the journal's object {slot_name(lost)} is missing, while those up to {slot_name(promise - 1)} had been "
            "stored: restore it from a copy"
        )


def give_up(author: Author, filled_to: int) -> Generator[Call, Answer, tuple[Author, int]]:
    """Make void what this writer has under way from a slot on; returns the author and the slot to go on with.

    To be called again after a failure, with the same arguments. Raises BrokerReplaced.
    """
    own = Author(author.epoch + 1, author.process)
    answer = yield PutEpoch(own)
    if answer.process != own.process:
        raise BrokerReplaced(
            f"start {own.epoch} of this broker takes the store; this is start {author.epoch}"
        )
    top = filled_to + PUTS_AT_ONCE
    for slot in range(top, filled_to - 1, -1):
        # The highest one alone makes the rest void; the others fill the holes before it.
        answer = yield PutFence(fence(own, slot, filled_to if slot == top else None))
        found = answer.headers[slot].author
        if found.process != own.process or found.epoch > own.epoch:
            raise BrokerReplaced(f"start {found.epoch} of this broker has the store")
    return own, top + 1
