"""Administration as data: every request and reply survives the way, wrong ones are refused by name, pages fit."""

from __future__ import annotations

import re
import typing
from typing import Any

import msgspec
import pytest

from danubius.errors import DanubiusError, InvalidArgument
from danubius.model import admin, admin_replies, statistics
from danubius.model.admin_codec import (
    build_request,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from danubius.model.admin_pages import PAGE_BYTES_MAX, take_page
from danubius.model.admin_replies import DeadLetter, TopicSummary
from danubius.model.field_docs import field_docs
from danubius.model.limits import FRAME_META_BYTES_MAX, NAME_LENGTH_MAX
from danubius.model.policy import FOREVER, FailurePolicy, Policies, effective
from danubius.model.subscription import AtOffset, SubscriptionType
from danubius.model.topic import Dispatch, Durability, Retention, TopicSpec, retention_of

REQUESTS = typing.get_args(admin.AdminRequest)
REPLIES = typing.get_args(admin.AdminReply)
FIGURES = statistics.Figures.__subclasses__()
TOPIC = "/default/orders"
SAMPLES: dict[str, Any] = {
    "settings": {"policies.ttl_ms": "1h", "policies.auto_create": False, "logs.level": None},
    "namespace": "default",
    "topic": TOPIC,
    "subscription": "billing",
    "producer": "loader",
    "consumer": "c-1",
    "policies": {"ttl_ms": 5, "quota_bytes": None},
    "failure": {"redeliveries_max": 3, "then": "block"},
    "to": {"type": "offset", "offset": 7},
    "count": 3,
    "ledger_id": 4,
    "transaction": 2**63 + 1,
}
"""A value for every field that has no default."""


def sample(kind: type[admin.Request]) -> admin.AdminRequest:
    required = [f.name for f in msgspec.structs.fields(kind) if f.required]
    return typing.cast(
        "admin.AdminRequest", build_request(kind, {name: SAMPLES[name] for name in required})
    )


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_request_comes_out_as_it_went_in(kind: type[admin.Request]) -> None:
    request = sample(kind)
    assert decode_request(encode_request(request)) == request
    assert build_request(kind, msgspec.to_builtins(request)) == request


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_request_with_something_unknown_is_not_obeyed_in_part(kind: type[admin.Request]) -> None:
    fields = msgspec.to_builtins(sample(kind)) | {"dry_run": True}
    with pytest.raises(InvalidArgument, match="dry_run"):
        decode_request(msgspec.msgpack.encode(fields))
    with pytest.raises(InvalidArgument, match="dry_run"):
        build_request(kind, fields)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x80", msgspec.msgpack.encode({"request": "make-coffee"}), b"\x91" * 5000],
)
def test_what_is_no_request_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument, match="not understood"):
        decode_request(data)


WRONG: list[tuple[type[admin.Request], str, object]] = [
    (admin.ListTopics, "limit", 0),
    (admin.ListTopics, "limit", 1001),
    (admin.PeekMessages, "limit", 1001),
    (admin.ListEvents, "after", -1),
    (admin.ListTopics, "namespace", "a/b"),
    (admin.DescribeTopic, "topic", "orders"),
    (admin.DescribeSubscription, "subscription", "~redrive"),
    (admin.DisconnectProducer, "producer", ""),
    (admin.DisconnectConsumer, "consumer", "a b"),
    (admin.CreateTopic, "partitions", 1001),
    (admin.CreateTopic, "partitions", -1),
    (admin.UpdateTopic, "partitions", 0),
    (admin.CreateTopic, "spec", {"retention": {"age_ms": -1}}),
    (admin.CreateTopic, "spec", {"policies": {"ttl_ms": -1}}),
    (admin.UpdateNamespace, "policies", {"ttl_ms": -1}),
    (admin.UpdateTopic, "policies", {"failure": {"dead_letter_topic": "topic"}}),
    (admin.UpdateSubscription, "failure", {"jitter": 2.0}),
    (admin.CreateSubscription, "failure", {"dead_letter_topic": "topic"}),
    (admin.CreateSubscription, "start", {"type": "offset", "offset": -1}),
    (admin.SeekSubscription, "to", {"type": "time", "time_us": -1}),
    (admin.SkipMessages, "count", 0),
    (admin.RedriveDeadLetters, "count", 0),
    (admin.AbortTransaction, "transaction", -1),
    (admin.CheckLedger, "ledger_id", -1),
    (admin.OffloadTopic, "until", {TOPIC: -1}),
    (admin.OffloadTopic, "until", {"no topic": 1}),
]
NAMED_BY = {
    "spec": "age_ms|ttl_ms",
    "policies": "ttl_ms|topic",
    "failure": "jitter|topic",
    "start": "offset",
    "to": "time_us",
    "until": "until|topic",
}
"""What the sentence names where it can say more than the field's name."""


@pytest.mark.parametrize(("kind", "field", "value"), WRONG)
def test_what_cannot_be_meant_is_refused_by_name(
    kind: type[admin.Request], field: str, value: object
) -> None:
    fields = msgspec.to_builtins(sample(kind)) | {field: value}
    with pytest.raises(DanubiusError, match=NAMED_BY.get(field, field)):
        decode_request(msgspec.msgpack.encode(fields))


def test_a_change_tells_null_from_absent_on_both_ways_in() -> None:
    wanted = admin.UpdateTopic(TOPIC, Policies(ttl_ms=None, quota_bytes=5))
    assert decode_request(encode_request(wanted)) == wanted
    body = msgspec.json.decode(msgspec.json.encode(wanted))
    assert body["policies"] == {"ttl_ms": None, "quota_bytes": 5}
    assert build_request(admin.UpdateTopic, body) == wanted


def test_text_becomes_numbers_and_truth_values() -> None:
    fields = {"namespace": "default", "limit": "7", "after": "12"}
    assert build_request(admin.ListTopics, fields) == admin.ListTopics(
        "default", after="12", limit=7
    )
    forced = build_request(admin.DeleteNamespace, {"namespace": "a", "force": "true"})
    assert forced == admin.DeleteNamespace("a", force=True)
    sought = build_request(
        admin.SeekSubscription,
        {"topic": TOPIC, "subscription": "s", "to": {"type": "offset", "offset": "4"}},
    )
    assert sought.to == AtOffset(4)


def test_kinds_are_their_names_in_lower_case() -> None:
    tags = [kind.__struct_config__.tag for kind in (*REQUESTS, *REPLIES)]
    assert len(set(tags)) == len(tags)
    assert admin.ListDeadLetters.__struct_config__.tag == "list-dead-letters"
    assert all(isinstance(tag, str) and re.fullmatch("[a-z]+(-[a-z]+)*", tag) for tag in tags)


def test_every_reply_answers_something() -> None:
    assert set(admin.ADMIN_REPLIES) == set(REQUESTS)
    assert set(admin.ADMIN_REPLIES.values()) == set(REPLIES)


def test_lists_are_asked_for_and_answered_in_pages() -> None:
    for request, reply in admin.ADMIN_REPLIES.items():
        assert issubclass(request, admin.PageRequest) == issubclass(reply, admin_replies.Page)


@pytest.mark.parametrize(
    "kind", [*REQUESTS, *REPLIES, *FIGURES, *admin_replies.Line.__subclasses__()]
)
def test_every_struct_says_what_it_is(kind: type[msgspec.Struct]) -> None:
    assert kind.__doc__
    assert "\n" not in kind.__doc__


@pytest.mark.parametrize("kind", FIGURES)
def test_every_figure_is_documented(kind: type[msgspec.Struct]) -> None:
    assert list(field_docs(kind)) == list(kind.__struct_fields__)


def test_texts_of_parents_are_found_too() -> None:
    assert {"after", "limit", "namespace"} <= set(field_docs(admin.ListTopics))


def test_there_is_a_schema_of_everything() -> None:
    _, components = msgspec.json.schema_components([admin.AdminRequest, admin.AdminReply])
    assert components["ListTopics"]["properties"]["limit"]["maximum"] == 1000
    assert {kind.__name__ for kind in (*REQUESTS, *REPLIES, *FIGURES)} <= set(components)


def test_a_reply_of_a_newer_broker_is_read() -> None:
    figures = statistics.SubscriptionStatistics(
        TOPIC, "s", SubscriptionType.SHARED, acked_messages=4
    )
    reply = admin_replies.SubscriptionDescribed(
        TOPIC, "s", SubscriptionType.SHARED, None, FailurePolicy(), figures
    )
    fields = msgspec.to_builtins(reply)
    fields["mood"] = fields["statistics"]["mood"] = "good"
    assert decode_reply(msgspec.msgpack.encode(fields)) == reply
    assert decode_reply(encode_reply(reply)) == reply


# ---------------------------------------------------------------- pages


def name_of(line: TopicSummary) -> str:
    return line.topic


def lines(count: int) -> list[TopicSummary]:
    return [TopicSummary(f"/default/t-{number:04}") for number in range(count)]


@pytest.mark.parametrize(("count", "limit"), [(0, 1), (1, 1), (2, 1), (10, 3), (9, 3), (5, 1000)])
def test_pages_hold_every_line_once(count: int, limit: int) -> None:
    seen: list[TopicSummary] = []
    after = ""
    while True:
        page, after = take_page(
            (line for line in lines(count) if line.topic > after), limit, name_of
        )
        assert len(page) <= limit
        seen += page
        if not after:
            break
        assert len(page) == limit
    assert seen == lines(count)


def test_a_page_takes_one_line_more_than_it_holds() -> None:
    made = iter(lines(100))
    take_page(made, 10, name_of)
    assert len(list(made)) == 89


def test_a_page_of_large_lines_fits_into_a_frame() -> None:
    name = "n" * NAME_LENGTH_MAX
    letter = DeadLetter(
        f"/{name}/{name}", 2**62, f"/{name}/{name}", 2**62,
        reason="r" * 4096, attributes={"x": "y" * 4096}, payload_start=bytes(256),
    )  # fmt: skip
    page, after = take_page([letter] * 1000, 1000, lambda line: f"{line.topic}@{line.offset}")
    encoded = encode_reply(admin_replies.DeadLettersListed(page, next=after))
    assert after
    assert PAGE_BYTES_MAX * 0.9 < len(encoded) < FRAME_META_BYTES_MAX


def test_one_line_larger_than_a_page_still_comes() -> None:
    letter = DeadLetter(TOPIC, 1, TOPIC, 1, attributes={"x": "y" * PAGE_BYTES_MAX})
    assert take_page([letter, letter], 10, lambda line: line.topic) == ([letter], TOPIC)


# ---------------------------------------------------------------- a topic's own layer


def test_a_plain_topic_inherits_everything() -> None:
    assert TopicSpec().layer() == Policies()
    week = Policies(retention_age_ms=7, retention_bytes=8)
    assert retention_of(effective(week, TopicSpec().layer())) == Retention(7, 8)


def test_an_explicit_retention_is_the_topics_own_with_both_bounds() -> None:
    below = Policies(retention_age_ms=7, retention_bytes=8)
    for retention in (Retention(), Retention(0, 0), Retention(None, 5), Retention(None, None)):
        own = TopicSpec(retention=retention).layer()
        assert retention_of(effective(below, own)) == retention
    assert TopicSpec(retention=Retention(None, None)).layer() == Policies(
        retention_age_ms=FOREVER, retention_bytes=FOREVER
    )


def test_policies_win_over_the_older_way_to_say_it() -> None:
    spec = TopicSpec(retention=Retention(1, 2), policies=Policies(retention_bytes=3, ttl_ms=4))
    assert spec.layer() == Policies(retention_age_ms=1, retention_bytes=3, ttl_ms=4)


def test_a_layer_made_of_any_retention_can_be_obeyed() -> None:
    TopicSpec(retention=Retention(2**80, 2**80)).layer().check()


class _SpecOfVersionOne(msgspec.Struct, frozen=True):
    """How the first version reads a topic's settings."""

    dispatch: Dispatch = Dispatch.RELIABLE
    durability: Durability = Durability.SYNCED
    retention: Retention = Retention()


@pytest.mark.parametrize(
    "old",
    [
        _SpecOfVersionOne(),
        _SpecOfVersionOne(Dispatch.NON_RELIABLE, Durability.WRITTEN, Retention(None, 5)),
    ],
)
def test_the_settings_of_the_first_version_mean_what_they_meant(old: _SpecOfVersionOne) -> None:
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=TopicSpec)
    assert (read.dispatch, read.durability) == (old.dispatch, old.durability)
    assert retention_of(effective(read.layer())) == old.retention


def test_the_first_version_reads_the_settings_of_this_one() -> None:
    for spec in (TopicSpec(), TopicSpec(policies=Policies(ttl_ms=5))):
        read = msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=_SpecOfVersionOne)
        assert read == _SpecOfVersionOne()


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        (admin.CreateTopic, {"partition": 3}, "no 'partition'; did you mean 'partitions'?"),
        (admin.CreateTopic, {"spec": {"durabilty": 1}}, "in spec; did you mean 'durability'?"),
        (
            admin.CreateTopic,
            {"spec": {"retention": {"age": 1}}},
            "no 'age' in retention; did you mean 'age_ms'?",
        ),
        (
            admin.CreateTopic,
            {"spec": {"retention": {"colour": 1}}},
            "no 'colour' in retention; it takes age_ms, size_bytes",
        ),
        (
            admin.UpdateTopic,
            {"policies": {"producer_max": 1}},
            "no 'producer_max' in policies; did you mean 'producers_max'?",
        ),
        (
            admin.UpdateSubscription,
            {"failure": {"max_redeliveries": 1}},
            "in failure; did you mean 'redeliveries_max'?",
        ),
        (
            admin.CreateSubscription,
            {"start": {"type": "offset", "ofset": 1}},
            "no 'ofset' in start; did you mean 'offset'?",
        ),
        (admin.ListTopics, {"limt": 5}, "no 'limt'; did you mean 'limit'?"),
        (
            admin.ListTopics,
            {"` - at `$.x": 5},
            "no '` - at `$.x'; it takes namespace, after, limit",
        ),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest_one(
    kind: type[admin.Request], more: dict[str, object], said: str
) -> None:
    fields: dict[str, object] = msgspec.to_builtins(sample(kind)) | more
    with pytest.raises(InvalidArgument, match="is not understood: there is no ") as refused:
        decode_request(msgspec.msgpack.encode(fields))
    assert said in refused.value.message
    del fields["request"]
    with pytest.raises(InvalidArgument) as refused:
        build_request(kind, fields)
    assert said in refused.value.message
