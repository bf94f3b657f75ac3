"""The reader of a partitioned topic: a lane for each partition, merged so that each has its turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from danubius.client.connection.partitions import (
    PartitionWatch,
    close_all,
    open_all,
    partition_start,
)
from danubius.client.consuming.merge import LaneGate, Merge
from danubius.client.consuming.reader import Reader
from danubius.client.consuming.reader_lane import ReaderLane
from danubius.client.options import check_timeout
from danubius.errors import InvalidArgument
from danubius.model.limits import KIB
from danubius.model.partitions import partition_name
from danubius.model.subscription import EARLIEST

if TYPE_CHECKING:
    from danubius.client.connection.connections import Connections
    from danubius.client.messages import Message, ReceivedBatch
    from danubius.client.options import ReaderOptions

_FETCH_BYTES_LEAST = 64 * KIB


class PartitionedReader(Reader):
    """Reads the partitions of one topic."""

    def __init__(self, connections: Connections, options: ReaderOptions, partitions: int) -> None:
        assert partitions > 0
        self._connections = connections
        self._options = msgspec.structs.replace(options, start=partition_start(options.start))
        self._partitions = partitions
        self._loop = asyncio.get_running_loop()
        self._lanes: list[ReaderLane] = []
        self._merge: Merge[ReaderLane] = Merge()
        self._watch = PartitionWatch(connections.home, options.topic, self._grow)

    @property
    def topic(self) -> str:
        return self._options.topic

    @property
    def position(self) -> int:
        raise InvalidArgument(
            f"{self.topic} has {len(self._lanes)} partitions, each with a position: see positions"
        )

    @property
    def positions(self) -> dict[str, int]:
        return {lane.topic: lane.position for lane in self._lanes}

    async def __anext__(self) -> Message:
        while True:
            message = self._merge.take(ReaderLane.next_or_none)
            if message is not None:
                return message
            if not await self._wait(None, None):
                raise StopAsyncIteration

    async def read_batch(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  # the public word for it
    ) -> ReceivedBatch | None:
        timeout = check_timeout("timeout", timeout)
        deadline_s = None if timeout is None else self._loop.time() + timeout
        while True:
            batch = self._merge.take(ReaderLane.take_or_none)
            if batch is not None:
                return batch
            if not await self._wait(deadline_s, timeout):
                return None

    async def _wait(self, deadline_s: float | None, timeout_s: float | None) -> bool:
        """Wait for any lane when none has anything; False if all are at their end."""
        if all(lane.is_at_end for lane in self._lanes):
            return False
        for lane in self._lanes:
            lane.fetch()
        await self._merge.wait(deadline_s, timeout_s, self.topic)
        return True

    # ------------------------------------------------------------ life

    async def open(self) -> None:
        await self._grow(self._partitions)
        if not self._options.stop_at_end:
            self._watch.start()

    async def close(self) -> None:
        await self._watch.close()
        await close_all(self._lanes)

    async def _grow(self, partitions: int) -> None:
        """Have a lane for each of so many partitions; what is added later is read from its start."""
        count = len(self._lanes)
        if partitions <= count:
            return
        whole = self._options.fetch_bytes
        share = msgspec.structs.replace(
            self._options,
            start=EARLIEST if count else self._options.start,
            fetch_bytes=max(min(whole, _FETCH_BYTES_LEAST), whole // partitions),
        )
        new: list[tuple[LaneGate[ReaderLane], ReaderLane]] = []
        names = [partition_name(self._options.topic, index) for index in range(count, partitions)]
        for route in await self._connections.routes(names):
            gate = LaneGate(self._merge)
            options = msgspec.structs.replace(share, topic=route.topic)
            new.append((gate, ReaderLane(route, options, arrivals=gate)))
        await open_all([lane for _, lane in new])
        for gate, lane in new:
            self._lanes.append(lane)
            gate.adopt(lane)
