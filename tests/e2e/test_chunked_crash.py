"""Large messages whose producer or broker is killed between their pieces: whole or not at all, and in nobody's way."""

from __future__ import annotations

import asyncio
import hashlib
import random
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Final

import danubius
from e2e.broker_process import environment
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

PIECE: Final = 4096
SENDER: Final = textwrap.dedent(
    """
    import asyncio, hashlib, random, sys
    import danubius

    async def main(url, topic, seed):
        dice = random.Random(seed)
        async with danubius.connect(url) as client, client.producer(
            topic, chunk_bytes=4096, send_timeout=1.0
        ) as producer:
            while True:
                payload = dice.randbytes(dice.randrange(1, 200_000))
                digest = hashlib.sha256(payload).digest()
                await producer.send(digest + payload)
                print(digest.hex(), flush=True)

    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    """
)


def is_whole(payload: bytes) -> bool:
    return hashlib.sha256(payload[32:]).digest() == payload[:32]


async def backlog(client: danubius.Client, topic: str) -> int:
    described = await client.admin.describe_subscription(topic, "s")
    return described.statistics.backlog_messages


async def test_a_producer_killed_between_pieces_leaves_nothing_behind(
    broker: BrokerProcess, topic: str
) -> None:
    stored: set[str] = set()
    dice = random.Random(11)
    for seed in range(3):
        sender = subprocess.Popen(  # noqa: ASYNC220  # this program, killed in a moment
            [sys.executable, "-c", SENDER, broker.url, topic, str(seed)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        with sender:
            assert sender.stdout is not None
            told = [await asyncio.to_thread(sender.stdout.readline) for _ in range(3)]
            await asyncio.sleep(dice.random() / 20)
            sender.kill()
            rest = await asyncio.to_thread(sender.stdout.read)
        stored.update(line.strip() for line in (*told, *rest.splitlines()))
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest", chunk_patience=0.2) as consumer,
    ):
        await producer.send(b"end")
        came: set[str] = set()
        async for message in consumer:
            await consumer.ack(message)
            if message.payload == b"end":
                break
            assert is_whole(message.payload)
            came.add(message.payload[:32].hex())
        assert stored <= came
        assert len(came - stored) <= 3, "at most the one that was on its way when it was killed"
        async with asyncio.timeout(HANG_S):
            while await backlog(client, topic):  # noqa: ASYNC110  # it is in another process
                await asyncio.sleep(LOOK_S)


async def test_a_broker_killed_between_pieces_keeps_what_it_acknowledged(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    topic = "/default/large"
    dice = random.Random(5)
    stored: list[bytes] = []
    async with danubius.connect(broker.url) as client:
        producer = await client.producer(topic, chunk_bytes=PIECE, send_timeout=60.0)

        progress = asyncio.Event()

        async def send() -> None:
            for _ in range(40):
                payload = dice.randbytes(dice.randrange(1, 100_000))
                payload = hashlib.sha256(payload).digest() + payload
                await producer.send(payload)
                stored.append(payload)
                progress.set()

        async def kill() -> None:
            for count in (5, 20):
                while len(stored) < count:
                    progress.clear()
                    await progress.wait()
                await asyncio.sleep(dice.random() / 50)
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)

        async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            tasks.create_task(kill())
        await producer.send(b"end")
        await producer.close()
        came: list[bytes] = []
        async with client.consumer(
            topic, subscription="s", type="shared", start="earliest"
        ) as consumer:
            async for message in consumer:
                await consumer.ack(message)
                if message.payload == b"end":
                    break
                assert is_whole(message.payload)
                came.append(message.payload)
        assert len(came) == len(set(came))
        assert set(stored) <= set(came)
