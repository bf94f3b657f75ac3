"""Owners of the keys of a Key-Shared subscription: consistent hashing among the consumers that take it.

Which consumers take a key is found out once per key and kept until the consumers change, so that a message of a
known key costs one look-up. Consumers with the same filters are asked once for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danubius.dispatch.core.key_ring import KeyRing
from danubius.record.key_hash import key_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.dispatch.core.consumers import Consumer
    from danubius.model.key_filters import KeyFilter

OWNERS_MAX: Final = 65_536
"""Keys whose owner is remembered."""
RINGS_MAX: Final = 64
"""Rings of consumers that take the same keys."""


class KeySelector:
    """Key-Shared: the ring says who owns a key; a run is never split, each record goes its way."""

    __slots__ = ("_consumers", "_filters", "_owners", "_ring", "_rings", "_seeds")

    def __init__(self) -> None:
        self._consumers: list[Consumer] = []
        self._ring: KeyRing[Consumer] = KeyRing()
        self._seeds: dict[int, str] = {}
        self._filters: dict[tuple[str, ...], KeyFilter | None] = {}
        """Every set of filters that a consumer has; empty as long as nobody has any."""
        self._owners: dict[bytes, Consumer | None] = {}
        self._rings: dict[tuple[tuple[str, ...], ...], KeyRing[Consumer]] = {}
        """Of the consumers with these filters; made when the first key asks for it."""

    def can_join(self, name: str) -> bool:
        del name  # everybody may
        return True

    def join(self, consumer: Consumer) -> Consumer | None:
        is_taken = any(one.name == consumer.name for one in self._consumers)
        # A lone name is its own seed, so that a consumer that comes back gets its keys back.
        seed = f"{consumer.name}/{consumer.consumer_id}" if is_taken else consumer.name
        self._consumers.append(consumer)
        self._seeds[consumer.consumer_id] = seed
        self._ring.add(consumer.consumer_id, consumer, seed)
        self._changed()
        return None

    def leave(self, consumer: Consumer) -> Consumer | None:
        self._consumers.remove(consumer)
        del self._seeds[consumer.consumer_id]
        self._ring.remove(consumer.consumer_id)
        self._changed()
        return None

    def active(self) -> Sequence[Consumer]:
        return self._consumers

    @property
    def has_filters(self) -> bool:
        return bool(self._filters)

    def owner_of(self, key: bytes) -> Consumer | None:
        """The consumer whose the key is; None if nobody takes it."""
        owners = self._owners
        if key in owners:
            return owners[key]
        if len(owners) >= OWNERS_MAX:
            owners.clear()
        ring = self._ring_of(key) if self._filters else self._ring
        owner = owners[key] = ring.owner_of(key_hash(key)) if len(ring) else None
        return owner

    def _ring_of(self, key: bytes) -> KeyRing[Consumer]:
        """The ring of those who take the key: the whole ring without the points of the others."""
        kinds = tuple(
            kind for kind, one in self._filters.items() if one is None or one.accepts(key)
        )
        ring = self._rings.get(kinds)
        if ring is None:
            if len(self._rings) >= RINGS_MAX:
                self._rings.clear()
            ring = self._rings[kinds] = KeyRing()
            for one in self._consumers:
                if one.key_filters in kinds:
                    ring.add(one.consumer_id, one, self._seeds[one.consumer_id])
        return ring

    def _changed(self) -> None:
        self._owners.clear()
        self._rings.clear()
        self._filters.clear()
        if any(one.key_filter is not None for one in self._consumers):
            self._filters.update({one.key_filters: one.key_filter for one in self._consumers})
