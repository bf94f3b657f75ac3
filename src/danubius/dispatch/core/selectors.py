"""Selectors: who may join a subscription, who is active, and how a run is split, for the types that deal in runs.

Selectors keep order and policy. They never touch offsets, cursors or time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from danubius.model.subscription import SubscriptionType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.dispatch.core.consumers import Consumer


class Share(NamedTuple):
    """How many messages of a run one consumer takes."""

    consumer: Consumer
    messages: int


class Selector(Protocol):
    """The part of a subscription in which the types differ."""

    def can_join(self, name: str) -> bool: ...
    def join(self, consumer: Consumer) -> Consumer | None:
        """Add a consumer, and return the one it replaces."""
        ...

    def leave(self, consumer: Consumer) -> Consumer | None:
        """Remove a consumer, and return the one that is promoted."""
        ...

    def active(self) -> Sequence[Consumer]:
        """The consumers that may be given something, as soon as they have room."""
        ...


class RunSelector(Selector, Protocol):
    """A selector of a type that deals in runs."""

    def split(self, messages: int) -> list[Share]:
        """Spread a run over active consumers with room, in order; no share is empty."""
        ...

    def sole_taker(self, messages: int) -> Consumer | None:
        """Who would get all of such a run, if it is clear at once that one consumer would."""
        ...


class ActiveSelector:
    """Exclusive and Failover: everything to the first, the others stand by in order of arrival.

    A consumer takes the place of one of the same name: it is the same program on a new connection.
    """

    __slots__ = ("_has_standbys", "_queue")

    def __init__(self, *, has_standbys: bool) -> None:
        self._has_standbys = has_standbys
        self._queue: list[Consumer] = []

    def can_join(self, name: str) -> bool:
        return self._has_standbys or not self._queue or self._queue[0].name == name

    def join(self, consumer: Consumer) -> Consumer | None:
        assert self.can_join(consumer.name), "the subscription has its consumer"
        for place, other in enumerate(self._queue):
            if other.name == consumer.name:
                self._queue[place] = consumer
                return other
        self._queue.append(consumer)
        return None

    def leave(self, consumer: Consumer) -> Consumer | None:
        was_active = self._queue[0] is consumer
        self._queue.remove(consumer)
        return self._queue[0] if was_active and self._queue else None

    def active(self) -> Sequence[Consumer]:
        return self._queue[:1]

    def split(self, messages: int) -> list[Share]:
        if not self._queue or not self._queue[0].has_room:
            return []
        return [Share(self._queue[0], min(messages, self._queue[0].messages))]

    def sole_taker(self, messages: int) -> Consumer | None:
        if not self._queue:
            return None
        first = self._queue[0]
        return first if first.has_room and first.messages >= messages else None


class SharedSelector:
    """Shared: a run is spread evenly over the consumers with room, each time from another start."""

    __slots__ = ("_consumers", "_start")

    def __init__(self) -> None:
        self._consumers: list[Consumer] = []
        self._start = 0

    def can_join(self, name: str) -> bool:
        del name  # everybody may
        return True

    def join(self, consumer: Consumer) -> Consumer | None:
        self._consumers.append(consumer)
        return None

    def leave(self, consumer: Consumer) -> Consumer | None:
        self._consumers.remove(consumer)
        return None

    def active(self) -> Sequence[Consumer]:
        return self._consumers

    def split(self, messages: int) -> list[Share]:
        able = [one for one in self._rotated() if one.has_room]
        counts = [0] * len(able)
        rest = messages
        open_places: list[int] = [*range(len(able))]
        while rest and open_places:  # each round but the last fills somebody's credit
            for passed, place in enumerate(open_places):
                fair = -(-rest // (len(open_places) - passed))
                taken = min(fair, able[place].messages - counts[place])
                counts[place] += taken
                rest -= taken
            open_places = [one for one in open_places if counts[one] < able[one].messages]
        return [Share(one, count) for one, count in zip(able, counts, strict=True) if count]

    def sole_taker(self, messages: int) -> Consumer | None:
        if messages > 1 and len(self._consumers) > 1:
            return None
        for turned in range(len(self._consumers)):
            place = (self._start + 1 + turned) % len(self._consumers)
            one = self._consumers[place]
            if one.has_room and one.messages >= messages:
                self._start = place
                return one
        return None

    def _rotated(self) -> list[Consumer]:
        if not self._consumers:
            return []
        self._start = (self._start + 1) % len(self._consumers)
        return self._consumers[self._start :] + self._consumers[: self._start]


def run_selector(kind: SubscriptionType) -> RunSelector:
    """The selector of a type that deals in runs."""
    if kind is SubscriptionType.SHARED:
        return SharedSelector()
    assert kind is not SubscriptionType.KEY_SHARED, "Key-Shared deals in keys"
    return ActiveSelector(has_standbys=kind is SubscriptionType.FAILOVER)
