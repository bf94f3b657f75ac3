"""Transactions of one broker: staged in memory, committed as one atomic record, or forgotten.

Invariants:
- A transaction belongs to the connection that began it, and ends with it unless it is committing.
- A refused part aborts the whole: what is committed is always all that was asked for.
- An offset is acknowledged by one committed transaction at most. Its ranges are reserved from the moment the record is
  appended until they are acknowledged, so that no second commit on its way can name them. Who reads the input with
  acknowledgements inside transactions only, therefore has every effect once, whoever else believes to own the message.
- Memory: a bound for one, a bound for all, a bound for how many, and a time after which each is aborted.
- A commit may be asked for again, by anybody: the answer is what became of it.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from danubius.ack.core.ranges import RangeSet
from danubius.errors import (
    DanubiusError,
    InvalidArgument,
    Overloaded,
    TransactionAborted,
    TransactionConflict,
    TransactionNotFound,
)
from danubius.publish.pipeline import check_sender
from danubius.record.batch import check_batch
from danubius.shard.features.transactions.core.transaction import (
    CommittedIds,
    Transaction,
    TransactionIds,
    TransactionState,
)
from danubius.shard.hosting.publish_door import admit
from danubius.shard.state.atomic import Append
from danubius.shard.state.facts import RangesAcked, TransactionCommitted

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

    from danubius.ack.core.cursor import Cursor
    from danubius.ack.core.ranges import Range
    from danubius.model.ids import Offset
    from danubius.publish.core.sequencer import Producer
    from danubius.record.batch import Header
    from danubius.shard.hosting.consumer import ConsumerHandle
    from danubius.shard.hosting.publish_door import Admitted
    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard
    from danubius.shard.state.atomic import Atomic
    from danubius.shard.state.facts import Event
    from danubius.shard.state.tokens import OnDone


REASONS_MAX: Final = 1_000
"""Why the last so many were aborted is remembered: whoever asks for one later is told."""
WAITING_MAX: Final = 100
"""Requests that wait for one commit: the first, and repetitions of it over new connections."""


class Owner(Protocol):
    """The connection of a transaction."""

    @property
    def address(self) -> str: ...
    @property
    def on_closed(self) -> set[Callable[[], None]]: ...


class AckSource(NamedTuple):
    """Whose messages are acknowledged; with the cursor of that moment, which a seek replaces."""

    consumer: ConsumerHandle
    cursor: Cursor


class Staged(NamedTuple):
    """A batch, and what it took of its topic's limits when it came: if it is not stored that is given back."""

    append: Append
    admitted: Admitted | None

    @property
    def header(self) -> Header:
        return self.append.header

    def give_back(self) -> None:
        if self.admitted is not None:
            self.admitted.give_back()


class OpenTransaction:
    """One transaction with its connection and its timer."""

    __slots__ = ("begun_ms", "core", "owner", "timer", "undo", "waiting")

    def __init__(self, core: Transaction[Staged, AckSource], owner: Owner, begun_ms: int) -> None:
        self.core = core
        self.begun_ms = begun_ms
        self.owner = owner
        self.timer: asyncio.TimerHandle
        self.undo: Callable[[], None]
        """For the end of its connection."""
        self.waiting: list[OnDone] = []
        """Who waits for its commit."""


class Transactions:
    """All open transactions, on the loop."""

    def __init__(self, shard: Shard, atomic: Atomic) -> None:
        self._shard = shard
        self._atomic = atomic
        self._ids = TransactionIds(shard.epoch)
        self._committed = CommittedIds(shard.committed_transactions)
        self._open: dict[int, OpenTransaction] = {}
        self._reasons: dict[int, str] = {}
        self.bytes = 0
        """What they hold in memory, all together."""
        # Since the start of the broker.
        self.committed = 0
        self.aborted = 0

    def start(self) -> None:
        """The state is recovered: no number that it knows is given again."""
        self._ids.pass_over(self._committed.last)

    def __len__(self) -> int:
        """How many are open or committing."""
        return len(self._open)

    def in_order(self) -> list[OpenTransaction]:
        """Those that are open or committing, by their numbers."""
        return [self._open[number] for number in sorted(self._open)]

    # ------------------------------------------------------------ begin

    def begin(self, owner: Owner, timeout_ms: int) -> int:
        """Begin one that is aborted after `timeout_ms`; returns its number."""
        config = self._shard.config
        if not 0 < timeout_ms <= config.transaction_timeout_max_ms:
            raise InvalidArgument(
                f"the time-out of a transaction is {timeout_ms} ms; it must be from 1 to "
                f"{config.transaction_timeout_max_ms}"
            )
        if len(self._open) >= config.transactions_max:
            raise Overloaded(
                f"{len(self._open):,} transactions are open, which is the most; try again later"
            )
        number = self._ids.draw()
        begun_ms = self._shard.clock.wall_us() // 1000
        one = OpenTransaction(Transaction(number, config.transaction_bytes_max), owner, begun_ms)
        one.undo = functools.partial(self._on_owner_gone, one)
        one.timer = self._shard.loop.call_later(timeout_ms / 1000, self._on_late, one, timeout_ms)
        owner.on_closed.add(one.undo)
        self._open[number] = one
        return number

    # ------------------------------------------------------------ add

    @contextlib.contextmanager
    def adding(self, owner: Owner, transaction_id: int) -> Generator[OpenTransaction]:
        """The transaction, to add something; if that is refused, all of it is aborted."""
        one = self._open.get(transaction_id)
        if one is None or one.owner is not owner:
            raise self._gone(transaction_id)
        if one.core.state is not TransactionState.OPEN:
            raise InvalidArgument(
                f"transaction {transaction_id} is being committed: nothing can be added to it, begin another"
            )
        try:
            yield one
        except DanubiusError as error:
            self._abort(one, f"a part of it was refused: {error.message}")
            raise

    def stage(
        self, one: OpenTransaction, topic: Topic, producer: Producer, batch: memoryview
    ) -> int:
        """Publish a batch at the commit. Returns how long, in ns, the answer has to wait."""
        if not topic.is_reliable:
            raise InvalidArgument(
                f"topic {topic.name} is not reliable: it stores nothing, so it can be no part of a transaction"
            )
        header = check_batch(batch)
        check_sender(header, producer)
        self._check_room(header.length)
        admitted = admit(self._shard, topic, batch, header)
        staged = Staged(Append(topic, batch, header), admitted)
        try:
            self.bytes += one.core.stage(staged, header.length)
        except DanubiusError:
            staged.give_back()
            raise
        return 0 if admitted is None else admitted.wait_ns

    def ack(self, one: OpenTransaction, consumer: ConsumerHandle, ranges: list[Range]) -> None:
        """Acknowledge ranges at the commit."""
        topic = consumer.topic
        topic.check_open()
        if not topic.is_reliable:
            raise InvalidArgument(
                f"topic {topic.name} is not reliable: nothing on it is acknowledged, so it can be no part of a "
                "transaction"
            )
        log_end = topic.log.end_offset
        for first, end in ranges:
            if not 0 <= first < end <= log_end:
                raise InvalidArgument(
                    f"the offset range [{first}, {end}) is empty or outside {topic.name}, which ends at {log_end}"
                )
        self._check_room(0)
        self.bytes += one.core.ack(AckSource(consumer, consumer.subscription.cursor), ranges)

    def _check_room(self, size: int) -> None:
        limit = self._shard.config.transactions_bytes_max
        if self.bytes + size > limit:
            raise Overloaded(
                f"open transactions hold {self.bytes:,} of {limit:,} bytes; try again when others have ended"
            )

    # ------------------------------------------------------------ commit

    def commit(self, owner: Owner, transaction_id: int, on_done: OnDone) -> None:
        """Make it all durable and visible; answered then. Raises if nothing of it can be any more."""
        one = self._open.get(transaction_id)
        if one is None:
            # Only now: whatever is remembered of a number, one that is open has not been stored.
            if transaction_id not in self._committed:
                raise self._gone(transaction_id)
            on_done(None)
            return
        if one.core.state is TransactionState.OPEN:
            if one.owner is not owner:
                # The answer must stay true, whatever the other connection still asks for.
                self._abort(one, "it was begun on a connection that its client has given up")
                raise self._gone(transaction_id)
            self._append(one)
        elif len(one.waiting) >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} requests wait for the commit of {transaction_id}")
        one.waiting.append(on_done)

    def _append(self, one: OpenTransaction) -> None:
        core = one.core
        reserved: dict[Subscription, list[Range]] = {}
        try:
            self._shard.pressure.check()
            facts = _reserve(core, reserved)
            core.begin_commit()
            self._atomic.commit(
                [staged.append for staged in core.staged],
                [*facts, TransactionCommitted(core.id)],
                functools.partial(self._on_journaled, one, reserved),
            )
        except DanubiusError as error:
            _unreserve(reserved)
            self._abort(one, f"it could not be committed: {error.message}")
            raise
        one.timer.cancel()

    def _on_journaled(
        self,
        one: OpenTransaction,
        reserved: dict[Subscription, list[Range]],
        result: list[Offset] | DanubiusError,
    ) -> None:
        if isinstance(result, DanubiusError):
            # Giving messages back leads to appends, which must not come before all failures are known.
            self._shard.loop.call_soon(self._on_failed, one, reserved, result)
            return
        _unreserve(reserved)
        shard = self._shard
        for append, _ in one.core.staged:
            shard.messages_in += append.header.count
            shard.bytes_in += append.header.length
        self.committed += 1
        self._committed.trim()
        self._forget(one, TransactionState.COMMITTED)
        for on_done in one.waiting:
            on_done(None)

    def _on_failed(
        self,
        one: OpenTransaction,
        reserved: dict[Subscription, list[Range]],
        error: DanubiusError,
    ) -> None:
        _unreserve(reserved)
        self._abort(one, f"it could not be stored: {error.message}")
        for on_done in one.waiting:
            on_done(error)

    # ------------------------------------------------------------ abort

    def abort(self, owner: Owner, transaction_id: int) -> None:
        """Forget it; what it acknowledged is delivered again. Aborting what is aborted does nothing."""
        one = self._open.get(transaction_id)
        if one is None or one.owner is not owner:
            if transaction_id in self._committed:
                raise InvalidArgument(f"transaction {transaction_id} is committed")
            if not self._ids.was_given(transaction_id):
                raise self._gone(transaction_id)
            return
        if one.core.state is not TransactionState.OPEN:
            raise InvalidArgument(f"transaction {transaction_id} is being committed")
        self._abort(one, "its client aborted it")

    def end(self, transaction_id: int) -> None:
        """Abort one, whoever began it."""
        one = self._open.get(transaction_id)
        if one is None:
            raise TransactionNotFound(
                f"transaction {transaction_id} is not open; `danubius transactions list` shows those that are"
            )
        if one.core.state is not TransactionState.OPEN:
            raise InvalidArgument(f"transaction {transaction_id} is being committed")
        self._abort(one, "an operator aborted it")

    def _on_late(self, one: OpenTransaction, timeout_ms: int) -> None:
        if one.core.state is TransactionState.OPEN:
            self._abort(one, f"it was open for longer than its {timeout_ms} ms")

    def _on_owner_gone(self, one: OpenTransaction) -> None:
        # One that is committing cannot be taken back; whoever asks again hears how it went.
        if one.core.state is TransactionState.OPEN:
            self._abort(one, "its connection was lost", gives_back=False)

    def _abort(self, one: OpenTransaction, reason: str, *, gives_back: bool = True) -> None:
        staged, acks = one.core.staged, one.core.acks
        self._reasons[one.core.id] = reason
        if len(self._reasons) > REASONS_MAX:
            del self._reasons[next(iter(self._reasons))]
        self.aborted += 1
        self._forget(one, TransactionState.ABORTED)
        for batch in staged:
            batch.give_back()
        if not gives_back:
            return  # its consumers go as well, and with them all that they held
        for source, ranges in acks.items():
            consumer = source.consumer
            if consumer.consumer_id in consumer.subscription.consumers:
                consumer.nack(list(ranges), 0)

    def _forget(self, one: OpenTransaction, state: TransactionState) -> None:
        one.timer.cancel()
        one.owner.on_closed.discard(one.undo)
        del self._open[one.core.id]
        self.bytes -= one.core.end(state)

    def _gone(self, transaction_id: int) -> DanubiusError:
        reason = self._reasons.get(transaction_id)
        if reason is not None:
            return TransactionAborted(f"transaction {transaction_id} was aborted: {reason}")
        if not self._ids.was_given(transaction_id):
            return TransactionNotFound(
                f"this broker never began transaction {transaction_id}: begin one first"
            )
        return TransactionAborted(
            f"transaction {transaction_id} is over: it ran out of time, its connection was lost, or the broker was "
            "restarted; begin another"
        )


def _reserve(
    core: Transaction[Staged, AckSource], reserved: dict[Subscription, list[Range]]
) -> list[Event]:
    """Keep all acknowledged ranges for this commit, and return them as facts. Raises at the first that is taken."""
    wanted: dict[Subscription, tuple[Topic, RangeSet]] = {}
    for (consumer, cursor), ranges in core.acks.items():
        topic, subscription = consumer.topic, consumer.subscription
        topic.check_open()
        if not topic.hosts(subscription) or subscription.cursor is not cursor:
            raise TransactionConflict(
                f"subscription {subscription.name!r} of {topic.name} was deleted or moved to another position "
                "meanwhile: process again what it delivers from there"
            )
        wanted.setdefault(subscription, (topic, RangeSet()))[1].add_all(list(ranges))
    facts: list[Event] = []
    for subscription, (topic, ranges) in wanted.items():
        merged = list(ranges)
        if not merged:
            continue
        if not subscription.reserve(merged):
            raise TransactionConflict(
                f"messages of subscription {subscription.name!r} of {topic.name} that transaction {core.id} "
                "acknowledges were acknowledged by others meanwhile: leave them, and process what comes next"
            )
        reserved[subscription] = merged
        facts.append(RangesAcked(topic.id, subscription.id, merged))
    return facts


def _unreserve(reserved: dict[Subscription, list[Range]]) -> None:
    for subscription, ranges in reserved.items():
        subscription.unreserve(ranges)
