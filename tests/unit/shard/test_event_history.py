"""What happened to a subscription can be read afterwards: failures, moves, changes, and who came and went."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from danubius.model import admin
from danubius.model.admin_codec import decode_reply, encode_request
from danubius.model.admin_replies import EventKind, SubscriptionEvent
from danubius.model.policy import Exhausted, FailurePolicy
from danubius.model.subscription import AtEarliest, AtLatest, SubscriptionType
from danubius.shard.hosting.history import EVENTS_MAX
from danubius.wire.commands import Administer, Administered, Flow, Nack, Subscribe

TOPIC = "/default/orders"


def ask(peer: Any, request: Any) -> Any:
    answer = peer.call(Administer(msgspec.Raw(encode_request(request))))
    return decode_reply(answer.reply) if isinstance(answer, Administered) else answer


def subscribe(peer: Any, failure: FailurePolicy | None = None, ack_timeout_ms: int = 0) -> int:
    command = Subscribe(
        TOPIC,
        "s",
        SubscriptionType.SHARED,
        "one",
        AtEarliest(),
        failure=failure,
        ack_timeout_ms=ack_timeout_ms,
    )
    handle = peer.call(command).handle
    peer.session.handle(Flow(handle, 100, 1 << 20), 0, memoryview(b""))
    return handle


def nack(peer: Any, handle: int, first: int, end: int) -> None:
    peer.session.handle(Nack(handle, [(first, end)], 0, "it is broken"), 0, memoryview(b""))


def events(peer: Any) -> list[SubscriptionEvent]:
    return ask(peer, admin.ListEvents(TOPIC, "s", limit=1000)).events


def only(peer: Any, kind: EventKind) -> list[SubscriptionEvent]:
    return [event for event in events(peer) if event.kind == kind]


async def turn(bench: Any, times: int = 10) -> None:
    """Let what was put off to the next turn of the loop happen, and the disk work."""
    for _ in range(times):
        await asyncio.sleep(0)
        bench.settle()


@pytest.fixture
def peer(bench: Any) -> Any:
    peer = bench.connect()
    peer.publish(TOPIC, [b"%d" % n for n in range(10)])
    return peer


async def test_dead_letters_are_told_and_sent_back(bench: Any, peer: Any) -> None:
    handle = subscribe(peer, FailurePolicy(redeliveries_max=0))
    nack(peer, handle, 0, 3)
    await turn(bench)
    (condemned,) = only(peer, EventKind.CONDEMNED)
    assert condemned.messages == 3
    assert "it is broken" in condemned.detail
    (moved,) = only(peer, EventKind.DEAD_LETTERED)
    assert moved.messages == 3
    assert moved.detail == f"to {TOPIC}-s-dlq: it is broken"
    peer.ask(Administer(msgspec.Raw(encode_request(admin.RedriveDeadLetters(TOPIC, "s", 2)))))
    await turn(bench)
    assert [event.messages for event in only(peer, EventKind.REDRIVEN)] == [2]
    peer.ask(Administer(msgspec.Raw(encode_request(admin.PurgeDeadLetters(TOPIC, "s")))))
    await turn(bench)
    assert [event.messages for event in only(peer, EventKind.PURGED)] == [1]


async def test_messages_that_are_dropped_are_told(bench: Any, peer: Any) -> None:
    handle = subscribe(peer, FailurePolicy(redeliveries_max=0, then=Exhausted.DROP))
    nack(peer, handle, 0, 2)
    await turn(bench)
    (event,) = only(peer, EventKind.DISCARDED)
    assert (event.messages, "it is broken" in event.detail) == (2, True)


async def test_blocked_and_unblocked_are_told(bench: Any, peer: Any) -> None:
    handle = subscribe(peer, FailurePolicy(redeliveries_max=0, then=Exhausted.BLOCK))
    nack(peer, handle, 0, 1)
    await turn(bench)
    assert [event.messages for event in only(peer, EventKind.BLOCKED)] == [1]
    ask(peer, admin.UnblockSubscription(TOPIC, "s"))
    assert [event.messages for event in only(peer, EventKind.UNBLOCKED)] == [1]


async def test_acknowledgements_that_came_too_late_are_told(bench: Any, peer: Any) -> None:
    subscribe(peer, ack_timeout_ms=1000)
    bench.clock.now_ms += 2000
    pump = bench.shard.topic(TOPIC).subscriptions["s"].pump
    pump._on_timer()
    assert [event.messages for event in only(peer, EventKind.TIMED_OUT)] == [10]


async def test_moves_and_changes_of_policy_are_told(bench: Any, peer: Any) -> None:
    subscribe(peer)
    ask(peer, admin.SkipMessages(TOPIC, "s", 4))
    ask(peer, admin.UpdateSubscription(TOPIC, "s", FailurePolicy(redeliveries_max=3)))
    ask(peer, admin.SeekSubscription(TOPIC, "s", AtLatest()))
    told = {event.kind: event for event in events(peer)}
    assert (told["skipped"].messages, told["skipped"].detail) == (4, "up to offset 3")
    assert told["sought"].detail == "to offset 10"
    assert told["policy-changed"].detail == "its own failure policy"
    assert "was moved" in told["left"].detail


async def test_repeats_are_one_event_and_two_lines(
    bench: Any, peer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    subscribe(peer)
    topic = bench.shard.topic(TOPIC)
    subscription = topic.subscriptions["s"]
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            bench.shard.history.tell(topic, subscription, EventKind.DISCARDED, messages=2)
        bench.shard.history.tell(topic, subscription, EventKind.BLOCKED)
    (event,) = only(peer, EventKind.DISCARDED)
    assert (event.count, event.messages) == (5, 10)
    lines = [vars(record) for record in caplog.records if record.msg == "subscription event"]
    assert [(line["event"], line.get("messages")) for line in lines] == [
        ("discarded", 2),
        ("discarded", 10),
        ("blocked", None),
    ]


async def test_failures_without_end_are_bounded(bench: Any, peer: Any) -> None:
    subscribe(peer)
    topic = bench.shard.topic(TOPIC)
    for _ in range(3 * EVENTS_MAX):
        bench.clock.now_ms += 2000
        bench.shard.history.tell(topic, topic.subscriptions["s"], EventKind.TIMED_OUT, messages=1)
    assert len(events(peer)) == EVENTS_MAX
