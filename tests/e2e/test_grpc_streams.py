"""Streams of Danube's clients: held, taken over, ended in the right order, and never a reason to spin."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

import danubius.blocking
from danubius.edge.grpc.messages import danube
from e2e.raw_grpc import RawGrpc, Refusal, end_of, open_stream, raw_grpc
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

_Code = grpc.StatusCode


@pytest.fixture
def raw(grpc_broker: BrokerProcess) -> Iterator[RawGrpc]:
    with raw_grpc(grpc_broker.grpc_port) as channel:
        yield channel


def _take(stream: Any, count: int) -> list[bytes]:
    return [next(stream).payload for _ in range(count)]


def test_a_new_subscription_begins_at_the_end(raw: RawGrpc, topic: str) -> None:
    raw.create(topic)
    raw.send(topic, b"before")
    number = raw.subscribe(topic)
    raw.send(topic, b"after")
    with open_stream(raw, number) as stream:
        assert _take(stream, 1) == [b"after"]


def test_a_stream_of_an_unknown_consumer_is_held_until_its_client_was_told(raw: RawGrpc) -> None:
    with open_stream(raw, 12345) as stream:
        while not stream.done():  # it is held until the broker had the chance to say so
            assert not raw.is_well(12345)
            time.sleep(LOOK_S)
        assert end_of(stream).code is _Code.UNAVAILABLE


def test_a_deleted_topic_closes_its_consumers_first_and_ends_their_streams_then(
    raw: RawGrpc, grpc_broker: BrokerProcess, topic: str
) -> None:
    raw.create(topic)
    number = raw.subscribe(topic)
    assert raw.is_well(number)
    with open_stream(raw, number) as stream:
        raw.send(topic, b"x")
        assert _take(stream, 1) == [b"x"]
        with danubius.blocking.connect(grpc_broker.url) as client:
            client.delete_topic(topic)
        limit = time.monotonic() + HANG_S
        while raw.is_well(number):  # the stream is about to hear of it
            assert time.monotonic() < limit
        assert end_of(stream).code is _Code.UNAVAILABLE
    with pytest.raises(Refusal) as refused:
        raw.send(topic, b"y")
    assert refused.value.code is _Code.NOT_FOUND
    # A topic of that name is another one, and its consumer is well again.
    raw.create(topic)
    assert raw.subscribe(topic) == number
    assert raw.is_well(number)


def test_the_newest_stream_of_a_consumer_is_served_and_the_older_one_waits(
    raw: RawGrpc, topic: str
) -> None:
    raw.create(topic)
    number = raw.subscribe(topic, kind="Exclusive")
    with open_stream(raw, number) as older:
        raw.send(topic, b"1")
        (first,) = [next(older)]
        with open_stream(raw, number) as newer:
            # What the older one had not acknowledged comes again.
            assert _take(newer, 1) == [first.payload]
            raw.send(topic, b"2")
            message = next(newer)
            raw.ack(message)
            raw.ack(first)
            assert message.payload == b"2"
            assert raw.is_well(number)
        raw.send(topic, b"3")
        assert _take(older, 1) == [b"3"]


def test_a_sought_subscription_goes_on_in_the_same_stream(
    raw: RawGrpc, grpc_broker: BrokerProcess, topic: str
) -> None:
    raw.create(topic)
    number = raw.subscribe(topic)
    with open_stream(raw, number) as stream:
        for payload in (b"1", b"2"):
            raw.send(topic, payload)
            raw.ack(next(stream))
        with danubius.blocking.connect(grpc_broker.url) as client:
            client.admin.seek(topic, "sub", "earliest")
        assert _take(stream, 2) == [b"1", b"2"]


def test_an_acknowledgement_counts_whichever_stream_it_comes_after(
    raw: RawGrpc, grpc_broker: BrokerProcess, topic: str
) -> None:
    raw.create(topic)
    number = raw.subscribe(topic)
    for payload in (b"1", b"2", b"3"):
        raw.send(topic, payload)
    with open_stream(raw, number) as stream:
        messages = [next(stream) for _ in range(3)]
    raw.ack(messages[1])
    with pytest.raises(Refusal, match="no message 77") as refused:
        raw.call(
            "ConsumerService", "Ack", subscription_name="sub",
            msg_id=danube.MsgID(topic_name=topic, topic_offset=77),
        )  # fmt: skip
    assert refused.value.code is _Code.INVALID_ARGUMENT
    with pytest.raises(Refusal) as unknown:
        raw.ack(messages[0], "nobody")
    assert unknown.value.code is _Code.NOT_FOUND
    with open_stream(raw, number) as stream:
        assert sorted(_take(stream, 2)) == [b"1", b"3"]


def test_a_consumer_goes_on_after_a_restart_with_nothing_but_its_number(
    start_broker: StartBroker,
) -> None:
    broker = start_broker(grpc=True)
    topic = "/default/kept"
    with raw_grpc(broker.grpc_port) as raw:
        raw.create(topic)
        plain = raw.subscribe(topic, "all", "c.1", "Exclusive")
        chosen = raw.subscribe(topic, "some", "c.2", "KeyShared", ("eu-*",))
        for key in ("eu-1", "us-1"):
            raw.send(topic, key.encode(), routing_key=key)
    broker.kill()
    broker.start()
    with raw_grpc(broker.grpc_port) as raw:
        assert raw.is_well(plain)
        assert raw.is_well(chosen)
        raw.send(topic, b"eu-2", routing_key="eu-2")  # its producer comes back with its message
        with open_stream(raw, plain) as stream:
            assert _take(stream, 3) == [b"eu-1", b"us-1", b"eu-2"]
        with open_stream(raw, chosen) as stream:
            assert sorted(_take(stream, 2)) == [b"eu-1", b"eu-2"]
        assert raw.subscribe(topic, "all", "c.1", "Exclusive") == plain


def test_a_message_that_these_clients_cannot_take_does_not_stop_the_others(
    raw: RawGrpc, grpc_broker: BrokerProcess, topic: str
) -> None:
    raw.create(topic)
    number = raw.subscribe(topic)
    with danubius.blocking.connect(grpc_broker.url) as client:
        with client.producer(topic, name="native") as producer:
            producer.send(b"small")
            producer.send(bytes(5 << 20))
            producer.send(b"last")
        with open_stream(raw, number) as stream:
            for payload in (b"small", b"last"):
                message = next(stream)
                assert message.payload == payload
                raw.ack(message)
        described = client.admin.describe_subscription(topic, "sub")
    assert described.statistics.backlog_messages == 1  # it waits for a client that can take it


def test_a_stream_that_is_not_read_holds_up_nobody_and_loses_nothing(
    start_broker: StartBroker,
) -> None:
    broker = start_broker(grpc=True)
    topic, count, payload = "/default/stalled", 3_000, bytes(20_000)
    with raw_grpc(broker.grpc_port) as raw, raw_grpc(broker.grpc_port) as other:
        raw.create(topic)
        stalled, quick = raw.subscribe(topic, "slow"), raw.subscribe(topic, "quick")
        with open_stream(raw, stalled) as slow, open_stream(other, quick) as stream:
            before = broker.rss_bytes()
            with (
                danubius.blocking.connect(broker.url) as client,
                client.producer(topic, name="native") as producer,
            ):
                producer.send_many([payload] * count)
            for _ in range(count):
                other.ack(next(stream), "quick")
            # 60 MB went by; what waits for the slow one is a small part of it. The rest is the broker's own cache.
            assert broker.rss_peak_bytes() - before < 250 << 20
            for _ in range(count):
                raw.ack(next(slow), "slow")


def test_clients_behind_a_proxy_are_sent_there(start_broker: StartBroker) -> None:
    broker = start_broker("--set", "server.connect_url=http://localhost:1", grpc=True)
    with raw_grpc(broker.grpc_port) as raw:
        header = ("x-danube-broker-url", broker.grpc_url)
        raw.call(
            "ProducerService", "CreateProducer", header=header,
            topic_name="/default/t", producer_name="p", dispatch_strategy=1,
        )  # fmt: skip
        found = raw.call("Discovery", "TopicLookup", topic="/default/t")
        assert found.proxy
        assert (found.connect_url, found.broker_url) == ("http://localhost:1", broker.grpc_url)
