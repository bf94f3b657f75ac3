"""Policies in the words of Danube's admin API: what goes out and comes back is the same."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from danubius.edge.grpc.messages import danube_admin
from danubius.edge.grpc.policies import (
    FOREVER,
    dispatch_of,
    read_failure,
    write_failure,
    write_policies,
)
from danubius.errors import InvalidArgument
from danubius.model.policy import COUNT_MAX, YEARS_MS, Backoff, Effective, Exhausted, FailurePolicy

times = st.integers(0, YEARS_MS)
policies = st.builds(
    FailurePolicy,
    ack_timeout_ms=times,
    backoff=st.sampled_from(Backoff),
    delay_ms=times,
    delay_max_ms=times,
    jitter=st.floats(0, 1),
    redeliveries_max=st.none() | st.integers(0, COUNT_MAX),
    then=st.sampled_from(Exhausted),
    dead_letter_topic=st.sampled_from(["", "/default/dead"]),
    unacked_messages_max=st.just(UNSET) | st.integers(1, 1_000_000),
)


@given(policies)
def test_a_failure_policy_comes_back_as_it_went_out(policy: FailurePolicy) -> None:
    sent = write_failure(policy).SerializeToString()
    came = danube_admin.SubscriptionFailurePolicy.FromString(sent)
    assert read_failure(came, policy) == policy


def test_what_the_api_cannot_say_stays_as_it_was() -> None:
    before = FailurePolicy(jitter=0.5, unacked_messages_max=7)
    after = read_failure(danube_admin.SubscriptionFailurePolicy(max_redelivery_count=3), before)
    assert (after.jitter, after.unacked_messages_max, after.redeliveries_max) == (0.5, 7, 3)


def test_the_largest_number_of_redeliveries_means_for_ever() -> None:
    given_ = danube_admin.SubscriptionFailurePolicy(max_redelivery_count=FOREVER)
    assert read_failure(given_, FailurePolicy()).redeliveries_max is None


@pytest.mark.parametrize("field", ["backoff_strategy", "poison_policy"])
def test_an_unknown_number_of_an_enum_is_refused_with_those_there_are(field: str) -> None:
    given_ = danube_admin.SubscriptionFailurePolicy(**{field: 9})
    with pytest.raises(InvalidArgument, match=rf"{field} is 9; it must be 0 \("):
        read_failure(given_, FailurePolicy())


def test_an_unknown_dispatch_strategy_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="dispatch_strategy is 2"):
        dispatch_of(2)


def test_policies_of_a_namespace_have_the_names_of_danube_and_ours() -> None:
    told = json.loads(write_policies(Effective(producers_max=3, ttl_ms=5)))
    assert (told["max_producers_per_topic"], told["producers_max"]) == (3, 3)
    assert told["ttl_ms"] == 5
    assert list(told)[:7] == [
        "max_producers_per_topic",
        "max_subscriptions_per_topic",
        "max_consumers_per_topic",
        "max_consumers_per_subscription",
        "max_publish_rate",
        "max_subscription_dispatch_rate",
        "max_message_size",
    ]
