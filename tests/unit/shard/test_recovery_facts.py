"""Facts and snapshots, applied: a broker that recovers has the state that the one before had."""

from __future__ import annotations

import asyncio
import re
import struct
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest

from captured import captured, snapshot_of
from danubius.broker.appliers import APPLIERS
from danubius.broker.config import BrokerConfig
from danubius.errors import DataDirectoryDamaged
from danubius.ledger.config import LedgerConfig
from danubius.ledger.local import LocalLedgerStore
from danubius.ledger.storage import LedgerStorage
from danubius.model.ids import Epoch, TopicId
from danubius.model.policy import FailurePolicy, Policies
from danubius.model.subscription import SubscriptionType
from danubius.model.topic import TopicSpec
from danubius.record.batch import read_header
from danubius.record.encode import encode
from danubius.runtime.clock import SystemClock
from danubius.shard.hosting.ack_journal import ATTEMPTS_MAX
from danubius.shard.recovery.replay import Recovery
from danubius.shard.shard import Shard
from danubius.shard.state import facts as events
from danubius.shard.state.atomic import ATOMIC_RECORD, Append, Atomic
from danubius.shard.state.facts import Event
from danubius.sim.disk import SimFiles
from danubius.sim.threads import SimThreads
from danubius.wal.config import JournalConfig
from danubius.wal.journal import Journal
from danubius.wal.snapshot import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.errors import DanubiusError

POLICIES = Policies(ttl_ms=5)
FAILURE = FailurePolicy(redeliveries_max=3)
TOPIC, SUBSCRIPTION, HIDDEN = 7, 9, 20
STATE: list[Event] = [
    events.TopicCreated(TOPIC, "/default/t", TopicSpec(), 5, POLICIES),
    events.TopicCreated(HIDDEN, "/default/t", TopicSpec(), 6, None, TOPIC),
    events.SubscriptionCreated(TOPIC, SUBSCRIPTION, "s", SubscriptionType.SHARED, 0, FAILURE, 5),
    events.ProducerStarted(TOPIC, 8, "p", 2, False, 40),
]


class Life:
    """One broker on a disk, from its recovery to its death."""

    def __init__(self, files: SimFiles) -> None:
        self.files = files
        self.posted: deque[Callable[[], None]] = deque()
        self.threads = SimThreads()
        post, clock = self.posted.append, SystemClock()
        config = JournalConfig(fill_bytes=0)
        self.journal = Journal(config, files, Path("/data/journal"), spawn=self.threads)
        store = LocalLedgerStore(files, Path("/data/ledgers"))
        self.ledgers = LedgerStorage(LedgerConfig(), store, post, clock, self.threads)
        loop = asyncio.get_running_loop()
        self.shard = Shard(
            BrokerConfig(), clock, loop, self.journal, self.ledgers, Epoch(1), APPLIERS
        )
        self.snapshots = SnapshotStore(files, Path("/data/snapshots"))

    async def start(self) -> Life:
        await Recovery(self.shard, self.snapshots).run()
        self.journal.start(self.posted.append, self.shard.on_committed, self.shard.on_failed)
        return self

    async def again(self) -> Life:
        self.files.kill()
        return await Life(self.files).start()

    def settle(self) -> None:
        self.threads.turn()
        while self.posted:
            self.posted.popleft()()
            self.threads.turn()

    def write(self, facts: Sequence[Event], *, is_atomic: bool) -> None:
        if is_atomic:
            Atomic(self.shard).commit([], facts, lambda _: None)
        else:
            for fact in facts:
                self.shard.commit(fact, _stored)
        self.settle()

    def save(self) -> None:
        snapshot = captured(self.shard)
        answers: list[DanubiusError | None] = []
        self.ledgers.flush(answers.append)
        self.settle()
        assert answers == [None]
        self.snapshots.save(self.shard.committed_position, snapshot)

    def state(self) -> Any:
        return msgspec.to_builtins(snapshot_of(self.shard))

    @property
    def topic(self) -> Any:
        return self.shard.topics_by_id[TopicId(TOPIC)]


def _stored(error: object) -> None:
    assert error is None


def batch_for(topic: Any, count: int, **header: Any) -> Append:
    batch = memoryview(encode([b"m"] * count, publish_time_us=1, **header))
    return Append(topic, batch, read_header(batch))


@pytest.fixture
async def life() -> Life:
    return await Life(SimFiles()).start()


def test_every_fact_has_an_applier() -> None:
    assert set(APPLIERS) == set(get_args(Event))


EFFECTS = re.compile(
    r"\.(host|unhost|host_subscription|trim_to|reclaim|object_lost|offloaded|skip_to)\("
    r"|jobs\.(add|drop|decide|advance)\(|committed_transactions\.add\("
    r"|\.(watermark|own_policies) =|\.(namespaces|partitioned)(\[.*\] =|\.pop\()"
)
"""What facts do."""


def test_only_appliers_do_what_facts_do() -> None:
    package = Path(events.__file__).parent
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in sorted(package.glob("*.py"))
        if not path.name.startswith("recovery_")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if EFFECTS.search(line)
    ]
    assert found == [], "commit a fact instead"


@pytest.mark.parametrize("is_saved", [False, True])
@pytest.mark.parametrize("is_atomic", [False, True])
@pytest.mark.parametrize(
    "facts",
    [
        [],
        [events.TopicChanged(TOPIC, Policies(ttl_ms=9))],
        [events.NamespaceCreated("n", POLICIES, 5)],
        [events.NamespaceCreated("n", POLICIES, 5), events.NamespaceChanged("n", Policies())],
        [events.NamespaceChanged("default", POLICIES)],
        [events.NamespaceCreated("n", POLICIES, 5), events.NamespaceRemoved("n")],
        [events.PartitionsSet("/default/p", 4, TopicSpec(), 5)],
        [
            events.PartitionsSet("/default/p", 4, TopicSpec(), 5),
            events.PartitionsSet("/default/p", 8, TopicSpec(), 5),
        ],
        [
            events.PartitionsSet("/default/p", 4, TopicSpec(), 5),
            events.PartitionsRemoved("/default/p"),
        ],
        [events.SubscriptionChanged(TOPIC, SUBSCRIPTION, None)],
        [events.SubscriptionRetyped(TOPIC, SUBSCRIPTION, SubscriptionType.FAILOVER)],
        [events.SubscriptionRemoved(TOPIC, SUBSCRIPTION)],
        [events.RangesAcked(TOPIC, SUBSCRIPTION, [(0, 3), (5, 6)])],
        [
            events.RangesAcked(TOPIC, SUBSCRIPTION, [(0, 30)]),
            events.SubscriptionMoved(TOPIC, SUBSCRIPTION, 4),
        ],
        [
            events.AttemptsCounted(TOPIC, SUBSCRIPTION, [(0, 10, 1), (12, 13, 4)]),
            events.AttemptsCounted(TOPIC, SUBSCRIPTION, [(2, 4, 2)]),
            events.RangesAcked(TOPIC, SUBSCRIPTION, [(3, 6)]),
        ],
        [events.DelayAdvanced(HIDDEN, 50, 2), events.DelayAdvanced(HIDDEN, 60, 1)],
        [events.TransactionCommitted(5), events.TransactionCommitted(6)],
        [events.TopicRemoved(HIDDEN)],
        [events.TopicRemoved(HIDDEN), events.TopicRemoved(TOPIC)],
        # About what is not there.
        [
            events.TopicChanged(99, POLICIES),
            events.RangesAcked(TOPIC, 99, [(0, 1)]),
            events.SubscriptionMoved(99, SUBSCRIPTION, 3),
            events.DelayAdvanced(99, 1, 1),
            events.NamespaceRemoved("none"),
            events.PartitionsRemoved("/default/none"),
        ],
    ],
)
async def test_what_facts_did_is_there_after_a_restart(
    life: Life, facts: list[Event], is_atomic: bool, is_saved: bool
) -> None:
    life.write(STATE, is_atomic=False)
    life.write(facts, is_atomic=is_atomic)
    before = life.state()
    if is_saved:
        life.save()
    after = await life.again()
    assert after.state() == before
    assert (await after.again()).state() == before


async def test_facts_say_what_they_say(life: Life) -> None:
    life.write(STATE, is_atomic=True)
    topic, hidden = life.topic, life.shard.topics_by_id[TopicId(HIDDEN)]
    assert life.shard.topics == {"/default/t": topic}
    assert (topic.own_policies, topic.parent, hidden.parent) == (POLICIES, 0, TOPIC)
    assert life.shard.numbers.next == HIDDEN + 1
    subscription = topic.subscriptions["s"]
    assert (subscription.failure, subscription.created_ms) == (FAILURE, 5)
    assert topic.pipeline.sequencer.producer_or_none("p").committed_next == 40
    life.write(
        [
            events.AttemptsCounted(TOPIC, SUBSCRIPTION, [(0, 10, 1)]),
            events.AttemptsCounted(TOPIC, SUBSCRIPTION, [(2, 4, 2)]),
            events.RangesAcked(TOPIC, SUBSCRIPTION, [(3, 6)]),
            events.DelayAdvanced(HIDDEN, 50, 2),
        ],
        is_atomic=True,
    )
    assert list(subscription.attempts) == [(0, 2, 1), (2, 3, 2), (6, 10, 1)]
    assert hidden.watermark == (50, 2)
    life.write([events.SubscriptionMoved(TOPIC, SUBSCRIPTION, 4)], is_atomic=True)
    assert subscription.cursor.floor == 4
    assert 5 not in subscription.cursor
    assert subscription.attempts is None


async def test_counted_attempts_are_bounded_and_the_lowest_offsets_win(life: Life) -> None:
    life.write(STATE, is_atomic=False)
    segments = [(2 * n, 2 * n + 1, 1) for n in range(ATTEMPTS_MAX + 5)]
    life.write([events.AttemptsCounted(TOPIC, SUBSCRIPTION, segments)], is_atomic=False)
    attempts = life.topic.subscriptions["s"].attempts
    assert len(attempts) == ATTEMPTS_MAX
    assert attempts.lowest() == (0, 1, 1)


async def test_an_atomic_batch_counts_for_no_producer_whatever_its_header_says(life: Life) -> None:
    life.write(STATE, is_atomic=False)
    Atomic(life.shard).commit(
        [batch_for(life.topic, 2, producer_id=8, producer_epoch=2, base_sequence=40)],
        [],
        lambda _: None,
    )
    life.settle()
    for _ in range(2):
        sequencer = life.topic.pipeline.sequencer
        sequencer.check()
        producer = sequencer.producer_or_none("p")
        assert (producer.committed_next, list(producer.runs)) == (40, [])
        assert (sequencer.next_offset, life.topic.log.end_offset) == (2, 2)
        life = await life.again()


async def test_batches_for_a_topic_that_is_gone_are_left_out(life: Life) -> None:
    life.write([*STATE, events.TopicCreated(30, "/default/u", TopicSpec(), 5)], is_atomic=False)
    other = life.shard.topics_by_id[TopicId(30)]
    Atomic(life.shard).commit([batch_for(life.topic, 2), batch_for(other, 1)], [], lambda _: None)
    life.settle()
    life.write([events.TopicRemoved(TOPIC)], is_atomic=False)
    life = await life.again()
    assert list(life.shard.topics) == ["/default/u"]
    assert life.shard.topics_by_id[TopicId(30)].log.end_offset == 1


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (ATOMIC_RECORD, struct.pack("<I", 1) + b"\xc1\0\0\0", "atomic one this version cannot"),
        (ATOMIC_RECORD, struct.pack("<I", 8), "atomic one this version cannot"),
        (events.EVENT_RECORD, msgspec.msgpack.encode([200, 1]), "event this version cannot"),
        (99, b"", "unknown kind 99"),
    ],
)
async def test_a_record_of_the_future_stops_the_start_and_says_where(
    life: Life, kind: int, body: bytes, message: str
) -> None:
    life.journal.append(kind, 0, body, None, sync=True)
    life.settle()
    with pytest.raises(DataDirectoryDamaged, match=message):
        await life.again()
