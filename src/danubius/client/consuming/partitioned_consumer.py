"""The consumer of a partitioned topic: a lane for each partition, merged so that each has its turn.

Acknowledgements go by a message's topic, which is its partition's. If the broker ends one lane the consumer has ended,
once that lane's messages are handed out: going on without a partition would look like having received everything.
The prefetch is shared out evenly; a partition that is added later gets the share that is even then.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Final

import msgspec

from danubius.client.connection.partitions import (
    PartitionWatch,
    close_all,
    open_all,
    partition_start,
)
from danubius.client.consuming.consumer import Consumer
from danubius.client.consuming.consumer_lane import ConsumerLane
from danubius.client.consuming.merge import LaneGate, Merge
from danubius.client.messages import Message, ReceivedBatch
from danubius.client.options import check_count, check_timeout
from danubius.errors import InvalidArgument
from danubius.model.partitions import partition_name
from danubius.model.subscription import EARLIEST

if TYPE_CHECKING:
    from danubius.client.connection.connections import Connections
    from danubius.client.options import ConsumerOptions

_YIELD_BATCHES: Final = 16
_YIELD_MESSAGES: Final = 1024


class PartitionedConsumer(Consumer):
    """Receives from the partitions of one topic."""

    def __init__(self, connections: Connections, options: ConsumerOptions, partitions: int) -> None:
        assert partitions > 0
        self._connections = connections
        self._options = msgspec.structs.replace(options, start=partition_start(options.start))
        self._partitions = partitions
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[str, ConsumerLane] = {}
        self._merge: Merge[ConsumerLane] = Merge()
        self._handed = 0
        self._watch = PartitionWatch(connections.home, options.topic, self._grow)

    @property
    def topic(self) -> str:
        return self._options.topic

    @property
    def subscription(self) -> str:
        return self._options.subscription

    @property
    def name(self) -> str:
        return self._options.name

    @property
    def is_active(self) -> bool:
        return any(lane.is_active for lane in self._lanes.values())

    def generation_of(self, topic: str) -> int:
        lane = self._lanes.get(topic)
        return 0 if lane is None else lane.generation_of(topic)

    # ------------------------------------------------------------ receiving

    async def __anext__(self) -> Message:
        await self._yield_now_and_then(_YIELD_MESSAGES)
        message = self._merge.take(ConsumerLane.next_or_none)
        return await self._receive(None) if message is None else message

    async def receive(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  # the public word for it
    ) -> Message:
        message = self._merge.take(ConsumerLane.next_or_none)
        return (
            await self._receive(check_timeout("timeout", timeout)) if message is None else message
        )

    async def receive_batch(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  # the public word for it
        max_messages: int | None = None,
    ) -> ReceivedBatch:
        timeout = check_timeout("timeout", timeout)
        if max_messages is not None:
            check_count("max_messages", max_messages, 1, sys.maxsize)
        await self._yield_now_and_then(_YIELD_BATCHES)
        deadline_s = self._deadline_s(timeout)
        while True:
            batch = self._merge.take(lambda lane: lane.take_or_none(max_messages))
            if batch is not None:
                return batch
            await self._merge.wait(deadline_s, timeout, self.topic)

    async def _receive(self, timeout_s: float | None) -> Message:
        deadline_s = self._deadline_s(timeout_s)
        while True:
            await self._merge.wait(deadline_s, timeout_s, self.topic)
            message = self._merge.take(ConsumerLane.next_or_none)
            if message is not None:
                return message

    async def _yield_now_and_then(self, step: int) -> None:
        # The connection needs its turn in a loop that never waits; before anything is taken, so that a
        # cancellation here loses nothing.
        self._handed += 1
        if not self._handed % step:
            await asyncio.sleep(0)

    def _deadline_s(self, timeout_s: float | None) -> float | None:
        return None if timeout_s is None else self._loop.time() + timeout_s

    # ------------------------------------------------------------ acknowledging

    async def ack(self, message: Message | ReceivedBatch) -> None:
        self.lane_of(message).ack_nowait(message)

    async def ack_cumulative(self, message: Message | ReceivedBatch) -> None:
        self.lane_of(message).ack_cumulative_nowait(message)

    async def nack(
        self, message: Message | ReceivedBatch, *, delay: float = 0.0, reason: str = ""
    ) -> None:
        self.lane_of(message).nack_nowait(message, delay=delay, reason=reason)

    def ack_nowait(self, message: Message | ReceivedBatch) -> None:
        self.lane_of(message).ack_nowait(message)

    def ack_cumulative_nowait(self, message: Message | ReceivedBatch) -> None:
        self.lane_of(message).ack_cumulative_nowait(message)

    def nack_nowait(
        self, message: Message | ReceivedBatch, *, delay: float = 0.0, reason: str = ""
    ) -> None:
        self.lane_of(message).nack_nowait(message, delay=delay, reason=reason)

    def check_own(self, message: Message | ReceivedBatch) -> None:
        self.lane_of(message).check_own(message)

    def lane_of(self, message: Message | ReceivedBatch) -> ConsumerLane:
        """Who received it."""
        if not isinstance(message, Message | ReceivedBatch):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgument(f"{message!r} is neither a message nor a batch that was received")
        lane = self._lanes.get(message.topic)
        if lane is None:
            raise InvalidArgument(
                f"a message of {message.topic} given to a consumer of {self.topic}"
            )
        return lane

    # ------------------------------------------------------------ life

    async def open(self) -> None:
        await self._grow(self._partitions)
        self._watch.start()

    async def close(self) -> None:
        await self._watch.close()
        await close_all(list(self._lanes.values()))

    async def _grow(self, partitions: int) -> None:
        """Have a lane for each of so many partitions.

        What is added later is read from its start: all of it is newer than this consumer.
        """
        count = len(self._lanes)
        if partitions <= count:
            return
        share = msgspec.structs.replace(
            self._options,
            start=EARLIEST if count else self._options.start,
            prefetch_messages=max(1, self._options.prefetch_messages // partitions),
            prefetch_bytes=max(1, self._options.prefetch_bytes // partitions),
        )
        new: list[tuple[LaneGate[ConsumerLane], ConsumerLane]] = []
        names = [partition_name(self._options.topic, index) for index in range(count, partitions)]
        for index, route in enumerate(await self._connections.routes(names), count):
            options = msgspec.structs.replace(
                share,
                topic=route.topic,
                name=f"{self._options.name}-{index}",
            )
            gate = LaneGate(self._merge)
            new.append((gate, ConsumerLane(route, options, arrivals=gate)))
        await open_all([lane for _, lane in new])
        for gate, lane in new:
            self._lanes[lane.topic] = lane
            gate.adopt(lane)
