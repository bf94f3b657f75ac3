"""Positions of subscriptions, as operators change them: seek, skip, clear; created and deleted without a consumer.

Invariants:
- Every change is one atomic record, for all partitions of a topic together, and shows only once it is durable.
- A seek ends the consumers and the pump first, so that nothing of the old position is journaled behind it: from the
  request on, acknowledgements of what was delivered before change nothing. Nobody joins until it is over.
- The cursor of a moved subscription is a new object: cores and cursors only ever rise.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from danubius.ack.core.ranges import RangeSet
from danubius.admin.description import describe_members
from danubius.admin.targets import Member, Target, find_members, find_target
from danubius.errors import (
    DanubiusError,
    InvalidArgument,
    SubscriptionBusy,
    SubscriptionExists,
    SubscriptionNotFound,
)
from danubius.errors import SubscriptionMoved as SubscriptionMovedError
from danubius.model import admin, admin_replies
from danubius.model.admin_replies import EventKind, TopicPosition, TopicRanges
from danubius.model.subscription import AtOffset
from danubius.shard.hosting.failures import check_failure
from danubius.shard.state.facts import (
    RangesAcked,
    SubscriptionCreated,
    SubscriptionMoved,
    SubscriptionRemoved,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.ack.core.ranges import Range, RangeMap
    from danubius.broker.node import Node
    from danubius.model.admin_replies import OnReply
    from danubius.model.subscription import Position
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.state.facts import Event


# ---------------------------------------------------------------- seek


def _seek(node: Node, request: admin.SeekSubscription, on_reply: OnReply) -> None:
    target = find_target(node.shard, request.topic)
    members = find_members(target, request.subscription)
    _check_stored(target)
    if target.partitioned is not None and isinstance(request.to, AtOffset):
        raise InvalidArgument(
            f"an offset means something else in each of the {target.partitions} partitions of {target.name}; seek to "
            f"'earliest', 'latest' or a time, or seek in one partition: {target.topics[0].name}"
        )

    def resolved(offsets: list[int] | DanubiusError) -> None:
        if isinstance(offsets, DanubiusError):
            on_reply(offsets)
            return
        try:
            _move(node, members, offsets, on_reply)
        except DanubiusError as error:
            on_reply(error)

    _resolve([member.topic for member in members], request.to, resolved)


def _resolve(
    topics: Sequence[Topic], to: Position, on_done: Callable[[list[int] | DanubiusError], None]
) -> None:
    """What a position means in each topic, once it is known for all."""
    offsets: dict[Topic, int] = {}
    is_answered = False

    def found(topic: Topic, offset: int | DanubiusError) -> None:
        nonlocal is_answered
        if is_answered:
            return
        if isinstance(offset, DanubiusError):
            is_answered = True
            on_done(offset)
            return
        offsets[topic] = offset
        if len(offsets) == len(topics):
            is_answered = True
            on_done([offsets[one] for one in topics])

    for topic in topics:
        topic.resolve(to, functools.partial(found, topic))


def _move(node: Node, members: Sequence[Member], offsets: Sequence[int], on_reply: OnReply) -> None:
    _check_there(members)
    moves = [_Move(node, member, offset) for member, offset in zip(members, offsets, strict=True)]

    def done(result: object) -> None:
        if isinstance(result, DanubiusError):
            for move in moves:
                move.fail()
            on_reply(result)
            return
        for move in moves:
            move.finish()
        positions = [TopicPosition(one.member.topic.name, one.offset) for one in moves]
        on_reply(admin_replies.PositionsSet(positions))

    for move in moves:
        move.begin()
    node.atomic.commit([], [move.fact for move in moves], done)


class _Move:
    """One subscription of one topic on its way to another position."""

    __slots__ = ("_acks", "_counts", "_node", "fact", "member", "offset")

    def __init__(self, node: Node, member: Member, offset: int) -> None:
        self._node = node
        self._acks: RangeSet = RangeSet()
        self._counts: RangeMap[int] | None = None
        self.member = member
        self.offset = offset
        self.fact = SubscriptionMoved(member.topic.id, member.subscription.id, offset)

    def begin(self) -> None:
        """Nobody delivers and nobody acknowledges from here on."""
        subscription = self.member.subscription
        subscription.is_moving = True
        subscription.end(
            SubscriptionMovedError(
                f"subscription {subscription.name!r} of {self.member.topic.name} was moved to offset {self.offset}"
            )
        )
        self._acks, subscription.unjournaled = subscription.unjournaled, RangeSet()
        self._counts, subscription.uncounted = subscription.uncounted, None

    def finish(self) -> None:
        topic, subscription = self.member
        self._node.shard.history.tell(
            topic, subscription, EventKind.SOUGHT, detail=f"to offset {self.offset}"
        )
        self._node.shard.let_in(subscription)

    def fail(self) -> None:
        """The old position stays, with what was acknowledged there and not written yet."""
        topic, subscription = self.member
        subscription.unjournaled.add_all(list(self._acks))
        subscription.uncounted = self._counts
        self._node.shard.acks.confirm(topic, subscription, _ignore)
        self._node.shard.let_in(subscription)


# ---------------------------------------------------------------- skip, clear, peek


def _skip(node: Node, request: admin.SkipMessages, on_reply: OnReply) -> None:
    target = find_target(node.shard, request.topic)
    members = find_members(target, request.subscription)
    left = request.count
    plans: list[tuple[Member, list[Range]]] = []
    for member in members:
        ranges = _first_unacked(member, left)
        left -= _count(ranges)
        plans.append((member, ranges))
    _acknowledge(node, target, plans, EventKind.SKIPPED, on_reply)


def _clear(node: Node, request: admin.ClearBacklog, on_reply: OnReply) -> None:
    target = find_target(node.shard, request.topic)
    members = find_members(target, request.subscription)
    plans = [(member, _first_unacked(member, None)) for member in members]
    _acknowledge(node, target, plans, EventKind.CLEARED, on_reply)


def _peek(node: Node, request: admin.PeekMessages, on_reply: OnReply) -> None:
    target = find_target(node.shard, request.topic)
    left = request.limit
    lines: list[TopicRanges] = []
    for member in find_members(target, request.subscription):
        ranges = _first_unacked(member, left)
        left -= _count(ranges)
        if ranges:
            lines.append(TopicRanges(member.topic.name, ranges))
    on_reply(admin_replies.MessagesPeeked(lines))


def _first_unacked(member: Member, count: int | None) -> list[Range]:
    """The first messages that are stored and not acknowledged; None: all of them."""
    log = member.topic.log
    unacked = member.subscription.cursor.unacked(log.start_offset, log.end_offset)
    if count is None:
        return unacked
    ranges: list[Range] = []
    for first, end in unacked:
        if count <= 0:
            break
        end = min(end, first + count)
        ranges.append((first, end))
        count -= end - first
    return ranges


def _acknowledge(
    node: Node,
    target: Target,
    plans: Sequence[tuple[Member, list[Range]]],
    kind: EventKind,
    on_reply: OnReply,
) -> None:
    """Acknowledge ranges for good; consumers stay, and what they have of it is theirs to finish or not."""
    _check_stored(target)
    _check_there([member for member, _ in plans])
    plans = [(member, ranges) for member, ranges in plans if ranges]
    messages = sum(_count(ranges) for _, ranges in plans)
    if not plans:
        on_reply(admin_replies.MessagesCounted(0))
        return

    def done(result: object) -> None:
        if isinstance(result, DanubiusError):
            on_reply(result)
            return
        for member, ranges in plans:
            if member.subscription.pump is None:
                member.subscription.acked += _count(ranges)
            detail = f"up to offset {ranges[-1][1] - 1}"
            node.shard.history.tell(*member, kind, detail=detail, messages=_count(ranges))
        on_reply(admin_replies.MessagesCounted(messages))

    # One range each: what lies between those that were asked for is acknowledged already.
    facts: list[Event] = [
        RangesAcked(member.topic.id, member.subscription.id, [(ranges[0][0], ranges[-1][1])])
        for member, ranges in plans
    ]
    node.atomic.commit([], facts, done)


def _count(ranges: Sequence[Range]) -> int:
    return sum(end - first for first, end in ranges)


# ---------------------------------------------------------------- create, delete


def _create(node: Node, request: admin.CreateSubscription, on_reply: OnReply) -> None:
    shard = node.shard
    target = find_target(shard, request.topic)
    _check_stored(target)
    name = request.subscription
    if request.failure is not None:
        check_failure(request.failure, target.name, name)
    missing = [topic for topic in target.topics if name not in topic.subscriptions]
    if target.partitioned is not None and isinstance(request.start, AtOffset):
        raise InvalidArgument(
            f"an offset means something else in each partition of {target.name}; start at 'earliest', 'latest' or "
            "a time"
        )
    if not missing:
        if not request.exist_ok:
            raise SubscriptionExists(f"topic {target.name} has a subscription {name!r} already")
        on_reply(describe_members(node, target, find_members(target, name)))
        return
    for topic in missing:
        topic.check_open()
        if topic.gate is not None:
            topic.gate.check_subscribe(topic, None)

    _create_missing(node, target, missing, request, on_reply)


def _create_missing(
    node: Node,
    target: Target,
    missing: Sequence[Topic],
    request: admin.CreateSubscription,
    on_reply: OnReply,
) -> None:
    shard, name = node.shard, request.subscription

    def resolved(offsets: list[int] | DanubiusError) -> None:
        if isinstance(offsets, DanubiusError):
            on_reply(offsets)
            return
        for topic in missing:
            full = topic.refuse_subscription(shard.config.topic_subscriptions_max)
            if full is not None:
                on_reply(full)
                return
        now_ms = shard.clock.wall_us() // 1000
        facts = [
            SubscriptionCreated(
                topic.id, shard.numbers.draw(), name, request.type, offset, request.failure, now_ms
            )
            for topic, offset in zip(missing, offsets, strict=True)
        ]
        node.atomic.commit([], facts, created)

    def created(result: object) -> None:
        if isinstance(result, DanubiusError):
            on_reply(result)
            return
        try:
            members = find_members(target, name)
        except SubscriptionNotFound as error:  # the topic went in the same commit
            on_reply(error)
            return
        for member in members:
            if member.topic in missing:
                shard.history.tell(*member, EventKind.CREATED, detail="without a consumer")
        on_reply(describe_members(node, target, members))

    _resolve(missing, request.start, resolved)


def _delete(node: Node, request: admin.DeleteSubscription, on_reply: OnReply) -> None:
    target = find_target(node.shard, request.topic)
    members = find_members(target, request.subscription)
    _check_there(members)
    names = sorted({c.name for _, s in members for c in s.consumers.values()})
    if names and not request.force:
        raise SubscriptionBusy(
            f"subscription {request.subscription!r} of {target.name} has {len(names)} consumer(s), among them "
            f"{names[0]!r}; close them first, or delete it with force"
        )
    for member in members:
        member.subscription.is_moving = True

    def done(result: object) -> None:
        if not isinstance(result, DanubiusError):
            gone = SubscriptionNotFound(
                f"subscription {request.subscription!r} of {target.name} was deleted"
            )
            for topic, subscription in members:
                if topic.hosts(
                    subscription
                ):  # a fact has taken it out, unless it is none of a stored topic
                    del topic.subscriptions[subscription.name]
                subscription.end(gone)
        for member in members:
            node.shard.let_in(member.subscription)
        on_reply(result if isinstance(result, DanubiusError) else admin_replies.Done())

    if all(topic.is_reliable for topic in target.topics):
        facts: list[Event] = [SubscriptionRemoved(t.id, s.id) for t, s in members]
        node.atomic.commit([], facts, done)
    else:
        done(None)


# ---------------------------------------------------------------- checks


def _check_stored(target: Target) -> None:
    for topic in target.topics:
        topic.check_open()
        if not topic.is_reliable:
            raise InvalidArgument(
                f"topic {target.name} is non-reliable: it stores nothing, so its subscriptions have no position"
            )


def _check_there(members: Sequence[Member]) -> None:
    for topic, subscription in members:
        topic.check_open()
        if not topic.hosts(subscription):
            raise SubscriptionNotFound(
                f"subscription {subscription.name!r} of {topic.name} was deleted meanwhile"
            )
        if subscription.is_moving:
            raise SubscriptionBusy(
                f"subscription {subscription.name!r} of {topic.name} is just being moved or deleted; try again"
            )


def _ignore(_error: DanubiusError | None) -> None:
    """Nobody waits for it."""


ADMIN: Final[dict[type, Callable[[Node, Any, OnReply], None]]] = {
    admin.SeekSubscription: _seek,
    admin.SkipMessages: _skip,
    admin.ClearBacklog: _clear,
    admin.PeekMessages: _peek,
    admin.CreateSubscription: _create,
    admin.DeleteSubscription: _delete,
}
