"""Who may consume, who takes over, and that order survives it."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.wire.commands import Opcode
from e2e.lossy_proxy import LossyProxy
from e2e.raw_wire import RawPeer, frame
from e2e.traffic import collect, nothing_comes, numbered, payloads, take
from patience import HANG_S, LOOK_S, SOON_S

if TYPE_CHECKING:
    from danubius import Client, Consumer, Message
    from e2e.broker_process import BrokerProcess

SUBSCRIPTION_BUSY = 302
CONSUMER_REPLACED = 307


async def keepalive_seconds(port: int) -> float:
    async with RawPeer(port) as peer:
        welcome = await peer.hello()
    return float(welcome.fields[4]) / 1000


async def test_exclusive_refuses_a_second_consumer_and_says_what_to_do(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client, danubius.connect(broker.url) as other:
        await client.create_topic(topic)
        async with client.consumer(topic, subscription="s", name="first") as first:
            with pytest.raises(danubius.DanubiusError) as caught:
                async with other.consumer(topic, subscription="s", name="second"):
                    pass
            assert caught.value.code == SUBSCRIPTION_BUSY
            assert "first" in str(caught.value), "the message names who holds the subscription"
            async with client.producer(topic) as producer:
                await producer.send(b"the first one is not disturbed")
            [message] = await take(first, 1)
    assert message.payload == b"the first one is not disturbed"


async def test_exclusive_is_free_once_the_first_closed(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        for _ in range(5):
            async with client.consumer(topic, subscription="s"):
                pass


async def test_exclusive_is_free_after_a_reset(broker: BrokerProcess, topic: str) -> None:
    """A consumer whose process died never blocks the next: its connection's end is enough."""
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        async with RawPeer(broker.port) as dead:
            await dead.hello()
            await dead.subscribe(topic, "s")
            dead.abort()
            await enter_within(client, topic, 30.0)


async def test_exclusive_half_open_consumer_never_blocks(broker: BrokerProcess, topic: str) -> None:
    """A consumer that vanished without a word (cable pulled) gives way within the keepalive."""
    limit = 4 * await keepalive_seconds(broker.port)
    assert limit <= 60, "a vanished consumer would block its subscription for minutes"
    async with (
        LossyProxy(broker.port) as proxy,
        danubius.connect(broker.url) as client,
        danubius.connect(proxy.url) as lost,
    ):
        await client.create_topic(topic)
        await lost.consumer(topic, subscription="s", name="lost")
        proxy.freeze()
        await enter_within(client, topic, limit + 30.0)
        proxy.cut()


async def enter_within(client: Client, topic: str, seconds: float) -> None:
    """Subscribe as soon as the subscription is free, which must be within these seconds."""
    limit = time.monotonic() + seconds
    refusal = ""
    while time.monotonic() < limit:
        try:
            async with client.consumer(topic, subscription="s", name="next"):
                return
        except danubius.DanubiusError as error:
            if error.code != SUBSCRIPTION_BUSY:
                raise
            refusal = str(error)
            await asyncio.sleep(LOOK_S)
    pytest.fail(f"still blocked after {seconds} s: {refusal}")


async def test_same_consumer_name_takes_the_place(broker: BrokerProcess, topic: str) -> None:
    """A restarted consumer with its old name replaces its own ghost at once."""
    async with danubius.connect(broker.url) as client, RawPeer(broker.port) as ghost:
        await client.create_topic(topic)
        await ghost.hello()
        await ghost.subscribe(topic, "s", consumer="worker-1")
        async with client.consumer(topic, subscription="s", name="worker-1") as consumer:
            told = await ghost.receive()
            assert told.opcode == Opcode.CONSUMER_CLOSED
            assert told.fields[1] == CONSUMER_REPLACED
            async with client.producer(topic) as producer:
                await producer.send(b"x")
            assert payloads(await take(consumer, 1)) == [b"x"]


async def test_failover_standby_gets_nothing_until_promoted(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        async with (
            client.consumer(topic, subscription="s", type="failover", name="b-active") as active,
            client.consumer(topic, subscription="s", type="failover", name="a-standby") as standby,
        ):
            async with client.producer(topic) as producer:
                await producer.send_many(numbered(50))
            assert payloads(await take(active, 50)) == numbered(50)
            await nothing_comes(standby, 0.1)


@pytest.mark.parametrize("loss", ["close", "reset"])
async def test_failover_promotes_within_a_second(
    broker: BrokerProcess, topic: str, loss: str
) -> None:
    """The standby goes on with what was not acknowledged, in order, within a second of the loss."""
    async with (
        danubius.connect(broker.url) as client,
        RawPeer(broker.port) as active,
        client.producer(topic) as producer,
    ):
        await producer.send_many(numbered(20))
        await active.hello()
        handle = await active.subscribe(topic, "s", "failover", "active")
        async with client.consumer(
            topic, subscription="s", type="failover", name="standby"
        ) as standby:
            await active.send(active_flow(handle))
            delivered = await active.receive()
            assert delivered.opcode == Opcode.DELIVER
            answer = await active.call(Opcode.ACK, handle, [[0, 5]])
            assert answer.opcode == Opcode.DONE
            await nothing_comes(standby, 0.05)
            if loss == "close":
                answer = await active.call(Opcode.CLOSE_CONSUMER, handle)
                assert answer.opcode == Opcode.DONE
            else:
                active.abort()
            messages = await take(standby, 15)
            await producer.send(b"new")
            messages += await take(standby, 1)
            events = (await client.admin.list_events(topic, "s")).events
    # By the broker's own clock, since a test that is late proves nothing.
    times = {event.kind: event.time_ms for event in events}
    assert times["promoted"] - times["left" if loss == "close" else "lost"] < 1000
    assert payloads(messages) == [*numbered(15, 5), b"new"]
    assert [m.redelivery_count for m in messages] == [1] * 15 + [0]


def active_flow(handle: int, messages: int = 1000) -> bytes:
    return frame(Opcode.FLOW, (handle, messages, 10_000_000))


async def test_failover_goes_through_all_standbys_in_order_of_arrival(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        consumers: list[Consumer] = []
        for number in range(4):
            consumer = await client.consumer(
                topic, subscription="s", type="failover", start="earliest", name=f"n{9 - number}"
            )
            consumers.append(consumer)
        for number, consumer in enumerate(consumers):
            await producer.send(b"%d" % number)
            [message] = await take(consumer, 1)
            assert message.payload == b"%d" % number
            await consumer.ack(message)
            await consumer.close()


async def test_failover_order_holds_over_many_promotions(broker: BrokerProcess, topic: str) -> None:
    """Under load, with the active consumer lost again and again, first deliveries rise without a gap."""
    total = 3_000
    dice = random.Random(7)
    first_seen: list[int] = []
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        current = await client.consumer(
            topic, subscription="s", type="failover", start="earliest", name="n0"
        )

        async def send() -> None:
            for at in range(0, total, 20):
                await producer.send_many(numbered(20, at))

        async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            number = 0
            while len(first_seen) < total:
                number += 1
                standby = await client.consumer(
                    topic, subscription="s", type="failover", name=f"n{number}"
                )
                for _ in range(dice.randrange(1, 400)):
                    if len(first_seen) == total:
                        break
                    message = await current.receive()
                    if not first_seen or message.offset > first_seen[-1]:
                        first_seen.append(message.offset)
                    if dice.random() < 0.8:
                        await current.ack_cumulative(message)
                await current.close()
                current = standby
        await current.close()
    assert first_seen == list(range(total))


class KeyLedger:
    """Checks per-key order over all consumers: an offset may only repeat, never overtake an older one."""

    def __init__(self) -> None:
        self.acked: dict[bytes | None, int] = defaultdict(lambda: -1)
        self.seen: set[int] = set()
        self.problems: list[str] = []

    def take(self, who: str, message: Message) -> None:
        if message.offset in self.seen and message.redelivery_count == 0:
            self.problems.append(f"{who} got {message.offset} again, marked as new")
        if message.offset < self.acked[message.key]:
            self.problems.append(f"{who} got {message.offset} of {message.key!r} after a newer one")
        self.seen.add(message.offset)
        self.acked[message.key] = max(self.acked[message.key], message.offset)


async def test_key_shared_keeps_order_per_key_under_churn(
    broker: BrokerProcess, topic: str
) -> None:
    """Consumers come and go under load; acknowledging in order, nobody ever sees a key go backwards."""
    total, key_count = 4_000, 50
    dice = random.Random(11)
    keys = [b"k%d" % dice.randrange(key_count) for _ in range(total)]
    ledger = KeyLedger()
    acked: set[int] = set()

    async def consume(client: Client, name: str, life: int) -> None:
        async with client.consumer(
            topic,
            subscription="s",
            type="key-shared",
            start="earliest",
            name=name,
            prefetch_messages=200,
        ) as consumer:
            while life > 0 and len(acked) < total:
                with suppress(danubius.DeadlineExceeded):
                    message = await consumer.receive(timeout=SOON_S)
                    ledger.take(name, message)
                    await consumer.ack(message)
                    acked.add(message.offset)
                life -= 1

    async def keep_consuming(client: Client, slot: int) -> None:
        life = 0
        while len(acked) < total:
            life += 1
            await consume(client, f"c{slot}-{life}", dice.randrange(20, 300))

    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:

        async def send() -> None:
            for at in range(0, total, 50):
                await producer.send_many(numbered(50, at), keys=keys[at : at + 50])

        async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            for slot in range(4):
                tasks.create_task(keep_consuming(client, slot))
    assert ledger.problems == []
    assert acked == set(range(total))


async def test_key_shared_one_stuck_key_does_not_stop_the_others(
    broker: BrokerProcess, topic: str
) -> None:
    """A consumer that takes nothing holds up its own keys only."""
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(
            topic,
            subscription="s",
            type="key-shared",
            start="earliest",
            name="stuck",
            prefetch_messages=1,
        ),
        client.consumer(topic, subscription="s", type="key-shared", name="healthy") as healthy,
    ):
        keys = [b"k%d" % (number % 100) for number in range(2_000)]
        await producer.send_many(numbered(2_000), keys=keys)
        first = await take(healthy, 1)
        await healthy.ack(first[0])
        own = {first[0].key}
        received = [first[0].offset]
        try:
            async with asyncio.timeout(HANG_S):
                while len(received) < 400:
                    message = await healthy.receive()
                    await healthy.ack(message)
                    own.add(message.key)
                    received.append(message.offset)
        except TimeoutError:
            pytest.fail(f"only {len(received)} messages passed the stuck consumer")
    assert len(own) > 10


async def test_key_shared_messages_without_a_key_are_delivered(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic) as producer:
            await producer.send_many(numbered(100))
        async with (
            client.consumer(
                topic, subscription="s", type="key-shared", start="earliest", name="a"
            ) as first,
            client.consumer(
                topic, subscription="s", type="key-shared", start="earliest", name="b"
            ) as second,
        ):
            received = await collect([first, second], 100)
    assert sorted(m.offset for one in received for m in one) == list(range(100))


async def test_shared_spreads_a_single_batch(broker: BrokerProcess, topic: str) -> None:
    """Ten messages of one batch reach both of two waiting consumers."""
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        async with (
            client.consumer(topic, subscription="s", type="shared", name="a") as first,
            client.consumer(topic, subscription="s", type="shared", name="b") as second,
            client.producer(topic) as producer,
        ):
            await producer.send_many(numbered(10))
            received = await collect([first, second], 10)
    assert all(received)
    assert sorted(payloads(received[0] + received[1])) == sorted(numbered(10))


async def test_message_credit_is_exact(broker: BrokerProcess, topic: str) -> None:
    """A consumer that grants credit for three messages gets three, though a hundred wait in one batch."""
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        await producer.send_many(numbered(100))
        async with RawPeer(broker.port) as peer:
            await peer.hello()
            handle = await peer.subscribe(topic, "s")
            await peer.send(active_flow(handle, 3))
            delivered = await peer.receive()
            assert delivered.opcode == Opcode.DELIVER
            assert delivered.fields[1:4] == [0, 3, 3]
            with pytest.raises(TimeoutError):
                await peer.receive(within_s=SOON_S)
            await peer.send(active_flow(handle, 2))
            delivered = await peer.receive()
            assert delivered.fields[1:4] == [3, 5, 2]
