"""The producer of a partitioned topic: a lane for each partition, and the choice between them.

Messages with a key go where `model.partitions.route` says, those without to each partition in turn. The buffer is
shared out evenly, so that the lanes together keep its bound.
"""

from __future__ import annotations

from array import array
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from danubius.client.connection.partitions import PartitionWatch, attempt_all, close_all, open_all
from danubius.client.core.batching import Draft
from danubius.client.core.checks import check_key, measure, to_draft
from danubius.client.core.repeat import fresh
from danubius.client.messages import Receipts
from danubius.client.options import ttl_us_of
from danubius.client.producing.delayed import ScheduledReceipts, dues_of
from danubius.client.producing.producer import Producer
from danubius.client.producing.producer_lane import ProducerLane
from danubius.client.producing.receipts import PartitionedReceipts
from danubius.errors import DanubiusError, InvalidArgument
from danubius.model.partitions import partition_name, route
from danubius.runtime import ambient
from danubius.wire.commands import Access

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from danubius.client.connection.connections import Connections
    from danubius.client.connection.route import Route
    from danubius.client.messages import Receipt
    from danubius.client.options import (
        DeliverAfter,
        DeliverAfterMany,
        DeliverAtMany,
        ProducerOptions,
        TimeToLive,
    )
    from danubius.client.producing.settlement import Bundle

KEYS_REMEMBERED: Final = 65_536
"""The partitions of so many keys are kept, the least recently used go: hashing a key costs microseconds."""


class Part(NamedTuple):
    """What one partition gets of a `send_many`."""

    lane: ProducerLane
    draft: Draft
    sizes: list[int]


class Spread(NamedTuple):
    """The parts of a `send_many`, and where each message went: number `places[i]` of part `homes[i]`."""

    parts: list[Part]
    homes: Sequence[int]
    places: Sequence[int]


class PartitionedProducer(Producer):
    """Sends to the partitions of one topic."""

    def __init__(self, connections: Connections, options: ProducerOptions, partitions: int) -> None:
        assert partitions > 0
        if options.resume:
            raise InvalidArgument(
                f"{options.topic} is partitioned, and resume=True counts the messages of one topic: "
                "open a producer for each partition"
            )
        self._connections = connections
        self._options = options
        self._partitions = partitions
        self._lanes: list[ProducerLane] = []
        self._turn = int(ambient.chance() * partitions)  # only not all at the first
        self._route: Callable[[bytes], int] = partial(route, partitions=partitions)
        self._watch = PartitionWatch(connections.home, options.topic, self._grow)

    @property
    def topic(self) -> str:
        return self._options.topic

    @property
    def name(self) -> str:
        return self._options.name

    @property
    def buffer_bytes(self) -> int:
        return self._options.buffer_bytes

    @property
    def buffered_bytes(self) -> int:
        return sum(lane.buffered_bytes for lane in self._lanes)

    @property
    def next_sequence(self) -> int:
        return sum(lane.next_sequence for lane in self._lanes)

    # ------------------------------------------------------------ sending

    async def send(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        deliver_after: DeliverAfter | None = None,
        deliver_at: datetime | None = None,
        ttl: TimeToLive | None = None,
    ) -> Receipt:
        return await self.lane_of(key).send(
            payload,
            key=key,
            attributes=attributes,
            deliver_after=deliver_after,
            deliver_at=deliver_at,
            ttl=ttl,
        )

    def send_nowait(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        deliver_after: DeliverAfter | None = None,
        deliver_at: datetime | None = None,
        ttl: TimeToLive | None = None,
    ) -> None:
        self.lane_of(key).send_nowait(
            payload,
            key=key,
            attributes=attributes,
            deliver_after=deliver_after,
            deliver_at=deliver_at,
            ttl=ttl,
        )

    async def send_many(
        self,
        payloads: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        attributes: Sequence[Mapping[str, str] | None] | None = None,
        deliver_after: DeliverAfterMany | None = None,
        deliver_at: DeliverAtMany | None = None,
        ttl: TimeToLive | None = None,
    ) -> Receipts:
        draft = to_draft(payloads, keys, attributes)
        for lane in self._lanes:
            lane.check_open()
        sizes = measure(draft, self._lanes[0].message_bytes_max)
        is_delayed = deliver_after is not None or deliver_at is not None
        due = dues_of(deliver_after, deliver_at, len(sizes)) if is_delayed else None
        spread = self.spread(draft, sizes)
        dues = _spread_dues(spread, due)
        ttl_us = 0 if ttl is None else ttl_us_of(ttl)
        results = await attempt_all(
            lane.ship(part, part_sizes, part_due, ttl_us)
            for (lane, part, part_sizes), part_due in zip(spread.parts, dues, strict=True)
        )
        bundles = _all_stored(results, len(payloads))
        receipts = [
            ScheduledReceipts(part.lane.topic, len(part.sizes))
            if is_delayed
            else Receipts(part.lane.topic, bundle.spans)
            for part, bundle in zip(spread.parts, bundles, strict=True)
        ]
        return PartitionedReceipts(self.topic, receipts, spread.homes, spread.places)

    def lane_of(self, key: bytes | None) -> ProducerLane:
        """Where a message goes; without a key, whose turn it is."""
        lanes = self._lanes
        if key is None:
            self._turn = turn = (self._turn + 1) % len(lanes)
            return lanes[turn]
        if type(key) is not bytes:
            check_key(key)
        return lanes[self._route(key)]

    def spread(self, draft: Draft, sizes: list[int]) -> Spread:
        """What each partition gets of some messages."""
        return self._deal(draft, sizes) if draft.keys is None else self._sort(draft, sizes)

    def _deal(self, draft: Draft, sizes: list[int]) -> Spread:
        """Without keys: every partition in turn, as slices."""
        lanes, count = self._lanes, len(sizes)
        first, step = self._turn + 1, len(lanes)
        self._turn = (self._turn + count) % step
        payloads, _, attributes = draft
        parts = [
            Part(
                lanes[(first + i) % step],
                Draft(payloads[i::step], None, None if attributes is None else attributes[i::step]),
                sizes[i::step],
            )
            for i in range(min(step, count))
        ]
        rounds = -(-count // step)
        homes = (array("H", range(step)) * rounds)[:count]
        places = array("L", [round_ for round_ in range(rounds) for _ in range(step)])[:count]
        return Spread(parts, homes, places)

    def _sort(self, draft: Draft, sizes: list[int]) -> Spread:
        """With keys: one pass that sends each message to its partition."""
        lanes, find, turn = self._lanes, self._route, self._turn
        payloads, keys, attributes = draft
        assert keys is not None
        groups: dict[int, list[int]] = {}
        homes, places = array("H"), array("L")
        numbers: dict[int, int] = {}
        try:
            for index, key in enumerate(keys):
                if key is None:
                    turn = lane = (turn + 1) % len(lanes)
                else:
                    lane = find(key)
                group = groups.get(lane)
                if group is None:
                    numbers[lane] = len(groups)
                    group = groups[lane] = []
                homes.append(numbers[lane])
                places.append(len(group))
                group.append(index)
        except TypeError as error:
            raise InvalidArgument(f"keys must be bytes: {error}") from error
        self._turn = turn
        parts = [
            Part(
                lanes[lane],
                Draft(
                    [payloads[i] for i in group],
                    [keys[i] for i in group],
                    None if attributes is None else [attributes[i] for i in group],
                ),
                [sizes[i] for i in group],
            )
            for lane, group in groups.items()
        ]
        return Spread(parts, homes, places)

    async def flush(self) -> None:
        lanes = self._lanes
        for lane in lanes:
            lane.push()  # all of them first: the waits below then run at the same time
        error: DanubiusError | None = None
        for lane in lanes:
            try:
                await lane.flush()
            except DanubiusError as lane_error:
                error = error or lane_error
        if error is not None:
            raise error

    # ------------------------------------------------------------ accepting

    def check(
        self, payload: bytes, key: bytes | None, attributes: Mapping[str, str] | None
    ) -> tuple[bytes, int]:
        return self._lanes[0].check(payload, key, attributes)

    def put_nowait(
        self,
        payload: bytes,
        key: bytes | None,
        attributes: Mapping[str, str] | None,
        size: int,
        due_ms: int | None = None,
        ttl_us: int = 0,
    ) -> None:
        self.lane_of(key).put_nowait(payload, key, attributes, size, due_ms, ttl_us)

    # ------------------------------------------------------------ life

    async def open(self) -> None:
        await self._grow(self._partitions)
        self._watch.start()

    async def close(self) -> None:
        await self._watch.close()
        await close_all(self._lanes)

    async def _grow(self, partitions: int) -> None:
        """Have a lane for each of so many partitions. From then on keys go by the new number."""
        old = self._lanes
        if partitions <= len(old):
            return
        share = max(1, self._options.buffer_bytes // partitions)
        names = [partition_name(self._options.topic, at) for at in range(len(old), partitions)]
        routes = await self._connections.routes(names)
        new = [self._lane(at, route, share) for at, route in enumerate(routes, len(old))]
        if self._options.access is Access.WAIT_FOR_EXCLUSIVE:
            for lane in new:  # in order: two who wait for all of them must not hold half each
                await lane.open()
        else:
            await open_all(new)
        for lane in old:
            lane.buffer_bytes = share
        self._lanes = [*old, *new]
        self._route = lru_cache(KEYS_REMEMBERED)(partial(route, partitions=partitions))

    def _lane(self, index: int, route: Route, buffer_bytes: int) -> ProducerLane:
        options = msgspec.structs.replace(
            self._options,
            topic=route.topic,
            name=f"{self._options.name}-{index}",
            buffer_bytes=buffer_bytes,
        )
        return ProducerLane(route, options)


def _spread_dues(spread: Spread, due: list[int] | None) -> list[list[int] | None]:
    """The due times of each part, if there are any."""
    if due is None:
        return [None] * len(spread.parts)
    dues: list[list[int]] = [[] for _ in spread.parts]
    for home, due_ms in zip(spread.homes, due, strict=True):
        dues[home].append(due_ms)
    return list(dues)


def _all_stored(results: list[Bundle | DanubiusError], count: int) -> list[Bundle]:
    """What each lane stored, or the first error, with a note of how much was stored all the same."""
    bundles: list[Bundle] = []
    error: DanubiusError | None = None
    for result in results:
        if isinstance(result, DanubiusError):
            error = error or result
        else:
            bundles.append(result)
            if result.error is not None:
                error = error or fresh(result.error)
    if error is not None:
        stored = sum(bundle.stored_count for bundle in bundles)
        error.add_note(f"{stored} of the {count} messages were stored")
        raise error
    return bundles
