"""Danube's own client from PyPI, unmodified, in its own process, against a real broker: it works as it is."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import danubius.blocking
from e2e.danube_process import DanubeFailed, DanubeProcess, Received, danube_client
from patience import HANG_S, SOON_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.broker_process import BrokerProcess


@pytest.fixture
def client(grpc_broker: BrokerProcess) -> Iterator[DanubeProcess]:
    with danube_client(grpc_broker.grpc_url) as process:
        yield process


def _numbers(messages: list[bytes]) -> list[int]:
    return sorted(int(message) for message in messages)


@pytest.mark.parametrize("kind", ["exclusive", "shared", "failover", "key_shared"])
@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("reliable", [True, False])
def test_what_is_sent_is_received(
    client: DanubeProcess, topic: str, kind: str, partitions: int, reliable: bool
) -> None:
    client.do("open_producer", name="p", topic=topic, reliable=reliable, partitions=partitions)
    client.do("subscribe", name="c", topic=topic, subscription="s", kind=kind)
    sent = client.do("send_many", name="p", first=0, count=60, width=8, keys=5)
    taken = client.take("c", 60)
    assert sent["errors"] == []
    assert _numbers([one.payload for one in taken]) == list(range(60))
    assert {one.key for one in taken} == {f"k{number}" for number in range(5)}
    if partitions:
        assert {one.topic for one in taken} <= {f"{topic}-part-{i}" for i in range(partitions)}
    else:
        assert {one.topic for one in taken} == {topic}


def test_a_message_arrives_with_all_that_it_was_sent_with(
    client: DanubeProcess, topic: str
) -> None:
    client.do("open_producer", name="orders.eu", topic=topic)
    client.do("subscribe", name="c", topic=topic, subscription="s")
    client.send("orders.eu", b"\x00\xff", key="k", attributes={"colour": "blue", "size": ""})
    client.send("orders.eu", b"")
    first, second = client.take("c", 2)
    assert (first.payload, first.key, first.attributes) == (
        b"\x00\xff", "k", {"colour": "blue", "size": ""},
    )  # fmt: skip
    assert (second.payload, second.key, second.attributes) == (b"", None, {})
    assert [one.producer for one in (first, second)] == ["orders.eu", "orders.eu"]
    assert [one.offset for one in (first, second)] == [0, 1]
    assert 0 < first.publish_time <= second.publish_time


def test_round_robin_and_keys_go_to_the_partitions_that_danube_would_choose(
    client: DanubeProcess, topic: str
) -> None:
    client.do("open_producer", name="p", topic=topic, partitions=3)
    client.do("subscribe", name="c", topic=topic, subscription="s")
    for number in range(6):
        client.send("p", str(number).encode())
    by_turn = {int(one.payload): one.topic for one in client.take("c", 6)}
    assert by_turn == {number: f"{topic}-part-{number % 3}" for number in range(6)}
    for number in range(9):
        client.send("p", str(number).encode(), key=f"k{number % 3}")
    places = {(one.key, one.topic) for one in client.take("c", 9)}
    assert len(places) == 3  # one partition a key


@pytest.mark.parametrize("consumers", [2, 8])
def test_shared_consumers_get_every_message_once(
    client: DanubeProcess, topic: str, consumers: int
) -> None:
    client.do("open_producer", name="p", topic=topic)
    names = [f"c{number}" for number in range(consumers)]
    for name in names:
        client.do("subscribe", name=name, topic=topic, subscription="s")
    client.do("send_many", name="p", first=0, count=400, width=16)
    taken = client.do("take_all", names=names, count=400)
    assert sorted(int(one) for some in taken.values() for one in some) == list(range(400))


def test_a_key_has_one_consumer_and_keeps_its_order(client: DanubeProcess, topic: str) -> None:
    client.do("open_producer", name="p", topic=topic)
    for name in ("a", "b", "c"):
        client.do("subscribe", name=name, topic=topic, subscription="s", kind="key_shared")
    for number in range(90):
        client.send("p", str(number).encode(), key=f"k{number % 9}")
    seen = client.do("take_all", names=["a", "b", "c"], count=90)
    taken = [[int(one) for one in some] for some in seen.values()]
    assert sorted(number for numbers in taken for number in numbers) == list(range(90))
    owners = Counter(key for numbers in taken for key in {number % 9 for number in numbers})
    assert set(owners.values()) == {1}
    for numbers in taken:
        for key in range(9):
            mine = [number for number in numbers if number % 9 == key]
            assert mine == sorted(mine)


def test_key_filters_choose_the_consumer(client: DanubeProcess, topic: str) -> None:
    client.do("open_producer", name="p", topic=topic)
    for name, filters in (("a", ["payment"]), ("b", ["ship*", "invoice"])):
        client.do(
            "subscribe", name=name, topic=topic, subscription="s", kind="key_shared",
            filters=filters,
        )  # fmt: skip
    for key in ("payment", "shipping", "payment", "nobody", "invoice", "payment"):
        client.send("p", key.encode(), key=key)
    assert [one.key for one in client.take("a", 3)] == ["payment"] * 3
    assert [one.key for one in client.take("b", 2)] == ["shipping", "invoice"]


def test_a_nacked_message_comes_again(client: DanubeProcess, topic: str) -> None:
    client.do("open_producer", name="p", topic=topic)
    client.do("subscribe", name="c", topic=topic, subscription="s")
    client.send("p", b"one")
    (first,) = client.take("c", ack=False)
    client.do("nack", name="c", place=first.place, delay_ms=200, reason="not now")
    (second,) = client.take("c", ack=False)
    client.do("nack", name="c", place=second.place)
    (third,) = client.take("c")
    assert [one.offset for one in (first, second, third)] == [0, 0, 0]


def test_a_second_exclusive_consumer_is_refused_until_the_first_has_left(
    client: DanubeProcess, grpc_broker: BrokerProcess, topic: str
) -> None:
    client.do("open_producer", name="p", topic=topic)
    with danube_client(grpc_broker.grpc_url) as first:
        first.do("subscribe", name="a", topic=topic, subscription="s", kind="exclusive")
        client.send("p", b"1")
        assert [one.payload for one in first.take("a", ack=False)] == [b"1"]
        with pytest.raises(DanubeFailed) as refused:
            client.do("subscribe", name="b", topic=topic, subscription="s", kind="exclusive")
        assert refused.value.code == "PERMISSION_DENIED"
    # The first one died without a word, and had not acknowledged what it got.
    limit = time.monotonic() + HANG_S
    while True:
        try:
            client.do("subscribe", name="b", topic=topic, subscription="s", kind="exclusive")
            break
        except DanubeFailed:
            assert time.monotonic() < limit, "who has gone keeps others out"
    assert [one.payload for one in client.take("b")] == [b"1"]


def test_a_standby_takes_over_with_what_was_not_acknowledged(
    client: DanubeProcess, grpc_broker: BrokerProcess, topic: str
) -> None:
    client.do("open_producer", name="p", topic=topic)
    with danube_client(grpc_broker.grpc_url) as active:
        active.do("subscribe", name="a", topic=topic, subscription="s", kind="failover")
        client.do("subscribe", name="b", topic=topic, subscription="s", kind="failover")
        for number in range(5):
            client.send("p", str(number).encode())
        assert len(active.take("a", 5, ack=False)) == 5
    assert [int(one.payload) for one in client.take("b", 5)] == [0, 1, 2, 3, 4]


def test_a_client_whose_subscription_was_removed_subscribes_again_by_itself(
    client: DanubeProcess, grpc_broker: BrokerProcess, topic: str
) -> None:
    client.do("open_producer", name="p", topic=topic)
    client.do("subscribe", name="c", topic=topic, subscription="s")
    client.send("p", b"before")
    assert [one.payload for one in client.take("c")] == [b"before"]
    with danubius.blocking.connect(grpc_broker.url) as operator:
        operator.admin.delete_subscription(topic, "s", force=True)
        # It hears of it with its next question after its health, and begins at the end of the topic then.
        limit = time.monotonic() + HANG_S
        taken: list[Received] = []
        while not taken and time.monotonic() < limit:
            client.send("p", b"after")
            taken = client.take("c", timeout_s=10 * SOON_S)
        assert [one.payload for one in taken] == [b"after"]
        found = operator.admin.describe_subscription(topic, "s")
    assert found.consumers == ["c"]


def test_errors_say_what_is_wrong(client: DanubeProcess, topic: str) -> None:
    for action, code in (
        ({"do": "open_producer", "name": "p", "topic": "/default/a.b"}, "INVALID_ARGUMENT"),
        ({"do": "open_producer", "name": "p", "topic": "orders"}, "INVALID_ARGUMENT"),
        (
            {"do": "subscribe", "name": "c", "topic": topic, "subscription": "s"},
            "DanubeError",
        ),
        (
            {"do": "open_producer", "name": "p", "topic": "/not-there/t"},
            "NOT_FOUND",
        ),
        (
            {"do": "open_producer", "name": "p", "topic": topic, "subject": "orders"},
            "FAILED_PRECONDITION",
        ),
    ):
        with pytest.raises(DanubeFailed) as failed:
            client.do(**action)
        assert failed.value.code == code
        assert len(failed.value.message) > 15


def test_one_topic_is_not_reliable_and_unreliable(client: DanubeProcess, topic: str) -> None:
    client.do("open_producer", name="p", topic=topic, reliable=True)
    with pytest.raises(DanubeFailed) as failed:
        client.do("open_producer", name="q", topic=topic, reliable=False)
    assert failed.value.code == "FAILED_PRECONDITION"


def test_a_plain_producer_on_a_partitioned_topic_is_refused(
    client: DanubeProcess, topic: str
) -> None:
    client.do("open_producer", name="p", topic=topic, partitions=2)
    with pytest.raises(DanubeFailed) as failed:
        client.do("open_producer", name="q", topic=topic)
    assert failed.value.code == "UnrecoverableError"


def test_a_message_too_large_to_be_received_is_not_accepted(
    client: DanubeProcess, topic: str
) -> None:
    client.do("open_producer", name="p", topic=topic)
    client.do("subscribe", name="c", topic=topic, subscription="s")
    with pytest.raises(DanubeFailed) as failed:
        client.do("send_zeros", name="p", size=5 << 20)
    assert failed.value.code == "INVALID_ARGUMENT"
    largest = (4 << 20) - 1024
    client.do("send_zeros", name="p", size=largest)
    assert [len(one.payload) for one in client.take("c")] == [largest]
