"""Seek, skip, peek, clear, create and delete of subscriptions, live and idle."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from captured import snapshot_of
from danubius.ack.core.cursor import Cursor
from danubius.errors import (
    InvalidArgument,
    OffsetOutOfRange,
    SubscriptionBusy,
    SubscriptionExists,
    SubscriptionMoved,
    SubscriptionNotFound,
)
from danubius.model import admin
from danubius.model.admin_codec import decode_reply, encode_request
from danubius.model.policy import Exhausted, FailurePolicy
from danubius.model.subscription import (
    EARLIEST,
    LATEST,
    AtEarliest,
    AtOffset,
    AtTime,
    SubscriptionType,
)
from danubius.model.topic import Dispatch, TopicSpec
from danubius.shard.state.facts import EVENT_RECORD, RangesAcked, decode_event
from danubius.wire.commands import (
    Ack,
    Administer,
    Administered,
    ConsumerClosed,
    CreateTopic,
    Deliver,
    Done,
    Error,
    Flow,
    Subscribe,
    Subscribed,
)

if TYPE_CHECKING:
    from danubius.model.admin import AdminRequest

TOPIC = "/default/orders"


def envelope(request: AdminRequest) -> Administer:
    return Administer(msgspec.Raw(encode_request(request)))


def ask(peer: Any, request: AdminRequest) -> Any:
    answer = peer.call(envelope(request))
    return decode_reply(answer.reply) if isinstance(answer, Administered) else answer


def subscribe(
    peer: Any, *, kind: SubscriptionType = SubscriptionType.EXCLUSIVE, credit: int = 100
) -> int:
    command = Subscribe(TOPIC, "s", kind, "consumer", AtEarliest())
    answer = peer.call(command)
    assert isinstance(answer, Subscribed), answer
    peer.session.handle(Flow(answer.handle, credit, 1 << 20), 0, memoryview(b""))
    return answer.handle


def delivered(peer: Any, handle: int) -> list[tuple[int, int]]:
    return [(one.first, one.end) for one in peer.told(Deliver) if one.handle == handle]


@pytest.fixture
def peer(bench: Any) -> Any:
    peer = bench.connect()
    peer.publish(TOPIC, [b"%d" % n for n in range(10)])
    return peer


async def test_an_idle_subscription_is_created_moved_and_described(peer: Any) -> None:
    created = ask(peer, admin.CreateSubscription(TOPIC, "s", SubscriptionType.SHARED, EARLIEST))
    assert created.type is SubscriptionType.SHARED
    assert created.statistics.backlog_messages == 10
    assert created.created_ms > 0
    moved = ask(peer, admin.SeekSubscription(TOPIC, "s", AtOffset(7)))
    assert [(one.topic, one.offset) for one in moved.positions] == [(TOPIC, 7)]
    figures = ask(peer, admin.DescribeSubscription(TOPIC, "s")).statistics
    assert (figures.floor, figures.backlog_messages) == (7, 3)
    ask(peer, admin.SeekSubscription(TOPIC, "s", LATEST))
    assert ask(peer, admin.DescribeSubscription(TOPIC, "s")).statistics.backlog_messages == 0
    ask(peer, admin.SeekSubscription(TOPIC, "s", EARLIEST))
    assert ask(peer, admin.DescribeSubscription(TOPIC, "s")).statistics.backlog_messages == 10


async def test_a_subscription_is_not_created_with_a_policy_that_cannot_be_obeyed(peer: Any) -> None:
    itself = FailurePolicy(redeliveries_max=1, dead_letter_topic=TOPIC)
    refused = ask(peer, admin.CreateSubscription(TOPIC, "s", failure=itself))
    assert refused.code == InvalidArgument.code
    assert "its dead letters would come again" in refused.message
    unnamed = FailurePolicy(redeliveries_max=1, then=Exhausted.DEAD_LETTER)
    refused = ask(peer, admin.CreateSubscription(TOPIC, "s" * 200, failure=unnamed))
    assert refused.code == InvalidArgument.code
    assert "cannot be named after both" in refused.message
    assert ask(peer, admin.ListSubscriptions(TOPIC)).subscriptions == []


async def test_a_subscription_exists_once(peer: Any) -> None:
    request = admin.CreateSubscription(TOPIC, "s")
    ask(peer, request)
    assert ask(peer, request).code == SubscriptionExists.code
    again = ask(peer, admin.CreateSubscription(TOPIC, "s", exist_ok=True))
    assert again.subscription == "s"


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_a_live_seek_ends_the_consumer_and_goes_on_exactly_there(
    bench: Any, peer: Any, kind: SubscriptionType
) -> None:
    handle = subscribe(peer, kind=kind)
    assert delivered(peer, handle) == [(0, 10)]
    ask(peer, admin.SeekSubscription(TOPIC, "s", AtOffset(4)))
    (closed,) = peer.told(ConsumerClosed)
    assert (closed.handle, closed.code) == (handle, SubscriptionMoved.code)
    again = subscribe(peer, kind=kind)
    assert delivered(peer, again) == [(4, 10)]
    assert [one.redelivery_count for one in peer.told(Deliver)] == [0, 0]


async def test_acks_across_a_seek_change_nothing(bench: Any, peer: Any) -> None:
    handle = subscribe(peer)
    peer.session.handle(Ack(handle, [(0, 3)]), 0, memoryview(b""))
    asked = peer.ask(envelope(admin.SeekSubscription(TOPIC, "s", EARLIEST)))
    # It left before the client heard of the seek.
    peer.session.handle(Ack(handle, [(3, 9)]), 0, memoryview(b""))
    bench.settle()
    assert isinstance(peer.answer_to(asked), Administered)
    peer.session.handle(Ack(handle, [(0, 10)]), 0, memoryview(b""))
    bench.settle()
    subscription = bench.shard.topic(TOPIC).subscriptions["s"]
    assert subscription.cursor.floor == 0
    assert not subscription.cursor.above
    facts = [decode_event(r.body) for r in bench.recover_journal() if r.kind == EVENT_RECORD]
    acked = [one.ranges for one in facts if isinstance(one, RangesAcked) and one.ranges]
    assert acked in ([], [[(0, 3)]]), "what was acknowledged before is written before, or never"


async def test_a_consumer_that_comes_during_a_seek_waits_for_its_end(bench: Any, peer: Any) -> None:
    ask(peer, admin.CreateSubscription(TOPIC, "s", start=EARLIEST))
    asked = peer.ask(envelope(admin.SeekSubscription(TOPIC, "s", AtOffset(6))))
    joined = peer.ask(Subscribe(TOPIC, "s", SubscriptionType.EXCLUSIVE, "c", AtEarliest()))
    assert peer.answer_to(joined) is None
    bench.settle()
    assert isinstance(peer.answer_to(asked), Administered)
    await asyncio.sleep(0)
    handle = peer.answer_to(joined).handle
    peer.session.handle(Flow(handle, 100, 1 << 20), 0, memoryview(b""))
    assert delivered(peer, handle) == [(6, 10)]


async def test_a_seek_that_the_disk_refuses_leaves_the_position(bench: Any, peer: Any) -> None:
    handle = subscribe(peer)
    peer.session.handle(Ack(handle, [(0, 3)]), 0, memoryview(b""))
    bench.files.fail("write", times=100)
    asked = peer.ask(envelope(admin.SeekSubscription(TOPIC, "s", LATEST)))
    subscription = bench.shard.topic(TOPIC).subscriptions["s"]
    assert subscription.is_moving
    bench.settle()
    assert isinstance(peer.answer_to(asked), Error)
    assert subscription.cursor.floor == 3
    assert not subscription.is_moving
    bench.files.heal()
    bench.clock.now_ms += 10_000
    bench.settle()
    facts = [decode_event(r.body) for r in bench.recover_journal() if r.kind == EVENT_RECORD]
    acked = [one.ranges for one in facts if isinstance(one, RangesAcked) and one.ranges]
    assert acked == [[(0, 3)]], "what was acknowledged before is written after all"
    assert delivered(peer, subscribe(peer)) == [(3, 10)]


async def test_a_snapshot_at_any_step_of_a_seek_tells_the_old_or_the_new_position(
    bench: Any, peer: Any
) -> None:
    ask(peer, admin.CreateSubscription(TOPIC, "s", start=AtOffset(8)))

    def floor() -> int:
        (state,) = (t for t in snapshot_of(bench.shard).topics if t.name == TOPIC)
        return Cursor.decode(state.subscriptions[0].cursor).floor

    assert floor() == 8
    peer.ask(envelope(admin.SeekSubscription(TOPIC, "s", AtOffset(2))))
    assert floor() == 8, "nothing shows before it is durable"
    bench.settle()
    assert floor() == 2


async def test_skip_peek_and_clear(bench: Any, peer: Any) -> None:
    handle = subscribe(peer)
    peer.session.handle(Ack(handle, [(1, 3)]), 0, memoryview(b""))
    peeked = ask(peer, admin.PeekMessages(TOPIC, "s", limit=3))
    assert [(one.topic, one.ranges) for one in peeked.ranges] == [(TOPIC, [(0, 1), (3, 5)])]
    assert ask(peer, admin.SkipMessages(TOPIC, "s", 3)).messages == 3
    subscription = bench.shard.topic(TOPIC).subscriptions["s"]
    assert subscription.cursor.floor == 5
    assert subscription.consumers, "consumers stay"
    assert ask(peer, admin.ClearBacklog(TOPIC, "s")).messages == 5
    assert ask(peer, admin.ClearBacklog(TOPIC, "s")).messages == 0
    assert ask(peer, admin.SkipMessages(TOPIC, "s", 5)).messages == 0
    assert ask(peer, admin.PeekMessages(TOPIC, "s")).ranges == []
    figures = ask(peer, admin.DescribeSubscription(TOPIC, "s")).statistics
    assert (figures.backlog_messages, figures.unacked_messages) == (0, 0)
    kinds = [one.kind for one in ask(peer, admin.ListEvents(TOPIC, "s")).events]
    assert kinds == ["created", "joined", "skipped", "cleared"]


async def test_a_subscription_is_deleted_by_force_or_once_it_is_idle(bench: Any, peer: Any) -> None:
    handle = subscribe(peer)
    assert ask(peer, admin.DeleteSubscription(TOPIC, "s")).code == SubscriptionBusy.code
    assert ask(peer, admin.DeleteSubscription(TOPIC, "s", force=True)).__class__.__name__ == "Done"
    (closed,) = peer.told(ConsumerClosed)
    assert (closed.handle, closed.code) == (handle, SubscriptionNotFound.code)
    assert not bench.shard.topic(TOPIC).subscriptions
    assert ask(peer, admin.DeleteSubscription(TOPIC, "s")).code == SubscriptionNotFound.code
    again = subscribe(peer)
    assert delivered(peer, again) == [(0, 10)], "a new one of the same name starts anew"


async def test_positions_that_cannot_be_are_refused(peer: Any) -> None:
    ask(peer, admin.CreateSubscription(TOPIC, "s"))
    beyond = ask(peer, admin.SeekSubscription(TOPIC, "s", AtOffset(11)))
    assert beyond.code == OffsetOutOfRange.code
    for request in (
        admin.SeekSubscription(TOPIC, "x", EARLIEST),
        admin.SkipMessages(TOPIC, "x", 1),
        admin.PeekMessages(TOPIC, "x"),
        admin.ClearBacklog(TOPIC, "x"),
        admin.DescribeSubscription(TOPIC, "x"),
        admin.ListEvents(TOPIC, "x"),
        admin.ListConsumers(TOPIC, "x"),
        admin.DisconnectConsumer(TOPIC, "x", "c"),
    ):
        assert ask(peer, request).code == SubscriptionNotFound.code


async def test_a_topic_that_stores_nothing_has_no_positions(peer: Any) -> None:
    spec = TopicSpec(dispatch=Dispatch.NON_RELIABLE)
    assert peer.call(CreateTopic("/default/live", spec, False)) == Done()
    command = Subscribe("/default/live", "s", SubscriptionType.SHARED, "c", AtEarliest())
    assert isinstance(peer.call(command), Subscribed)
    for request in (
        admin.CreateSubscription("/default/live", "other"),
        admin.SeekSubscription("/default/live", "s", AtTime(0)),
        admin.ClearBacklog("/default/live", "s"),
    ):
        assert ask(peer, request).code == InvalidArgument.code
