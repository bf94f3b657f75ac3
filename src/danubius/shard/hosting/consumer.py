"""A consumer on a connection: where its subscription's deliveries go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.errors import ConsumerReplaced, DanubiusError, InvalidArgument, SubscriptionBusy
from danubius.model.admin_replies import EventKind
from danubius.model.ids import parse_name
from danubius.model.key_filters import check_key_filters
from danubius.shard.hosting.failures import check_failure
from danubius.wire.commands import ConsumerActive, ConsumerClosed, Deliver, Subscribe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.model.buffers import Buffer
    from danubius.model.ids import ConsumerId
    from danubius.shard.hosting.peer import Peer
    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard


class ConsumerHandle:
    """One open consumer of one connection; it is the outlet of its subscription's pump."""

    __slots__ = (
        "_handle",
        "_is_announced",
        "_on_ended",
        "_peer",
        "_shard",
        "ack_timeout_ns",
        "acked",
        "consumer_id",
        "delivered",
        "delivered_bytes",
        "is_active",
        "key_filters",
        "nacked",
        "name",
        "redelivered",
        "since_ms",
        "skip_damaged",
        "subscription",
        "topic",
    )

    def __init__(
        self,
        shard: Shard,
        peer: Peer,
        command: Subscribe,
        topic: Topic,
        subscription: Subscription,
    ) -> None:
        self._shard = shard
        self._peer = peer
        self._handle = 0
        self._is_announced = False
        self._on_ended: Callable[[int], None]
        self.topic = topic
        self.subscription = subscription
        self.consumer_id: ConsumerId = shard.draw_consumer_id()
        self.name = command.consumer
        self.ack_timeout_ns = command.ack_timeout_ms * 1_000_000
        self.skip_damaged = command.skip_damaged
        self.key_filters = command.key_filters
        self.is_active = True
        self.since_ms = shard.clock.wall_us() // 1000
        self.delivered = 0
        self.delivered_bytes = 0
        self.acked = 0
        self.nacked = 0
        self.redelivered = 0
        """Of those delivered: not for the first time."""

    @property
    def address(self) -> str:
        return self._peer.address

    @property
    def outlet(self) -> ConsumerHandle:
        return self

    def attach(self, handle: int, on_ended: Callable[[int], None]) -> None:
        self._handle = handle
        self._on_ended = on_ended
        self._shard.start_pump(self.topic, self.subscription)
        self.subscription.join(self)
        self._is_announced = True
        self._tell(EventKind.JOINED, f"from {self.address}")

    def detach(self, *, is_clean: bool = False) -> None:
        """The client has closed it (`is_clean`), or is gone."""
        if is_clean:
            self._tell(EventKind.LEFT, "it closed")
        else:
            self._tell(EventKind.LOST, f"its connection from {self.address} ended")
        self.subscription.leave(self.consumer_id, is_clean=is_clean or self._shard.is_stopping)
        self.topic.release(self.subscription)

    def _tell(self, kind: EventKind, detail: str = "") -> None:
        if self.topic.is_reliable:  # other subscriptions come and go with their consumers
            self._shard.history.tell(
                self.topic, self.subscription, kind, who=self.name, detail=detail
            )

    def grant(self, messages: int, size: int) -> None:
        assert self.subscription.pump is not None
        self.subscription.pump.grant(self.consumer_id, messages, size)

    def set_writable(self, *, is_writable: bool) -> None:
        assert self.subscription.pump is not None
        self.subscription.pump.set_writable(self.consumer_id, is_writable)

    def ack(self, ranges: list[tuple[int, int]]) -> None:
        subscription = self.subscription
        assert subscription.pump is not None
        before = subscription.acked
        subscription.pump.acked(ranges)
        self.acked += subscription.acked - before

    def nack(self, ranges: list[tuple[int, int]], delay_ms: int, reason: str = "") -> None:
        subscription = self.subscription
        pump = subscription.pump
        assert pump is not None
        # A peer may name anything: no more can have come back than is out.
        count = min(sum(end - first for first, end in ranges), pump.unacked)
        subscription.nacked += count
        self.nacked += count
        pump.nacked(self.consumer_id, ranges, delay_ms * 1_000_000, reason)

    # ------------------------------------------------------------ the pump's side

    def deliver(
        self,
        first: int,
        end: int,
        messages: int,
        redelivery_count: int,
        buffers: Sequence[Buffer],
    ) -> None:
        size = sum(map(len, buffers))
        subscription = self.subscription
        self.delivered += messages
        self.delivered_bytes += size
        subscription.delivered += messages
        subscription.delivered_bytes += size
        if redelivery_count:
            self.redelivered += messages
            subscription.redelivered += messages
        self._shard.count_delivered(messages, size)
        self._peer.send(Deliver(self._handle, first, end, messages, redelivery_count), 0, buffers)

    def active_changed(self, is_active: bool) -> None:
        self.is_active = is_active
        if self._is_announced:
            if is_active:
                self._tell(EventKind.PROMOTED)
            self._peer.send(ConsumerActive(self._handle, is_active))

    def closed(self, error: DanubiusError) -> None:
        """The pump cannot go on with this consumer (a damaged range)."""
        self.subscription.leave(self.consumer_id)
        self.end(error)

    # ------------------------------------------------------------ the subscription's side

    def end(self, error: DanubiusError) -> None:
        self._tell(EventKind.LEFT, error.message)
        self._on_ended(self._handle)
        self._peer.send(ConsumerClosed(self._handle, error.code, error.message))

    def probe(self, on_result: Callable[[bool], None]) -> None:
        self._peer.probe(on_result)


def check_subscribe(command: Subscribe) -> None:
    parse_name("subscription", command.subscription)
    parse_name("consumer", command.consumer)
    if command.ack_timeout_ms < 0:
        raise InvalidArgument(
            f"ack timeout is {command.ack_timeout_ms} ms; it must be 0 (none) or more"
        )
    if command.key_filters:
        check_key_filters(command.key_filters, command.type)
    if command.failure is not None:
        check_failure(command.failure, command.topic, command.subscription)


def find_subscription(
    shard: Shard,
    topic: Topic,
    command: Subscribe,
    on_done: Callable[[Subscription | DanubiusError], None],
) -> None:
    """The subscription, created or retyped if need be, once this consumer may join it.

    Whatever had to be waited for, all that allows it to join was true in the moment of the answer.
    """

    def found(subscription: Subscription | DanubiusError) -> None:
        if isinstance(subscription, DanubiusError):
            on_done(subscription)
            return
        if subscription.is_moving:
            subscription.moved.append(lambda: found(subscription))
            return
        try:
            topic.check_open()
            subscription.check_type(command.type)
            if topic.gate is not None:
                topic.gate.check_subscribe(topic, subscription)
        except DanubiusError as error:
            on_done(error)
            return
        if command.type is subscription.type:
            _make_way(subscription, command, on_done, found)
        else:
            shard.retype_subscription(
                topic, subscription, command.type, lambda error: found(error or subscription)
            )

    existing = topic.subscriptions.get(command.subscription)
    if existing is not None:
        found(existing)
    else:
        if topic.gate is not None:
            topic.gate.check_subscribe(topic, None)
        shard.create_subscription(
            topic,
            command.subscription,
            command.type,
            command.start,
            found,
            failure=command.failure,
        )


def _make_way(
    subscription: Subscription,
    command: Subscribe,
    on_done: Callable[[Subscription | DanubiusError], None],
    look_again: Callable[[Subscription], None],
) -> None:
    """An exclusive consumer that no longer answers must not keep a living one out."""
    incumbent = subscription.incumbent_or_none(command.consumer)
    if incumbent is None:
        on_done(subscription)
        return

    def probed(is_alive: bool) -> None:
        still_there = incumbent.consumer_id in subscription.consumers
        if is_alive and still_there:
            on_done(
                SubscriptionBusy(
                    f"subscription {subscription.name!r} is exclusive and consumer {incumbent.name!r} is on it; "
                    "wait for it to leave, or use type 'failover' or 'shared'"
                )
            )
            return
        if still_there:
            subscription.leave(incumbent.consumer_id)
            incumbent.end(
                ConsumerReplaced("this consumer did not answer, and another took its place")
            )
        # While the probe was under way someone else may have come first, or the topic may have gone.
        look_again(subscription)

    incumbent.probe(probed)
