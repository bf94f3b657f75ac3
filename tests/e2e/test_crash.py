"""A real broker, killed with -9 again and again under load: nothing acknowledged is lost, doubled or moved.

The moments are drawn from a seed: a random time after the load made progress; every few times in the middle of a clean
stop, when a checkpoint is under way; and every few times while the broker still recovers from the kill before.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Final

import danubius
from e2e.traffic import nothing_comes, read_all
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from danubius import Client, Consumer, Message, Producer
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

KILLS: Final = 30
SEED: Final = 20_263


class Story:
    """What producers were promised and what consumers were given, over all lives of the broker."""

    def __init__(self) -> None:
        self.acked: dict[int, int] = {}
        """The number in a message's payload -> the offset that its receipt named."""
        self.sent = 0
        self.delivered: dict[int, bytes] = {}
        self.problems: list[str] = []
        self.progress = asyncio.Event()

    def payloads(self, dice: random.Random) -> list[bytes]:
        """Some more numbered messages, small ones mostly, sometimes one that a page cannot hold."""
        count = dice.randrange(1, 80)
        numbers = range(self.sent, self.sent + count)
        self.sent += count
        size = 100_000 if dice.random() < 0.02 else dice.randrange(0, 300)
        return [b"%d %s" % (number, b"." * size) for number in numbers]

    def on_acked(self, number: int, offset: int) -> None:
        self.acked[number] = offset
        self.progress.set()

    def on_delivered(self, message: Message) -> bool:
        """Remember it; True if it is the first time."""
        before = self.delivered.setdefault(message.offset, message.payload)
        if before != message.payload:
            self.problems.append(f"offset {message.offset} changed its content")
        return before is message.payload


def number_of(payload: bytes) -> int:
    return int(payload.split(b" ", 1)[0])


async def produce_in_order(producer: Producer, story: Story, stop: asyncio.Event) -> None:
    dice = random.Random(1)
    while not stop.is_set():
        chunk = story.payloads(dice)
        receipts = await producer.send_many(chunk)
        for payload, receipt in zip(chunk, receipts, strict=True):
            story.on_acked(number_of(payload), receipt.offset)


async def produce_concurrently(producer: Producer, story: Story, stop: asyncio.Event) -> None:
    dice = random.Random(2)
    while not stop.is_set():
        [payload, *_] = story.payloads(dice)
        receipt = await producer.send(payload, key=b"%d" % dice.randrange(20))
        story.on_acked(number_of(payload), receipt.offset)


async def consume_exclusive(consumer: Consumer, story: Story) -> None:
    """First deliveries must rise by one; acknowledges most, leaves some for later."""
    dice = random.Random(3)
    expected = 0
    while True:
        message = await consumer.receive()
        if story.on_delivered(message):
            if message.offset != expected:
                story.problems.append(f"first delivery of {message.offset}, expected {expected}")
            expected = message.offset + 1
        if dice.random() < 0.1:
            await consumer.ack_cumulative(message)


async def consume_shared(consumer: Consumer, story: Story) -> None:
    while True:
        batch = await consumer.receive_batch()
        for message in batch.messages():
            story.on_delivered(message)
        await consumer.ack(batch)


async def wait_progress(story: Story) -> None:
    story.progress.clear()
    async with asyncio.timeout(HANG_S):
        await story.progress.wait()


async def kill_again_and_again(broker: BrokerProcess, ordered: Story, spread: Story) -> None:
    dice = random.Random(SEED)
    for number in range(KILLS):
        await wait_progress(ordered)
        await wait_progress(spread)
        await asyncio.sleep(dice.uniform(0.0, 0.3))
        if number % 4 == 3:
            broker.ask_to_stop()
            await asyncio.sleep(dice.uniform(0.0, 0.3))
        await asyncio.to_thread(broker.kill)
        if number % 5 == 4:
            await asyncio.to_thread(broker.launch)
            await asyncio.sleep(dice.uniform(0.1, 0.8))
            await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
    await wait_progress(ordered)
    await wait_progress(spread)


async def wait_all_delivered(story: Story, end: int, what: str) -> None:
    limit = time.monotonic() + HANG_S
    while len(story.delivered) < end:
        missing = next(n for n in range(end) if n not in story.delivered)
        assert time.monotonic() < limit, f"{what}: offset {missing} of {end} was never delivered"
        await asyncio.sleep(LOOK_S)


async def check_log(client: Client, topic: str, story: Story, *, is_ordered: bool) -> None:
    """The topic as a reader sees it, against what was promised and given."""
    messages = await read_all(client, topic)
    numbers = [number_of(message.payload) for message in messages]
    assert [message.offset for message in messages] == list(range(len(messages)))
    assert len(numbers) == len(set(numbers)), "the idempotent producer left a duplicate"
    place = {number: offset for offset, number in enumerate(numbers)}
    for number, offset in story.acked.items():
        assert place.get(number) == offset, f"message {number} was acknowledged at {offset}"
    for message in messages:
        assert story.delivered[message.offset] == message.payload
    assert set(story.delivered) == set(range(len(messages)))
    if is_ordered:
        assert numbers == list(range(len(numbers)))
        assert set(story.acked) == set(numbers)


async def test_thirty_kills_lose_nothing(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()
    ordered_topic, spread_topic = f"{topic}-ordered", f"{topic}-spread"
    ordered, spread = Story(), Story()
    stop = asyncio.Event()
    async with danubius.connect(broker.url) as client:
        async with (
            client.producer(ordered_topic, name="ordered") as first,
            client.producer(spread_topic, name="spread") as second,
            client.consumer(ordered_topic, subscription="s", start="earliest") as exclusive,
            client.consumer(
                spread_topic, subscription="s", type="shared", start="earliest"
            ) as left,
            client.consumer(
                spread_topic, subscription="s", type="shared", start="earliest"
            ) as right,
            client.consumer(
                spread_topic, subscription="k", type="key-shared", start="earliest"
            ) as keyed,
        ):
            keyed_story = Story()
            async with asyncio.TaskGroup() as tasks:
                producing = [
                    tasks.create_task(produce_in_order(first, ordered, stop)),
                    *(
                        tasks.create_task(produce_concurrently(second, spread, stop))
                        for _ in range(4)
                    ),
                ]
                consuming = [
                    tasks.create_task(consume_exclusive(exclusive, ordered)),
                    tasks.create_task(consume_shared(left, spread)),
                    tasks.create_task(consume_shared(right, spread)),
                    tasks.create_task(consume_shared(keyed, keyed_story)),
                ]
                await kill_again_and_again(broker, ordered, spread)
                stop.set()
                async with asyncio.timeout(HANG_S):
                    for task in producing:
                        await task
                await wait_all_delivered(ordered, len(ordered.acked), "exclusive")
                await wait_all_delivered(spread, len(spread.acked), "shared")
                await wait_all_delivered(keyed_story, len(spread.acked), "key-shared")
                for task in consuming:
                    task.cancel()
        assert ordered.problems + spread.problems + keyed_story.problems == []
        await check_log(client, ordered_topic, ordered, is_ordered=True)
        await check_log(client, spread_topic, spread, is_ordered=False)
        assert keyed_story.delivered == spread.delivered
        async with client.consumer(spread_topic, subscription="s", type="shared") as consumer:
            await nothing_comes(consumer)
    assert len(ordered.acked) > KILLS
    assert broker.stop() == 0
