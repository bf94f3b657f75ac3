"""A clock that jumps ahead deletes and releases nothing until the jump has lasted; one that goes back does no harm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from danubius.ledger.managed import ManagedLedger
from danubius.model.policy import Policies
from danubius.model.subscription import EARLIEST, SubscriptionType
from danubius.model.topic import TopicSpec
from danubius.record.encode import encode
from danubius.shard.hosting.ages import (
    DELETE_HOLD_NS,
    RELEASE_HOLD_NS,
    START_GAP_US,
    Ages,
)
from danubius.wire.commands import Ack, CreateTopic, OpenProducer, Produce, Produced, Subscribe
from unit.shard.conftest import StepClock

if TYPE_CHECKING:
    from unit.shard.conftest import BrokerBench

NAME = "/default/t"
HOUR_MS = 3_600_000
EIGHT_DAYS_MS = 8 * 24 * HOUR_MS


def publish_and_ack(bench: BrokerBench, policies: Policies) -> ManagedLedger:
    peer = bench.connect()
    peer.call(CreateTopic(NAME, TopicSpec(policies=policies)))
    handle = peer.call(Subscribe(NAME, "s", SubscriptionType.EXCLUSIVE, "c", EARLIEST)).handle
    opened = peer.call(OpenProducer(NAME, "p", TopicSpec()))
    batch = encode(
        [b"a", b"b"],
        publish_time_us=bench.clock.wall_us(),
        producer_id=opened.producer_id,
        producer_epoch=opened.producer_epoch,
    )
    assert isinstance(peer.call(Produce(opened.handle), batch), Produced)
    if not policies.ttl_ms:
        peer.call(Ack(handle, [(0, 2)]))
    log = bench.shard.topic(NAME).log
    assert isinstance(log, ManagedLedger)
    return log


def let_retention_work(bench: BrokerBench) -> None:
    for _ in range(20):
        bench.shard.ages.look()
        bench.node.retention.trim_some()
        bench.settle()


async def test_a_clock_that_is_eight_days_ahead_for_a_while_deletes_nothing(
    bench: BrokerBench,
) -> None:
    log = publish_and_ack(bench, Policies(retention_age_ms=7 * 24 * HOUR_MS))
    bench.clock.skew_ms = EIGHT_DAYS_MS
    for _ in range(25):
        bench.clock.now_ms += 1000
        let_retention_work(bench)
    bench.clock.skew_ms = 0
    let_retention_work(bench)
    assert (log.start_offset, log.end_offset) == (0, 2)
    assert bench.shard.ages.jumps == 1
    assert bench.shard.ages.jump_s == 0


async def test_what_is_too_old_by_a_jump_that_lasted_goes(bench: BrokerBench) -> None:
    log = publish_and_ack(bench, Policies(retention_age_ms=7 * 24 * HOUR_MS))
    bench.clock.skew_ms = EIGHT_DAYS_MS
    let_retention_work(bench)
    bench.clock.now_ms += DELETE_HOLD_NS // 1_000_000
    let_retention_work(bench)
    assert log.start_offset == 2


async def test_messages_do_not_expire_by_a_jump_of_the_clock(bench: BrokerBench) -> None:
    publish_and_ack(bench, Policies(ttl_ms=HOUR_MS))
    subscription = bench.shard.topic(NAME).subscriptions["s"]
    bench.clock.skew_ms = EIGHT_DAYS_MS
    bench.clock.now_ms += 25_000
    let_retention_work(bench)
    assert subscription.cursor.floor == 0
    bench.clock.skew_ms = 0
    bench.clock.now_ms += 2 * HOUR_MS
    let_retention_work(bench)
    assert subscription.cursor.floor == 2


def test_a_jump_is_believed_sooner_by_those_who_delete_nothing() -> None:
    clock = StepClock()
    ages = Ages(clock)
    clock.skew_ms = EIGHT_DAYS_MS
    before_ms = clock.now_ms
    assert ages.release_ms() == ages.retention_ms() == before_ms
    assert ages.jump_s == EIGHT_DAYS_MS / 1000
    clock.now_ms += RELEASE_HOLD_NS // 1_000_000
    assert ages.release_ms() == clock.wall_us() // 1000
    assert ages.retention_ms() == clock.now_ms


@pytest.mark.parametrize("skew_ms", [-EIGHT_DAYS_MS, -1, 0, 1, 29_000])
def test_small_steps_and_those_back_are_believed_at_once(skew_ms: int) -> None:
    clock = StepClock()
    clock.now_ms = 2 * EIGHT_DAYS_MS
    ages = Ages(clock)
    clock.skew_ms = skew_ms
    assert ages.now_us() == clock.wall_us()
    assert (ages.jump_s, ages.jumps) == (0, 0)


def test_a_second_jump_is_waited_for_as_long_as_the_first() -> None:
    clock = StepClock()
    ages = Ages(clock)
    clock.skew_ms = HOUR_MS
    ages.look()
    clock.now_ms += DELETE_HOLD_NS // 1_000_000 - 1
    clock.skew_ms = EIGHT_DAYS_MS
    ages.look()
    clock.now_ms += 2
    assert ages.now_us() == clock.now_ms * 1000
    assert ages.jumps == 2


def test_after_a_start_far_ahead_of_all_stamps_retention_waits_and_expiry_does_not() -> None:
    clock = StepClock()
    clock.skew_ms = EIGHT_DAYS_MS
    ages = Ages(clock)
    ages.begin(clock.now_ms)
    assert ages.retention_ms() == clock.now_ms
    assert ages.now_us() == clock.wall_us()
    clock.now_ms += DELETE_HOLD_NS // 1_000_000
    assert ages.retention_ms() == clock.wall_us() // 1000


def test_a_start_soon_after_the_last_stamp_is_believed() -> None:
    clock = StepClock()
    clock.skew_ms = START_GAP_US // 1000
    ages = Ages(clock)
    ages.begin(clock.now_ms)
    assert ages.retention_ms() == clock.wall_us() // 1000
