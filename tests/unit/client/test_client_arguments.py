"""Wrong arguments are InvalidArgument or InvalidName, with a sentence; never an error of Python's insides."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import danubius
from danubius.client.core.address import parse_url
from danubius.client.options import parse_start
from danubius.wire.commands import Produce, Produced
from patience import HANG_S

if TYPE_CHECKING:
    from unit.client.scripted_broker import ScriptedBroker

TOPIC = "/default/t"


@pytest.mark.parametrize("url", ["danube://a..b", f"danube://{'x' * 64}", 5, None, b"danube://a"])
def test_an_address_that_no_resolver_takes_is_refused(url: Any) -> None:
    with pytest.raises(danubius.InvalidArgument, match="broker URL"):
        danubius.connect(url)


@pytest.mark.parametrize(
    "url", ["danube://my_host", "danube://[::1]:5", "danube://bücher.example", "danube://a.b."]
)
def test_addresses_that_resolvers_take_are_taken(url: str) -> None:
    assert parse_url(url).host


@pytest.mark.parametrize("start", [2**63, 2**70, -1, True, 1.5, None, "soon"])
def test_a_start_that_is_none_is_refused(start: Any) -> None:
    with pytest.raises(danubius.InvalidArgument, match=r"start is .*offset"):
        parse_start(start)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("producer", {"topic": 5}),
        ("producer", {"topic": None}),
        ("producer", {"topic": TOPIC, "name": 5}),
        ("consumer", {"topic": TOPIC, "subscription": None}),
        ("consumer", {"topic": b"/default/t", "subscription": "s"}),
        ("reader", {"topic": 5}),
    ],
    ids=str,
)
async def test_a_name_that_is_no_text_is_refused(
    broker: ScriptedBroker, kind: str, arguments: dict[str, Any]
) -> None:
    async with danubius.connect(broker.url) as client:
        with pytest.raises(danubius.InvalidName, match="must be a str"):
            getattr(client, kind)(**arguments)


@pytest.mark.parametrize(
    "settings",
    [
        {"linger": None},
        {"linger": "1"},
        {"linger": float("nan")},
        {"batch_bytes": 1.5},
        {"batch_records": "many"},
        {"buffer_bytes": None},
        {"compression": ["lz4"]},
    ],
    ids=str,
)
async def test_a_setting_of_the_wrong_kind_is_refused(
    broker: ScriptedBroker, settings: dict[str, Any]
) -> None:
    [name] = settings
    async with danubius.connect(broker.url) as client:
        with pytest.raises(danubius.InvalidArgument, match=f"{name} is"):
            client.producer(TOPIC, **settings)


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({"a": 5}, "the attribute 'a' is int, it must be str: use str(...)"),
        ({"a": b"x"}, "the attribute 'a' is bytes, it must be str: decode it with .decode()"),
        ({"a": None}, "the attribute 'a' is NoneType, it must be str: use str(...)"),
        ({7: "a"}, "the name of the attribute 7 is int, it must be str: use str(...)"),
        (5, "the attributes are int, they must be a mapping of str to str"),
        ([("a", "b")], "the attributes are list, they must be a mapping of str to str"),
    ],
)
async def test_what_is_wrong_with_attributes_is_said_in_words(
    broker: ScriptedBroker, attributes: Any, sentence: str
) -> None:
    async with danubius.connect(broker.url) as client, client.producer("/default/t") as producer:
        with pytest.raises(danubius.InvalidArgument) as one:
            await producer.send(b"x", attributes=attributes)
        with pytest.raises(danubius.InvalidArgument) as nowait:
            producer.send_nowait(b"x", attributes=attributes)
        with pytest.raises(danubius.InvalidArgument) as many:
            await producer.send_many([b"x", b"y"], attributes=[{"a": "b"}, attributes])
    assert one.value.message == nowait.value.message == sentence
    assert many.value.message == f"message 1: {sentence}"


@pytest.mark.parametrize("attributes", [{"a": "\ud800"}, {"\udcff": "a"}, {"a": 5}, 5])
async def test_attributes_that_are_no_text_are_refused(
    broker: ScriptedBroker, attributes: Any
) -> None:
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:
        with pytest.raises(danubius.InvalidArgument, match="attribute"):
            await producer.send(b"x", attributes=attributes)
        with pytest.raises(danubius.InvalidArgument, match="attribute"):
            await producer.send_many([b"x"], attributes=[attributes])


async def test_send_many_takes_what_has_a_length_and_refuses_the_rest(
    broker: ScriptedBroker,
) -> None:
    broker.on[Produce] = lambda peer, frame: peer.send(Produced(0), frame.correlation_id)
    wrong: list[Any] = [(b"x" for _ in range(3)), b"xyz", "xyz", 5, None, [5], ["text"]]
    async with danubius.connect(broker.url) as client, client.producer(TOPIC) as producer:
        for payloads in wrong:
            with pytest.raises(danubius.InvalidArgument):
                await producer.send_many(payloads)
        with pytest.raises(danubius.InvalidArgument, match="keys is a generator"):
            keys: Any = (b"k" for _ in range(1))
            await producer.send_many([b"x"], keys=keys)
        given: Any = {b"a": 1, b"b": 2}.keys()
        assert len(await producer.send_many(given)) == 2


async def test_only_what_was_received_can_be_acknowledged(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        wrong: list[Any] = [5, None, danubius.Receipt(TOPIC, 5)]
        for thing in wrong:
            for settle in (consumer.ack, consumer.ack_cumulative, consumer.nack):
                with pytest.raises(danubius.InvalidArgument, match="neither a message nor a batch"):
                    await settle(thing)
        for limit in (0, "all", 1.5):
            most: Any = limit
            with pytest.raises(danubius.InvalidArgument, match="max_messages"):
                await consumer.receive_batch(max_messages=most)


def test_without_pyarrow_to_arrow_says_what_to_install() -> None:
    code = """
import sys
sys.modules["pyarrow"] = None   # as if it were not installed
from danubius import InvalidArgument
from danubius.client.messages import ReceivedBatch
try:
    ReceivedBatch("/default/t", [], 0).to_arrow()
except InvalidArgument as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANG_S
    )
    assert "pip install 'danubius[arrow]'" in done.stdout
