"""`danubius demo --engine`: a million durable messages, four kinds of subscription, a kill -9, nothing lost.

Everything is checked against what was acknowledged.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

import danubius
from danubius.cli.bench.payloads import make
from danubius.cli.broker_process import BrokerProcess
from danubius.cli.demo.report import Check, say
from danubius.cli.event_loop import run_async
from danubius.cli.output import human_count, meter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.client.options import SubscriptionTypeName

_TOPIC = "/demo/orders"
_SIZE = 100
_CHUNK = 25_000
COUNT_MIN: Final = 2 * _CHUNK
_KEYS = 1_000
_DEADLINE_S = 120.0
_CONSUMERS: Final[dict[SubscriptionTypeName, int]] = {
    "exclusive": 1,
    "shared": 3,
    "failover": 2,
    "key-shared": 2,
}


class Tally:
    """What one subscription saw of the messages 0 to count-1."""

    def __init__(self, kind: SubscriptionTypeName, count: int) -> None:
        self.kind: SubscriptionTypeName = kind
        self.count = count
        self.distinct = 0
        self.again = 0
        """Deliveries beyond the first: what was not yet acknowledged when the broker died."""
        self.disorder = 0
        self.consumers: set[str] = set()
        self.complete = asyncio.Event()
        self._seen = bytearray(count)
        self._newest = [-1] * (_KEYS if kind == "key-shared" else 1)

    def add(self, payloads: Sequence[bytes], consumer: str) -> None:
        """Count one delivery; first sights must be in order, per key for key-shared."""
        packed = b"".join([payload[:8] for payload in payloads])
        sequences = memoryview(packed).cast("Q")
        first, end = sequences[0], sequences[0] + len(sequences)
        is_run = len(self._newest) == 1 and packed == array("Q", range(first, end)).tobytes()
        if is_run and self._seen.find(1, first, end) < 0:
            self._add_run(first, end)
        else:
            self._add_each(sequences)
        self.consumers.add(consumer)
        if self.distinct == self.count:
            self.complete.set()

    def _add_run(self, first: int, end: int) -> None:
        self._seen[first:end] = b"\1" * (end - first)
        self.distinct += end - first
        self.disorder += first < self._newest[0]
        self._newest[0] = end - 1

    def _add_each(self, sequences: memoryview[int]) -> None:
        seen, newest, lanes = self._seen, self._newest, len(self._newest)
        for sequence in sequences:
            if seen[sequence]:
                self.again += 1
                continue
            seen[sequence] = 1
            self.distinct += 1
            lane = sequence % lanes
            self.disorder += sequence < newest[lane]
            newest[lane] = sequence


class Demo:
    """One run against one broker process."""

    def __init__(self, broker: BrokerProcess, count: int) -> None:
        self._broker = broker
        self._count = count
        self._tallies = [Tally(kind, count) for kind in _CONSUMERS]
        self._acknowledged = 0
        self._killed_at = 0
        self._down_s = 0.0

    async def run(self) -> list[Check]:
        half = self._count // 2
        async with asyncio.timeout(_DEADLINE_S), danubius.connect(self._broker.url) as client:
            await client.create_topic(_TOPIC, durability="synced")
            say("topic", f"{_TOPIC}: reliable, synced before every acknowledgement")
            async with client.producer(_TOPIC, name="demo") as producer:
                started = time.monotonic()
                await self._publish(producer, range(half))
                self._tell_published(half, time.monotonic() - started)
                started = time.monotonic()
                async with asyncio.TaskGroup() as group:
                    readers = self._start_consumers(group, client)
                    await self._publish(producer, range(half, self._count), kill_at=half * 3 // 2)
                    for tally in self._tallies:
                        await tally.complete.wait()
                    self._tell_consumed(time.monotonic() - started)
                    for reader in readers:
                        reader.cancel()
            return [*await self._check_log(client), *map(self._check_tally, self._tallies)]

    def _start_consumers(
        self, group: asyncio.TaskGroup, client: danubius.Client
    ) -> list[asyncio.Task[None]]:
        return [
            group.create_task(self._consume(client, tally, index))
            for tally in self._tallies
            for index in range(_CONSUMERS[tally.kind])
        ]

    async def _publish(
        self, producer: danubius.Producer, sequences: range, kill_at: int | None = None
    ) -> None:
        """Send these messages; kill the broker while the chunk that reaches `kill_at` is under way."""
        async with asyncio.TaskGroup() as group:
            with meter("publishing", len(sequences)) as progress:
                for first in sequences[::_CHUNK]:
                    count = min(_CHUNK, sequences.stop - first)
                    keys = [
                        b"customer-%d" % (number % _KEYS) for number in range(first, first + count)
                    ]
                    if kill_at is not None and first >= kill_at and not self._killed_at:
                        self._killed_at = self._acknowledged
                        group.create_task(self._kill_and_restart())
                    await producer.send_many(make(first, count, _SIZE), keys=keys)
                    self._acknowledged += count
                    progress.advance(count)

    async def _kill_and_restart(self) -> None:
        started = time.monotonic()
        await asyncio.to_thread(self._broker.kill)
        await asyncio.to_thread(self._broker.start)
        self._down_s = time.monotonic() - started

    async def _consume(self, client: danubius.Client, tally: Tally, index: int) -> None:
        name = f"{tally.kind}-{index}"
        async with client.consumer(
            _TOPIC, subscription=f"demo-{tally.kind}", type=tally.kind, start="earliest", name=name
        ) as consumer:
            while True:
                batch = await consumer.receive_batch()
                tally.add(batch.payloads, name)
                await consumer.ack(batch)

    def _tell_published(self, count: int, seconds: float) -> None:
        say(
            "publish",
            f"{human_count(count)} messages of {_SIZE} B with keys in {seconds:.2f} s:"
            f" {human_count(count / seconds)} a second, all on disk",
        )

    def _tell_consumed(self, seconds: float) -> None:
        say(
            "kill -9",
            f"with {human_count(self._killed_at)} acknowledged, while"
            f" {sum(_CONSUMERS.values())} consumers read; recovered in {self._down_s:.2f} s",
        )
        deliveries = sum(tally.distinct + tally.again for tally in self._tallies)
        say(
            "consume",
            f"{human_count(deliveries)} deliveries to {len(self._tallies)} subscriptions"
            f" in {seconds:.1f} s, while {human_count(self._count // 2)} more were published",
        )

    async def _check_log(self, client: danubius.Client) -> list[Check]:
        """Read the topic from the start: what was acknowledged is there, once, in order."""
        held, offset = True, 0
        async with client.reader(_TOPIC, start=0, stop_at_end=True) as reader:
            while batch := await reader.read_batch():
                expected = make(offset, len(batch), _SIZE)
                held = held and batch.payloads == expected and batch.offsets[0] == offset
                offset += len(batch)
        held = held and offset == self._acknowledged == self._count
        text = (
            f"{human_count(offset)} of {human_count(self._acknowledged)} acknowledged"
            " messages, each once, in order, offsets without a gap"
        )
        return [Check("stored", text, held)]

    def _check_tally(self, tally: Tally) -> Check:
        order = {"exclusive": "in order", "failover": "in order", "key-shared": "in order per key"}
        is_ordered = tally.kind == "shared" or tally.disorder == 0
        is_spread = tally.kind not in {"shared", "key-shared"} or len(tally.consumers) > 1
        text = (
            f"{human_count(tally.distinct)} of {human_count(self._count)} received"
            f"{', ' + order[tally.kind] if tally.kind in order else ''},"
            f" by {len(tally.consumers)} of {_CONSUMERS[tally.kind]} consumers"
            f" ({human_count(tally.again)} again after the crash)"
        )
        is_held = tally.distinct == self._count and is_ordered and is_spread
        return Check(tally.kind, text, is_held)


def run_engine(count: int) -> list[Check]:
    """With a broker of its own on free ports and in a temporary directory; nothing is left behind."""
    with tempfile.TemporaryDirectory(prefix="danubius-demo-") as folder:
        broker = BrokerProcess(Path(folder) / "data")
        with broker:
            say("broker", f"{broker.url}, ready in {broker.ready_after_s:.2f} s")
            try:
                return run_async(Demo(broker, count).run)
            except TimeoutError:
                raise click.ClickException(
                    f"the demo did not finish in {_DEADLINE_S:.0f} s"
                ) from None
