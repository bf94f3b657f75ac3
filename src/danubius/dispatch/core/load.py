"""One pass of Key-Shared over one chunk: who has room, and what everyone gets.

Invariant: message credit is charged for all that was given as soon as the lanes are closed, and never exceeded; nor is
the room of all together, as long as whoever fills lanes puts no more than `room` messages into them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.ack.core.in_flight import Flight
from danubius.dispatch.core.effects import Deliver

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from danubius.dispatch.core.consumers import Consumer


class Parcel:
    """What one consumer gets out of one chunk with one redelivery count."""

    __slots__ = ("flight", "offsets")

    def __init__(self, flight: Flight) -> None:
        self.flight = flight
        self.offsets: list[int] = []

    def deliver(self) -> Deliver:
        self.offsets.sort()  # in one pass if they rise already, as nearly always
        first, end = self.offsets[0], self.offsets[-1] + 1
        offsets = None if end - first == len(self.offsets) else self.offsets
        return Deliver(self.flight.consumer_id, first, end, offsets, self.flight.attempts)


class Lane:
    """New messages for one consumer that has room: where they are gathered."""

    __slots__ = ("flight", "offsets", "room")

    def __init__(self, flight: Flight, room: int) -> None:
        self.flight = flight
        self.offsets: list[int] = []
        self.room = room


class Load:
    """One pass over one chunk: who still has room, and what everyone gets, in the order given."""

    __slots__ = ("_lanes", "_now_ns", "_parcels", "_rooms", "able", "room")

    def __init__(self, takers: Iterable[tuple[Consumer, int]], now_ns: int, *, room: int) -> None:
        """`takers`: who has room, and for how many messages; `room`: for how many all of them have it together."""
        self._now_ns = now_ns
        self.room = room
        self._parcels: dict[int, list[Parcel]] = {}
        self._lanes: list[Lane] = []
        self._rooms: dict[int, int] = {}
        self.able: dict[int, Consumer] = {}
        for one, own_room in takers if room > 0 else ():
            self._rooms[one.consumer_id] = own_room
            self.able[one.consumer_id] = one

    def add(self, consumer: Consumer, offset: int, attempts: int) -> Flight:
        """Give a message to a consumer with room, behind what it has been given before."""
        parcel = self._parcel(consumer, attempts)
        parcel.offsets.append(offset)
        self._charge(consumer, 1)
        return parcel.flight

    def open_lanes(self) -> dict[int, Lane]:
        """A lane for everyone with room; a lane without room must be taken out by its user."""
        lanes: dict[int, Lane] = {}
        for consumer_id, one in self.able.items():
            flight = Flight(consumer_id, 0, one.due_ns(self._now_ns))
            lanes[consumer_id] = Lane(flight, self._rooms[consumer_id])
        self._lanes = list(lanes.values())
        return lanes

    def close_lanes(self) -> Iterator[Lane]:
        """Count what the lanes gathered as given; yields those with something."""
        for lane in self._lanes:
            if lane.offsets:
                consumer = self.able[lane.flight.consumer_id]
                self._parcel(consumer, 0).offsets.extend(lane.offsets)
                self._charge(consumer, len(lane.offsets))
                yield lane
        self._lanes = []

    def deliveries(self) -> list[Deliver]:
        return [one.deliver() for parcels in self._parcels.values() for one in parcels]

    def _parcel(self, consumer: Consumer, attempts: int) -> Parcel:
        parcels = self._parcels.setdefault(consumer.consumer_id, [])
        if not parcels or parcels[-1].flight.attempts != attempts:
            due_ns = consumer.due_ns(self._now_ns)
            parcels.append(Parcel(Flight(consumer.consumer_id, attempts, due_ns)))
        return parcels[-1]

    def _charge(self, consumer: Consumer, messages: int) -> None:
        consumer.messages -= messages
        self.room -= messages
        self._rooms[consumer.consumer_id] -= messages
        if not self._rooms[consumer.consumer_id]:
            del self.able[consumer.consumer_id]
        if self.room <= 0:
            self.able.clear()
