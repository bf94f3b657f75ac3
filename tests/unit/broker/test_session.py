"""One connection's requests: what it may ask for, and that its errors stay its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from danubius.broker import session
from danubius.errors import InvalidArgument
from danubius.model.subscription import AtEarliest, SubscriptionType
from danubius.model.topic import TopicSpec
from danubius.wire.commands import (
    CloseConsumer,
    CloseProducer,
    Done,
    Error,
    OpenProducer,
    ProducerOpened,
    Subscribe,
    Subscribed,
)

if TYPE_CHECKING:
    import pytest

TOPIC = "/default/orders"


def open_producer(name: str) -> OpenProducer:
    return OpenProducer(TOPIC, name, TopicSpec())


def subscribe(name: str) -> Subscribe:
    return Subscribe(TOPIC, name, SubscriptionType.EXCLUSIVE, name, AtEarliest())


async def test_one_producer_too_many_is_refused(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "HANDLES_MAX", 2)
    peer = bench.connect()
    handles = [peer.call(open_producer(f"p{n}")).handle for n in range(2)]
    refused = peer.ask(open_producer("p2"))
    assert peer.answer_to(refused).code == InvalidArgument.code, "before anything is journaled"
    assert peer.call(CloseProducer(handles[0])) == Done()
    assert isinstance(peer.call(open_producer("p2")), ProducerOpened)


async def test_one_consumer_too_many_is_refused(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = bench.connect()
    peer.publish(TOPIC, [b"a"])
    monkeypatch.setattr(session, "HANDLES_MAX", 3)
    handles = [peer.call(subscribe(f"s{n}")).handle for n in range(2)]
    refused = peer.ask(subscribe("s2"))
    assert peer.answer_to(refused).code == InvalidArgument.code
    assert peer.call(CloseConsumer(handles[0])) == Done()
    assert isinstance(peer.call(subscribe("s2")), Subscribed)


async def test_requests_that_overtake_the_disk_are_counted_too(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = bench.connect()
    peer.publish(TOPIC, [b"a"])
    monkeypatch.setattr(session, "HANDLES_MAX", 5)
    asked = [peer.ask(open_producer(f"p{n}")) for n in range(4)]
    asked += [peer.ask(subscribe(f"s{n}")) for n in range(4)]
    bench.settle()
    answers = [peer.answer_to(number) for number in asked]
    assert sum(type(one) is ProducerOpened for one in answers) == 4
    assert [one.code for one in answers if type(one) is Error] == [InvalidArgument.code] * 4
    assert bench.broker.topic(TOPIC).subscriptions == {}
