"""A stream of Danube's clients over a broker without sockets or threads: what it may have open, and what it is sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from danubius.edge.grpc.bounds import OPEN_MESSAGES
from danubius.edge.grpc.data import attachment as module
from danubius.edge.grpc.data.attachment import LEFT, Attachment
from danubius.edge.grpc.data.consumer_book import Known
from danubius.errors import TopicDeleted
from danubius.model.policy import FailurePolicy
from danubius.model.subscription import SubscriptionType
from danubius.model.topic import Dispatch, TopicSpec
from danubius.record.encode import encode
from danubius.session.door import Door
from danubius.wire.commands import (
    Ack,
    CreateTopic,
    DeleteTopic,
    Flow,
    OpenProducer,
    Produce,
    Subscribe,
)
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from danubius.errors import DanubiusError

TOPIC = "/default/t"
KNOWN = Known(1, TOPIC, "s", "c", SubscriptionType.SHARED)


class Stream:
    """An attachment whose reader keeps what it is sent."""

    def __init__(self, bench: Any, tasks: asyncio.TaskGroup) -> None:
        self._bench = bench
        self.attachment = Attachment(Door(bench.node), KNOWN, "http://here", lambda _: None, "test")
        self.sent: list[Any] = []
        self.task = tasks.create_task(self._run())

    async def _run(self) -> DanubiusError:
        await self.attachment.open(FailurePolicy())
        return await self.attachment.deliver(self._write)

    async def _write(self, message: Any) -> None:
        self.sent.append(message)

    async def settle(self) -> None:
        """Let the loop and the disk work until there is nothing left to do."""
        for _ in range(20):
            self._bench.settle()
            await asyncio.sleep(0)
        if self.attachment._late is not None:
            # As its timer would; what is freed by then goes back.
            self.attachment._late.cancel()
            self.attachment._grant_late()
            await self.settle()

    def offsets(self) -> list[int]:
        return [message.msg_id.topic_offset for message in self.sent]


@pytest.fixture
async def stream(bench: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stream]:
    monkeypatch.setattr(
        module, "GRANT_S", HANG_S
    )  # `settle` does what its timer would, and nothing else does
    bench.connect().call(CreateTopic(TOPIC, TopicSpec()))
    async with asyncio.TaskGroup() as tasks:
        made = Stream(bench, tasks)
        await made.settle()
        yield made
        if not made.task.done():
            made.attachment.close(LEFT)


async def test_no_more_is_open_than_may_be(bench: Any, stream: Stream) -> None:
    bench.connect().publish(TOPIC, [b"%d" % number for number in range(100)])
    await stream.settle()
    assert stream.offsets() == list(range(OPEN_MESSAGES))
    acked = 0
    while acked < 100:
        assert stream.attachment.holds(acked)
        stream.attachment.ack(acked)
        acked += 1
        await stream.settle()
        assert acked < len(stream.sent) <= acked + OPEN_MESSAGES or acked == 100
    assert [message.payload for message in stream.sent] == [b"%d" % one for one in range(100)]
    assert bench.shard.topics[TOPIC].subscriptions["s"].cursor.floor == 100


async def test_what_comes_again_takes_no_more_room(bench: Any, stream: Stream) -> None:
    bench.connect().publish(TOPIC, [b"%d" % number for number in range(OPEN_MESSAGES + 1)])
    await stream.settle()
    assert len(stream.sent) == OPEN_MESSAGES
    for _ in range(2 * OPEN_MESSAGES):
        stream.attachment.nack(0, 0, "")
        await stream.settle()
    assert stream.offsets().count(0) == 1 + 2 * OPEN_MESSAGES
    stream.attachment.ack(0)
    await stream.settle()
    assert stream.offsets()[-1] == OPEN_MESSAGES


async def test_large_messages_are_not_stuck_behind_their_bytes(bench: Any, stream: Stream) -> None:
    for _ in range(8):
        bench.connect().publish(TOPIC, [bytes(400_000)])
    await stream.settle()
    assert stream.offsets() == list(range(8))


async def test_more_may_be_open_as_soon_as_the_subscription_is_told_so(
    bench: Any, stream: Stream
) -> None:
    subscription = bench.shard.topics[TOPIC].subscriptions["s"]
    subscription.failure = FailurePolicy(unacked_messages_max=30)
    bench.connect().publish(TOPIC, [b"x"] * 50)
    await stream.settle()
    assert len(stream.sent) == 30


async def test_room_is_found_again_when_others_acknowledge(
    bench: Any, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STALLED_S", 0.01)
    bench.connect().publish(TOPIC, [b"%d" % number for number in range(2 * OPEN_MESSAGES)])
    await stream.settle()
    assert len(stream.sent) == OPEN_MESSAGES
    other = bench.connect()
    handle = other.call(Subscribe(TOPIC, "s", SubscriptionType.SHARED, "other")).handle
    other.call(Ack(handle, [(0, OPEN_MESSAGES)]))
    while len(stream.sent) < 2 * OPEN_MESSAGES:
        await stream.settle()
        await asyncio.sleep(LOOK_S)
    assert stream.offsets() == list(range(2 * OPEN_MESSAGES))


async def test_what_was_not_acknowledged_goes_to_others_when_it_leaves(
    bench: Any, stream: Stream
) -> None:
    bench.connect().publish(TOPIC, [b"a", b"b"])
    await stream.settle()
    other = bench.connect()
    handle = other.call(Subscribe(TOPIC, "s", SubscriptionType.SHARED, "other")).handle
    other.ask(Flow(handle, 10, 1000))
    stream.attachment.ack(0)
    stream.attachment.close(LEFT)
    await stream.settle()
    delivered = [one for one, _ in other.sent if type(one).__name__ == "Deliver"]
    assert [(one.first, one.end) for one in delivered] == [(1, 2)]


async def test_it_ends_with_its_topic(bench: Any, stream: Stream) -> None:
    bench.connect().call(DeleteTopic(TOPIC))
    await stream.settle()
    assert isinstance(await stream.task, TopicDeleted)


async def test_a_burst_on_a_non_reliable_topic_is_received_whole(bench: Any) -> None:
    bench.connect().call(CreateTopic(TOPIC, TopicSpec(Dispatch.NON_RELIABLE)))
    async with asyncio.TaskGroup() as tasks:
        stream = Stream(bench, tasks)
        await stream.settle()
        peer = bench.connect()
        opened = peer.call(OpenProducer(TOPIC, "p", TopicSpec(Dispatch.NON_RELIABLE)))
        batch = encode(
            [b"%d" % number for number in range(5_000)],
            publish_time_us=1,
            producer_id=opened.producer_id,
            producer_epoch=opened.producer_epoch,
        )
        peer.call(Produce(opened.handle), batch)
        await stream.settle()
        stream.attachment.close(LEFT)
    assert len(stream.sent) == 5_000
