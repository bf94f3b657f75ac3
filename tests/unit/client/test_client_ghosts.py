"""Nothing stays on the broker that nobody holds: attachments that were cancelled, late, or closed meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import danubius
from danubius.wire.commands import CloseConsumer, CloseProducer, Flow, OpenProducer, Subscribe
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from danubius.wire.commands import AnyCommand
    from danubius.wire.frame import Frame
    from unit.client.scripted_broker import Peer, ScriptedBroker

TOPIC = "/default/t"


async def open_producer(client: danubius.Client) -> object:
    return await client.producer(TOPIC)


async def open_consumer(client: danubius.Client) -> object:
    return await client.consumer(TOPIC, subscription="s")


KINDS = [
    pytest.param(open_producer, OpenProducer, CloseProducer, id="producer"),
    pytest.param(open_consumer, Subscribe, CloseConsumer, id="consumer"),
]


def hold_back(broker: ScriptedBroker, kind: type[AnyCommand]) -> list[Callable[[], None]]:
    """Answer commands of this kind only when the test says so."""
    held: list[Callable[[], None]] = []

    def keep(peer: Peer, frame: Frame) -> None:
        held.append(lambda: broker.answer(peer, frame))

    broker.on[kind] = keep
    return held


@pytest.mark.parametrize(("open_it", "kind", "close_kind"), KINDS)
async def test_a_cancelled_opening_is_closed_when_its_answer_comes(
    broker: ScriptedBroker,
    open_it: Callable[[danubius.Client], Coroutine[Any, Any, object]],
    kind: type[AnyCommand],
    close_kind: type[CloseConsumer | CloseProducer],
) -> None:
    held = hold_back(broker, kind)
    async with danubius.connect(broker.url) as client, asyncio.timeout(HANG_S):
        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(open_it(client))
            await broker.arrived(kind)
            opening.cancel()
        held[0]()
        await broker.arrived(close_kind)
    assert [
        frame.command.handle for frame in broker.received if isinstance(frame.command, close_kind)
    ] == [1]


@pytest.mark.parametrize(("open_it", "kind", "close_kind"), KINDS)
async def test_an_opening_that_took_too_long_is_closed_when_its_answer_comes(
    broker: ScriptedBroker,
    open_it: Callable[[danubius.Client], Coroutine[Any, Any, object]],
    kind: type[AnyCommand],
    close_kind: type[CloseConsumer | CloseProducer],
) -> None:
    held = hold_back(broker, kind)
    async with danubius.connect(broker.url, request_timeout=0.5) as client, asyncio.timeout(HANG_S):
        with pytest.raises(danubius.DeadlineExceeded):
            await open_it(client)
        held[0]()
        await broker.arrived(close_kind)


@pytest.mark.parametrize(("open_it", "kind", "close_kind"), KINDS)
async def test_an_opening_cancelled_in_the_turn_of_its_answer_is_closed(
    broker: ScriptedBroker,
    open_it: Callable[[danubius.Client], Coroutine[Any, Any, object]],
    kind: type[AnyCommand],
    close_kind: type[CloseConsumer | CloseProducer],
) -> None:
    async with danubius.connect(broker.url) as client, asyncio.timeout(HANG_S):
        link = client._connections.home
        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(open_it(client))
            await asyncio.sleep(0)
            session = link.session_or_none
            assert session is not None
            while not (session.producers or session.consumers):  # noqa: ASYNC110  # the very turn
                await asyncio.sleep(0)
            assert not opening.done()
            opening.cancel()
        assert opening.cancelled()
        await broker.arrived(close_kind)
        assert not session.producers
        assert not session.consumers


async def test_a_consumer_closed_while_it_comes_back_leaves_no_ghost(
    broker: ScriptedBroker,
) -> None:
    async with danubius.connect(broker.url) as client, asyncio.timeout(HANG_S):
        consumer = await client.consumer(TOPIC, subscription="s")
        await broker.arrived(Flow)
        held = hold_back(broker, Subscribe)
        broker.peers[0].drop()
        await broker.arrived(Subscribe, 2)
        await consumer.close()
        held[0]()
        await broker.arrived(CloseConsumer)
    assert broker.commands(CloseConsumer) == [CloseConsumer(2)]
    assert len(broker.commands(Flow)) == 1
