"""One task that sends, waits for the receipt, and sends again: its messages take a short way through the client.

What they meet on it is what every batch meets: lost connections, refusals, deadlines, cancellation, and the end.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

import danubius
from danubius.client.producing.producer_lane import ProducerLane
from danubius.errors import InvalidBatch, StorageFull
from danubius.record.batch import RecordBatch
from danubius.wire.commands import CloseProducer, Hello, OpenProducer, Produce, ProducerClosed
from patience import HANG_S
from unit.client.scripted_store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from types import FrameType

    from unit.client.scripted_broker import ScriptedBroker

TOPIC = "/default/t"

CALLS_MAX = 16
"""Python functions of the client and of the encoder that one message and its receipt may pass."""


@asynccontextmanager
async def lone_sender(
    broker: ScriptedBroker, **options: Any
) -> AsyncGenerator[tuple[Store, danubius.Producer]]:
    """A producer that has sent one message alone and has its receipt: the next one takes the short way."""
    store = Store(broker)
    async with danubius.connect(broker.url) as client:
        producer = await client.producer(TOPIC, **options)
        assert (await producer.send(b"first")).offset == 0
        yield store, producer


async def test_each_message_is_a_batch_of_its_own_in_order(broker: ScriptedBroker) -> None:
    async with lone_sender(broker) as (store, producer):
        for number in range(1, 20):
            receipt = await producer.send(b"%d" % number)
            assert receipt == danubius.Receipt(TOPIC, number)
            assert producer.buffered_bytes == 0
        await producer.close()
    assert store.stored == [b"first", *(b"%d" % number for number in range(1, 20))]
    assert len(broker.commands(Produce)) == 20


async def test_messages_that_nobody_waits_for_go_at_once_when_they_come_one_by_one(
    broker: ScriptedBroker,
) -> None:
    async with lone_sender(broker) as (store, producer):
        for number in range(1, 5):
            producer.send_nowait(b"%d" % number)
            await broker.arrived(Produce, number + 1)
            await producer.flush()
        await producer.close()
    assert store.stored == [b"first", b"1", b"2", b"3", b"4"]


async def test_of_a_burst_only_the_first_goes_by_itself(broker: ScriptedBroker) -> None:
    async with lone_sender(broker) as (store, producer):
        for number in range(1000):
            producer.send_nowait(b"%d" % number)
        await producer.flush()
        await producer.close()
    assert store.stored == [b"first", *(b"%d" % number for number in range(1000))]
    assert len(broker.commands(Produce)) == 3


async def test_a_message_that_went_by_itself_and_was_refused_is_told_by_flush(
    broker: ScriptedBroker,
) -> None:
    async with lone_sender(broker) as (store, producer):
        store.refusals.append(InvalidBatch("no"))
        producer.send_nowait(b"lost")
        with pytest.raises(InvalidBatch):
            await producer.flush()
        await producer.flush()


async def test_a_lone_send_takes_few_calls(broker: ScriptedBroker) -> None:
    calls: list[str] = []

    def count(frame: FrameType, event: str, _argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and ("danubius/client" in name or "danubius/record" in name):
            calls.append(frame.f_code.co_qualname)

    async with lone_sender(broker) as (store, producer), asyncio.TaskGroup() as tasks:
        broker.on[Produce] = lambda _peer, _frame: None
        sending = tasks.create_task(producer.send(b"counted"))
        sys.setprofile(count)
        try:
            await asyncio.sleep(0)
        finally:
            sys.setprofile(None)
        await broker.arrived(Produce, 2)
        store.produce(broker.peers[0], broker.received[-1])
        sys.setprofile(count)
        try:
            assert (await sending).offset == 1
        finally:
            sys.setprofile(None)
    assert "ProducerLane._send_alone" in calls
    assert "ProducerLane.on_progress" in calls
    assert len(calls) <= CALLS_MAX, calls


async def test_key_and_attributes_arrive(broker: ScriptedBroker) -> None:
    async with lone_sender(broker) as (_, producer):
        await producer.send(b"a", key=b"k")
        await producer.send(b"b", key=b"", attributes={"x": "y"})
        await producer.send(b"c", attributes={})
    batches = [
        RecordBatch.parse(frame.payload)
        for frame in broker.received
        if type(frame.command) is Produce
    ]
    keys = [batch.keys() for batch in batches]
    assert keys == [[None], [b"k"], [b""], [None]]
    assert [batch.attributes() for batch in batches] == [[{}], [{}], [{"x": "y"}], [{}]]


async def test_other_sends_meanwhile_stay_behind_it_in_order(broker: ScriptedBroker) -> None:
    async with lone_sender(broker) as (store, producer), asyncio.TaskGroup() as tasks:
        for turn in range(3):
            tasks.create_task(producer.send(b"%d lone" % turn))
            await asyncio.sleep(0)
            producer.send_nowait(b"%d nowait" % turn)
            sending = tasks.create_task(producer.send_many([b"%d many" % turn] * 2))
            await asyncio.sleep(0)
            last = await producer.send(b"%d last" % turn)
            assert (await sending).last_offset == last.offset - 1
            assert (await producer.send(b"%d alone again" % turn)).offset == last.offset + 1
    words = (b"lone", b"nowait", b"many", b"many", b"last", b"alone again")
    assert store.stored[1:] == [b"%d %s" % (turn, word) for turn in range(3) for word in words]


async def test_what_waits_in_the_open_batch_goes_first(broker: ScriptedBroker) -> None:
    async with lone_sender(broker) as (store, producer):
        producer.send_nowait(b"nowait")
        assert (await producer.send(b"behind")).offset == 2
    assert store.stored == [b"first", b"nowait", b"behind"]


async def test_a_message_larger_than_the_buffer_goes_when_nothing_else_waits(
    broker: ScriptedBroker,
) -> None:
    async with lone_sender(broker, buffer_bytes=100) as (store, producer):
        store.is_silent = True
        async with asyncio.TaskGroup() as tasks:
            large = tasks.create_task(producer.send(b"x" * 500))
            await broker.arrived(Produce, 2)
            with pytest.raises(danubius.Overloaded):
                producer.send_nowait(b"y")
            waiting = tasks.create_task(producer.send(b"y"))
            store.is_silent = False
            broker.peers[0].drop()
        assert (large.result().offset, waiting.result().offset) == (1, 2)


async def test_what_is_refused_before_it_is_sent_leaves_nothing_behind(
    broker: ScriptedBroker,
) -> None:
    async with lone_sender(broker) as (store, producer):
        with pytest.raises(danubius.MessageTooLarge):
            await producer.send(bytes((1 << 20) + 1))
        text: Any = "text"
        with pytest.raises(danubius.InvalidArgument, match=r"str.*encode"):
            await producer.send(text)
        assert producer.buffered_bytes == 0
        array: Any = bytearray(b"second")
        assert (await producer.send(array)).offset == 1
    assert store.stored == [b"first", b"second"]


# ---------------------------------------------------------------- connections


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_lost_connection_is_survived_and_nothing_is_stored_twice(
    broker: ScriptedBroker, is_stored: bool
) -> None:
    async with lone_sender(broker) as (store, producer), asyncio.TaskGroup() as tasks:
        for number in range(1, 4):
            arrived = 2 * number
            if is_stored:
                store.is_silent = True
            else:
                broker.on[Produce] = lambda _peer, _frame: None
            sending = tasks.create_task(producer.send(b"%d" % number))
            await broker.arrived(Produce, arrived)
            store.is_silent = False
            broker.on[Produce] = store.produce
            broker.peers[0].drop()
            assert (await sending).offset == number
    assert store.stored == [b"first", b"1", b"2", b"3"]
    assert broker.epoch == 1


async def test_a_send_into_a_connection_that_just_ends_is_sent_again(
    broker: ScriptedBroker,
) -> None:
    async with lone_sender(broker) as (store, producer):
        assert isinstance(producer, ProducerLane)
        session = producer._shipper._session
        assert session is not None
        session.abort()
        async with asyncio.timeout(HANG_S):
            assert (await producer.send(b"second")).offset == 1
            assert (await producer.send(b"third")).offset == 2
    assert store.stored == [b"first", b"second", b"third"]
    assert len(broker.commands(Hello)) == 2


async def test_without_a_connection_it_waits_for_the_next_one(broker: ScriptedBroker) -> None:
    async with lone_sender(broker) as (store, producer):
        broker.on[OpenProducer] = lambda _peer, _frame: None
        broker.peers[0].drop()
        await broker.arrived(OpenProducer, 2)
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(producer.send(b"second"))
            await asyncio.sleep(0)
            del broker.on[OpenProducer]
            broker.peers[0].drop()
        assert sending.result().offset == 1
        assert (await producer.send(b"third")).offset == 2
    assert store.stored == [b"first", b"second", b"third"]


async def test_a_broker_that_forgot_the_producer_gets_the_message_in_a_new_epoch(
    broker: ScriptedBroker,
) -> None:
    async with lone_sender(broker) as (store, producer):
        broker.on[Produce] = lambda _peer, _frame: None
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(producer.send(b"second"))
            await broker.arrived(Produce, 2)
            broker.on[Produce] = store.produce
            broker.next_sequence = 0
            broker.peers[0].drop()
        assert sending.result().offset == 1
        assert (await producer.send(b"third")).offset == 2
    assert store.stored == [b"first", b"second", b"third"]
    assert broker.epoch == 2


# ---------------------------------------------------------------- refusals and deadlines


async def test_a_refusal_that_may_pass_is_waited_out(broker: ScriptedBroker) -> None:
    async with lone_sender(broker) as (store, producer):
        for number in range(1, 4):
            store.refusals = [StorageFull("full")]
            assert (await producer.send(b"%d" % number)).offset == number
    assert store.stored == [b"first", b"1", b"2", b"3"]


async def test_a_poisoned_message_fails_alone(broker: ScriptedBroker) -> None:
    async with lone_sender(broker) as (store, producer):
        store.poison = b"bad"
        for number in range(1, 4):
            with pytest.raises(danubius.InvalidBatch, match="poison"):
                await producer.send(b"bad")
            assert (await producer.send(b"%d" % number)).offset == number
        await producer.close()  # nothing is left to tell
    assert store.stored == [b"first", b"1", b"2", b"3"]


async def test_a_refusal_that_lasts_is_told_at_the_deadline(broker: ScriptedBroker) -> None:
    async with lone_sender(broker, send_timeout=1.0) as (store, producer):
        store.refusals = [StorageFull("no room")] * 1000
        with pytest.raises(StorageFull, match="no room"):
            await producer.send(b"second")
        store.refusals = []
        # The wait that the refusals brought about may be longer than this short patience.
        async with asyncio.timeout(HANG_S):
            while len(store.stored) == 1:
                with suppress(StorageFull):
                    assert (await producer.send(b"third")).offset == 1
    assert store.stored == [b"first", b"third"]


async def test_silence_is_told_at_the_deadline(broker: ScriptedBroker) -> None:
    async with lone_sender(broker, send_timeout=1.0) as (store, producer):
        store.is_silent = True
        for _ in range(2):
            with pytest.raises(danubius.DeadlineExceeded):
                await producer.send(b"unheard")
        assert producer.buffered_bytes == 0


async def test_a_fenced_producer_fails_it(broker: ScriptedBroker) -> None:
    async with lone_sender(broker) as (_, producer):
        broker.on[Produce] = lambda peer, _frame: peer.send(
            ProducerClosed(broker.handle, danubius.ProducerFenced.code, "taken over")
        )
        for _ in range(2):
            with pytest.raises(danubius.ProducerFenced, match="taken over"):
                await producer.send(b"second")


# ---------------------------------------------------------------- cancelling and closing


async def test_a_cancelled_send_is_stored_and_the_next_one_goes_on(broker: ScriptedBroker) -> None:
    async with lone_sender(broker) as (store, producer):
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await producer.send(b"given up")
        assert (await producer.send(b"last")).offset == 4
        await producer.flush()
    assert store.stored == [b"first", *[b"given up"] * 3, b"last"]


async def test_what_failed_after_a_cancelled_send_is_told_by_flush(broker: ScriptedBroker) -> None:
    async with lone_sender(broker) as (store, producer):
        store.poison = b"bad"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await producer.send(b"bad")
        with pytest.raises(danubius.InvalidBatch, match="poison"):
            await producer.flush()
        await producer.flush()


async def test_flush_and_close_wait_for_it(broker: ScriptedBroker) -> None:
    async with lone_sender(broker) as (store, producer), asyncio.TaskGroup() as tasks:
        store.is_silent = True
        sending = tasks.create_task(producer.send(b"second"))
        await broker.arrived(Produce, 2)
        flushing = tasks.create_task(producer.flush())
        closing = tasks.create_task(producer.close())
        await asyncio.sleep(0)
        with pytest.raises(danubius.ClientClosed):
            await producer.send(b"too late")
        assert not flushing.done()
        assert not broker.commands(CloseProducer)
        store.is_silent = False
        broker.peers[0].drop()
        await closing
        assert flushing.done()
        assert sending.result().offset == 1
    assert store.stored == [b"first", b"second"]


async def test_closing_the_client_ends_it(broker: ScriptedBroker) -> None:
    store = Store(broker)
    client = await danubius.connect(broker.url, reconnect_timeout=30)
    producer = await client.producer(TOPIC)
    await producer.send(b"first")
    store.is_silent = True
    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(expect_closed(producer))
        await broker.arrived(Produce, 2)
        await client._connections.home.close()
        await sending
    await client.close()


async def expect_closed(producer: danubius.Producer) -> None:
    with pytest.raises(danubius.ClientClosed):
        await producer.send(b"second")
