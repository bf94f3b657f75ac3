"""Failures of one subscription, and what the broker does about its messages, short of moving them.

Counts of failures are kept twice: by the core that delivers, and here, where checkpoints and the journal find them. A
count is written like an acknowledgement: soon, and without anybody waiting for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.ack.core.failure import compile_rule
from danubius.errors import InvalidArgument, InvalidName
from danubius.model.admin_replies import EventKind
from danubius.model.ids import parse_topic_name
from danubius.model.policy import Exhausted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.ack.core.failure import FailureRule
    from danubius.ack.core.ranges import Segment
    from danubius.model.policy import FailurePolicy
    from danubius.shard.hosting.ack_journal import AckJournal
    from danubius.shard.hosting.history import EventHistory
    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic


def policy_of(topic: Topic, subscription: Subscription) -> FailurePolicy:
    """The subscription's own, or else what its topic's policies say."""
    return subscription.failure if subscription.failure is not None else topic.policies.failure


def check_failure(policy: FailurePolicy, topic: str, subscription: str) -> None:
    """Refuse a policy that could not be obeyed, and say what could."""
    policy.check()
    if policy.dead_letter_topic:
        if parse_topic_name(policy.dead_letter_topic) == topic:
            raise InvalidArgument(
                f"failure.dead_letter_topic is {topic} itself: its dead letters would come again; name another topic"
            )
    elif policy.redeliveries_max is not None and policy.then is Exhausted.DEAD_LETTER:
        try:
            parse_topic_name(default_dead_letters(topic, subscription))
        except InvalidName as error:
            raise InvalidArgument(
                f"the dead-letter topic of {topic} and {subscription!r} cannot be named after both ({error}); "
                "set failure.dead_letter_topic"
            ) from error


def default_dead_letters(topic: str, subscription: str) -> str:
    """The dead-letter topic of a policy that names none."""
    return f"{topic}-{subscription}-dlq"


def rule_of(topic: Topic, subscription: Subscription) -> FailureRule:
    return compile_rule(policy_of(topic, subscription))


def apply_rule(topic: Topic, subscription: Subscription) -> None:
    """Let the policy that holds now hold for deliveries, unless condemned messages are just being moved by the old one.

    Whoever moves them applies the new one afterwards.
    """
    if subscription.pump is not None and not subscription.is_burying:
        subscription.pump.set_rule(rule_of(topic, subscription))


class SubscriptionFailures:
    """Where the pump of one subscription tells what failed."""

    __slots__ = ("_acks", "_history", "_on_condemned", "_subscription", "_topic")

    def __init__(
        self,
        topic: Topic,
        subscription: Subscription,
        acks: AckJournal,
        on_condemned: Callable[[Topic, Subscription], None],
        history: EventHistory,
    ) -> None:
        self._history = history
        self._topic = topic
        self._subscription = subscription
        self._acks = acks
        self._on_condemned = on_condemned

    def settled(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._acks.settled(self._subscription, ranges)

    def timed_out(self, count: int) -> None:
        self._subscription.timed_out += count
        self._tell(EventKind.TIMED_OUT, count)

    def counted(self, segments: Sequence[Segment[int]]) -> None:
        self._acks.count(self._topic, self._subscription, segments)

    def condemned(self, count: int, reason: str) -> None:
        self._tell(EventKind.CONDEMNED, count, reason)
        self._on_condemned(self._topic, self._subscription)

    def blocked(self, count: int, reason: str) -> None:
        self._tell(EventKind.BLOCKED, count, reason)

    def discarded(self, count: int, reason: str) -> None:
        self._subscription.discarded += count
        # Dropped messages were acknowledged by nobody.
        self._subscription.acked -= count
        self._tell(EventKind.DISCARDED, count, reason)

    def _tell(self, kind: EventKind, count: int, reason: str = "") -> None:
        self._history.tell(self._topic, self._subscription, kind, detail=reason, messages=count)
