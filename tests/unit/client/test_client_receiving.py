"""Consumers and readers against a broker that ends, forgets and drops them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.model.subscription import AtOffset
from danubius.wire.commands import (
    Ack,
    CloseConsumer,
    ConsumerClosed,
    Deliver,
    Fetch,
    Fetched,
    Flow,
    Hello,
    Nack,
    OffsetResolved,
    ResolveOffset,
    Subscribe,
)
from patience import HANG_S, SOON_S
from unit.client.scripted_broker import stored_batch

if TYPE_CHECKING:
    from danubius.wire.frame import Frame
    from unit.client.scripted_broker import Peer, ScriptedBroker

TOPIC = "/default/t"


# ---------------------------------------------------------------- consumers


async def test_acks_of_single_messages_travel_as_one_range(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        broker.deliver(10, [b"%d" % i for i in range(50)])
        for _ in range(50):
            await consumer.ack(await consumer.receive(timeout=HANG_S))
        await broker.arrived(Ack)
    assert broker.commands(Ack)[0] == Ack(1, [(10, 60)])


async def test_close_confirms_the_last_acks(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        broker.deliver(0, [b"a", b"b"])
        await consumer.ack_cumulative(await consumer.receive_batch(timeout=HANG_S))
    acks = [frame for frame in broker.received if type(frame.command) is Ack]
    assert acks[-1].correlation_id != 0
    assert acks[-1].command == Ack(1, [(0, 2)])
    kinds = [type(frame.command) for frame in broker.received]
    assert kinds.index(CloseConsumer) > max(i for i, kind in enumerate(kinds) if kind is Ack)


async def test_credit_is_returned_in_half_windows(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s", prefetch_messages=10) as consumer,
    ):
        await broker.arrived(Flow)
        broker.deliver(0, [b"x"] * 4)
        broker.deliver(4, [b"x"] * 1)
        await consumer.receive_batch(timeout=HANG_S)
        await consumer.receive_batch(timeout=HANG_S)
        await broker.arrived(Flow, 2)
    flows = broker.commands(Flow)
    assert [flow.messages for flow in flows] == [10, 5]


async def test_after_a_loss_the_queue_is_dropped_and_late_acks_go_first(
    broker: ScriptedBroker,
) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s", name="me") as consumer,
    ):
        broker.deliver(0, [b"a", b"b", b"c"])
        message = await consumer.receive(timeout=HANG_S)
        seen = len(broker.received)
        broker.peers[0].drop()
        await consumer.ack(message)
        await broker.arrived(Subscribe, 2)
        await broker.arrived(Flow, 2)
        after = [type(frame.command) for frame in broker.received[seen:]]
        assert after == [Hello, Subscribe, Ack, Flow]
        assert broker.commands(Ack)[-1] == Ack(2, [(0, 1)])
        broker.deliver(1, [b"b", b"c"])
        assert (await consumer.receive(timeout=HANG_S)).payload == b"b"
    subscribes = broker.commands(Subscribe)
    assert {subscribe.consumer for subscribe in subscribes} == {"me"}


async def test_records_outside_the_delivered_range_are_passed_over(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        data = stored_batch(0, [b"0", b"1", b"2"]) + stored_batch(3, [b"3", b"4", b"5"])
        broker.peers[0].send(Deliver(1, 2, 5, 3, 4), 0, data)
        batch = await consumer.receive_batch(timeout=HANG_S)
        assert batch.payloads == [b"2", b"3", b"4"]
        assert batch.offsets == [2, 3, 4]
        assert [message.redelivery_count for message in batch] == [4, 4, 4]


async def test_single_and_batch_receives_take_turns(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        broker.deliver(0, [b"%d" % i for i in range(10)])
        assert (await consumer.receive(timeout=HANG_S)).offset == 0
        assert (await consumer.receive_batch(max_messages=3)).offsets == [1, 2, 3]
        assert (await anext(consumer)).offset == 4
        assert (await consumer.receive_batch()).offsets == [5, 6, 7, 8, 9]


async def test_nacks_are_gathered_by_delay(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        broker.deliver(0, [b"%d" % i for i in range(4)])
        messages = (await consumer.receive_batch(timeout=HANG_S)).messages()
        await consumer.nack(messages[0])
        await consumer.nack(messages[1])
        await consumer.nack(messages[3], delay=1.5)
        await broker.arrived(Nack, 2)
    assert broker.commands(Nack) == [Nack(1, [(0, 2)], 0), Nack(1, [(3, 4)], 1500)]


async def test_an_ended_consumer_hands_out_what_it_has_then_raises(broker: ScriptedBroker) -> None:
    async with danubius.connect(broker.url) as client:
        consumer = await client.consumer(TOPIC, subscription="s")
        broker.deliver(0, [b"good"])
        broker.peers[0].send(ConsumerClosed(1, danubius.LedgerDamaged.code, "damaged: [1, 5)"))
        assert (await consumer.receive(timeout=HANG_S)).payload == b"good"
        with pytest.raises(danubius.LedgerDamaged, match="damaged"):
            await consumer.receive(timeout=HANG_S)


async def test_a_timeout_is_both_kinds_of_error_and_loses_nothing(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        with pytest.raises(TimeoutError) as caught:
            await consumer.receive(timeout=SOON_S)
        assert isinstance(caught.value, danubius.DeadlineExceeded)
        broker.deliver(0, [b"late"])
        assert (await consumer.receive(timeout=HANG_S)).payload == b"late"


async def test_a_message_of_another_topic_cannot_be_acknowledged(broker: ScriptedBroker) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(TOPIC, subscription="s") as consumer,
    ):
        stranger = danubius.Message("/default/other", 0, b"", None, {}, 0, 0)
        with pytest.raises(danubius.InvalidArgument, match="/default/other"):
            await consumer.ack(stranger)


# ---------------------------------------------------------------- readers


async def test_a_reader_goes_on_where_it_was_after_a_loss(broker: ScriptedBroker) -> None:
    broker.on[ResolveOffset] = lambda peer, frame: peer.send(
        OffsetResolved(0, 0, 4), frame.correlation_id
    )

    def fetch(peer: Peer, frame: Frame) -> None:
        assert isinstance(frame.command, Fetch)
        assert isinstance(frame.command.start, AtOffset)
        at = frame.command.start.offset
        if at == 2 and len(broker.commands(Fetch)) == 2:
            peer.drop()
            return
        data = stored_batch(at, [b"%d" % at, b"%d" % (at + 1)])
        peer.send(Fetched(at, at + 2, 0, 4), frame.correlation_id, data)

    broker.on[Fetch] = fetch
    async with (
        danubius.connect(broker.url) as client,
        client.reader(TOPIC, start="earliest", stop_at_end=True) as reader,
    ):
        assert [message.payload async for message in reader] == [b"0", b"1", b"2", b"3"]
        assert await reader.read_batch() is None
        assert reader.position == 4
