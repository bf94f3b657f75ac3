"""A commit with acknowledgements is in the journal while its subscription is moved, or its topics are deleted.

Whatever was first in the journal was first: what everybody is told, what the broker has, and what a broker finds that
starts on this journal are the same.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from danubius.broker.appliers import APPLIERS
from danubius.broker.config import BrokerConfig
from danubius.broker.node import Node
from danubius.errors import TransactionAborted, TransactionConflict
from danubius.ledger.config import LedgerConfig
from danubius.ledger.memory import MemoryLedgerStore
from danubius.ledger.storage import LedgerStorage
from danubius.model import admin
from danubius.model.admin_codec import encode_request
from danubius.model.ids import Epoch
from danubius.model.subscription import EARLIEST, AtOffset, SubscriptionType
from danubius.model.topic import TopicSpec
from danubius.record.encode import encode
from danubius.shard.recovery.replay import Recovery
from danubius.shard.shard import Shard
from danubius.sim.threads import SimThreads
from danubius.wal.config import JournalConfig
from danubius.wal.journal import Journal
from danubius.wal.snapshot import SnapshotStore
from danubius.wire.commands import (
    Administer,
    BeginTransaction,
    CommitTransaction,
    DeleteTopic,
    Done,
    Error,
    OpenProducer,
    Stage,
    StageAck,
    Subscribe,
)

SOURCE, TARGET = "/shop/source", "/shop/target"
ELSEWHERE = "/default/target"


class Worker:
    """Takes from one topic and gives to another of the same namespace, and to one that outlives it."""

    def __init__(self, bench: Any) -> None:
        self.bench = bench
        self.peer = bench.connect()
        self.peer.call(administer(admin.CreateNamespace("shop")))
        self.peer.publish(SOURCE, [b"input"] * 10)
        self.producers = [
            self.peer.call(OpenProducer(name, "w", TopicSpec())) for name in (TARGET, ELSEWHERE)
        ]
        kind = SubscriptionType.SHARED
        self.consumer = self.peer.call(Subscribe(SOURCE, "s", kind, "c", EARLIEST)).handle

    def stage_all(self) -> int:
        number: int = self.peer.call(BeginTransaction(60_000)).transaction
        for opened in self.producers:
            batch = encode(
                [b"output"],
                publish_time_us=1,
                producer_id=opened.producer_id,
                producer_epoch=opened.producer_epoch,
            )
            assert self.peer.call(Stage(number, opened.handle), batch) == Done()
        assert self.peer.call(StageAck(number, self.consumer, [(0, 4)])) == Done()
        return number


def administer(request: Any) -> Administer:
    return Administer(msgspec.Raw(encode_request(request)))


def state(shard: Shard) -> dict[str, tuple[int, dict[str, list[tuple[int, int]]]]]:
    """Of every topic: where it ends, and what each subscription has not acknowledged."""
    return {
        str(topic.name): (
            topic.log.end_offset,
            {
                name: subscription.cursor.unacked(0, topic.log.end_offset)
                for name, subscription in topic.subscriptions.items()
            },
        )
        for topic in shard.topics.values()
    }


async def recovered(bench: Any) -> Shard:
    """Another broker, started on what is in the journal now."""
    threads, clock = SimThreads(), bench.clock
    config = JournalConfig(fill_bytes=0)
    journal = Journal(config, bench.files, Path("/data/journal"), spawn=threads, clock=clock)
    ledgers = LedgerStorage(
        LedgerConfig(), MemoryLedgerStore(), lambda callback: callback(), clock, threads
    )
    loop = asyncio.get_running_loop()
    shard = Shard(BrokerConfig(), clock, loop, journal, ledgers, Epoch(2), APPLIERS)
    Node(shard)
    await Recovery(shard, SnapshotStore(bench.files, Path("/data/snapshots"))).run()
    return shard


async def turns(bench: Any) -> None:
    for _ in range(3):
        bench.settle()
        await asyncio.sleep(0)


async def check_recovery(bench: Any) -> None:
    bench.settle()
    assert state(await recovered(bench)) == state(bench.shard)


async def test_a_seek_behind_a_commit_wins(bench: Any) -> None:
    worker = Worker(bench)
    number = worker.stage_all()
    committed = worker.peer.ask(CommitTransaction(number))
    sought = worker.peer.ask(administer(admin.SeekSubscription(SOURCE, "s", AtOffset(2))))
    bench.settle()
    assert worker.peer.answer_to(committed) == Done()
    assert not isinstance(worker.peer.answer_to(sought), Error)
    subscription = bench.shard.topics[SOURCE].subscriptions["s"]
    assert subscription.cursor.unacked(0, 10) == [(2, 10)]
    assert subscription.reserved is None
    await check_recovery(bench)


async def test_a_commit_behind_a_seek_is_refused(bench: Any) -> None:
    worker = Worker(bench)
    number = worker.stage_all()
    sought = worker.peer.ask(administer(admin.SeekSubscription(SOURCE, "s", AtOffset(2))))
    committed = worker.peer.ask(CommitTransaction(number))
    bench.settle()
    assert not isinstance(worker.peer.answer_to(sought), Error)
    answer = worker.peer.answer_to(committed)
    assert isinstance(answer, Error)
    assert answer.code in {TransactionConflict.code, TransactionAborted.code}
    assert bench.shard.topics[ELSEWHERE].log.end_offset == 0
    assert bench.shard.topics[SOURCE].subscriptions["s"].cursor.unacked(0, 10) == [(2, 10)]
    await check_recovery(bench)


@pytest.mark.parametrize("deleted", ["namespace", SOURCE, TARGET])
@pytest.mark.parametrize("is_commit_first", [True, False])
async def test_a_deletion_and_a_commit_are_one_after_the_other(
    bench: Any, deleted: str, is_commit_first: bool
) -> None:
    worker = Worker(bench)
    number = worker.stage_all()
    operator = bench.connect()
    delete = (
        administer(admin.DeleteNamespace("shop", force=True))
        if deleted == "namespace"
        else DeleteTopic(deleted)
    )
    if is_commit_first:
        committed = worker.peer.ask(CommitTransaction(number))
        gone = operator.ask(delete)
    else:
        gone = operator.ask(delete)
        committed = worker.peer.ask(CommitTransaction(number))
    await turns(bench)
    assert not isinstance(operator.answer_to(gone), Error)
    answer = worker.peer.answer_to(committed)
    assert isinstance(answer, Error) == (not is_commit_first), answer
    assert bench.shard.topics[ELSEWHERE].log.end_offset == int(is_commit_first), "all or nothing"
    missing = {SOURCE, TARGET} if deleted == "namespace" else {deleted}
    assert not missing & set(bench.shard.topics)
    assert len(worker.bench.node.transactions) == 0
    await check_recovery(bench)


@pytest.mark.parametrize("is_commit_first", [True, False])
async def test_a_disk_that_fails_both_leaves_everything_as_it_was(
    bench: Any, is_commit_first: bool
) -> None:
    worker = Worker(bench)
    number = worker.stage_all()
    before = state(bench.shard)
    bench.files.fail("write", times=100)
    seek = administer(admin.SeekSubscription(SOURCE, "s", AtOffset(2)))
    commands = [CommitTransaction(number), seek]
    asked = [worker.peer.ask(one) for one in (commands if is_commit_first else commands[::-1])]
    await turns(bench)
    answers = [worker.peer.answer_to(one) for one in asked]
    assert all(isinstance(one, Error) for one in answers), answers
    bench.files.heal()
    bench.clock.now_ms += 10_000
    assert state(bench.shard) == before
    assert bench.shard.topics[SOURCE].subscriptions["s"].reserved is None
    # What a disk took of a write that it failed lies there until the next write says that it does not count.
    worker.peer.publish("/default/other", [b"next"])
    await check_recovery(bench)
