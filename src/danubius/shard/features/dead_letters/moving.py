"""Condemned messages on their way to the dead-letter topic: each moves exactly once.

Publishing there and acknowledging here are one atomic record, so a crash finds both or neither. What is to be moved is
asked of the core that condemned it, again before every record: a message that was acknowledged or released
meanwhile stays. One move of a subscription is under way at a time, of at most LETTERS_MAX messages or READ_BYTES.
What cannot be moved now is tried again after a wait that doubles; it is never lost, and never delivered meanwhile.

The dead-letter topic is created on first need, with a hidden subscription that keeps its messages until they are sent
back or purged.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Final

from danubius.errors import (
    DanubiusError,
    InvalidArgument,
    InvalidBatch,
    LedgerDamaged,
    NamespaceNotFound,
    OffsetOutOfRange,
    Overloaded,
)
from danubius.ledger.managed import ManagedLedger
from danubius.model.admin_replies import EventKind
from danubius.model.ids import TopicName, namespace_of, parse_topic_name
from danubius.model.partitions import base_of
from danubius.model.policy import Exhausted
from danubius.model.subscription import EARLIEST, SubscriptionType
from danubius.model.topic import TopicSpec
from danubius.shard.features.dead_letters.letters import (
    READ_BYTES,
    REASON,
    as_dead_letter,
    encode_letters,
    ranges_of,
    read_letters,
    take_some,
)
from danubius.shard.hosting.failures import apply_rule, default_dead_letters, policy_of, rule_of
from danubius.shard.state.atomic import Append
from danubius.shard.state.facts import RangesAcked, SubscriptionCreated, TopicCreated

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.ack.core.failure import Condemned
    from danubius.ack.core.ranges import Range, Segment
    from danubius.admin.about import About
    from danubius.dispatch.pump import Pump
    from danubius.ledger.entry import Chunk
    from danubius.model.ids import Offset
    from danubius.shard.features.dead_letters.letters import Letter
    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard
    from danubius.shard.state.atomic import Atomic

REDRIVE: Final = "~redrive"
"""The hidden subscription of a dead-letter topic; no user's name has a tilde."""
RETRY_S_MIN: Final = 0.1
RETRY_S_MAX: Final = 5.0

log = logging.getLogger(__name__)


def dead_letter_name(shard: Shard, topic: Topic, subscription: str, named: str) -> TopicName:
    """The dead-letter topic: as the policy names it, or after topic and subscription; partitions share one."""
    if named:
        return parse_topic_name(named)
    found = base_of(topic.name)
    base = found[0] if found is not None and found[0] in shard.catalog.partitioned else topic.name
    return parse_topic_name(default_dead_letters(base, subscription))


class DeadLetters:
    """Moves what subscriptions condemned, on the loop."""

    def __init__(self, shard: Shard, atomic: Atomic, about: About) -> None:
        self._shard = shard
        self._atomic = atomic
        self._about = about
        self._moves: dict[Subscription, _Move] = {}
        self.sweeping: set[Subscription] = set()
        """Hidden subscriptions whose letters are just being sent back or purged."""
        shard.on_condemned = self.take

    def topic_opened(self, topic: Topic) -> None:
        """What had failed too often before a restart goes now: perhaps no consumer comes back."""
        for subscription in topic.subscriptions.values():
            self.look(topic, subscription)

    def topic_closed(self, topic: Topic) -> None:
        """Moves find out by themselves."""

    def look(self, topic: Topic, subscription: Subscription) -> None:
        """Let an idle subscription's messages go that failed too often by the policy that holds now."""
        if subscription.pump is None and subscription.attempts is not None:
            rule = rule_of(topic, subscription)
            if rule.then is Exhausted.DEAD_LETTER and any(
                rule.is_exhausted(attempts) for attempts in subscription.attempts.values()
            ):
                self._shard.start_pump(topic, subscription)
                self.take(topic, subscription)

    def take(self, topic: Topic, subscription: Subscription) -> None:
        """Messages of this subscription were condemned."""
        if subscription not in self._moves:
            move = _Move(self._shard, self._atomic, self._about, topic, subscription, self._ended)
            self._moves[subscription] = move
            # Not in the pump's turn that brought it.
            self._shard.loop.call_soon(move.go)

    def _ended(self, subscription: Subscription) -> None:
        del self._moves[subscription]


class _Move:
    """Moves the condemned messages of one subscription until there are none left."""

    def __init__(
        self,
        shard: Shard,
        atomic: Atomic,
        about: About,
        topic: Topic,
        subscription: Subscription,
        on_ended: Callable[[Subscription], None],
    ) -> None:
        self._shard = shard
        self._atomic = atomic
        self._about = about
        self._topic = topic
        self._subscription = subscription
        self._on_ended = on_ended
        self._retry_s = RETRY_S_MIN
        self._problem = ""

    def go(self) -> None:
        """One step, from the start: whatever was waited for, things may have changed."""
        condemned = self._condemned()
        pump = self._subscription.pump
        if not condemned or pump is None:
            self._on_ended(self._subscription)
            return
        try:
            letters_topic = self._find_letters_topic()
            if letters_topic is not None:
                first = condemned[0].first
                self._topic.log.read(
                    first, READ_BYTES, functools.partial(self._on_read, pump, letters_topic, first)
                )
        except DanubiusError as error:
            self._retry(error)

    def _condemned(self) -> list[Segment[Condemned]]:
        """What is to be moved; nothing once it is somebody else's business."""
        pump = self._subscription.pump
        if pump is None or self._topic.is_deleting or not self._topic.hosts(self._subscription):
            return []
        if pump.core.rule.then is not Exhausted.DEAD_LETTER:
            return []
        return pump.core.condemned()

    # ------------------------------------------------------------ where to

    def _find_letters_topic(self) -> Topic | None:
        """The dead-letter topic; None if it is just being made ready, which leads here again."""
        shard = self._shard
        named = policy_of(self._topic, self._subscription).dead_letter_topic
        name = dead_letter_name(shard, self._topic, self._subscription.name, named)
        letters_topic = shard.topics.get(name)
        if letters_topic is None:
            self._create_letters_topic(name)
            return None
        letters_topic.check_open()
        if letters_topic is self._topic or not isinstance(letters_topic.log, ManagedLedger):
            raise InvalidArgument(
                f"{name} cannot be the dead-letter topic of {self._topic.name}: it must be another, reliable topic"
            )
        if REDRIVE not in letters_topic.subscriptions:
            shard.create_subscription(
                letters_topic, REDRIVE, SubscriptionType.SHARED, EARLIEST, self._on_prepared
            )
            return None
        return letters_topic

    def _create_letters_topic(self, name: TopicName) -> None:
        """Create the dead-letter topic and its hidden subscription, in one record."""
        shard = self._shard
        space, whole = namespace_of(name), base_of(name)
        if not shard.catalog.has_namespace(space):
            raise NamespaceNotFound(
                f"namespace {space!r} of the dead-letter topic {name} does not exist"
            )
        if name in shard.catalog.partitioned or (
            whole is not None and whole[0] in shard.catalog.partitioned
        ):
            raise InvalidArgument(
                f"{name} cannot be a dead-letter topic: it is partitioned, or a partition"
            )
        if name in shard.creating or shard.catalog.changes.changing_around(name) is not None:
            self._retry(Overloaded(f"topic {name} is just being made"))
            return
        shard.creating[name] = []
        now_ms = shard.clock.wall_us() // 1000
        created = TopicCreated(shard.numbers.draw(), name, TopicSpec(), now_ms)
        keeper = SubscriptionCreated(
            created.topic_id,
            shard.numbers.draw(),
            REDRIVE,
            SubscriptionType.SHARED,
            0,
            None,
            now_ms,
        )

        def done(result: list[Offset] | DanubiusError) -> None:
            # Somebody else may have asked for a topic of this name meanwhile.
            answer = result if isinstance(result, DanubiusError) else shard.topics[name]
            for on_done in shard.creating.pop(name):
                on_done(answer)
            self._on_prepared(answer)

        try:
            self._atomic.commit([], [created, keeper], done)
        except DanubiusError:
            del shard.creating[name]
            raise

    def _on_prepared(self, result: object) -> None:
        if isinstance(result, DanubiusError):
            self._retry(result)
        else:
            self._shard.loop.call_soon(self.go)

    # ------------------------------------------------------------ one record

    def _on_read(
        self, pump: Pump, letters_topic: Topic, first: int, answer: Chunk | DanubiusError
    ) -> None:
        if self._subscription.pump is not pump:
            self._shard.loop.call_soon(self.go)
        elif isinstance(answer, LedgerDamaged):
            self._give_up(first, max(answer.end, first + 1), str(answer))
        elif isinstance(answer, OffsetOutOfRange):
            self._give_up(first, max(self._topic.log.start_offset, first + 1), str(answer))
        elif isinstance(answer, DanubiusError):
            self._retry(answer)
        else:
            self._move(letters_topic, first, answer)

    def _move(self, letters_topic: Topic, first: int, chunk: Chunk) -> None:
        condemned = [one for one in self._condemned() if one.first < chunk.end]
        if not condemned or condemned[0].first < chunk.first:
            self._shard.loop.call_soon(self.go)
            return
        wanted = [(one.first, min(one.end, chunk.end)) for one in condemned]
        try:
            letters = take_some(read_letters(chunk, wanted))
        except InvalidBatch as error:
            # Its consumers could not read it either.
            self._give_up(first, first + 1, str(error))
            return
        except DanubiusError as error:
            self._retry(error)
            return
        ranges = ranges_of(letter.offset for letter in letters)
        if not self._subscription.reserve(ranges):
            self._retry(InvalidArgument("a transaction is about to acknowledge some of them"))
            return
        try:
            self._commit(letters_topic, self._addressed(letters, condemned), ranges)
        except DanubiusError as error:
            self._subscription.unreserve(ranges)
            self._retry(error)

    def _addressed(
        self, letters: list[Letter], condemned: list[Segment[Condemned]]
    ) -> list[Letter]:
        subscription, address = self._subscription, self._about.address
        verdicts = iter(condemned)
        verdict = next(verdicts)
        addressed: list[Letter] = []
        for letter in letters:
            while letter.offset >= verdict.end:
                verdict = next(verdicts)
            attempts, reason = verdict.value
            reason = reason or f"it failed {attempts} times"
            addressed.append(
                as_dead_letter(
                    letter, self._topic.name, subscription.name, address, attempts, reason
                )
            )
        return addressed

    def _commit(self, letters_topic: Topic, letters: list[Letter], ranges: list[Range]) -> None:
        subscription = self._subscription
        batch, header = encode_letters(letters)
        fact = RangesAcked(self._topic.id, subscription.id, ranges)

        def done(result: list[Offset] | DanubiusError) -> None:
            subscription.is_burying = False
            subscription.unreserve(ranges)
            if isinstance(result, DanubiusError):
                self._retry(result)
                return
            self._retry_s = RETRY_S_MIN
            subscription.dead_lettered += len(letters)
            self._shard.history.tell(
                self._topic,
                subscription,
                EventKind.DEAD_LETTERED,
                detail=f"to {letters_topic.name}: {letters[-1].attributes.get(REASON, '')}",
                messages=len(letters),
            )
            if subscription.pump is not None:
                # It counted them as acknowledged, which is how they left it; but nobody did.
                subscription.acked -= len(letters)
            self._shard.loop.call_soon(self._moved)

        self._atomic.commit([Append(letters_topic, batch, header)], [fact], done)
        subscription.is_burying = True

    def _moved(self) -> None:
        # A policy that was changed meanwhile had to wait.
        apply_rule(self._topic, self._subscription)
        self.go()

    # ------------------------------------------------------------ trouble

    def _give_up(self, first: int, end: int, reason: str) -> None:
        """These cannot be read any more: there is nothing to move."""
        lost = [
            (max(one.first, first), min(one.end, end))
            for one in self._condemned()
            if one.first < end and one.end > first
        ]
        count = sum(one_end - one_first for one_first, one_end in lost)
        pump = self._subscription.pump
        if pump is not None and lost:
            self._shard.history.tell(
                self._topic,
                self._subscription,
                EventKind.DISCARDED,
                detail=f"they cannot be read any more: {reason}",
                messages=count,
            )
            pump.acked(lost)
            self._subscription.discarded += count
            self._subscription.acked -= count
        self._shard.loop.call_soon(self.go)

    def _retry(self, error: DanubiusError) -> None:
        if str(error) != self._problem:  # once, not every few seconds
            self._problem = str(error)
            log.warning(
                "dead letters cannot be moved",
                extra={
                    "topic": self._topic.name,
                    "subscription": self._subscription.name,
                    "error": self._problem,
                },
            )
        self._shard.loop.call_later(self._retry_s, self.go)
        self._retry_s = min(2 * self._retry_s, RETRY_S_MAX)
