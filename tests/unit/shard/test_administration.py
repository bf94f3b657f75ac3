"""Requests of operators, as a session serves them: each answered once, by its reply or an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from danubius.admin.table import ADMIN
from danubius.errors import InvalidArgument, InvalidName, TopicNotFound, TransactionNotFound
from danubius.model import admin, admin_replies
from danubius.model.admin import ADMIN_REPLIES
from danubius.model.admin_codec import decode_reply, encode_request
from danubius.model.policy import Policies
from danubius.model.subscription import LATEST
from danubius.wire.commands import Administer, Administered, BeginTransaction, Error

if TYPE_CHECKING:
    from danubius.model.admin import AdminRequest

TOPIC = "/default/orders"


def ask(peer: Any, request: AdminRequest) -> Any:
    """The reply, or the wire's error."""
    answer = peer.call(Administer(msgspec.Raw(encode_request(request))))
    return decode_reply(answer.reply) if isinstance(answer, Administered) else answer


async def test_a_topic_is_described_and_measured(bench: Any) -> None:
    peer = bench.connect()
    peer.publish(TOPIC, [b"a", b"bc"])
    described = ask(peer, admin.DescribeTopic(TOPIC))
    assert isinstance(described, admin_replies.TopicDescribed)
    assert described.topic == TOPIC
    assert len(described.producers) == 1
    measured = ask(peer, admin.MeasureTopic(TOPIC)).statistics
    assert measured == described.statistics
    assert (measured.start_offset, measured.end_offset, measured.stored_messages) == (0, 2, 2)
    assert measured.published_messages == 2
    assert measured.published_bytes > 0


async def test_topics_are_listed_by_pages(bench: Any) -> None:
    peer = bench.connect()
    for name in ("/a/one", "/a/three", "/a/two", "/b/four"):
        peer.publish(name, [b"x"])
    page = ask(peer, admin.ListTopics(namespace="a", limit=2))
    assert [line.topic for line in page.topics] == ["/a/one", "/a/three"]
    rest = ask(peer, admin.ListTopics(namespace="a", limit=2, after=page.next))
    assert [line.topic for line in rest.topics] == ["/a/two"]
    assert rest.next == ""
    assert len(ask(peer, admin.ListTopics()).topics) == 4


async def test_the_broker_describes_itself(bench: Any) -> None:
    peer = bench.connect()
    peer.publish(TOPIC, [b"a"])
    described = ask(peer, admin.DescribeBroker())
    assert described.epoch == 1
    assert described.statistics.topics == 1
    assert described.statistics.producers == 1
    assert described.statistics.published_messages == 1


async def test_what_is_not_there_is_not_found(bench: Any) -> None:
    peer = bench.connect()
    assert ask(peer, admin.DescribeTopic(TOPIC)).code == TopicNotFound.code
    assert ask(peer, admin.MeasureTopic(TOPIC)).code == TopicNotFound.code


async def test_a_request_that_breaks_a_rule_is_refused(bench: Any) -> None:
    peer = bench.connect()
    assert ask(peer, admin.DescribeTopic("orders")).code == InvalidName.code
    assert ask(peer, admin.ListTopics(limit=0)).code == InvalidArgument.code
    nonsense = Administer(msgspec.Raw(msgspec.msgpack.encode({"request": "sing"})))
    answer = peer.call(nonsense)
    assert answer.code == InvalidArgument.code
    assert "sing" in answer.message


def test_every_request_is_served() -> None:
    assert set(ADMIN) == set(ADMIN_REPLIES)


MISSING: dict[type, AdminRequest] = {
    admin.DescribeNamespace: admin.DescribeNamespace("gone"),
    admin.UpdateNamespace: admin.UpdateNamespace("gone", Policies(ttl_ms=1)),
    admin.DeleteNamespace: admin.DeleteNamespace("gone"),
    admin.MeasureNamespace: admin.MeasureNamespace("gone"),
    admin.DescribeTopic: admin.DescribeTopic(TOPIC),
    admin.UpdateTopic: admin.UpdateTopic(TOPIC, Policies(ttl_ms=1)),
    admin.DeleteTopic: admin.DeleteTopic(TOPIC),
    admin.MeasureTopic: admin.MeasureTopic(TOPIC),
    admin.ListSubscriptions: admin.ListSubscriptions(TOPIC),
    admin.DescribeSubscription: admin.DescribeSubscription(TOPIC, "s"),
    admin.CreateSubscription: admin.CreateSubscription(TOPIC, "s"),
    admin.UpdateSubscription: admin.UpdateSubscription(TOPIC, "s", None),
    admin.DeleteSubscription: admin.DeleteSubscription(TOPIC, "s"),
    admin.SeekSubscription: admin.SeekSubscription(TOPIC, "s", LATEST),
    admin.SkipMessages: admin.SkipMessages(TOPIC, "s", 1),
    admin.PeekMessages: admin.PeekMessages(TOPIC, "s"),
    admin.ClearBacklog: admin.ClearBacklog(TOPIC, "s"),
    admin.UnblockSubscription: admin.UnblockSubscription(TOPIC, "s"),
    admin.ListEvents: admin.ListEvents(TOPIC, "s"),
    admin.ListDeadLetters: admin.ListDeadLetters(TOPIC, "s"),
    admin.RedriveDeadLetters: admin.RedriveDeadLetters(TOPIC, "s"),
    admin.PurgeDeadLetters: admin.PurgeDeadLetters(TOPIC, "s"),
    admin.ListProducers: admin.ListProducers(TOPIC),
    admin.DisconnectProducer: admin.DisconnectProducer(TOPIC, "p"),
    admin.ListConsumers: admin.ListConsumers(TOPIC),
    admin.DisconnectConsumer: admin.DisconnectConsumer(TOPIC, "s", "c"),
    admin.AbortTransaction: admin.AbortTransaction(7),
}


@pytest.mark.parametrize("kind", MISSING, ids=lambda kind: kind.__name__)
async def test_a_request_about_what_is_not_there_is_answered_so(bench: Any, kind: type) -> None:
    answer = ask(bench.connect(), MISSING[kind])
    assert isinstance(answer, Error)
    assert 200 <= answer.code < 300, answer


async def test_transactions_are_listed_and_aborted(bench: Any) -> None:
    peer = bench.connect()
    numbers = [peer.call(BeginTransaction(10_000)).transaction for _ in range(3)]
    page = ask(peer, admin.ListTransactions(limit=2))
    rest = ask(peer, admin.ListTransactions(limit=2, after=page.next))
    lines = [*page.transactions, *rest.transactions]
    assert [line.transaction for line in lines] == numbers
    assert all(line.deadline_ms > line.begun_ms and line.address == "test" for line in lines)
    assert ask(peer, admin.AbortTransaction(numbers[1])) == admin_replies.Done()
    left = ask(peer, admin.ListTransactions()).transactions
    assert [line.transaction for line in left] == [numbers[0], numbers[2]]
    assert ask(peer, admin.AbortTransaction(numbers[1])).code == TransactionNotFound.code
    assert ask(peer, admin.ListTransactions(after="x")).code == InvalidArgument.code
