"""Layers of policies: the nearer one wins, a change names what it changes."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from danubius.errors import InvalidArgument
from danubius.model.ids import TopicName
from danubius.model.partitions import base_of, fnv1a64, partition_name, route
from danubius.model.policy import (
    FOREVER,
    Effective,
    FailurePolicy,
    Policies,
    QuotaAction,
    effective,
)


def test_without_layers_the_defaults_hold() -> None:
    assert effective() == effective(Policies()) == Effective()


def test_the_layer_nearer_to_the_topic_wins() -> None:
    shard = Policies(ttl_ms=1, producers_max=5, quota_bytes=100)
    namespace = Policies(ttl_ms=2, producers_max=6)
    topic = Policies(ttl_ms=0)
    found = effective(shard, namespace, topic)
    assert (found.ttl_ms, found.producers_max, found.quota_bytes) == (0, 6, 100)


def test_a_change_sets_keeps_and_takes_back() -> None:
    before = Policies(ttl_ms=5, quota_bytes=100, quota_action=QuotaAction.DROP_OLDEST)
    after = before.patched(Policies(ttl_ms=7, quota_bytes=None))
    assert after == Policies(ttl_ms=7, quota_action=QuotaAction.DROP_OLDEST)


@pytest.mark.parametrize(
    "wrong",
    [
        Policies(ttl_ms=-1),
        Policies(retention_age_ms=FOREVER - 1),
        Policies(message_bytes_max=0),
        Policies(auto_partitions=1001),
        Policies(failure=FailurePolicy(jitter=1.5)),
        Policies(failure=FailurePolicy(delay_ms=10, delay_max_ms=9)),
        Policies(failure=FailurePolicy(redeliveries_max=-1)),
    ],
)
def test_what_cannot_be_obeyed_is_refused_by_name(wrong: Policies) -> None:
    name = next(each for each in wrong.__struct_fields__ if getattr(wrong, each) is not UNSET)
    with pytest.raises(InvalidArgument, match=name):
        wrong.check()


def test_keys_are_routed_as_danubes_clients_do() -> None:
    assert fnv1a64(b"") == 0xCBF29CE484222325
    assert fnv1a64(b"a") == 0xAF63DC4C8601EC8C
    assert fnv1a64(b"foobar") == 0x85944171F73967E8
    assert route(b"foobar", 4) == 0x85944171F73967E8 % 4


@pytest.mark.parametrize(
    "text", ["/default/a-part-01", "/default/a-part-", "/default/a", "/default/a-part-x"]
)
def test_only_canonical_names_are_partitions(text: str) -> None:
    assert base_of(TopicName(text)) is None


def test_a_partition_knows_its_base() -> None:
    base = TopicName("/default/orders-part-3")
    assert base_of(partition_name(base, 12)) == (base, 12)
