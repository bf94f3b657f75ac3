"""One subscription of a topic: its pump, its consumers, and the acknowledgements still to be journaled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from danubius.ack.core.ranges import RangeSet
from danubius.errors import ConsumerReplaced, SubscriptionTypeMismatch
from danubius.model.subscription import SubscriptionType

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    from danubius.ack.core.cursor import Cursor
    from danubius.ack.core.ranges import Range, RangeMap
    from danubius.dispatch.pump import Outlet, Pump
    from danubius.errors import DanubiusError
    from danubius.model.admin_replies import SubscriptionEvent
    from danubius.model.ids import ConsumerId, SubscriptionId
    from danubius.model.policy import FailurePolicy


class ConsumerOutlet(Protocol):
    """A consumer as the subscription sees it: where deliveries go, and whether anybody is there."""

    @property
    def consumer_id(self) -> ConsumerId: ...

    @property
    def name(self) -> str: ...

    @property
    def outlet(self) -> Outlet: ...

    @property
    def ack_timeout_ns(self) -> int: ...

    @property
    def skip_damaged(self) -> bool: ...

    @property
    def key_filters(self) -> tuple[str, ...]: ...

    def end(self, error: DanubiusError) -> None:
        """The broker ends this consumer; it is already out of the subscription."""
        ...

    def probe(self, on_result: Callable[[bool], None]) -> None:
        """Ask whether the peer is alive; answered within a second."""
        ...


class Subscription:
    """Who reads, and how far everyone has come."""

    __slots__ = (
        "acked",
        "attempts",
        "consumers",
        "created_ms",
        "cursor",
        "dead_lettered",
        "delivered",
        "delivered_bytes",
        "discarded",
        "dropped",
        "expired",
        "failure",
        "filtered",
        "history",
        "id",
        "is_burying",
        "is_moving",
        "moved",
        "nacked",
        "name",
        "pump",
        "quota_dropped",
        "redelivered",
        "reserved",
        "seen_ns",
        "timed_out",
        "type",
        "uncounted",
        "unjournaled",
    )

    def __init__(
        self, subscription_id: SubscriptionId, name: str, kind: SubscriptionType, cursor: Cursor
    ) -> None:
        self.id = subscription_id
        self.name = name
        self.type = kind
        self.cursor = cursor
        self.consumers: dict[ConsumerId, ConsumerOutlet] = {}
        self.unjournaled = RangeSet()
        # Messages since the start of the broker, counted per delivery or answer.
        self.delivered = 0
        self.delivered_bytes = 0
        self.redelivered = 0
        """Of those delivered: not for the first time."""
        self.acked = 0
        self.nacked = 0
        self.timed_out = 0
        self.expired = 0
        self.filtered = 0
        self.dead_lettered = 0
        self.discarded = 0
        """Dropped because they failed too often."""
        self.dropped = 0
        self.quota_dropped = 0
        """Of a full topic that drops its oldest: not acknowledged when they went."""
        self.pump: Pump | None = None
        self.is_moving = False
        """Between two positions or types: nobody may join until the new one is durable."""
        self.moved: list[Callable[[], None]] = []
        """Called once when it is."""
        self.created_ms = self.seen_ns = 0
        """The latter by the monotonic clock: when it was put up, or last seen with a consumer."""
        self.failure: FailurePolicy | None = None
        """None: the topic's."""
        self.attempts: RangeMap[int] | None = None
        """How often messages failed, as far as that is kept; None: none did, or nobody counts."""
        self.uncounted: RangeMap[int] | None = None
        """Of these, what the journal has not been given yet."""
        self.is_burying = False
        """Whether condemned messages are on their way to the dead-letter topic."""
        self.history: deque[SubscriptionEvent] | None = None
        """What happened to it, from the first event on."""
        self.reserved: RangeSet | None = None
        """What commits on their way are about to acknowledge."""

    def reserve(self, ranges: Sequence[Range]) -> bool:
        """Keep ranges for one commit on its way; False, and nothing is kept, if any of it is acknowledged or kept."""
        if self.is_moving:
            return False
        reserved = self.reserved
        for first, end in ranges:
            if self.cursor.unacked(first, end) != [(first, end)]:
                return False
            if reserved is not None and reserved.intersect(first, end):
                return False
        if reserved is None:
            reserved = self.reserved = RangeSet()
        reserved.add_all(ranges)
        return True

    def unreserve(self, ranges: Sequence[Range]) -> None:
        """The commit is over: what it kept is acknowledged by now, or free again."""
        assert self.reserved is not None
        for first, end in ranges:
            self.reserved.remove(first, end)
        if not len(self.reserved):
            self.reserved = None

    def check_type(self, wanted: SubscriptionType) -> None:
        if wanted is not self.type and self.consumers:
            raise SubscriptionTypeMismatch(
                f"subscription {self.name!r} has {len(self.consumers)} {self.type.value} consumer(s); "
                f"join with type {self.type.value!r}, or as {wanted.value!r} under another subscription name"
            )

    def incumbent_or_none(self, name: str) -> ConsumerOutlet | None:
        """The consumer that keeps another one of this name out, if there is one."""
        if self.type is not SubscriptionType.EXCLUSIVE:
            return None
        return next((c for c in self.consumers.values() if c.name != name), None)

    def join(self, consumer: ConsumerOutlet) -> None:
        """Add a consumer; one of the same name gives way."""
        assert self.pump is not None
        namesakes = [other for other in self.consumers.values() if other.name == consumer.name]
        # It is there before they go: a subscription that is left by all may be forgotten.
        self.consumers[consumer.consumer_id] = consumer
        for other in namesakes:
            self.leave(other.consumer_id)
            other.end(
                ConsumerReplaced(f"another consumer named {consumer.name!r} joined {self.name!r}")
            )
        self.pump.join(
            consumer.consumer_id,
            consumer.name,
            consumer.outlet,
            consumer.ack_timeout_ns,
            skip_damaged=consumer.skip_damaged,
            key_filters=consumer.key_filters,
        )

    def leave(self, consumer_id: ConsumerId, *, is_clean: bool = False) -> None:
        """A consumer has gone; with `is_clean` on its own account, so what it had does not count as failed."""
        if self.consumers.pop(consumer_id, None) is not None:
            assert self.pump is not None
            self.pump.leave(consumer_id, is_clean=is_clean)

    def end(self, error: DanubiusError) -> None:
        """The topic or the subscription is gone."""
        consumers, self.consumers = self.consumers, {}
        self.stop()
        for consumer in consumers.values():
            consumer.end(error)

    def stop(self) -> None:
        """Deliver nothing more; a pump holds timers."""
        if self.pump is not None:
            self.pump.close()
            self.pump = None
