"""The broker's state, and the journal's answers; subscriptions. A change is journaled, made true, then answered.

Everything here runs on the loop thread, as short synchronous calls. Whatever must be durable first takes a callback.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

from danubius.ack.core.cursor import Cursor
from danubius.ack.core.ranges import RangeSet
from danubius.catalog.core.catalog import Catalog
from danubius.dispatch.core.subscription import SubscriptionCore
from danubius.dispatch.pump import Pump
from danubius.errors import DanubiusError, SubscriptionNotFound, TopicDeleted, TopicNotFound
from danubius.ledger.managed import ManagedLedger
from danubius.ledger.ring import Ring
from danubius.model.admin_replies import EventKind
from danubius.model.ids import (
    ConsumerId,
    Epoch,
    SubscriptionId,
    TopicId,
    TopicName,
    namespace_of,
    parse_topic_name,
)
from danubius.model.partitions import partitioned_error
from danubius.model.policy import Policies, effective
from danubius.model.topic import Dispatch, Durability
from danubius.publish.core.sequencer import Producer, Sequencer
from danubius.publish.journaling import TopicJournal
from danubius.publish.pipeline import Append, PublishPipeline
from danubius.shard.hosting.ack_journal import AckJournal
from danubius.shard.hosting.admission import Admission
from danubius.shard.hosting.ages import Ages
from danubius.shard.hosting.expiring import apply_expiry, note_expiring
from danubius.shard.hosting.failures import SubscriptionFailures, apply_rule, rule_of
from danubius.shard.hosting.history import EventHistory
from danubius.shard.hosting.pressure import PublishPressure
from danubius.shard.hosting.subscription import Subscription
from danubius.shard.hosting.topic import Topic, growth
from danubius.shard.state.core.numbers import Numbers
from danubius.shard.state.core.stages import Jobs
from danubius.shard.state.facts import (
    EVENT_RECORD,
    STAGE_LOG,
    Event,
    SubscriptionCreated,
    SubscriptionRetyped,
    encode_event,
)
from danubius.shard.state.ticks import Ticks
from danubius.shard.state.tokens import FactToken

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from danubius.broker.config import BrokerConfig
    from danubius.ledger.entry import Entry, LedgerMeta
    from danubius.ledger.storage import LedgerStorage
    from danubius.model.policy import FailurePolicy
    from danubius.model.subscription import Position, SubscriptionType
    from danubius.runtime.clock import Clock
    from danubius.shard.state.facts import TopicCreated
    from danubius.shard.state.tokens import OnDone
    from danubius.wal.ports import JournalPort

ANSWERED_FIRST: Final = 8
"""In a commit of so many batches, and nothing else, answers do not wait until all of it can be read."""
_effective: Final = functools.lru_cache(maxsize=1024)(effective)

log = logging.getLogger(__name__)


class TopicListener(Protocol):
    """A part that does something about topics. It may journal, but not at once: the commit under way comes first."""

    def topic_opened(self, topic: Topic) -> None:
        """It is hosted here from now on: new, or found by recovery, with all that it had."""
        ...

    def topic_closed(self, topic: Topic) -> None:
        """It is not hosted here any more."""
        ...


class Shard:
    """One node: what it hosts."""

    broker_id: str = ""
    """Whose state this is, in snapshots; empty: nobody's who would mind another's."""
    _listeners: list[TopicListener] | None = None
    """Who hears of topics; None: the state is still being recovered, or followed."""
    recovered_next_number: int = 1
    """Lower numbers of topics were known when the broker started: those that are not any more were deleted."""

    def __init__(  # noqa: PLR0913  # one for each thing it stands on
        self,
        config: BrokerConfig,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        journal: JournalPort,
        ledgers: LedgerStorage,
        epoch: Epoch,
        appliers: Mapping[type, Callable[[Shard, Any], None]],
    ) -> None:
        """`appliers` says what each kind of fact makes true: `appliers.APPLIERS`."""
        self.config = config
        self._appliers = appliers
        self.clock, self.ages = clock, Ages(clock)
        self.loop, self.epoch = loop, epoch
        self.journal, self.ledgers = journal, ledgers
        self.numbers = Numbers()
        self._next_consumer_id = 1
        # How far the journal is committed, and how far it was when the broker was started.
        self.committed_position = self.recovered_position = 0
        self.journal_failure: DanubiusError | None = None
        """Why the last append failed; None as soon as one succeeds."""
        self.topics: dict[TopicName, Topic] = {}
        self.topics_by_id: dict[TopicId, Topic] = {}
        """All of them, also those that have no name of their own."""
        self.catalog = Catalog()
        self.committed_transactions = RangeSet()
        self.jobs = Jobs(config.stage_jobs_max)
        self.creating: dict[TopicName, list[Callable[[Topic | DanubiusError], None]]] = {}
        self.openings: dict[Producer, list[Callable[[Producer | DanubiusError], None]]] = {}
        """Lives that are not durable yet, and those who wait for them: whoever resumes one waits with the first."""
        self._is_notify_due = self.is_committing = False
        self.is_lone_commit = False
        """Of the commit under way, or the last: whether it was of one append."""
        self.on_answered: Callable[[], None] = _nothing
        """Called when all answers and deliveries of one commit were written: they can leave now."""
        self._touched: dict[Topic, Entry | None] = {}
        self.acks = AckJournal(journal, loop, config.ack_journal_interval_ms / 1000)
        self.pressure = PublishPressure(
            journal, ledgers, config.publish_queue_bytes_max, clock.monotonic_ns
        )
        self.admission = Admission(config.message_bytes_max, clock.monotonic_ns, self._call_at)
        self.history = EventHistory(clock)
        self.ticks = Ticks()
        """What is to be done every now and then; the checkpointer's timer drives it."""
        self.on_condemned: Callable[[Topic, Subscription], None] = _nobody_moves
        """Called when messages of a subscription have to go to its dead-letter topic."""
        self.is_stopping = False
        """Whether everybody is being sent away."""
        self.messages_in = self.bytes_in = self.messages_out = self.bytes_out = 0
        self.messages_dropped = 0
        """Of non-reliable topics, lost to slow or absent consumers."""

    # ------------------------------------------------------------ the journal answers
    # Its tokens are whatever `append` was given, which here is always a JournalToken.

    def on_committed(self, tokens: list[Any], end_position: int) -> None:
        if self.journal_failure is not None:
            self.journal_failure = None
            log.info("journal works again")
        self._is_notify_due = self.is_committing = True
        self.is_lone_commit = len(tokens) == 1
        if len(tokens) >= ANSWERED_FIRST and all(type(token) is Append for token in tokens):
            self._answer_first(tokens)
        else:
            for token in tokens:
                token.committed()
        self.committed_position = end_position
        self._notify_touched()
        if self.pressure.holds_any:
            self.pressure.relieve()
        self.is_committing = False
        self.on_answered()

    def _answer_first(self, appends: list[Append]) -> None:
        """Publishers make their next batches while the logs of these grow, and have to wait for neither."""
        for append in appends:
            append.answer_publisher()
        self.on_answered()
        for append in appends:
            append.show()

    def on_failed(self, tokens: list[Any], error: DanubiusError) -> None:
        # Producers try again and again: the log says when it began and when it was over.
        if self.journal_failure is None:
            log.error("journal failed", extra={"appends": len(tokens), "error": str(error)})
        self.journal_failure = error
        for token in tokens:
            token.failed(error)
        self.pressure.relieve()

    def apply(self, fact: Event) -> None:
        """Make true what the journal has: live, in recovery, and for what is not journaled at all."""
        self._appliers[type(fact)](self, fact)

    def commit(self, fact: Event, on_done: OnDone, *, sync: bool = True) -> None:
        """Journal a fact; once it is durable its applier makes it true, and then `on_done` hears of it.

        Several facts, and batches, become true at once by `Atomic.commit`. Nothing may be appended from inside
        `on_done(error)`.
        """
        topic_id: int = getattr(fact, "topic_id", 0)
        token = FactToken(self.apply, fact, on_done)
        self.journal.append(EVENT_RECORD, topic_id, encode_event(fact), token, sync=sync)

    def count_delivered(self, messages: int, size: int) -> None:
        self.messages_out += messages
        self.bytes_out += size

    # ------------------------------------------------------------ growth of logs

    def touch(self, topic: Topic, entry: Entry) -> None:
        """The topic's log has grown; its readers hear of it once for all batches of one commit."""
        if topic.is_reliable and not topic.subscriptions and not topic.waiters:
            return
        self._touched[topic] = None if topic in self._touched else entry
        if not self._is_notify_due:
            self._is_notify_due = True
            self.loop.call_soon(self._notify_touched)

    def _notify_touched(self) -> None:
        self._is_notify_due = False
        touched, self._touched = self._touched, {}
        grown = list(touched.items())
        if len(grown) > 1:
            grown.sort(key=growth)  # who brought little does not wait for who brought much
        for topic, sole_entry in grown:
            self.messages_dropped += topic.notify(sole_entry)

    # ------------------------------------------------------------ topics

    def topic(self, name: str) -> Topic:
        topic = self.topic_or_none(name)
        if topic is None:
            if (known := self.catalog.partitioned.get(TopicName(name))) is not None:
                raise partitioned_error(known.name, known.partitions)
            raise TopicNotFound(
                f"topic {name} does not exist; a producer creates it, or `danubius topics create {name}`"
            )
        return topic

    def topic_or_none(self, name: str) -> Topic | None:
        topic = self.topics.get(parse_topic_name(name))
        if topic is not None:
            topic.check_open()
        return topic

    def host(
        self,
        created: TopicCreated,
        metas: list[LedgerMeta],
        next_offset: int,
        start_offset: int = 0,
    ) -> Topic:
        """Put a topic up from its creation and, after a restart, its ledgers."""
        topic_id, name, spec = TopicId(created.topic_id), TopicName(created.name), created.spec
        is_reliable = spec.dispatch is Dispatch.RELIABLE
        if is_reliable:
            topic_log: ManagedLedger | Ring = self.ledgers.open(
                topic_id, self.epoch, metas, next_offset, start_offset
            )
        else:
            topic_log = Ring(self.config.ring_bytes_max)
        topic = Topic(topic_id, name, spec, created.created_ms, topic_log)
        sync = spec.durability is Durability.SYNCED
        topic.pipeline = PublishPipeline(
            self.epoch,
            Sequencer(next_offset),
            topic_log,
            TopicJournal(self.journal, topic_id, sync=sync) if is_reliable else None,
            functools.partial(self.touch, topic),
        )
        topic.pipeline.on_expiring = functools.partial(
            note_expiring, topic, self.ages, self.history
        )
        topic.own_policies, topic.parent = created.policies, created.parent
        self.apply_policies(topic)
        if not topic.parent:
            self.topics[name] = topic
            self.catalog.names.add(name)
        elif topic.parent == STAGE_LOG:
            self.jobs.open_log(name.rpartition("/")[2], topic_id)
        self.topics_by_id[topic_id] = topic
        for listener in self._listeners or ():
            listener.topic_opened(topic)
        return topic

    def unhost(self, topic: Topic) -> None:
        """Take a deleted topic down and free what it held."""
        if not topic.parent:
            del self.topics[topic.name]
            self.catalog.names.remove(topic.name)
        elif topic.parent == STAGE_LOG:
            self.jobs.close_log(topic.id)
        del self.topics_by_id[topic.id]
        self._touched.pop(topic, None)
        topic.end()
        self.admission.forget(topic)
        if isinstance(topic.log, ManagedLedger):
            topic.log.delete()
        for listener in self._listeners or ():
            listener.topic_closed(topic)

    def begin(self, listeners: Sequence[TopicListener]) -> None:
        """The state is recovered: these hear of every topic there is, and from here on of each that comes or goes."""
        assert self._listeners is None
        self._listeners = list(listeners)
        for topic in list(self.topics_by_id.values()):
            for listener in listeners:
                listener.topic_opened(topic)

    def apply_policies(self, topic: Topic) -> None:
        """A layer has changed: what holds for the topic, and what the hot path looks at.

        Layers of a broker are few, whatever it hosts: topics with the same ones share one result.
        """
        layer = self.catalog.layer(namespace_of(topic.name))
        own = topic.own_policies if topic.own_policies is not None else topic.spec.layer()
        topic.policies = _effective(
            Policies(message_bytes_max=self.config.message_bytes_max),
            self.config.policies,
            layer,
            own,
        )
        topic.ttl_us = topic.policies.ttl_ms * 1000
        self.admission.apply(topic, layer, own)
        for subscription in topic.subscriptions.values():
            apply_rule(topic, subscription)
            apply_expiry(topic, subscription, self.ages, self.history)

    # ------------------------------------------------------------ subscriptions

    def create_subscription(
        self,
        topic: Topic,
        name: str,
        kind: SubscriptionType,
        start: Position,
        on_done: Callable[[Subscription | DanubiusError], None],
        failure: FailurePolicy | None = None,
    ) -> None:
        """Create it at `start`; answered once its floor is durable, so that a crash cannot move it."""

        def resolved(offset: int | DanubiusError) -> None:
            if isinstance(offset, DanubiusError):
                on_done(offset)
                return
            existing = topic.subscriptions.get(name)
            if existing is not None:
                on_done(existing)
                return
            full = topic.refuse_subscription(self.config.topic_subscriptions_max)
            if full is not None:
                on_done(full)
                return
            subscription_id = self.numbers.draw()
            created_ms = self.clock.wall_us() // 1000
            fact = SubscriptionCreated(
                topic.id, subscription_id, name, kind, offset, failure, created_ms
            )

            def done(error: DanubiusError | None) -> None:
                topic.coming_subscriptions -= 1
                subscription = topic.subscriptions.get(name)
                if error is not None or subscription is None:
                    on_done(error or TopicDeleted(f"topic {topic.name} was deleted"))
                    return
                # Two first consumers may ask at once: the later fact changes nothing.
                if topic.is_reliable and subscription.id == fact.subscription_id:
                    detail = f"{kind.value}, at offset {offset}"
                    self.history.tell(topic, subscription, EventKind.CREATED, detail=detail)
                on_done(subscription)

            topic.coming_subscriptions += 1
            if topic.is_reliable:
                self.commit(fact, done)
            else:
                self.apply(fact)  # nothing of such a topic is written down
                done(None)

        topic.resolve(start, resolved)

    def host_subscription(
        self, topic: Topic, created: SubscriptionCreated, cursor: Cursor | None = None
    ) -> Subscription:
        """Put a subscription up, new or from its stored cursor."""
        cursor = cursor or Cursor(created.floor)
        number = SubscriptionId(created.subscription_id)
        subscription = Subscription(number, created.name, created.type, cursor)
        subscription.failure, subscription.created_ms = created.failure, created.created_ms
        subscription.seen_ns = self.clock.monotonic_ns()
        topic.subscriptions[created.name] = subscription
        return subscription

    def retype_subscription(
        self, topic: Topic, subscription: Subscription, kind: SubscriptionType, on_done: OnDone
    ) -> None:
        """An idle subscription is taken up with another type; nobody joins it until that is so."""
        assert not subscription.consumers
        fact = SubscriptionRetyped(topic.id, subscription.id, kind)
        if not topic.is_reliable:
            self.apply(fact)  # nothing of such a topic is written down
            on_done(None)
            return

        def done(error: DanubiusError | None) -> None:
            if error is None and not topic.hosts(subscription):
                error = SubscriptionNotFound(
                    f"subscription {subscription.name!r} was deleted meanwhile"
                )
            if error is None:
                self.history.tell(topic, subscription, EventKind.RETYPED, detail=f"to {kind.value}")
            self.let_in(subscription)
            on_done(error)

        subscription.is_moving = True
        self.commit(fact, done, sync=False)

    def let_in(self, subscription: Subscription) -> None:
        """Whoever waited for the end of a change looks again; not now, where nothing may be journaled."""
        subscription.is_moving = False
        waiting, subscription.moved = subscription.moved, []
        for look in waiting:
            self.loop.call_soon(look)

    def start_pump(self, topic: Topic, subscription: Subscription) -> None:
        """Make the subscription able to deliver; until its first consumer comes it costs next to nothing."""
        if subscription.pump is not None:
            return
        if not topic.is_reliable:
            # Nobody listened until here, so nothing before is owed.
            subscription.cursor = Cursor(topic.log.end_offset)
        core = SubscriptionCore(
            subscription.type,
            subscription.cursor,
            end=topic.log.end_offset,
            auto_ack=not topic.is_reliable,
            rule=rule_of(topic, subscription),
            attempts=subscription.attempts or (),
        )
        subscription.pump = Pump(
            core,
            topic.log,
            now_ns=self.clock.monotonic_ns,
            call_at=self._call_at,
            on_acked=functools.partial(self.acks.add, topic, subscription),
            on_dropped=functools.partial(self._count_dropped, subscription),
            on_filtered=functools.partial(self._count_filtered, subscription),
            failures=SubscriptionFailures(topic, subscription, self.acks, self._move, self.history),
        )
        self.admission.dispatch.attach(topic, subscription)
        apply_expiry(topic, subscription, self.ages, self.history)

    def _move(self, topic: Topic, subscription: Subscription) -> None:
        self.on_condemned(topic, subscription)

    def _count_dropped(self, subscription: Subscription, count: int) -> None:
        subscription.dropped += count
        self.messages_dropped += count

    def _count_filtered(self, subscription: Subscription, count: int) -> None:
        subscription.filtered += count

    def _call_at(self, when_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        delay_s = max(0.0, (when_ns - self.clock.monotonic_ns()) / 1e9)
        return self.loop.call_later(delay_s, callback)

    # ------------------------------------------------------------ identities

    def draw_consumer_id(self) -> ConsumerId:
        number = self._next_consumer_id
        self._next_consumer_id += 1
        return ConsumerId(number)


def _nothing() -> None:
    """Stand in for a callback that nobody asked for."""


def _nobody_moves(topic: Topic, subscription: Subscription) -> None:
    """Stand in for the part that moves condemned messages."""
    del topic, subscription
