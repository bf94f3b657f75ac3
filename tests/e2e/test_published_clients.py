"""Danube's published clients for Python, Java and Go, unmodified: each does the same, and the broker has what they did.

`make test-danube-clients` builds the programs and runs this, with those clients that can be had. Java's client has no
keys, no Key-Shared and no nack.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import pytest

import danubius.blocking
from e2e.danube_calls import calling
from e2e.danube_process import DanubeFailed, DanubeProcess, Received, danube_client
from e2e.danube_programs import commands
from patience import HANG_S, LOOK_S, SOON_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

PROGRAMS: Final = commands()
WITH_KEYS: Final = [language for language in PROGRAMS if language != "java"]
TYPES: Final = [
    (language, kind)
    for language in PROGRAMS
    for kind in ("exclusive", "shared", "failover", "key_shared")
    if language in WITH_KEYS or kind != "key_shared"
]
HEALTH_CHECK_S: Final = 5.0
"""How often these clients ask whether they are still known."""
SOME_S: Final = 10 * SOON_S
"""For what is there by now, of one consumer among several: what is not comes with the next look."""
CALLING: Final = b"is anybody there?"

pytestmark = pytest.mark.danube_clients
each_client = pytest.mark.parametrize("language", list(PROGRAMS))
each_with_keys = pytest.mark.parametrize("language", WITH_KEYS)


@pytest.fixture
def client(grpc_broker: BrokerProcess, language: str) -> Iterator[DanubeProcess]:
    with danube_client(grpc_broker.grpc_url, PROGRAMS[language]) as process:
        yield process


@pytest.fixture
def operator(grpc_broker: BrokerProcess) -> Iterator[danubius.blocking.Client]:
    with danubius.blocking.connect(grpc_broker.url) as connected:
        yield connected


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def set_policy(broker: BrokerProcess, topic: str, **policy: object) -> None:
    """As an operator of Danube sets it."""

    async def ask() -> None:
        async with calling(broker.admin_port) as admin:
            of = {"topic": topic, "subscription": "s", "failure_policy": policy}
            await admin("TopicAdmin/SetSubscriptionFailurePolicy", **of)

    asyncio.run(ask())


def hear(client: DanubeProcess, topic: str) -> None:
    """Wait until the streams of a topic that keeps nothing are open: something came through each."""
    seen: set[str] = set()
    until = time.monotonic() + HANG_S
    while len(seen) < 3 if "split" in topic else not seen:
        assert time.monotonic() < until, seen
        for _ in range(3):
            client.send("p", CALLING)
        seen |= {one.topic for one in client.take("c", 3, timeout_s=SOME_S)}


@pytest.mark.parametrize(("language", "kind"), TYPES)
@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("reliable", [True, False])
def test_what_is_sent_is_received_and_acknowledged(
    grpc_broker: BrokerProcess,
    client: DanubeProcess,
    operator: danubius.blocking.Client,
    topic: str,
    kind: str,
    partitions: int,
    reliable: bool,
) -> None:
    topic += "-split" if partitions else ""
    client.do("open_producer", name="p", topic=topic, reliable=reliable, partitions=partitions)
    client.do("subscribe", name="c", topic=topic, subscription="s", kind=kind)
    if not reliable:
        hear(client, topic)
    for payload in numbered(12):
        client.send("p", payload, attributes={"colour": "blue"})
    taken: list[Received] = []
    while len(taken) < 12:
        taken += [one for one in client.take("c", 1) if one.payload != CALLING]
    assert sorted(one.payload for one in taken) == sorted(numbered(12))
    assert {one.attributes["colour"] for one in taken} == {"blue"}
    names = [f"{topic}-part-{one}" for one in range(3)] if partitions else [topic]
    assert sorted({one.topic for one in taken}) == names
    if reliable:
        each = 12 // len(names)
        for name in names:
            assert [one.offset for one in taken if one.topic == name] == list(range(each))
    else:
        assert {one.offset for one in taken} == {0}
    found = operator.describe_topic(topic)
    assert operator.admin.describe_topic(topic).partitions == partitions
    assert [one.backlog for one in found.subscriptions] == [0]


@each_client
def test_one_topic_is_shared_with_the_clients_of_this_broker(
    client: DanubeProcess, operator: danubius.blocking.Client, topic: str
) -> None:
    client.do("open_producer", name="p", topic=topic)
    client.do("subscribe", name="c", topic=topic, subscription="theirs")
    with operator.consumer(topic, subscription="ours", start="earliest") as consumer:
        client.send("p", b"from them", attributes={"a": "b"})
        message = consumer.receive(timeout=HANG_S)
        assert (message.payload, message.attributes) == (b"from them", {"a": "b"})
        consumer.ack(message)
    with operator.producer(topic) as producer:
        producer.send(b"from us", attributes={"c": "d"})
    taken = client.take("c", 2)
    assert [one.payload for one in taken] == [b"from them", b"from us"]
    assert taken[1].attributes == {"c": "d"}


@each_client
def test_shared_consumers_have_every_message_between_them(
    client: DanubeProcess, operator: danubius.blocking.Client, topic: str
) -> None:
    client.do("open_producer", name="p", topic=topic)
    for name in ("a", "b"):
        client.do("subscribe", name=name, topic=topic, subscription="s", kind="shared")
    for payload in numbered(20):
        client.send("p", payload)
    taken: list[bytes] = []
    while len(taken) < 20:
        for name in ("a", "b"):
            taken += [one.payload for one in client.take(name, 5, timeout_s=SOME_S)]
    assert sorted(taken) == sorted(numbered(20))
    assert operator.describe_topic(topic).subscriptions[0].backlog == 0


@each_client
def test_a_standby_takes_over_what_was_not_acknowledged(
    grpc_broker: BrokerProcess, language: str, client: DanubeProcess, topic: str
) -> None:
    client.do("open_producer", name="p", topic=topic)
    with danube_client(grpc_broker.grpc_url, PROGRAMS[language]) as active:
        active.do("subscribe", name="active", topic=topic, subscription="s", kind="failover")
        client.do("subscribe", name="standby", topic=topic, subscription="s", kind="failover")
        for payload in numbered(4):
            client.send("p", payload)
        (first,) = active.take("active", 1)
        assert first.payload == b"0"
        active.take("active", 1, ack=False)
    assert [one.payload for one in client.take("standby", 3)] == numbered(4)[1:]


@each_client
def test_a_second_exclusive_consumer_is_refused(client: DanubeProcess, topic: str) -> None:
    client.do("open_producer", name="p", topic=topic)
    client.do("subscribe", name="a", topic=topic, subscription="s", kind="exclusive")
    with pytest.raises(DanubeFailed) as failed:
        client.do("subscribe", name="b", topic=topic, subscription="s", kind="exclusive")
    assert failed.value.code == "PERMISSION_DENIED"


@each_client
def test_what_was_not_acknowledged_comes_again_to_who_comes_back(
    client: DanubeProcess, topic: str
) -> None:
    client.do("open_producer", name="p", topic=topic)
    client.do("subscribe", name="c", topic=topic, subscription="s", kind="exclusive")
    for payload in numbered(3):
        client.send("p", payload)
    first, second, _ = client.take("c", 3, ack=False)
    client.do("ack", name="c", place=first.place)
    client.do("close_consumer", name="c")
    client.do("subscribe", name="c", topic=topic, subscription="s", kind="exclusive")
    again = client.take("c", 2)
    assert [one.payload for one in again] == [b"1", b"2"]
    assert again[0].offset == second.offset


@each_with_keys
def test_keys_arrive_and_have_one_consumer(client: DanubeProcess, topic: str) -> None:
    client.do("open_producer", name="p", topic=topic)
    for name in ("a", "b"):
        client.do("subscribe", name=name, topic=topic, subscription="s", kind="key_shared")
    for number, payload in enumerate(numbered(40)):
        client.send("p", payload, key=f"k{number % 8}")
    owners: dict[str | None, set[str]] = {}
    count = 0
    while count < 40:
        for name in ("a", "b"):
            for one in client.take(name, 10, timeout_s=SOME_S):
                owners.setdefault(one.key, set()).add(name)
                count += 1
    assert sorted(map(str, owners)) == [f"k{number}" for number in range(8)]
    assert all(len(names) == 1 for names in owners.values())


@each_with_keys
def test_a_nack_brings_a_message_again_and_then_to_the_dead_letters(
    grpc_broker: BrokerProcess,
    client: DanubeProcess,
    operator: danubius.blocking.Client,
    topic: str,
) -> None:
    grave = f"{topic}-grave"
    client.do("open_producer", name="p", topic=topic)
    client.do("open_producer", name="g", topic=grave)
    set_policy(grpc_broker, topic, max_redelivery_count=1, dead_letter_topic=grave)
    client.do("subscribe", name="c", topic=topic, subscription="s")
    client.do("subscribe", name="letters", topic=grave, subscription="s")
    client.send("p", b"bad", attributes={"colour": "blue"})
    for _ in range(2):
        (one,) = client.take("c", 1, ack=False)
        client.do("nack", name="c", place=one.place, delay_ms=0, reason="it is bad")
    (letter,) = client.take("letters", 1)
    check_letter(letter.attributes, topic, "it is bad", "2")
    assert (letter.payload, letter.topic) == (b"bad", grave)
    assert letter.attributes["colour"] == "blue"
    client.send("p", b"good")
    assert [one.payload for one in client.take("c", 1)] == [b"good"]
    (listed,) = operator.admin.list_dead_letters(topic, "s")
    assert (listed.original_offset, listed.attempts) == (0, 2)


@each_client
def test_what_is_never_acknowledged_ends_with_the_dead_letters(
    grpc_broker: BrokerProcess, client: DanubeProcess, topic: str
) -> None:
    grave = f"{topic}-grave"
    client.do("open_producer", name="p", topic=topic)
    client.do("open_producer", name="g", topic=grave)
    set_policy(
        grpc_broker, topic, max_redelivery_count=0, ack_timeout_ms=300, dead_letter_topic=grave
    )
    client.do("subscribe", name="c", topic=topic, subscription="s")
    client.do("subscribe", name="letters", topic=grave, subscription="s")
    client.send("p", b"too late")
    client.take("c", 1, ack=False)
    (letter,) = client.take("letters", 1)
    check_letter(letter.attributes, topic, letter.attributes["x-failure-reason"], "1")


def check_letter(attributes: dict[str, str], topic: str, reason: str, attempt: str) -> None:
    assert attributes["x-original-topic"] == topic
    assert attributes["x-original-subscription"] == "s"
    assert attributes["x-original-topic-offset"] == "0"
    assert attributes["x-original-broker-addr"].startswith("http://127.0.0.1:")
    assert attributes["x-poison-policy"] == "dead_letter"
    assert attributes["x-failure-reason"] == reason
    assert attributes["x-delivery-attempt"] == attempt


@each_client
def test_what_cannot_be_is_refused_with_a_sentence(
    client: DanubeProcess, operator: danubius.blocking.Client, language: str, topic: str
) -> None:
    no_topic = {
        "python": ("DanubeError", "no partitions found"),
        "java": ("NOT_FOUND", "does not exist"),
        "go": ("error", "no partitions found"),
    }[language]
    for command, code, text in (
        ({"do": "open_producer", "topic": "/nowhere/t"}, "NOT_FOUND", "namespace 'nowhere'"),
        ({"do": "open_producer", "topic": "/default/a.b"}, "INVALID_ARGUMENT", "topic"),
        ({"do": "open_producer", "topic": topic, "subject": "orders"}, "FAILED_PRECONDITION", "not found"),
        ({"do": "subscribe", "topic": topic, "subscription": "s"}, *no_topic),
    ):  # fmt: skip
        with pytest.raises(DanubeFailed, match=text) as failed:
            client.do(name="p", **command)
        assert failed.value.code == code, command
    assert "nowhere" not in {one.namespace for one in operator.admin.list_namespaces()}
    client.do("open_producer", name="p", topic=topic, reliable=True)
    with pytest.raises(DanubeFailed) as failed:
        client.do("open_producer", name="q", topic=topic, reliable=False)
    assert failed.value.code == "FAILED_PRECONDITION"


@each_client
def test_a_health_check_finds_a_consumer_well_and_leads_it_to_a_topic_made_anew(
    client: DanubeProcess, operator: danubius.blocking.Client, topic: str
) -> None:
    client.do("open_producer", name="p", topic=topic)
    client.do("subscribe", name="c", topic=topic, subscription="s")
    client.send("p", b"before")
    assert [one.payload for one in client.take("c", 1)] == [b"before"]
    time.sleep(HEALTH_CHECK_S + 1)
    client.send("p", b"well")
    assert [one.payload for one in client.take("c", 1)] == [b"well"]
    operator.admin.delete_topic(topic)
    operator.create_topic(topic)
    until = time.monotonic() + HANG_S
    while "s" not in {one.name for one in operator.describe_topic(topic).subscriptions}:
        assert time.monotonic() < until, "it did not subscribe again"
        time.sleep(LOOK_S)
    with operator.producer(topic) as producer:
        producer.send(b"anew")
    assert [(one.payload, one.offset) for one in client.take("c", 1)] == [(b"anew", 0)]


def send_at_last(client: DanubeProcess, payload: bytes) -> None:
    """As often as it takes: these clients hand on UNAVAILABLE when their own retries are over."""
    until = time.monotonic() + HANG_S
    while True:
        try:
            return client.send("p", payload)
        except DanubeFailed as error:
            if error.code != "UNAVAILABLE" or time.monotonic() > until:
                raise


@each_client
def test_both_ends_go_on_after_the_broker_was_killed(
    start_broker: StartBroker, language: str, topic: str
) -> None:
    broker = start_broker(grpc=True)
    with danube_client(broker.grpc_url, PROGRAMS[language]) as client:
        client.do("open_producer", name="p", topic=topic)
        client.do("subscribe", name="c", topic=topic, subscription="s")
        client.send("p", b"before")
        (before,) = client.take("c", 1)
        assert before.payload == b"before"
        broker.kill()
        broker.start()
        send_at_last(client, b"after")
        while (one := client.take("c", 1)[0]).payload == b"before":
            pass  # acknowledged within the last 50 ms
        assert (one.payload, one.offset) == (b"after", 1)
