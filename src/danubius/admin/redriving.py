"""Operations on messages that failed: dead letters looked at, sent back, given up; policies changed.

Dead letters go in slices, each one atomic record: a crash in the middle has moved whole slices, and nothing twice.
A redrive publishes to the original topic, so every subscription of it sees the message, as a new one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from danubius.ack.core.ranges import Segment
from danubius.admin.statistics import measure_members
from danubius.admin.targets import Member, Target, find_members, find_target
from danubius.errors import (
    DanubiusError,
    InvalidArgument,
    LedgerDamaged,
    OffsetOutOfRange,
    SubscriptionBusy,
    SubscriptionNotFound,
    TopicNotFound,
)
from danubius.model import admin
from danubius.model.admin_pages import take_page
from danubius.model.admin_replies import (
    DeadLetter,
    DeadLettersListed,
    EventKind,
    MessagesCounted,
    SubscriptionDescribed,
)
from danubius.shard.features.dead_letters.letters import (
    ATTEMPTS,
    LETTERS_MAX,
    ORIGINAL_OFFSET,
    ORIGINAL_SUBSCRIPTION,
    ORIGINAL_TOPIC,
    READ_BYTES,
    REASON,
    encode_letters,
    ranges_of,
    read_letters,
    revive,
    take_some,
)
from danubius.shard.features.dead_letters.moving import REDRIVE, dead_letter_name
from danubius.shard.hosting.failures import check_failure, policy_of, rule_of
from danubius.shard.state.atomic import Append
from danubius.shard.state.facts import RangesAcked, SubscriptionChanged

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.ack.core.ranges import Range
    from danubius.broker.node import Node
    from danubius.ledger.entry import Chunk
    from danubius.model.admin_replies import AdminReply, OnReply
    from danubius.model.ids import Offset, TopicName
    from danubius.shard.features.dead_letters.letters import Letter
    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard

    OnLetters = Callable[[Topic, list[Letter]], None]

PAYLOAD_START_BYTES: Final = 256

# ---------------------------------------------------------------- finding letters


class _Graves:
    """The dead letters of one subscription of a topic, partitions taken together, the oldest first."""

    def __init__(self, shard: Shard, target: Target, subscription: str) -> None:
        self._names = {topic.name for topic in target.topics}
        self._subscription = subscription
        self.members = [
            Member(topic, topic.subscriptions[subscription])
            for topic in target.topics
            if subscription in topic.subscriptions
        ]
        self.topics = _letters_topics_of(shard, target, subscription)

    def is_mine(self, letter: Letter) -> bool:
        origin = letter.attributes
        return (
            origin.get(ORIGINAL_TOPIC) in self._names
            and origin.get(ORIGINAL_SUBSCRIPTION) == self._subscription
        )

    def scan(
        self,
        letters_topic: Topic,
        first: int,
        count_max: int,
        on_found: Callable[[list[Letter], int], None],
        on_failed: Callable[[DanubiusError], None],
    ) -> None:
        """Some letters at or behind `first`, and where to go on; no letters: there are no more."""
        keeper = letters_topic.subscriptions[REDRIVE]
        first = keeper.cursor.next_unacked(max(first, letters_topic.log.start_offset))
        if first >= letters_topic.log.end_offset:
            on_found([], first)
            return

        def read(answer: Chunk | DanubiusError) -> None:
            if isinstance(answer, LedgerDamaged):
                self.scan(letters_topic, max(answer.end, first + 1), count_max, on_found, on_failed)
            elif isinstance(answer, OffsetOutOfRange):
                self.scan(letters_topic, first + 1, count_max, on_found, on_failed)
            elif isinstance(answer, DanubiusError):
                on_failed(answer)
            else:
                found(answer)

        def found(chunk: Chunk) -> None:
            wanted = keeper.cursor.unacked(first, chunk.end)
            try:
                letters = take_some(filter(self.is_mine, read_letters(chunk, wanted)), count_max)
            except DanubiusError as error:
                on_failed(error)
                return
            if letters:
                on_found(letters, letters[-1].offset + 1)
            else:
                self.scan(letters_topic, chunk.end, count_max, on_found, on_failed)

        letters_topic.check_open()
        letters_topic.log.read(first, READ_BYTES, read)


def _letters_topics_of(shard: Shard, target: Target, subscription: str) -> list[Topic]:
    """Where they can be: as the policy says now, and where they go without a policy that says otherwise."""
    names: dict[TopicName, None] = {}
    for topic in target.topics:
        known = topic.subscriptions.get(subscription)
        policy = policy_of(topic, known) if known is not None else topic.policies.failure
        for named in (policy.dead_letter_topic, ""):
            names[dead_letter_name(shard, topic, subscription, named)] = None
    letters_topics = [topic for topic in map(shard.topics.get, names) if topic is not None]
    return [
        letters_topic for letters_topic in letters_topics if REDRIVE in letters_topic.subscriptions
    ]


def _find(node: Node, topic: str, subscription: str) -> _Graves:
    target = find_target(node.shard, topic)
    letters_topics = _Graves(node.shard, target, subscription)
    if not letters_topics.topics:
        find_members(target, subscription)  # says so if there is no such subscription
    return letters_topics


# ---------------------------------------------------------------- looking


def _list(node: Node, request: admin.ListDeadLetters, on_reply: OnReply) -> None:
    letters_topics = _find(node, request.topic, request.subscription)
    last, _, number = request.after.rpartition(":")
    if request.after and not (last and number.isdecimal()):
        raise InvalidArgument(
            f"after is {request.after!r}; it must be the `next` of the page before"
        )
    names = [letters_topic.name for letters_topic in letters_topics.topics]
    start = next((place for place, name in enumerate(names) if name == last), 0)
    lines: list[DeadLetter] = []

    def look(place: int, first: int) -> None:
        if place == len(letters_topics.topics) or len(lines) > request.limit:
            page, more = take_page(lines, request.limit, lambda one: f"{one.topic}:{one.offset}")
            on_reply(DeadLettersListed(page, next=more))
            return
        letters_topic = letters_topics.topics[place]

        def found(letters: list[Letter], following: int) -> None:
            lines.extend(_line(letters_topic.name, letter) for letter in letters)
            again = functools.partial(look, place, following) if letters else None
            node.shard.loop.call_soon(again or functools.partial(look, place + 1, 0))

        try:
            letters_topics.scan(letters_topic, first, request.limit + 1, found, on_reply)
        except DanubiusError as error:
            on_reply(error)

    look(start, int(number) + 1 if last else 0)


def _line(letters_topic: str, letter: Letter) -> DeadLetter:
    origin = letter.attributes
    return DeadLetter(
        letters_topic,
        letter.offset,
        origin.get(ORIGINAL_TOPIC, ""),
        _number(origin.get(ORIGINAL_OFFSET, "")),
        _number(origin.get(ATTEMPTS, "")),
        origin.get(REASON, ""),
        letter.publish_time_us,
        letter.key,
        origin,
        len(letter.payload),
        letter.payload[:PAYLOAD_START_BYTES],
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


# ---------------------------------------------------------------- sending back, giving up


class _Sweep:
    """Takes letters out of their graves, slice by slice, until enough are gone."""

    def __init__(
        self,
        node: Node,
        letters_topics: _Graves,
        count: int | None,
        *,
        revives: bool,
        on_reply: OnReply,
    ) -> None:
        self._node = node
        self._graves = letters_topics
        self._left = count
        self._revives = revives
        self._on_reply = on_reply
        self._done = 0
        self._keepers = [
            letters_topic.subscriptions[REDRIVE] for letters_topic in letters_topics.topics
        ]

    def start(self) -> None:
        sweeping = self._node.dead_letters.sweeping
        if not sweeping.isdisjoint(self._keepers):
            raise SubscriptionBusy(
                "these dead letters are just being sent back or purged by another request; ask again when it is done"
            )
        sweeping.update(self._keepers)
        self._go(0, 0)

    def _go(self, place: int, first: int) -> None:
        if place == len(self._graves.topics) or self._left == 0:
            self._end(MessagesCounted(self._done))
            return
        count_max = LETTERS_MAX if self._left is None else min(self._left, LETTERS_MAX)
        letters_topic = self._graves.topics[place]

        def found(letters: list[Letter], following: int) -> None:
            if not letters:
                self._go(place + 1, 0)
                return
            try:
                self._take(place, letters, following)
            except DanubiusError as error:
                self._end(error)

        try:
            self._graves.scan(letters_topic, first, count_max, found, self._end)
        except DanubiusError as error:
            self._end(error)

    def _take(self, place: int, letters: list[Letter], following: int) -> None:
        letters_topic, keeper = self._graves.topics[place], self._keepers[place]
        appends = self._revived(letters) if self._revives else []
        fact = RangesAcked(
            letters_topic.id, keeper.id, ranges_of(letter.offset for letter in letters)
        )

        def done(result: list[Offset] | DanubiusError) -> None:
            if isinstance(result, DanubiusError):
                self._end(result)
                return
            self._done += len(letters)
            if self._left is not None:
                self._left -= len(letters)
            self._node.shard.loop.call_soon(self._go, place, following)

        self._node.atomic.commit(appends, [fact], done)

    def _revived(self, letters: list[Letter]) -> list[Append]:
        shard = self._node.shard
        now_us = shard.clock.wall_us()
        homes: dict[str, list[Letter]] = {}
        for letter in letters:
            homes.setdefault(letter.attributes[ORIGINAL_TOPIC], []).append(letter)
        appends: list[Append] = []
        for name, ones in homes.items():
            topic = shard.topic_or_none(name)
            if topic is None:
                raise TopicNotFound(
                    f"topic {name}, where dead letters came from, is gone; create it again, or purge them"
                )
            batch, header = encode_letters([revive(letter, now_us) for letter in ones])
            appends.append(Append(topic, batch, header))
        return appends

    def _end(self, reply: AdminReply | DanubiusError) -> None:
        self._node.dead_letters.sweeping.difference_update(self._keepers)
        if self._done and self._graves.members:
            # Letters of all partitions lie in one topic; the first tells it for all.
            kind = EventKind.REDRIVEN if self._revives else EventKind.PURGED
            detail = reply.message if isinstance(reply, DanubiusError) else ""
            history = self._node.shard.history
            history.tell(*self._graves.members[0], kind, detail=detail, messages=self._done)
        self._on_reply(reply)


def _redrive(node: Node, request: admin.RedriveDeadLetters, on_reply: OnReply) -> None:
    letters_topics = _find(node, request.topic, request.subscription)
    _Sweep(node, letters_topics, request.count, revives=True, on_reply=on_reply).start()


def _purge(node: Node, request: admin.PurgeDeadLetters, on_reply: OnReply) -> None:
    letters_topics = _find(node, request.topic, request.subscription)
    _Sweep(node, letters_topics, request.count, revives=False, on_reply=on_reply).start()


# ---------------------------------------------------------------- policies


def _update(node: Node, request: admin.UpdateSubscription, on_reply: OnReply) -> None:
    target = find_target(node.shard, request.topic)
    members = find_members(target, request.subscription)
    if request.failure is not None:
        check_failure(request.failure, target.name, request.subscription)

    def done(result: list[Offset] | DanubiusError) -> None:
        if isinstance(result, DanubiusError):
            on_reply(result)
            return
        detail = "its own failure policy" if request.failure is not None else "the topic's again"
        left = [member for member in members if member.topic.hosts(member.subscription)]
        for member in left:
            node.shard.history.tell(*member, EventKind.POLICY_CHANGED, detail=detail)
            node.dead_letters.look(*member)
        if left:
            on_reply(describe_members(node, target, request.subscription))
        else:
            gone = f"subscription {request.subscription!r} of {target.name} was deleted just now"
            on_reply(SubscriptionNotFound(gone))

    facts = [
        SubscriptionChanged(topic.id, subscription.id, request.failure)
        for topic, subscription in members
    ]
    node.atomic.commit([], facts, done)


def _unblock(node: Node, request: admin.UnblockSubscription, on_reply: OnReply) -> None:
    members = find_members(find_target(node.shard, request.topic), request.subscription)
    released = 0
    for member in members:
        count = _release(node.shard, *member)
        released += count
        if count:
            detail = "they are delivered again"
            node.shard.history.tell(*member, EventKind.UNBLOCKED, detail=detail, messages=count)
    on_reply(MessagesCounted(released))


def _release(shard: Shard, topic: Topic, subscription: Subscription) -> int:
    pump = subscription.pump
    if pump is not None:
        if subscription.is_burying:
            return 0  # they are as good as moved
        count = pump.core.condemned_count
        if count:
            pump.release()
        return count
    # Nobody is there to deliver to: what failed too often is known by its count alone.
    rule = rule_of(topic, subscription)
    ranges: list[Range] = [
        (one.first, one.end) for one in subscription.attempts or () if rule.is_exhausted(one.value)
    ]
    if ranges:
        shard.acks.count(topic, subscription, [Segment(*one, 0) for one in ranges])
    return sum(end - first for first, end in ranges)


def describe_members(node: Node, target: Target, name: str) -> SubscriptionDescribed:
    """A subscription of a topic, or of all partitions of one."""
    members = find_members(target, name)
    topic, subscription = members[0]
    consumers = {one.name for member in members for one in member.subscription.consumers.values()}
    return SubscriptionDescribed(
        target.name,
        name,
        subscription.type,
        subscription.failure,
        policy_of(topic, subscription),
        measure_members(node, target, members),
        subscription.created_ms,
        sorted(consumers)[:1000],
    )


ADMIN: Final[dict[type, Callable[[Node, Any, OnReply], None]]] = {
    admin.ListDeadLetters: _list,
    admin.RedriveDeadLetters: _redrive,
    admin.PurgeDeadLetters: _purge,
    admin.UpdateSubscription: _update,
    admin.UnblockSubscription: _unblock,
}
