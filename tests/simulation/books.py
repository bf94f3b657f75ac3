"""The books of a simulated world: what was tried, answered, delivered and confirmed, and what must hold between them.

- An offset means one message, for whoever sees it: a receipt, a delivery, a reader, for ever.
- What was acknowledged is stored, at the offset that was answered. What is stored was sent, and once.
- A producer's messages are stored in its order.
- An ordered subscription delivers each next message behind the one before: nothing is skipped.
- What the broker has confirmed as acknowledged is not delivered to whoever attaches afterwards. A power loss may take
  back what was confirmed since the last sync (docs/client.md), and nothing older.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

UNSYNCED_S: Final = 1.0
"""Confirmed acknowledgements may be unsynced for so long, with all delays of a slow disk (200 ms of a good one)."""


class Broken(AssertionError):
    """A promise was not kept."""


class TopicBook:
    """One topic."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.log: dict[int, bytes] = {}
        """What somebody saw, by offset."""
        self.tried: dict[bytes, int] = {}
        """What was sent, or may have been, in its order."""
        self.stored: dict[bytes, int] = {}
        """Offsets of what was acknowledged."""
        self.scheduled: set[bytes] = set()
        """Acknowledged too, to be published when it is due."""

    def try_(self, payload: bytes) -> bytes:
        self.tried.setdefault(payload, len(self.tried))
        return payload

    def saw(self, offset: int, payload: bytes, who: str) -> None:
        known = self.log.setdefault(offset, payload)
        if known != payload:
            raise Broken(
                f"{self.name}@{offset} is {_short(payload)} for {who}, and was {_short(known)}"
            )

    def acknowledged(self, payload: bytes, offset: int) -> None:
        self.saw(offset, payload, "its producer")
        self.stored[payload] = offset

    def check(self, content: Sequence[tuple[int, bytes]]) -> None:
        """`content`: all that the topic holds, as read in the end."""
        places = self._check_content(content)
        for payload, offset in self.stored.items():
            if places.get(payload) != offset:
                raise Broken(
                    f"{_short(payload)} was acknowledged at {offset}, and is {places.get(payload)}"
                )
        if unpublished := [payload for payload in self.scheduled if payload not in places]:
            raise Broken(f"acknowledged, and never published: {list(map(_short, unpublished[:5]))}")
        if (seen := max(self.log, default=-1)) >= len(content):
            raise Broken(f"{self.name}@{seen} was seen, and is not there in the end")

    def _check_content(self, content: Sequence[tuple[int, bytes]]) -> dict[bytes, int]:
        """Where each message is."""
        places: dict[bytes, int] = {}
        last: dict[bytes, int] = defaultdict(lambda: -1)
        for expected, (offset, payload) in enumerate(content):
            if offset != expected:
                raise Broken(f"{self.name}: offset {offset} where {expected} is due")
            self.saw(offset, payload, "the reader in the end")
            if payload not in self.tried:
                raise Broken(f"{self.name}@{offset}: nobody sent {_short(payload)}")
            if payload in places:
                raise Broken(
                    f"{_short(payload)} is stored twice: at {places[payload]} and {offset}"
                )
            places[payload] = offset
            producer = payload.partition(b":")[0]
            if self.tried[payload] < last[producer]:
                raise Broken(
                    f"{self.name}@{offset}: {_short(payload)} is out of its producer's order"
                )
            last[producer] = self.tried[payload]
        return places


class SubscriptionBook:
    """One subscription, from the first message on."""

    def __init__(self, topic: TopicBook, name: str, now_s: Callable[[], float]) -> None:
        self.topic = topic
        self.name = name
        self.is_ordered = False
        self.seen: dict[int, int] = {}
        """How often each offset was delivered."""
        self._last_of_key: dict[bytes, int] = {}
        self._next = 0
        self._confirmed: dict[int, tuple[int, float]] = {}
        """By offset, the number and the time of the confirmation."""
        self._confirmations = 0
        self.power_losses = 0
        self._moving = 0
        self._now_s = now_s

    def attached(self) -> int:
        """Somebody attaches: the number of what was confirmed by now."""
        return self._confirmations

    def confirm(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._confirmations += 1
        if self._moving:
            return
        for first, end in ranges:
            for offset in range(first, end):
                self._confirmed.setdefault(offset, (self._confirmations, self._now_s()))

    @contextlib.contextmanager
    def moving(self) -> Generator[None]:
        """The cursor is moved meanwhile, or later if whoever asks dies over it: nothing counts as confirmed then."""
        self._moving += 1
        self._confirmed.clear()
        try:
            yield
        finally:
            self._moving -= 1
            self._confirmed.clear()

    def power_lost(self, synced_until_s: float) -> None:
        """What was confirmed later may come again."""
        self.power_losses += 1
        self._confirmed = {
            offset: (number, at_s)
            for offset, (number, at_s) in self._confirmed.items()
            if at_s < synced_until_s - UNSYNCED_S
        }

    def deliver(self, offset: int, payload: bytes, attached: int, key: bytes | None = None) -> None:
        """To somebody who attached then; `key`: if its messages are to come in order."""
        self.topic.saw(offset, payload, self.name)
        number, at_s = self._confirmed.get(offset, (attached + 1, 0.0))
        if number <= attached:
            raise Broken(
                f"{self.name}: {offset} was confirmed at {at_s:.3f}, and came again to whoever attached behind that"
            )
        if self.is_ordered and offset > self._next:
            raise Broken(f"{self.name}: {offset} came where {self._next} was due")
        self._next = max(self._next, offset + 1)
        if key is not None and offset not in self.seen:
            if offset < self._last_of_key.get(key, -1):
                raise Broken(f"{self.name}: {offset} came behind a later one of its key {key!r}")
            self._last_of_key[key] = offset
        self.seen[offset] = self.seen.get(offset, 0) + 1

    def check(self, end: int) -> None:
        missing = [offset for offset in range(end) if offset not in self.seen]
        if missing:
            raise Broken(f"{self.name} never got {missing[:10]} of {end}")


def _short(payload: bytes) -> str:
    """Without what only fills it."""
    return payload.rstrip(b".").decode()
