"""Who is not read from so that others get their turn, and when it is read from again."""

from __future__ import annotations

import pytest

from danubius.errors import DanubiusError, StorageFailed
from danubius.shard.hosting.pressure import (
    LARGE_BYTES,
    SHARE_BYTES,
    SHARE_SYNC_NS,
    TOGETHER_NS,
    PublishPressure,
)

QUEUE_BYTES_MAX = 32 * SHARE_BYTES


class Counts:
    syncs = 10
    sync_ns = 10 * SHARE_SYNC_NS // 2


class Queue:
    def __init__(self) -> None:
        self.queued_bytes = 0
        self.counters = Counts()


class Cache:
    def __init__(self) -> None:
        self.is_congested = False
        self.failure: DanubiusError | None = None


class Connection:
    """Publishes, and does as it is told."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_paused = False

    def publish(self, size: int) -> None:
        self._world.queue.queued_bytes += size
        if self._world.pressure.must_wait(self, size) and not self.is_paused:
            self.is_paused = True
            self._world.pressure.pause(self)

    def resume_publishing(self) -> None:
        self.is_paused = False


class World:
    def __init__(self) -> None:
        self.queue = Queue()
        self.cache = Cache()
        self.now_ns = 10 * TOGETHER_NS
        self.pressure = PublishPressure(
            self.queue, self.cache, QUEUE_BYTES_MAX, lambda: self.now_ns
        )
        self.busy = Connection(self)
        self.quiet = Connection(self)

    def commit(self, size: int) -> None:
        self.queue.queued_bytes -= size
        if self.pressure.holds_any:
            self.pressure.relieve()


@pytest.fixture
def world() -> World:
    return World()


def test_one_that_publishes_alone_may_fill_the_queue(world: World) -> None:
    while world.queue.queued_bytes + SHARE_BYTES <= QUEUE_BYTES_MAX:
        world.busy.publish(SHARE_BYTES)
        assert not world.busy.is_paused
    world.busy.publish(SHARE_BYTES)
    assert world.busy.is_paused
    world.commit(SHARE_BYTES)
    assert world.busy.is_paused
    world.commit(QUEUE_BYTES_MAX // 2)
    assert not world.busy.is_paused


def test_beside_a_quiet_one_it_may_queue_its_share_and_the_quiet_one_is_never_held_back(
    world: World,
) -> None:
    for _ in range(3):
        world.quiet.publish(100)
        while not world.busy.is_paused:
            assert world.queue.queued_bytes <= SHARE_BYTES
            world.busy.publish(LARGE_BYTES)
        assert world.queue.queued_bytes <= SHARE_BYTES + LARGE_BYTES
        world.quiet.publish(100)
        assert not world.quiet.is_paused
        world.commit(world.queue.queued_bytes - SHARE_BYTES // 2 - 1)
        assert world.busy.is_paused
        world.commit(1)
        assert not world.busy.is_paused


def test_small_batches_are_nobody_elses_trouble(world: World) -> None:
    world.quiet.publish(100)
    world.busy.publish(2 * SHARE_BYTES)
    assert world.busy.is_paused
    other = Connection(world)
    other.publish(LARGE_BYTES - 1)
    assert not other.is_paused


def test_alone_again_after_a_while(world: World) -> None:
    world.quiet.publish(100)
    world.busy.publish(100)
    world.now_ns += TOGETHER_NS
    world.busy.publish(2 * SHARE_BYTES)
    assert not world.busy.is_paused


def test_the_share_grows_with_the_time_of_a_sync_up_to_the_queues_bound(world: World) -> None:
    assert world.pressure.share_bytes == SHARE_BYTES
    world.queue.counters.sync_ns = 5 * SHARE_SYNC_NS * world.queue.counters.syncs
    assert world.pressure.share_bytes == 5 * SHARE_BYTES
    world.queue.counters.sync_ns *= 1000
    assert world.pressure.share_bytes == QUEUE_BYTES_MAX


def test_who_is_gone_is_forgotten(world: World) -> None:
    world.quiet.publish(100)
    world.busy.publish(2 * SHARE_BYTES)
    world.pressure.forget(world.busy)
    assert not world.pressure.holds_any
    world.quiet.publish(2 * SHARE_BYTES)
    assert world.quiet.is_paused, "they had published together just now"


def test_while_the_cache_is_full_everyone_waits_and_if_the_disk_fails_everyone_is_refused(
    world: World,
) -> None:
    world.cache.is_congested = True
    world.quiet.publish(100)
    assert world.quiet.is_paused
    world.commit(100)
    assert world.quiet.is_paused
    world.pressure.check()
    world.cache.failure = StorageFailed("broken")
    world.pressure.relieve()
    assert not world.quiet.is_paused
    with pytest.raises(StorageFailed):
        world.pressure.check()
