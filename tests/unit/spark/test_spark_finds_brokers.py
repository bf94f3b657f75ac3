"""Spark's client and several brokers: topics are asked of who serves them, also when that changes during a read."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pytest

from danubius.client.core.address import parse_urls
from danubius.errors import BrokerUnavailable, TopicMoved
from danubius.model import admin, admin_replies
from danubius.model.admin_codec import encode_reply, encode_request
from danubius.model.subscription import LATEST, AtOffset
from danubius.record.scan import iter_batches
from danubius.spark.connection.blocking_link import Patience
from danubius.spark.connection.fetching import FetchClient, Wanted
from danubius.wire.commands import (
    Administer,
    Administered,
    Error,
    Fetch,
    Fetched,
    Hello,
    Lookup,
    OffsetResolved,
    ResolveOffset,
)
from patience import HANG_S
from unit.client.scripted_broker import serve, stored_batch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from danubius.wire.frame import Frame
    from unit.client.scripted_broker import Peer, ScriptedBroker

TOPIC = "/default/t"
OTHER = "/default/other"
END = 6
NOBODY = "danube://127.0.0.1:9"
ReplyT = TypeVar("ReplyT")


def resolve(peer: Peer, frame: Frame) -> None:
    peer.send(OffsetResolved(END, 0, END), frame.correlation_id)


def fetch_one(peer: Peer, frame: Frame) -> None:
    assert isinstance(frame.command, Fetch)
    assert isinstance(frame.command.start, AtOffset)
    at = frame.command.start.offset
    peer.send(Fetched(at, at + 1, 0, END), frame.correlation_id, stored_batch(at, [b"%d" % at]))


@asynccontextmanager
async def serve_cluster(count: int) -> AsyncGenerator[list[ScriptedBroker]]:
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(serve()) for _ in range(count)]
        for broker in brokers:
            broker.version, broker.name, broker.is_strict = 2, broker.url, True
        yield brokers


def place(brokers: list[ScriptedBroker], topic: str, home: ScriptedBroker) -> None:
    for broker in brokers:
        broker.places[topic] = home.url
    del home.places[topic]


async def in_thread(work: Callable[[], ReplyT]) -> ReplyT:
    async with asyncio.timeout(HANG_S):
        return await asyncio.to_thread(work)


def serving(
    broker: ScriptedBroker, handler: Callable[[Peer, Frame], None]
) -> Callable[[Peer, Frame], None]:
    """The handler for the topics that the broker serves; for others it answers what it always does."""

    def handle(peer: Peer, frame: Frame) -> None:
        if getattr(frame.command, "topic", None) in broker.places:
            broker.answer(peer, frame)
        else:
            handler(peer, frame)

    return handle


async def test_topics_are_asked_of_their_brokers_in_one_call() -> None:
    async with serve_cluster(2) as (first, second):
        place([first, second], OTHER, second)
        for broker in (first, second):
            broker.on[ResolveOffset] = serving(broker, resolve)
        client = FetchClient(parse_urls(f"{NOBODY},{first.url}"), Patience())
        commands = [ResolveOffset(topic, LATEST) for topic in (TOPIC, OTHER)]

        def ask() -> list[int]:
            answers = client.request_all(commands)
            return [
                client.check(command, answer, OffsetResolved).offset
                for command, answer in zip(commands, answers, strict=True)
            ]

        assert await in_thread(ask) == [END, END]
        assert await in_thread(ask) == [END, END]
        assert len(first.commands(ResolveOffset)) == 3, "the place is remembered"
        assert len(second.commands(Hello)) == len(first.commands(Lookup)) == 1
        await in_thread(client.close)


async def test_a_move_in_the_middle_of_a_read_loses_nothing() -> None:
    async with serve_cluster(2) as (first, second):
        for broker in (first, second):
            broker.on[Fetch] = serving(broker, fetch_one)
        client = FetchClient(parse_urls(first.url), Patience())
        reading = client.fetch(Wanted(TOPIC, 0, END, 1 << 20))

        def read_rest() -> list[bytes]:
            return [payload for part in reading for payload in payloads(part.data)]

        seen = payloads((await in_thread(lambda: next(reading))).data)
        place([first, second], TOPIC, second)
        seen += await in_thread(read_rest)
        assert seen == [b"%d" % at for at in range(END)]
        assert second.commands(Fetch)
        await in_thread(client.close)


async def test_the_end_of_a_broker_in_the_middle_of_a_read_loses_nothing() -> None:
    async with serve_cluster(2) as (first, second), AsyncExitStack() as third_life:
        third = await third_life.enter_async_context(serve())
        third.version, third.name, third.is_strict = 2, third.url, True
        brokers = [first, second, third]
        place(brokers, TOPIC, third)
        for broker in brokers:
            broker.on[Fetch] = serving(broker, fetch_one)
        client = FetchClient(parse_urls(first.url), Patience())
        reading = client.fetch(Wanted(TOPIC, 0, END, 1 << 20))
        seen = payloads((await in_thread(lambda: next(reading))).data)
        place(brokers, TOPIC, second)
        await third_life.aclose()
        seen += await in_thread(lambda: [one for part in reading for one in payloads(part.data)])
        assert seen == [b"%d" % at for at in range(END)]
        await in_thread(client.close)


async def test_operators_questions_follow_their_topic() -> None:
    async with serve_cluster(2) as (first, second):
        place([first, second], TOPIC, second)
        request = admin.ListLedgers(topic=TOPIC)

        def refuse(peer: Peer, frame: Frame) -> None:
            peer.send(Error.of(TopicMoved("not here")), frame.correlation_id)

        def tell(peer: Peer, frame: Frame) -> None:
            reply = encode_reply(admin_replies.LedgersListed(ledgers=[]))
            peer.send(Administered(msgspec.Raw(reply)), frame.correlation_id)

        first.on[Administer], second.on[Administer] = refuse, tell
        client = FetchClient(parse_urls(first.url), Patience())
        command = Administer(msgspec.Raw(encode_request(request)))
        assert await in_thread(lambda: client.request(command, Administered))
        await in_thread(client.close)


async def test_brokers_that_name_each_other_are_given_up() -> None:
    async with serve_cluster(2) as (first, second):
        first.places[TOPIC], second.places[TOPIC] = second.url, first.url
        client = FetchClient(parse_urls(first.url), Patience(reconnect_s=0.3))
        with pytest.raises(TopicMoved):
            await in_thread(lambda: client.request(ResolveOffset(TOPIC, LATEST), OffsetResolved))
        await in_thread(client.close)


def test_when_no_host_answers_all_are_named() -> None:
    client = FetchClient(parse_urls("danube://127.0.0.1:9,127.0.0.1:10"), Patience(connect_s=0.3))
    with pytest.raises(BrokerUnavailable, match=r"danube://127\.0\.0\.1:9,127\.0\.0\.1:10"):
        client.request(ResolveOffset(TOPIC, LATEST), OffsetResolved)


def payloads(data: memoryview) -> list[bytes]:
    return [payload for batch in iter_batches(data, verify=False) for payload in batch.payloads()]
