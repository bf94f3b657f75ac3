"""Requests of operators, as a session serves them: each answered once, by its reply or an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from danubius.errors import InvalidArgument, InvalidName, TopicNotFound
from danubius.model import admin, admin_replies
from danubius.model.admin_codec import decode_reply, encode_request
from danubius.wire.commands import Administer, Administered

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
