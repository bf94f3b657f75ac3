"""Delayed batches in the broker: in order, once, whatever the disk, the clock and the bound of memory do."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import msgspec
import pytest

from danubius.errors import MessageTooLarge, QuotaExceeded, Throttled
from danubius.ledger.managed import ManagedLedger
from danubius.model.policy import Policies
from danubius.model.topic import Dispatch, TopicSpec
from danubius.record.batch import RecordBatch, check_batch
from danubius.record.encode import encode
from danubius.record.scan import iter_batches
from danubius.shard.features.delays.wrapper import unwrap, weigh, wrap
from danubius.shard.state.facts import TopicChanged
from danubius.wire.commands import Error, OpenProducer, Produce, Produced, ProducerOpened, Schedule

if TYPE_CHECKING:
    from danubius.ledger.entry import Chunk
    from danubius.shard.hosting.topic import Topic
    from unit.shard.conftest import BrokerBench, RecordingPeer

NAME = "/default/later"
BASE_MS = 1_000_000
"""What the bench's clock begins with."""


class Scheduler:
    """One producer of delayed batches."""

    def __init__(self, bench: BrokerBench, peer: RecordingPeer, name: str = "p") -> None:
        self.bench = bench
        self.peer = peer
        self.opened: ProducerOpened = peer.call(
            OpenProducer(NAME, name, TopicSpec(), is_delayed=True)
        )
        assert isinstance(self.opened, ProducerOpened), self.opened
        self.sequence = self.opened.next_sequence

    def batch(self, number: int, sequence: int | None = None) -> bytearray:
        return encode(
            [b"%d" % number],
            publish_time_us=1,
            producer_id=self.opened.producer_id,
            producer_epoch=self.opened.producer_epoch,
            base_sequence=self.sequence if sequence is None else sequence,
        )

    def ask(self, number: int, due_ms: int) -> int:
        asked = self.peer.ask(Schedule(self.opened.handle, due_ms), self.batch(number))
        self.sequence += 1
        return asked

    def schedule(self, number: int, due_ms: int) -> None:
        asked = self.ask(number, due_ms)
        self.bench.settle()
        assert isinstance(self.peer.answer_to(asked), Produced), self.peer.answer_to(asked)


async def pass_time(bench: BrokerBench, step_ms: int = 0) -> None:
    """Let the clock and the broker go on until nothing more is released."""
    bench.clock.now_ms += step_ms
    bench.node.delays.look()
    for _ in range(30):
        bench.settle()
        await asyncio.sleep(0)


def published(bench: BrokerBench) -> list[int]:
    chunks: list[Chunk] = []
    log = bench.shard.topic(NAME).log
    log.read(log.start_offset, 1 << 30, chunks.append)  # type: ignore[arg-type]
    bench.settle()
    return [
        int(payload)
        for buffer in chunks[0].buffers
        for batch in iter_batches(buffer)
        for payload in batch.payloads()
    ]


async def test_what_waits_is_published_in_the_order_of_its_time(bench: BrokerBench) -> None:
    producer = Scheduler(bench, bench.connect())
    for number, delay_ms in enumerate([5000, 1000, 3000, 1000]):
        producer.schedule(number, BASE_MS + delay_ms)
    await pass_time(bench, 999)
    assert published(bench) == []
    await pass_time(bench, 1)
    assert published(bench) == [1, 3]
    await pass_time(bench, 10_000)
    assert published(bench) == [1, 3, 2, 0]
    topic = bench.shard.topic(NAME)
    assert bench.node.delays.pending(topic) == bench.node.delays.pending_bytes(topic) == 0


async def test_a_repeated_batch_waits_once(bench: BrokerBench) -> None:
    peer = bench.connect()
    producer = Scheduler(bench, peer)
    first = producer.ask(7, BASE_MS + 1000)
    again = peer.ask(Schedule(producer.opened.handle, BASE_MS + 1000), producer.batch(7, 0))
    bench.settle()
    assert peer.answer_to(first) == peer.answer_to(again)
    late = peer.call(Schedule(producer.opened.handle, BASE_MS + 1000), producer.batch(7, 0))
    assert late == peer.answer_to(first)
    await pass_time(bench, 2000)
    assert published(bench) == [7]


async def test_what_is_due_before_a_release_under_way_stands_behind_it(bench: BrokerBench) -> None:
    producer = Scheduler(bench, bench.connect())
    producer.schedule(0, BASE_MS + 1000)
    bench.clock.now_ms += 1000
    bench.node.delays.look()  # the release is on its way to the disk
    producer.ask(1, 5)
    producer.ask(2, 4)
    await pass_time(bench)
    assert published(bench) == [0, 1, 2]


async def test_a_failing_disk_only_postpones_a_release(bench: BrokerBench) -> None:
    producer = Scheduler(bench, bench.connect())
    for number in range(5):
        producer.schedule(number, BASE_MS + 100 * number)
    bench.files.fail("write", times=1000)
    await pass_time(bench, 200)
    assert bench.shard.journal_failure is not None
    assert published(bench) == []
    bench.files.heal()
    await pass_time(bench, 20_000)
    assert published(bench) == [0, 1, 2, 3, 4]


async def test_a_refused_schedule_does_not_hold_up_others(bench: BrokerBench) -> None:
    peer = bench.connect()
    producer = Scheduler(bench, peer)
    producer.schedule(0, BASE_MS + 1000)
    bench.files.fail("write", times=1000)
    asked = producer.ask(1, BASE_MS + 500)
    bench.settle()
    assert isinstance(peer.answer_to(asked), Error)
    bench.files.heal()
    await pass_time(bench, 30_000)
    assert published(bench) == [0]


async def test_a_clock_set_back_holds_nothing_up_for_ever(bench: BrokerBench) -> None:
    producer = Scheduler(bench, bench.connect())
    producer.schedule(0, BASE_MS + 1000)
    await pass_time(bench, 2000)
    bench.clock.now_ms -= 100_000
    producer.schedule(1, bench.clock.now_ms + 500)
    await pass_time(bench, 500)
    # It stands behind what was released, so it waits for that time to come again.
    assert published(bench) == [0]
    await pass_time(bench, 100_000)
    assert published(bench) == [0, 1]


async def test_memory_keeps_its_bound_and_nothing_is_forgotten(bench: BrokerBench) -> None:
    bench.shard.config = msgspec.structs.replace(bench.shard.config, delay_entries_max=20)
    producer = Scheduler(bench, bench.connect())
    dice = random.Random(5)
    delays = [dice.randrange(0, 60_000) for _ in range(300)]
    for number, delay_ms in enumerate(delays):
        producer.ask(number, BASE_MS + delay_ms)
        if number % 50 == 0:
            bench.settle()
    bench.settle()
    topic = bench.shard.topic(NAME)
    assert bench.node.delays.pending(topic) == 300
    assert bench.node.delays.held <= 20
    for _ in range(130):
        await pass_time(bench, 500)
        assert bench.node.delays.held <= 20
    expected = sorted(range(300), key=lambda number: (delays[number], number))
    assert published(bench) == expected


async def test_a_producer_sends_what_it_was_opened_for(bench: BrokerBench) -> None:
    peer = bench.connect()
    producer = Scheduler(bench, peer)
    refused = peer.call(Produce(producer.opened.handle), producer.batch(0))
    assert "sends Schedule, not Produce" in refused.message
    plain: ProducerOpened = peer.call(OpenProducer(NAME, "plain", TopicSpec()))
    refused = peer.call(Schedule(plain.handle, 1), producer.batch(0))
    assert "open one with is_delayed" in refused.message


async def test_what_cannot_wait_is_refused(bench: BrokerBench) -> None:
    peer = bench.connect()
    spec = TopicSpec(Dispatch.NON_RELIABLE)
    refused = peer.call(OpenProducer("/default/air", "p", spec, is_delayed=True))
    assert "is not reliable" in refused.message
    producer = Scheduler(bench, peer)
    far = peer.call(Schedule(producer.opened.handle, BASE_MS + 10**12), producer.batch(0))
    assert "at most 1830 days" in far.message


@pytest.mark.parametrize("size", [0, 1, 7, 8, 1000])
def test_a_wrapped_batch_comes_back_byte_for_byte(size: int) -> None:
    batch = encode([bytes(size), b"x"], publish_time_us=5, producer_id=3, base_sequence=9)
    header = check_batch(memoryview(batch))
    wrapped = wrap(memoryview(batch), header, 77)
    outer = RecordBatch.parse(wrapped).header
    assert outer.is_control
    assert (outer.count, outer.producer_id, outer.base_sequence) == (1, 3, 9)
    assert weigh(outer) == (2, len(batch))
    assert outer.first_time_us == outer.last_time_us == 77_000
    assert unwrap(memoryview(b"12345678" + wrapped), 8) == batch


# ------------------------------------------------------------ limits of the topic, and the space of the log


def limit(bench: BrokerBench, policies: Policies) -> Topic:
    topic = bench.shard.topic(NAME)
    bench.shard.apply(TopicChanged(topic.id, policies))
    return topic


async def test_a_rate_holds_for_what_is_scheduled(bench: BrokerBench) -> None:
    peer = bench.connect()
    producer = Scheduler(bench, peer)
    limit(bench, Policies(publish_messages_per_s=1))
    producer.schedule(0, BASE_MS + 1000)
    asked = producer.ask(1, BASE_MS + 1000)
    bench.settle()
    refused = peer.answer_to(asked)
    assert isinstance(refused, Error)
    assert (refused.code, refused.wait_ms > 0) == (Throttled.code, True)
    producer.sequence -= 1
    bench.clock.now_ms += 2000
    producer.schedule(1, BASE_MS + 3000)
    await pass_time(bench, 10_000)
    assert published(bench) == [0, 1]


async def test_a_repeated_batch_costs_nothing(bench: BrokerBench) -> None:
    peer = bench.connect()
    producer = Scheduler(bench, peer)
    limit(bench, Policies(publish_messages_per_s=1))
    producer.schedule(0, BASE_MS + 1000)
    for _ in range(5):
        again = peer.call(Schedule(producer.opened.handle, BASE_MS + 1000), producer.batch(0, 0))
        assert again == Produced(0)


async def test_the_size_of_a_message_is_limited_before_it_waits(bench: BrokerBench) -> None:
    peer = bench.connect()
    producer = Scheduler(bench, peer)
    limit(bench, Policies(message_bytes_max=10))
    asked = producer.ask(10**400, BASE_MS + 1000)
    bench.settle()
    refused = peer.answer_to(asked)
    assert isinstance(refused, Error)
    assert refused.code == MessageTooLarge.code


async def test_what_waits_counts_for_the_quota(bench: BrokerBench) -> None:
    peer = bench.connect()
    producer = Scheduler(bench, peer)
    topic = limit(bench, Policies(quota_bytes=1000))
    accepted = 0
    for number in range(100):
        asked = producer.ask(number, BASE_MS + 3_600_000)
        bench.settle()
        bench.clock.now_ms += 1000
        bench.node.quotas.look()
        answer = peer.answer_to(asked)
        if isinstance(answer, Error):
            assert answer.code == QuotaExceeded.code
            break
        accepted += 1
    assert 0 < accepted < 20
    assert topic.delayed_bytes == bench.node.delays.pending_bytes(topic) <= 1000
    await pass_time(bench, 7_200_000)
    assert published(bench) == list(range(accepted)), "when it is due it comes, whatever is stored"
    assert topic.delayed_bytes == 0


async def test_one_message_of_next_year_does_not_keep_what_was_released(bench: BrokerBench) -> None:
    delays = bench.node.delays
    delays.kept_bytes = 20_000
    producer = Scheduler(bench, bench.connect())
    producer.schedule(0, BASE_MS + 400_000_000)
    for number in range(1, 400):
        producer.schedule(number, BASE_MS + 1000 * (number // 10))
    await pass_time(bench, 100_000)
    released = published(bench)
    assert released == list(range(1, 400))
    source = next(t for t in bench.shard.topics_by_id.values() if t.parent)
    assert isinstance(source.log, ManagedLedger)
    assert source.log.start_offset == 0
    stored = source.log.end_offset
    delays.tend()
    await pass_time(bench)
    assert source.log.start_offset == stored, "all that was there is gone"
    assert source.log.end_offset == stored + 1, "what waits is stored again, once"
    assert delays.pending(bench.shard.topic(NAME)) == 1
    await pass_time(bench, 500_000_000)
    assert published(bench) == [*released, 0]


async def test_a_full_disk_postpones_what_is_moved_and_what_is_released(bench: BrokerBench) -> None:
    delays = bench.node.delays
    delays.kept_bytes = 0
    producer = Scheduler(bench, bench.connect())
    for number in range(50):
        producer.schedule(number, BASE_MS + 1000 + 100_000 * (number % 5 == 0))
    await pass_time(bench, 50_000)
    early = [number for number in range(50) if number % 5]
    assert published(bench) == early
    bench.files.fail("write", times=1000)
    delays.tend()
    await pass_time(bench, 100_000)
    assert published(bench) == early
    bench.files.heal()
    for _ in range(3):
        await pass_time(bench, 20_000)
        delays.tend()
    await pass_time(bench, 20_000)
    assert published(bench) == [*early, *range(0, 50, 5)]
