"""The four ways in which batches come: what one refuses, all refuse, in the same words and at the same price."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from danubius.errors import (
    DanubiusError,
    MessageTooLarge,
    QuotaExceeded,
    StorageFull,
    Throttled,
    TopicDeleted,
)
from danubius.model.policy import Policies
from danubius.model.topic import TopicSpec
from danubius.record.encode import encode
from danubius.shard.state.facts import TopicChanged
from danubius.wire.commands import (
    BeginTransaction,
    CommitTransaction,
    CreateTopic,
    Done,
    Error,
    OpenProducer,
    OpenStage,
    Produce,
    Produced,
    Schedule,
    Stage,
    Upload,
)

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC: Final = "/default/t"
HOUR_MS: Final = 3_600_000


class Way:
    """One way to publish, over a connection and a topic of its own broker."""

    def __init__(self, bench: Any) -> None:
        self.bench = bench
        self.peer = bench.connect()
        self.peer.call(CreateTopic(TOPIC, TopicSpec()))
        self.topic = bench.shard.topic(TOPIC)
        self.sequence = 0
        self.open()

    def open(self, *, is_delayed: bool = False) -> None:
        command = OpenProducer(TOPIC, "p", TopicSpec(), is_delayed=is_delayed)
        self.producer = self.peer.call(command)

    def batch(self, payload: bytes) -> bytearray:
        return encode(
            [payload],
            publish_time_us=1,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.producer_epoch,
            base_sequence=self.sequence,
        )

    def offer(self, payload: bytes = b"x") -> Any:
        """Publish one message; the answer."""
        raise NotImplementedError

    async def store(self) -> Any:
        """Publish one message, to the end; the last answer."""
        return self.offer()


class Producing(Way):
    def offer(self, payload: bytes = b"x") -> Any:
        return self.peer.call(Produce(self.producer.handle), self.batch(payload))


class Scheduling(Way):
    def open(self, *, is_delayed: bool = True) -> None:
        super().open(is_delayed=is_delayed)

    def offer(self, payload: bytes = b"x") -> Any:
        due_ms = self.bench.clock.now_ms + HOUR_MS
        return self.peer.call(Schedule(self.producer.handle, due_ms), self.batch(payload))


class InTransaction(Way):
    def offer(self, payload: bytes = b"x") -> Any:
        self.number = self.peer.call(BeginTransaction(60_000)).transaction
        return self.peer.call(Stage(self.number, self.producer.handle), self.batch(payload))

    async def store(self) -> Any:
        assert self.offer() == Done()
        asked = self.peer.ask(CommitTransaction(self.number))
        self.bench.settle()
        await asyncio.sleep(0)  # a commit that failed is answered in a turn of its own
        return self.peer.answer_to(asked)


class Uploading(Way):
    def open(self, *, is_delayed: bool = False) -> None:
        super().open(is_delayed=is_delayed)
        self.stage = self.peer.call(OpenStage("job", 0, "task")).stage

    def offer(self, payload: bytes = b"x") -> Any:
        return self.peer.call(Upload(self.stage, self.sequence, TOPIC), self.batch(payload))


WAYS: Final = (Producing, Scheduling, InTransaction, Uploading)


def limit(way: Way, policies: Policies) -> None:
    way.bench.shard.apply(TopicChanged(way.topic.id, policies))


def small(way: Way) -> None:
    limit(way, Policies(message_bytes_max=10))


def small_broker(way: Way) -> None:
    # What a topic allows does not raise what the broker does.
    limit(way, Policies(message_bytes_max=1_000_000))
    way.bench.shard.config = msgspec.structs.replace(way.bench.shard.config, message_bytes_max=10)


def deleted(way: Way) -> None:
    way.topic.is_deleting = True


def full_disk(way: Way) -> None:
    way.bench.shard.pressure.refusal = StorageFull("the disk is full: make room")


def failing_ledgers(way: Way) -> None:
    ledgers = way.bench.shard.ledgers
    ledgers.failure = StorageFull("the ledgers' disk is full: make room")
    ledgers._cache.dirty_bytes = 1 << 60


def in_debt(way: Way) -> None:
    limit(way, Policies(publish_messages_per_s=10))
    way.topic.gate.admit(100, 1_000, way.bench.clock.monotonic_ns())


def full_topic(way: Way) -> None:
    limit(way, Policies(quota_bytes=1))


REFUSALS: Final[list[tuple[Callable[[Way], None], type[DanubiusError]]]] = [
    (small, MessageTooLarge),
    (small_broker, MessageTooLarge),
    (deleted, TopicDeleted),
    (full_disk, StorageFull),
    (failing_ledgers, StorageFull),
    (in_debt, Throttled),
    (full_topic, QuotaExceeded),
]


@pytest.mark.parametrize(("trouble", "kind"), REFUSALS, ids=lambda one: one.__name__)
async def test_all_ways_refuse_the_same_in_the_same_words(
    new_bench: Any, trouble: Callable[[Way], None], kind: type[DanubiusError]
) -> None:
    refusals: dict[str, Any] = {}
    for make in WAYS:
        way = make(new_bench())
        trouble(way)
        answer = way.offer(bytes(2_000))
        assert isinstance(answer, Error), make.__name__
        gate = way.topic.gate
        refused = gate.refused_batches if gate is not None else 0
        refusals[make.__name__] = (answer.code, answer.message, answer.wait_ms, refused)
    assert set(refusals.values()) == {refusals["Producing"]}, refusals
    assert refusals["Producing"][0] == kind.code


@pytest.mark.parametrize("make", WAYS, ids=lambda one: one.__name__)
async def test_what_could_not_be_stored_is_given_back(new_bench: Any, make: type[Way]) -> None:
    way = make(new_bench())
    limit(way, Policies(publish_messages_per_s=10, quota_bytes=1_000_000))
    now_ns = way.bench.clock.monotonic_ns()
    before = way.topic.gate.stored_bytes
    way.bench.files.fail("write", times=1)
    assert isinstance(await way.store(), Error)
    assert way.topic.gate.stored_bytes == before
    way.topic.gate.admit(1, 0, now_ns)
    alone = way.topic.gate.admit(0, 0, now_ns)

    other = make(new_bench())
    limit(other, Policies(publish_messages_per_s=10, quota_bytes=1_000_000))
    other.topic.gate.admit(1, 0, now_ns)
    assert alone == other.topic.gate.admit(0, 0, now_ns)


@pytest.mark.parametrize("make", [Producing, Scheduling, Uploading], ids=lambda one: one.__name__)
@pytest.mark.parametrize("trouble", [small, full_disk, failing_ledgers, in_debt, full_topic])
async def test_what_is_stored_already_is_only_answered_again(
    new_bench: Any, make: type[Way], trouble: Callable[[Way], None]
) -> None:
    way = make(new_bench())
    first = way.offer(bytes(2_000))
    assert isinstance(first, Produced | Done)
    trouble(way)
    assert way.offer(bytes(2_000)) == first


@pytest.mark.parametrize(
    "make", [Producing, Scheduling, InTransaction], ids=lambda one: one.__name__
)
async def test_a_producer_counts_what_waits_for_its_rate(new_bench: Any, make: type[Way]) -> None:
    way = make(new_bench())
    in_debt(way)
    way.offer()
    assert way.peer.session.producers[way.producer.handle].throttled_batches == 1


@pytest.mark.parametrize("make", [Producing, Scheduling, Uploading], ids=lambda one: one.__name__)
async def test_whoever_fills_the_disks_queue_beside_others_is_held_back(
    new_bench: Any, make: type[Way]
) -> None:
    way = make(new_bench())
    paused: list[str] = []
    way.peer.pause_reading = paused.append

    def must_wait(_publisher: object, size: int) -> bool:
        return size > 1_000

    way.bench.shard.pressure.must_wait = must_wait
    way.offer()
    assert not paused
    way.sequence += 1
    way.offer(bytes(2_000))
    assert paused == ["publish"]


async def test_a_part_that_is_refused_aborts_its_transaction(new_bench: Any) -> None:
    way = InTransaction(new_bench())
    full_disk(way)
    way.offer()
    way.bench.shard.pressure.refusal = None
    answer = way.peer.call(CommitTransaction(way.number))
    assert isinstance(answer, Error)
