"""Transactions on a simulated disk: bounds, conflicts, repeated commits, and what an end leaves behind."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from danubius.admin.transactions import ADMIN
from danubius.errors import (
    HandleNotFound,
    InvalidArgument,
    InvalidBatch,
    Overloaded,
    QuotaExceeded,
    StorageFailed,
    TopicDeleted,
    TransactionAborted,
    TransactionConflict,
    TransactionNotFound,
    TransactionTooLarge,
)
from danubius.model import admin
from danubius.model.subscription import EARLIEST, SubscriptionType
from danubius.model.topic import Dispatch, TopicSpec
from danubius.record.encode import encode
from danubius.shard.features.transactions.transactions import REASONS_MAX
from danubius.shard.state.atomic import ATOMIC_RECORD, decode_atomic
from danubius.shard.state.facts import RangesAcked, TransactionCommitted
from danubius.wire.commands import (
    AbortTransaction,
    Ack,
    BeginTransaction,
    CommitTransaction,
    DeleteTopic,
    Deliver,
    Done,
    Error,
    Flow,
    OpenProducer,
    Stage,
    StageAck,
    Subscribe,
    TransactionBegun,
)
from patience import SOON_S

SOURCE, TARGET = "/default/source", "/default/target"


class Worker:
    """A connection with a producer on the target and a consumer on the source."""

    def __init__(self, bench: Any, name: str = "w") -> None:
        self.bench = bench
        self.transactions = bench.node.transactions
        self.peer = bench.connect()
        self.producer = self.peer.call(OpenProducer(TARGET, name, TopicSpec()))
        if SOURCE not in bench.shard.topics:
            self.peer.publish(SOURCE, [b"input"] * 10)
        subscribed = self.peer.call(Subscribe(SOURCE, "s", SubscriptionType.SHARED, name, EARLIEST))
        self.consumer = subscribed.handle

    def begin(self, timeout_ms: int = 60_000) -> int:
        begun = self.peer.call(BeginTransaction(timeout_ms))
        assert isinstance(begun, TransactionBegun), begun
        return begun.transaction

    def batch(self, count: int = 1, size: int = 1, **header: Any) -> bytearray:
        names = {
            "producer_id": self.producer.producer_id,
            "producer_epoch": self.producer.producer_epoch,
        }
        return bytearray(encode([b"m" * size] * count, publish_time_us=1, **(names | header)))

    def stage(self, number: int, count: int = 1, **options: Any) -> Any:
        return self.peer.call(Stage(number, self.producer.handle), self.batch(count, **options))

    def ack(self, number: int, *ranges: tuple[int, int]) -> Any:
        return self.peer.call(StageAck(number, self.consumer, list(ranges)))

    def commit(self, number: int) -> Any:
        return self.peer.call(CommitTransaction(number))

    def abort(self, number: int) -> Any:
        return self.peer.call(AbortTransaction(number))


def end_of(bench: Any, topic: str = TARGET) -> int:
    hosted = bench.shard.topics[topic]
    hosted.pipeline.sequencer.check()
    assert hosted.pipeline.sequencer.next_offset == hosted.log.end_offset
    return hosted.log.end_offset


def subscription_of(bench: Any) -> Any:
    return bench.shard.topics[SOURCE].subscriptions["s"]


def assert_refused(answer: Any, error: type, text: str = "") -> None:
    assert isinstance(answer, Error), answer
    assert answer.code == error.code, answer
    assert text in answer.message, answer.message


@pytest.fixture
async def worker(bench: Any) -> Worker:
    return Worker(bench)


def assert_nothing_held(worker: Worker) -> None:
    assert len(worker.transactions) == 0
    assert worker.transactions.bytes == 0
    assert not worker.peer.session.on_closed
    assert subscription_of(worker.bench).reserved is None


async def test_a_commit_is_one_record_of_all_that_was_asked_for(worker: Worker) -> None:
    number = worker.begin()
    assert worker.stage(number, 2) == Done()
    assert worker.ack(number, (0, 2), (4, 5)) == Done()
    assert worker.ack(number, (2, 3)) == Done()
    assert worker.stage(number, 3) == Done()
    assert end_of(worker.bench) == 0
    assert subscription_of(worker.bench).cursor.floor == 0
    assert worker.commit(number) == Done()
    assert end_of(worker.bench) == 5
    subscription = subscription_of(worker.bench)
    assert subscription.cursor.floor == 3
    assert 4 in subscription.cursor
    records = [r for r in worker.bench.recover_journal() if r.kind == ATOMIC_RECORD]
    source = worker.bench.shard.topics[SOURCE]
    [record] = [decode_atomic(r.body) for r in records]
    assert len(record.batches) == 2
    assert record.facts == [
        RangesAcked(source.id, subscription.id, [(0, 3), (4, 5)]),
        TransactionCommitted(number),
    ]
    assert_nothing_held(worker)


async def test_a_commit_may_be_repeated_by_anybody(worker: Worker) -> None:
    number = worker.begin()
    worker.stage(number)
    other = worker.bench.connect()
    first = worker.peer.ask(CommitTransaction(number))
    again = other.ask(CommitTransaction(number))
    worker.peer.session.close()  # the answer to the first is lost with its connection
    assert other.answer_to(again) is None
    worker.bench.settle()
    assert worker.peer.answer_to(first) == other.answer_to(again) == Done()
    assert other.call(CommitTransaction(number)) == Done()
    assert end_of(worker.bench) == 1
    assert_refused(other.call(AbortTransaction(number)), InvalidArgument, "is committed")


async def test_an_open_transaction_is_never_already_committed(worker: Worker) -> None:
    """Whatever is remembered of its number: its messages are stored before anybody hears of a commit."""
    number = worker.begin()
    worker.stage(number, 3)
    worker.bench.shard.committed_transactions.add(number, number + 1)
    assert worker.commit(number) == Done()
    assert end_of(worker.bench) == 3


async def test_numbers_of_committed_transactions_are_not_given_again(worker: Worker) -> None:
    """As after an epoch that went back."""
    first = worker.begin()
    worker.bench.shard.committed_transactions.add(first, first + 1000)
    worker.transactions.start()
    number = worker.begin()
    assert number == first + 1000
    worker.stage(number, 3)
    assert worker.commit(number) == Done()
    assert end_of(worker.bench) == 3


async def test_a_commit_from_another_connection_aborts_one_that_is_open(worker: Worker) -> None:
    number = worker.begin()
    worker.stage(number)
    other = worker.bench.connect()
    assert_refused(other.call(CommitTransaction(number)), TransactionAborted, "given up")
    assert_refused(worker.commit(number), TransactionAborted, "given up")
    assert end_of(worker.bench) == 0
    assert_nothing_held(worker)


async def test_what_was_never_begun_is_not_found(worker: Worker) -> None:
    for number in (0, 5, (1 << 40) + 1, (2 << 40) + 1):
        assert_refused(worker.commit(number), TransactionNotFound, "never began")
        assert_refused(worker.abort(number), TransactionNotFound)
        assert_refused(worker.stage(number), TransactionNotFound)


async def test_only_its_connection_adds_to_it(worker: Worker) -> None:
    number = worker.begin()
    other = Worker(worker.bench, "other")
    assert_refused(other.stage(number), TransactionAborted)
    assert_refused(other.ack(number, (0, 1)), TransactionAborted)
    assert other.abort(number) == Done()
    assert worker.commit(number) == Done(), "others change nothing"


@pytest.mark.parametrize("part", ["handle", "batch", "producer", "due", "ack", "range", "large"])
async def test_a_refused_part_aborts_the_whole(worker: Worker, part: str) -> None:
    number = worker.begin()
    worker.stage(number)
    worker.ack(number, (0, 1))
    peer, handle = worker.peer, worker.producer.handle
    match part:
        case "handle":
            answer, error = peer.call(Stage(number, 999), worker.batch()), HandleNotFound
        case "batch":
            broken = worker.batch()
            broken[-1] ^= 1
            answer, error = peer.call(Stage(number, handle), broken), InvalidBatch
        case "producer":
            answer, error = worker.stage(number, producer_epoch=9), InvalidBatch
        case "due":
            answer, error = peer.call(Stage(number, handle, 5), worker.batch()), InvalidArgument
        case "ack":
            answer, error = peer.call(StageAck(number, 999, [(0, 1)])), HandleNotFound
        case "range":
            answer, error = worker.ack(number, (9, 11)), InvalidArgument
        case _:
            config = msgspec.structs.replace(
                worker.bench.shard.config, transaction_bytes_max=10_000
            )
            worker.bench.shard.config = config
            worker.abort(number)
            number = worker.begin()
            answer, error = worker.stage(number, size=10_000), TransactionTooLarge
    assert_refused(answer, error)
    assert_refused(worker.commit(number), TransactionAborted, "a part of it was refused")
    assert end_of(worker.bench) == 0
    assert subscription_of(worker.bench).cursor.floor == 0
    assert_nothing_held(worker)


async def test_topics_that_store_nothing_take_no_part(worker: Worker) -> None:
    spec = TopicSpec(dispatch=Dispatch.NON_RELIABLE)
    opened = worker.peer.call(OpenProducer("/default/passing", "p", spec))
    number = worker.begin()
    batch = worker.batch(producer_id=opened.producer_id, producer_epoch=opened.producer_epoch)
    answer = worker.peer.call(Stage(number, opened.handle), batch)
    assert_refused(answer, InvalidArgument, "is not reliable")


async def test_bounds_of_all_transactions(worker: Worker) -> None:
    config = worker.bench.shard.config
    worker.bench.shard.config = msgspec.structs.replace(
        config, transactions_max=2, transactions_bytes_max=20_000
    )
    one, two = worker.begin(), worker.begin()
    assert_refused(worker.peer.call(BeginTransaction(1000)), Overloaded, "2 transactions are open")
    assert worker.stage(one, size=15_000) == Done()
    assert_refused(worker.stage(two, size=15_000), Overloaded, "of 20,000 bytes")
    assert worker.abort(one) == Done()
    assert_nothing_held(worker)
    for timeout_ms in (0, config.transaction_timeout_max_ms + 1):
        answer = worker.peer.call(BeginTransaction(timeout_ms))
        assert_refused(answer, InvalidArgument, "from 1 to 900000")


async def test_aborted_ones_leave_nothing_in_memory(worker: Worker) -> None:
    numbers = [worker.begin() for _ in range(100)]
    for number in numbers:
        worker.stage(number, 10)
        worker.ack(number, (0, 3))
    worker.bench.connect()
    for number in numbers[:50]:
        assert worker.abort(number) == Done()
        assert worker.abort(number) == Done(), "once more does nothing"
    worker.peer.session.close()
    assert_nothing_held(worker)
    other = Worker(worker.bench, "other")
    for _ in range(10_000):
        number = other.peer.session.node.transactions.begin(other.peer.session, 1000)
        other.transactions.abort(other.peer.session, number)
    assert_nothing_held(other)
    assert other.transactions.aborted == 10_100
    assert len(other.transactions._reasons) == REASONS_MAX
    assert end_of(worker.bench) == 0


async def test_one_that_takes_too_long_is_aborted(worker: Worker) -> None:
    number = worker.begin(1)
    worker.stage(number)
    await asyncio.sleep(SOON_S)  # its timer is the loop's, which was set before this one
    assert_refused(worker.commit(number), TransactionAborted, "open for longer than its 1 ms")
    assert_nothing_held(worker)


async def test_an_abort_delivers_again_what_was_acknowledged_inside(worker: Worker) -> None:
    worker.peer.session.handle(Flow(worker.consumer, 100, 1 << 20), 0, memoryview(b""))
    worker.bench.settle()
    assert [(d.first, d.end) for d in worker.peer.told(Deliver)] == [(0, 10)]
    number = worker.begin()
    worker.ack(number, (2, 4))
    worker.abort(number)
    worker.bench.settle()
    again = worker.peer.told(Deliver)[1:]
    assert [(d.first, d.end, d.redelivery_count) for d in again] == [(2, 4, 1)]


async def test_the_second_of_two_commits_is_refused_also_while_the_first_is_on_its_way(
    worker: Worker,
) -> None:
    other = Worker(worker.bench, "other")
    first, second, third = worker.begin(), other.begin(), other.begin()
    worker.ack(first, (0, 3))
    other.ack(second, (2, 5))
    other.ack(third, (3, 5))
    for one, number in ((worker, first), (other, second), (other, third)):
        one.stage(number)
    asked = worker.peer.ask(CommitTransaction(first))
    refused = other.peer.ask(CommitTransaction(second))
    assert_refused(other.peer.answer_to(refused), TransactionConflict, "acknowledged by others")
    taken = other.peer.ask(CommitTransaction(third))
    worker.bench.settle()
    assert worker.peer.answer_to(asked) == other.peer.answer_to(taken) == Done()
    assert_refused(other.commit(second), TransactionAborted)
    assert end_of(worker.bench) == 2
    assert subscription_of(worker.bench).cursor.floor == 5
    assert_nothing_held(worker)


async def test_what_was_acknowledged_plainly_conflicts(worker: Worker) -> None:
    number = worker.begin()
    worker.ack(number, (0, 3))
    worker.stage(number)
    assert worker.peer.call(Ack(worker.consumer, [(1, 2)])) == Done()
    assert_refused(worker.commit(number), TransactionConflict)
    assert end_of(worker.bench) == 0


@pytest.mark.parametrize("topic", [SOURCE, TARGET])
async def test_a_deleted_topic_aborts(worker: Worker, topic: str) -> None:
    number = worker.begin()
    worker.stage(number)
    worker.ack(number, (0, 1))
    assert worker.peer.call(DeleteTopic(topic)) == Done()
    assert_refused(worker.commit(number), TopicDeleted)
    assert_refused(worker.commit(number), TransactionAborted, "could not be committed")
    assert len(worker.transactions) == worker.transactions.bytes == 0


async def test_a_disk_that_fails_aborts_and_gives_everything_back(worker: Worker) -> None:
    worker.peer.session.handle(Flow(worker.consumer, 100, 1 << 20), 0, memoryview(b""))
    number = worker.begin()
    worker.stage(number, 2)
    worker.ack(number, (0, 4))
    worker.bench.files.fail("write", times=100)
    asked = worker.peer.ask(CommitTransaction(number))
    worker.bench.settle()
    await asyncio.sleep(0)  # giving back waits for the next turn of the loop
    assert_refused(worker.peer.answer_to(asked), StorageFailed)
    worker.bench.files.heal()
    worker.bench.clock.now_ms += 10_000
    assert_refused(worker.commit(number), TransactionAborted, "could not be stored")
    assert end_of(worker.bench) == 0
    assert_nothing_held(worker)
    number = worker.begin()
    worker.stage(number)
    worker.ack(number, (0, 4))
    assert worker.commit(number) == Done()
    assert end_of(worker.bench) == 1
    assert subscription_of(worker.bench).cursor.floor == 4


class CountingGate:
    """The limits of a topic, as a count of what they let in."""

    def __init__(self) -> None:
        self.messages = 0
        self.wait_ns = 0

    def admit(self, count: int, size: int, now_ns: int) -> int:
        del size, now_ns
        if self.messages >= 6:
            raise QuotaExceeded("full")
        self.messages += count
        return self.wait_ns

    def give_back(self, count: int, size: int) -> None:
        del size
        self.messages -= count


async def test_limits_of_topics_count_what_is_staged_until_it_is_aborted(worker: Worker) -> None:
    gate = worker.bench.shard.topics[TARGET].gate = CountingGate()
    kept, dropped = worker.begin(), worker.begin()
    worker.stage(kept, 2)
    worker.stage(dropped, 4)
    assert gate.messages == 6
    assert_refused(worker.stage(dropped), QuotaExceeded)
    assert gate.messages == 2
    assert worker.commit(kept) == Done()
    assert gate.messages == 2


async def test_the_answer_to_a_batch_waits_as_the_rate_of_its_topic_says(worker: Worker) -> None:
    gate = worker.bench.shard.topics[TARGET].gate = CountingGate()
    gate.wait_ns = 1_000_000
    number = worker.begin()
    asked = worker.peer.ask(Stage(number, worker.producer.handle), worker.batch())
    assert worker.peer.answer_to(asked) is None
    await asyncio.sleep(SOON_S)  # behind the broker's own timer on the same loop
    assert worker.peer.answer_to(asked) == Done()


async def test_operators_see_what_an_open_one_holds_and_may_end_it(worker: Worker) -> None:
    number = worker.begin()
    worker.stage(number, 3)
    worker.ack(number, (0, 2))
    replies: list[Any] = []
    ADMIN[admin.ListTransactions](worker.bench.node, admin.ListTransactions(), replies.append)
    [listed] = replies[0].transactions
    assert (listed.transaction, listed.state) == (number, "open")
    assert {3, 2} <= set(msgspec.structs.astuple(listed)), "messages and acknowledgements"
    ADMIN[admin.AbortTransaction](worker.bench.node, admin.AbortTransaction(number), replies.append)
    assert_refused(worker.commit(number), TransactionAborted, "an operator aborted it")
    assert_nothing_held(worker)


@pytest.mark.parametrize("seed", range(40))
async def test_every_offset_is_acknowledged_by_one_committed_transaction_at_most(
    bench: Any, seed: int
) -> None:
    """Random transactions of three connections on ten messages, against a count of who got what."""
    dice = random.Random(seed)
    workers = [Worker(bench, f"w{n}") for n in range(3)]
    wanted: dict[int, set[int]] = {}
    open_ones: dict[int, Worker] = {}
    asked: dict[int, tuple[Worker, int]] = {}
    for _ in range(80):
        action = dice.choice(["begin", "ack", "ack", "commit", "abort", "settle"])
        if action == "begin":
            worker = dice.choice(workers)
            number = worker.begin()
            open_ones[number], wanted[number] = worker, set()
            worker.stage(number)
        elif action == "settle":
            bench.settle()
        elif open_ones:
            number = dice.choice(list(open_ones))
            worker = open_ones[number]
            if action == "ack":
                first = dice.randrange(10)
                end = dice.randrange(first, 10) + 1
                request = worker.peer.ask(StageAck(number, worker.consumer, [(first, end)]))
                assert worker.peer.answer_to(request) == Done()
                wanted[number] |= set(range(first, end))
            elif action == "commit":
                asked[number] = worker, worker.peer.ask(CommitTransaction(number))
                del open_ones[number]
            else:
                worker.abort(number)
                del open_ones[number]
    bench.settle()
    committed = [n for n, (w, request) in asked.items() if w.peer.answer_to(request) == Done()]
    for number in set(asked) - set(committed):
        worker, request = asked[number]
        assert_refused(worker.peer.answer_to(request), TransactionConflict)
    times = Counter(offset for number in committed for offset in wanted[number])
    assert all(count == 1 for count in times.values())
    cursor = bench.shard.topics[SOURCE].subscriptions["s"].cursor
    assert [offset for offset in range(10) if offset in cursor] == sorted(times)
    assert end_of(bench) == len(committed)
    assert len(workers[0].transactions) == len(open_ones)
