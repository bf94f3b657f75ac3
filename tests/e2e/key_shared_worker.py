"""One consumer of the churn test: takes batches, writes down what it got and what it acknowledges, and when.

What came is written down after it came, what is acknowledged before that is sent: so if the broker delivered something
because of an acknowledgement, the times say so, whichever processes both were in. Run as a program it is killed
at any moment; its lines are in the file by then.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from typing import TYPE_CHECKING

import danubius

if TYPE_CHECKING:
    from collections.abc import Callable

PAUSE_S = 0.2
"""Between two looks at whether it is over."""


async def work(
    url: str, topic: str, name: str, seed: str, write: Callable[[str], None], stop: asyncio.Event
) -> None:
    """Consume until told to stop; leaves some messages unacknowledged now and then, for others to get."""
    dice = random.Random(seed)
    async with (
        danubius.connect(url, connect_timeout=60, request_timeout=60) as client,
        client.consumer(
            topic,
            subscription="s",
            type="key-shared",
            start="earliest",
            name=name,
            prefetch_messages=dice.choice([50, 500, 5000]),
        ) as consumer,
    ):
        while not stop.is_set():
            try:
                batch = await consumer.receive_batch(
                    timeout=PAUSE_S, max_messages=dice.choice([20, 200, 2000])
                )
            except danubius.DeadlineExceeded:
                continue
            got = b",".join(one.payload for one in batch.messages()).decode()
            write(f"{time.monotonic_ns()} {name} got {got}")
            if dice.random() < 0.1:
                await asyncio.sleep(dice.random() * 0.05)
            if stop.is_set() and dice.random() < 0.5:
                break  # these come again, to somebody else
            write(f"{time.monotonic_ns()} {name} ack {got}")
            await consumer.ack(batch)
        write(f"{time.monotonic_ns()} {name} gone")


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _, url, topic, name, seed = sys.argv
    asyncio.run(work(url, topic, name, seed, _write, asyncio.Event()))
