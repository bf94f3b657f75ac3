"""Several tasks on one consumer or reader, and tasks that stop waiting."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.model.subscription import AtOffset
from danubius.wire.commands import Fetch, Fetched, OffsetResolved, ResolveOffset
from patience import HANG_S, SOON_S
from unit.client.scripted_broker import stored_batch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from danubius.wire.frame import Frame
    from unit.client.scripted_broker import Peer, ScriptedBroker

TOPIC = "/default/t"
DELIVERIES = 6
DELIVERY_MESSAGES = 5
ALL_OFFSETS = list(range(DELIVERIES * DELIVERY_MESSAGES))


async def receive_one(consumer: danubius.Consumer) -> list[int]:
    return [(await consumer.receive(timeout=HANG_S)).offset]


async def receive_next(consumer: danubius.Consumer) -> list[int]:
    return [(await anext(consumer)).offset]


async def receive_some(consumer: danubius.Consumer) -> list[int]:
    return (await consumer.receive_batch(timeout=HANG_S, max_messages=2)).offsets


@pytest.mark.parametrize("take", [receive_one, receive_next, receive_some])
async def test_tasks_that_share_a_consumer_get_every_message_once(
    broker: ScriptedBroker, take: Callable[[danubius.Consumer], Awaitable[list[int]]]
) -> None:
    seen: list[int] = []
    is_all_there = asyncio.Event()

    async def work(consumer: danubius.Consumer) -> None:
        while True:
            seen.extend(await take(consumer))
            if len(seen) >= len(ALL_OFFSETS):
                is_all_there.set()
            await asyncio.sleep(0)

    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
        asyncio.timeout(HANG_S),
        asyncio.TaskGroup() as tasks,
    ):
        workers = [tasks.create_task(work(consumer)) for _ in range(3)]
        await asyncio.sleep(0)  # all of them wait when the first delivery comes
        for first in range(0, len(ALL_OFFSETS), DELIVERY_MESSAGES):
            broker.deliver(first, [b"x"] * DELIVERY_MESSAGES)
        await is_all_there.wait()
        for worker in workers:
            worker.cancel()
    assert sorted(seen) == ALL_OFFSETS


def serve_fetches(broker: ScriptedBroker, end: int) -> None:
    """Ten messages a fetch, up to `end`; then silence."""
    broker.on[ResolveOffset] = lambda peer, frame: peer.send(
        OffsetResolved(0, 0, end), frame.correlation_id
    )

    def fetch(peer: Peer, frame: Frame) -> None:
        assert isinstance(frame.command, Fetch)
        assert isinstance(frame.command.start, AtOffset)
        at = frame.command.start.offset
        if at < end:
            peer.send(
                Fetched(at, at + 10, 0, end), frame.correlation_id, stored_batch(at, [b"x"] * 10)
            )

    broker.on[Fetch] = fetch


async def test_tasks_that_share_a_reader_get_every_message_once(broker: ScriptedBroker) -> None:
    serve_fetches(broker, end=100)

    offsets: list[int] = []

    async def work(reader: danubius.Reader) -> None:
        async for message in reader:
            offsets.append(message.offset)
            await asyncio.sleep(0)

    async with (
        danubius.connect(broker.url) as client,
        client.reader(TOPIC, stop_at_end=True) as reader,
        asyncio.timeout(HANG_S),
        asyncio.TaskGroup() as tasks,
    ):
        for _ in range(3):
            tasks.create_task(work(reader))
    assert sorted(offsets) == list(range(100))


async def test_one_timeout_covers_a_wait_that_others_interrupt(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
        asyncio.timeout(HANG_S),
        asyncio.TaskGroup() as tasks,
    ):
        winner = tasks.create_task(consumer.receive_batch())
        await asyncio.sleep(0)
        broker.deliver(0, [b"x"])
        with pytest.raises(danubius.ReceiveTimeout, match=r"within 0\.05 s"):
            await consumer.receive(timeout=SOON_S)
        assert winner.result().offsets == [0]


async def test_a_cancelled_iteration_loses_no_message(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        broker.deliver(0, [b"x"] * 3000)
        offsets = [(await consumer.receive(timeout=HANG_S)).offset]
        while len(offsets) < 3000:
            # The task runs until its first await: then it is cancelled, wherever that is.
            step = tasks.create_task(consumer.__anext__())
            await asyncio.sleep(0)
            if step.done():
                offsets.append(step.result().offset)
            else:
                step.cancel()
                await asyncio.wait((step,))
    assert offsets == list(range(3000))
