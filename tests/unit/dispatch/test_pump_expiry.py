"""The pump passes over what has expired: never delivered, acknowledged, counted; and all others come."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from danubius.ack.core.cursor import Cursor
from danubius.dispatch.core.subscription import SubscriptionCore
from danubius.dispatch.expiry import expired_ranges
from danubius.dispatch.pump import Pump
from danubius.model.subscription import SubscriptionType
from danubius.record.batch import stamp
from danubius.record.encode import encode
from danubius.record.scan import iter_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.dispatch.chunk import Chunk
    from danubius.errors import DanubiusError
    from danubius.model.buffers import Buffer

MANY = 1 << 40


class Found(NamedTuple):
    first: int
    end: int
    buffers: Sequence[Buffer]
    size: int


class Alarm:
    def cancel(self) -> None: ...


class World:
    """A log with batches that expire, one subscription, and what its consumer got."""

    def __init__(self, kind: SubscriptionType, *, auto_ack: bool = False) -> None:
        self.now_us = 0
        self.start_offset = 0
        self.end_offset = 0
        self.batches: list[tuple[int, bytearray]] = []
        self.offsets: list[int] = []
        self.acked: list[tuple[int, int]] = []
        self.counted = 0
        self.core = SubscriptionCore(kind, Cursor(0), end=0, auto_ack=auto_ack)
        self.pump = Pump(
            self.core,
            self,
            now_ns=lambda: 0,
            call_at=lambda _when, _call: Alarm(),
            on_acked=self.acked.extend,
            on_dropped=lambda _count: None,
        )
        self.pump.expiry = self

    def publish(self, count: int, expires_us: int | None) -> None:
        batch = encode(
            [b"m"] * count, publish_time_us=1, keys=[b"k"] * count, expires_us=expires_us
        )
        stamp(batch, self.end_offset, 1)
        first, self.end_offset = self.end_offset, self.end_offset + count
        self.batches.append((self.end_offset, batch))
        self.pump.appended(first, self.end_offset, memoryview(batch))

    def read(
        self, first: int, bytes_max: int, on_done: Callable[[Chunk | DanubiusError], None]
    ) -> None:
        del bytes_max
        found = [(end, batch) for end, batch in self.batches if end > first]
        base = self.end_offset if not found else next(iter_batches(found[0][1])).base_offset
        buffers = [batch for _, batch in found]
        on_done(Found(base, self.end_offset, buffers, sum(map(len, buffers))))

    def expired(self, chunk: Chunk) -> list[tuple[int, int]]:
        return expired_ranges(chunk, self.now_us, 0)

    def count(self, messages: int) -> None:
        self.counted += messages

    def deliver(
        self, first: int, end: int, messages: int, redelivery_count: int, buffers: Sequence[Buffer]
    ) -> None:
        del messages, redelivery_count
        self.offsets += [
            offset
            for buffer in buffers
            for batch in iter_batches(buffer)
            for offset in batch.offsets()
            if first <= offset < end
        ]

    def active_changed(self, is_active: bool) -> None: ...

    def closed(self, error: DanubiusError) -> None: ...


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_only_what_is_young_enough_is_delivered(kind: SubscriptionType) -> None:
    world = World(kind)
    for count, expires_us in ((2, 100), (3, None), (1, 50), (4, 200)):
        world.publish(count, expires_us)
    world.now_us = 150
    world.pump.join(1, "c", world)
    world.pump.grant(1, MANY, MANY)
    assert world.offsets == [2, 3, 4, 6, 7, 8, 9]
    assert sorted(world.acked) == [(0, 2), (5, 6)]
    assert world.counted == 3
    world.core.check()
    world.publish(1, 149)
    world.publish(1, 151)
    assert world.offsets[-1] == 11, "also what is appended is looked at"
    assert (world.counted, world.core.backlog) == (4, 8)
    world.core.check()


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_nothing_comes_again_after_its_time_and_none_is_counted_twice(
    kind: SubscriptionType,
) -> None:
    world = World(kind)
    world.pump.join(1, "c", world)
    world.pump.grant(1, MANY, MANY)
    world.publish(3, 100)
    world.publish(1, None)
    assert world.offsets == [0, 1, 2, 3]
    world.pump.acked([(1, 2)])
    world.now_us = 100
    world.pump.nacked(1, [(0, 4)])
    assert world.offsets == [0, 1, 2, 3, 3]
    assert world.counted == 2, "one was acknowledged before"
    assert world.core.backlog == 1
    world.core.check()


def test_a_topic_that_stores_nothing_passes_over_too() -> None:
    world = World(SubscriptionType.EXCLUSIVE, auto_ack=True)
    world.publish(2, 10)
    world.publish(2, None)
    world.now_us = 10
    world.pump.join(1, "c", world)
    world.pump.grant(1, MANY, MANY)
    assert world.offsets in ([2, 3], [])
    world.publish(1, 5)
    world.publish(1, None)
    assert world.offsets[-1] == 5
    world.core.check()
