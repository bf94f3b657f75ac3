"""One connection's requests: what it may ask for, and that its errors stay its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from danubius.errors import (
    InvalidArgument,
    LimitReached,
    SubscriptionTypeMismatch,
    TopicDeleted,
    TopicExists,
    TopicNotFound,
    UnsupportedVersion,
)
from danubius.model.subscription import AtEarliest, SubscriptionType
from danubius.model.topic import Dispatch, Durability, TopicSpec
from danubius.wire.commands import (
    Ack,
    CloseConsumer,
    CloseProducer,
    CreateTopic,
    DeleteTopic,
    Deliver,
    Done,
    Error,
    Flow,
    Hello,
    Lookup,
    Nack,
    Opcode,
    OpenProducer,
    Ping,
    Pong,
    ProducerOpened,
    Subscribe,
    Subscribed,
    Welcome,
)

if TYPE_CHECKING:
    from danubius.wire.commands import AnyCommand

TOPIC = "/default/orders"


def open_producer(name: str) -> OpenProducer:
    return OpenProducer(TOPIC, name, TopicSpec())


def subscribe(
    name: str,
    *,
    consumer: str = "consumer",
    kind: SubscriptionType = SubscriptionType.EXCLUSIVE,
) -> Subscribe:
    return Subscribe(TOPIC, name, kind, consumer, AtEarliest())


async def test_one_producer_too_many_is_refused(bench: Any) -> None:
    bench.shard.config = msgspec.structs.replace(bench.shard.config, connection_handles_max=2)
    peer = bench.connect()
    handles = [peer.call(open_producer(f"p{n}")).handle for n in range(2)]
    refused = peer.ask(open_producer("p2"))
    assert peer.answer_to(refused).code == LimitReached.code, "before anything is journaled"
    assert peer.call(CloseProducer(handles[0])) == Done()
    assert isinstance(peer.call(open_producer("p2")), ProducerOpened)


async def test_one_consumer_too_many_is_refused(bench: Any) -> None:
    peer = bench.connect()
    peer.publish(TOPIC, [b"a"])
    bench.shard.config = msgspec.structs.replace(bench.shard.config, connection_handles_max=3)
    handles = [peer.call(subscribe(f"s{n}")).handle for n in range(2)]
    refused = peer.ask(subscribe("s2"))
    assert peer.answer_to(refused).code == LimitReached.code
    assert peer.call(CloseConsumer(handles[0])) == Done()
    assert isinstance(peer.call(subscribe("s2")), Subscribed)


async def test_requests_that_overtake_the_disk_are_counted_too(bench: Any) -> None:
    peer = bench.connect()
    peer.publish(TOPIC, [b"a"])
    bench.shard.config = msgspec.structs.replace(bench.shard.config, connection_handles_max=5)
    asked = [peer.ask(open_producer(f"p{n}")) for n in range(4)]
    asked += [peer.ask(subscribe(f"s{n}")) for n in range(4)]
    bench.settle()
    answers = [peer.answer_to(number) for number in asked]
    assert sum(type(one) is ProducerOpened for one in answers) == 4
    assert [one.code for one in answers if type(one) is Error] == [LimitReached.code] * 4
    assert bench.shard.topic(TOPIC).subscriptions == {}


async def test_a_subscribe_that_a_deletion_overtakes_fails(bench: Any) -> None:
    peer = bench.connect()
    peer.publish(TOPIC, [b"a"])
    asked = peer.ask(subscribe("s"))
    assert peer.call(DeleteTopic(TOPIC)) == Done()
    assert peer.answer_to(asked).code == TopicDeleted.code


async def test_a_subscribe_that_waits_for_a_probe_hears_of_a_deletion(bench: Any) -> None:
    first, second = bench.connect(), bench.connect()
    first.publish(TOPIC, [b"a"])
    assert isinstance(first.call(subscribe("s", consumer="one")), Subscribed)
    asked = second.ask(subscribe("s", consumer="two"))
    assert second.call(DeleteTopic(TOPIC)) == Done()
    first.probes.pop()(False)
    assert second.answer_to(asked).code == TopicDeleted.code
    assert bench.shard.topics == {}


async def test_an_open_producer_that_a_deletion_overtakes_fails(bench: Any) -> None:
    peer = bench.connect()
    peer.publish(TOPIC, [b"a"])
    asked = peer.ask(open_producer("p"))
    assert peer.call(DeleteTopic(TOPIC)) == Done()
    assert peer.answer_to(asked).code == TopicDeleted.code


async def test_a_subscribe_that_waited_joins_as_what_it_asked_for(bench: Any) -> None:
    one, two, three = bench.connect(), bench.connect(), bench.connect()
    one.publish(TOPIC, [b"a"])
    handle = one.call(subscribe("s", consumer="one")).handle
    asked = two.ask(subscribe("s", consumer="two"))
    one.call(CloseConsumer(handle))
    shared = subscribe("s", consumer="three", kind=SubscriptionType.SHARED)
    handle = three.call(shared).handle
    one.probes.pop()(True)
    assert two.answer_to(asked).code == SubscriptionTypeMismatch.code
    # The same once the other has gone again: the subscription takes the type that is asked for.
    assert three.call(CloseConsumer(handle)) == Done()
    assert isinstance(two.call(subscribe("s", consumer="two")), Subscribed)
    assert bench.shard.topic(TOPIC).subscriptions["s"].type is SubscriptionType.EXCLUSIVE


async def test_a_producer_opens_a_topic_that_is_being_created_with_other_settings(
    bench: Any,
) -> None:
    peer = bench.connect()
    created = peer.ask(CreateTopic(TOPIC, TopicSpec(durability=Durability.WRITTEN)))
    opened = peer.call(open_producer("p"))
    assert peer.answer_to(created) == Done()
    assert isinstance(opened, ProducerOpened)


async def test_a_producer_is_refused_by_a_topic_that_is_being_created_with_other_dispatch(
    bench: Any,
) -> None:
    peer = bench.connect()
    peer.ask(CreateTopic(TOPIC, TopicSpec(dispatch=Dispatch.NON_RELIABLE)))
    refused = peer.call(open_producer("p"))
    assert refused.code == TopicExists.code
    assert "dispatch=" in refused.message


async def test_a_consumer_on_a_full_connection_gets_nothing_until_it_drains(bench: Any) -> None:
    peer = bench.connect()
    peer.publish(TOPIC, [b"a"])
    peer.session.set_writable(is_writable=False)
    handle = peer.call(subscribe("s")).handle
    peer.session.handle(Flow(handle, 10, 1000), 0, memoryview(b""))
    assert peer.told(Deliver) == []
    peer.session.set_writable(is_writable=True)
    assert [one.messages for one in peer.told(Deliver)] == [1]


@pytest.mark.parametrize(
    ("command", "opcode", "code"),
    [
        (Ack(7, [(0, 1), (3, 3)]), Opcode.ACK, InvalidArgument.code),
        (Nack(7, [(3, 2)]), Opcode.NACK, InvalidArgument.code),
        (Flow(7, -1, 0), Opcode.FLOW, InvalidArgument.code),
        (Lookup("/default/none"), Opcode.LOOKUP, TopicNotFound.code),
    ],
)
async def test_a_command_that_nobody_waits_for_is_named_when_it_fails(
    bench: Any, command: AnyCommand, opcode: Opcode, code: int
) -> None:
    peer = bench.connect()
    peer.session.handle(command, 0, memoryview(b""))
    [error] = peer.told(Error)
    assert (error.code, error.about, error.handle) == (code, opcode, getattr(command, "handle", 0))


async def test_an_awaited_command_is_named_by_its_number_alone(bench: Any) -> None:
    refused = bench.connect().call(Ack(7, [(3, 3)]))
    assert (refused.code, refused.about, refused.handle) == (InvalidArgument.code, 0, 0)


async def test_a_refused_hello_is_about_the_connection(bench: Any) -> None:
    peer = bench.connect()
    peer.session.handle(Hello(99, 99, "from the future"), 0, memoryview(b""))
    [error] = peer.told(Error)
    assert (error.code, error.about) == (UnsupportedVersion.code, 0)


@pytest.mark.parametrize(("newest", "chosen"), [(1, 1), (2, 2), (99, 2)])
async def test_the_newest_version_that_both_speak_is_chosen(
    bench: Any, newest: int, chosen: int
) -> None:
    peer = bench.connect()

    welcome = peer.call(Hello(1, newest, "a client"))

    assert welcome.version == chosen
    assert peer.session.version == chosen


async def test_what_a_part_of_the_broker_left_open_is_undone_when_the_connection_goes(
    bench: Any,
) -> None:
    peer = bench.connect()
    undone: list[str] = []
    peer.session.on_closed.add(lambda: undone.append("once"))

    peer.session.close()
    peer.session.close()

    assert undone == ["once"]


async def test_every_command_has_an_answer_or_an_effect(bench: Any) -> None:
    """What a client may send and no part of the broker does is refused; the connection lives on."""
    peer = bench.connect()

    answer = peer.call(Welcome(1, "broker", 1, 1, 1))

    assert answer.code == UnsupportedVersion.code
    assert isinstance(peer.call(Ping()), Pong)
