"""A topic as the broker hosts it: one writer, one log, its subscriptions and those who wait for more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from danubius.errors import DanubiusError, LimitReached, OffsetOutOfRange, TopicDeleted
from danubius.ledger.managed import ManagedLedger
from danubius.model.limits import FRAME_BYTES_MAX
from danubius.model.policy import Effective
from danubius.model.subscription import AtEarliest, AtLatest, AtOffset, AtTime, Position
from danubius.model.topic import Dispatch, TopicSpec, incarnation_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.ledger.entry import Entry
    from danubius.ledger.ring import Ring
    from danubius.model.ids import TopicId, TopicName
    from danubius.model.policy import Policies
    from danubius.publish.core.sequencer import Producer
    from danubius.publish.pipeline import PublishPipeline
    from danubius.shard.hosting.subscription import Subscription


DEFAULT_POLICIES: Final = Effective()


class TopicGate(Protocol):
    """The limits of a topic that has some. Each check says no by raising."""

    refused_batches: int
    """For their size, or a quota."""

    def check_open(self, topic: Topic, others: int) -> None:
        """One more producer asks to attach; so many others are there or on their way."""
        ...

    def check_subscribe(self, topic: Topic, subscription: Subscription | None) -> None:
        """One more consumer asks to join; None: its subscription is created for it."""
        ...

    def admit(self, count: int, size: int, now_ns: int) -> int:
        """A batch of `size` bytes asks to be stored, and counts from here on. How long, in ns, its answer has to wait.

        Raises Throttled or QuotaExceeded, and nothing was counted.
        """
        ...

    def give_back(self, count: int, size: int) -> None:
        """What `admit` let in was not stored after all."""
        ...


class AttachedProducer(Protocol):
    """A producer on some connection."""

    @property
    def producer(self) -> Producer: ...

    def end(self, error: DanubiusError) -> None: ...

    def probe(self, on_result: Callable[[bool], None]) -> None:
        """Find out within a second whether its client still answers."""
        ...


class Topic:
    """State of one topic; all of it on the loop thread."""

    __slots__ = (
        "_dropped_before",
        "_notified_end",
        "attached",
        "coming_subscriptions",
        "created_ms",
        "delayed_bytes",
        "gate",
        "has_expiring",
        "id",
        "is_deleting",
        "is_reliable",
        "log",
        "name",
        "own_policies",
        "parent",
        "pipeline",
        "policies",
        "spec",
        "subscriptions",
        "ttl_us",
        "waiters",
        "watermark",
    )

    def __init__(
        self,
        topic_id: TopicId,
        name: TopicName,
        spec: TopicSpec,
        created_ms: int,
        log: ManagedLedger | Ring,
    ) -> None:
        self.id = topic_id
        self.coming_subscriptions = 0
        """On their way to the disk."""
        self.name = name
        self.spec = spec
        self.is_reliable = spec.dispatch is Dispatch.RELIABLE
        self.created_ms = created_ms
        self.log = log
        self.pipeline: PublishPipeline
        self.subscriptions: dict[str, Subscription] = {}
        self.attached: dict[str, AttachedProducer] = {}
        self.waiters: list[Callable[[], None]] = []
        """Called once, at the next growth of the log or its end."""
        self.is_deleting = False
        self.own_policies: Policies | None = None
        """None: as its spec says."""
        self.policies = DEFAULT_POLICIES
        """All layers together, as of the last `Broker.apply_policies`; what follows is made of them."""
        self.gate: TopicGate | None = None
        """None: the topic has no limits, and publishing pays for none."""
        self.ttl_us = 0
        """Messages older than this are not delivered; 0: they do not age."""
        self.parent = 0
        """The topic whose delay log this is; 0: it is a topic of its own."""
        self.watermark: tuple[int, int] = (0, 0)
        """Of a delay log: due time in ms and offset up to which everything is released."""
        self.delayed_bytes = 0
        """What waits for its time in the delay log of this topic."""
        self.has_expiring = False
        """Whether a batch ever came that says itself when it expires."""
        self._notified_end = log.end_offset
        self._dropped_before = 0
        """What was lost to subscriptions that are forgotten, and while there was none."""

    @property
    def incarnation(self) -> int:
        """Tells this topic from every other that has or had its name, on a broker that began anew as well."""
        return incarnation_of(self.created_ms, self.id)

    @property
    def stored_bytes(self) -> int:
        return self.log.stored_bytes if isinstance(self.log, ManagedLedger) else 0

    @property
    def dropped(self) -> int:
        """Messages of a non-reliable topic that went by slow or absent consumers; never falls."""
        return self._dropped_before + sum(s.dropped for s in self.subscriptions.values())

    def check_open(self) -> None:
        if self.is_deleting:
            raise TopicDeleted(f"topic {self.name} is being deleted")

    def notify(self, sole_entry: Entry | None) -> int:
        """The log has grown, perhaps by this one entry: everyone who waits may look.

        Returns how many messages were lost, for nobody listens.
        """
        end = self.log.end_offset
        unheard = 0
        if not self.subscriptions and not self.is_reliable:
            unheard = end - self._notified_end
            self._dropped_before += unheard
        self._notified_end = end
        for subscription in list(self.subscriptions.values()):
            if subscription.pump is not None:
                if sole_entry is not None:
                    subscription.pump.appended(sole_entry.first, end, sole_entry.buffer)
                else:
                    subscription.pump.extended(end)
        self.wake_waiters()
        return unheard

    def hosts(self, subscription: Subscription) -> bool:
        return self.subscriptions.get(subscription.name) is subscription

    def refuse_subscription(self, limit: int) -> LimitReached | None:
        """Why one more subscription is too many for a broker that allows so many of each topic; None: it is not."""
        if len(self.subscriptions) + self.coming_subscriptions < limit:
            return None
        return LimitReached(
            f"{self.name} has {len(self.subscriptions):,} subscriptions, and the setting "
            f"broker.topic_subscriptions_max allows {limit:,}: raise it, or delete some"
        )

    def release(self, subscription: Subscription) -> None:
        """A consumer has left it. Without any, a non-reliable topic owes it nothing and forgets it.

        At once: names that are used for a moment must not pile up, and whoever comes back starts at the end anyway.
        """
        if self.is_reliable or subscription.consumers or not self.hosts(subscription):
            return
        del self.subscriptions[subscription.name]
        self._dropped_before += subscription.dropped
        subscription.stop()

    def wake_waiters(self) -> None:
        if self.waiters:
            waiters, self.waiters = self.waiters, []
            for wake in waiters:
                wake()

    def floor(self) -> int:
        """Every subscription has acknowledged everything below; the log's end without subscriptions."""
        return min(
            (s.cursor.floor for s in self.subscriptions.values()), default=self.log.end_offset
        )

    def resolve(self, position: Position, on_done: Callable[[int | DanubiusError], None]) -> None:
        """Turn a position into an offset that can be read (or the end)."""
        log = self.log
        match position:
            case AtLatest():
                on_done(log.end_offset)
            case AtEarliest():
                on_done(log.start_offset)
            case AtOffset(offset=offset):
                if log.start_offset <= offset <= log.end_offset:
                    on_done(offset)
                else:
                    on_done(
                        OffsetOutOfRange(
                            f"offset {offset} is outside {self.name}, which holds "
                            f"{log.start_offset} to {log.end_offset} (the next to be written)"
                        )
                    )
            case AtTime(time_us=time_us):
                if isinstance(log, ManagedLedger):
                    log.find_time(time_us, on_done)
                else:
                    on_done(log.end_offset)

    def end(self) -> None:
        """Deleted: everyone attached hears of it."""
        error = TopicDeleted(f"topic {self.name} was deleted")
        for attached in list(self.attached.values()):
            attached.end(error)
        self.attached.clear()
        for subscription in list(self.subscriptions.values()):
            subscription.end(error)
        self.wake_waiters()


def growth(touched: tuple[Topic, Entry | None]) -> int:
    """How much a topic grew in one commit, as far as it is known at once: several batches are much."""
    entry = touched[1]
    return FRAME_BYTES_MAX if entry is None else len(entry.buffer)
