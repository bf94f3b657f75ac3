"""Policies in the words of Danube's admin API, and back.

Invariant: a failure policy that goes out and comes back is the same, apart from what the API has no field for (jitter
and the bound on what is open): that stays as it was.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from danubius.edge.grpc.bounds import ACK_TIMEOUT_MS, REDELIVERY_DELAY_MS
from danubius.edge.grpc.messages import danube_admin
from danubius.errors import InvalidArgument
from danubius.model.policy import Backoff, Effective, Exhausted, FailurePolicy
from danubius.model.subscription import SubscriptionType
from danubius.model.topic import Dispatch

FOREVER: Final = 2**32 - 1
"""As a number of redeliveries: the largest that the field holds."""

DISPATCH: Final = {0: Dispatch.NON_RELIABLE, 1: Dispatch.RELIABLE}
DELIVERY: Final = {Dispatch.NON_RELIABLE: "NonReliable", Dispatch.RELIABLE: "Reliable"}
TYPES: Final = {
    SubscriptionType.EXCLUSIVE: 0,
    SubscriptionType.SHARED: 1,
    SubscriptionType.FAILOVER: 2,
    SubscriptionType.KEY_SHARED: 3,
}
_BACKOFFS: Final = {0: Backoff.FIXED, 1: Backoff.EXPONENTIAL}
_POISON: Final = {0: Exhausted.DEAD_LETTER, 1: Exhausted.BLOCK, 2: Exhausted.DROP}
_BACKOFF_NUMBERS: Final = {value: number for number, value in _BACKOFFS.items()}
_POISON_NUMBERS: Final = {value: number for number, value in _POISON.items()}


def dispatch_of(number: int) -> Dispatch:
    """What a topic is to be, by the number of a DispatchStrategy."""
    found = DISPATCH.get(number)
    if found is None:
        raise InvalidArgument(
            f"dispatch_strategy is {number}; it must be 0 (NonReliable) or 1 (Reliable)"
        )
    return found


def read_failure(given: Any, before: FailurePolicy) -> FailurePolicy:
    """A SubscriptionFailurePolicy as ours; `before` is what holds, and keeps what cannot be said there."""
    backoff, then = _BACKOFFS.get(given.backoff_strategy), _POISON.get(given.poison_policy)
    if backoff is None:
        raise InvalidArgument(
            f"backoff_strategy is {given.backoff_strategy}; it must be 0 (Fixed) or 1 (Exponential)"
        )
    if then is None:
        raise InvalidArgument(
            f"poison_policy is {given.poison_policy}; it must be 0 (DeadLetter), 1 (Block) or 2 (Drop)"
        )
    count = given.max_redelivery_count
    return msgspec.structs.replace(
        before,
        ack_timeout_ms=given.ack_timeout_ms,
        backoff=backoff,
        delay_ms=given.base_redelivery_delay_ms,
        delay_max_ms=given.max_redelivery_delay_ms,
        redeliveries_max=None if count == FOREVER else count,
        then=then,
        dead_letter_topic=given.dead_letter_topic,
    )


def unless_told(policy: FailurePolicy) -> FailurePolicy:
    """What a subscription of Danube's clients begins with, where the policies of its topic say nothing."""
    if policy != FailurePolicy():
        return policy
    return msgspec.structs.replace(
        policy, ack_timeout_ms=ACK_TIMEOUT_MS, delay_ms=REDELIVERY_DELAY_MS
    )


def write_failure(policy: FailurePolicy) -> Any:
    """Ours as a SubscriptionFailurePolicy."""
    count = policy.redeliveries_max
    return danube_admin.SubscriptionFailurePolicy(
        max_redelivery_count=FOREVER if count is None else min(count, FOREVER),
        ack_timeout_ms=policy.ack_timeout_ms,
        base_redelivery_delay_ms=policy.delay_ms,
        max_redelivery_delay_ms=policy.delay_max_ms,
        backoff_strategy=_BACKOFF_NUMBERS[policy.backoff],
        dead_letter_topic=policy.dead_letter_topic or None,
        poison_policy=_POISON_NUMBERS[policy.then],
    )


def write_policies(policies: Effective) -> str:
    """What holds in a namespace, as JSON: first by the names that Danube has for it, then by ours."""
    theirs: dict[str, object] = {
        "max_producers_per_topic": policies.producers_max,
        "max_subscriptions_per_topic": policies.subscriptions_max,
        "max_consumers_per_topic": policies.consumers_max,
        "max_consumers_per_subscription": policies.subscription_consumers_max,
        "max_publish_rate": policies.publish_messages_per_s,
        "max_subscription_dispatch_rate": policies.dispatch_messages_per_s,
        "max_message_size": policies.message_bytes_max,
    }
    return msgspec.json.encode(theirs | msgspec.to_builtins(policies)).decode()
