"""`danubius demo`: a million durable messages, four kinds of subscription, a kill -9, nothing lost.

Everything is checked against what was acknowledged: the demo ends with 0 only if every check held.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

import danubius
from danubius.cli.bench.payloads import make
from danubius.cli.broker_process import BrokerProcess
from danubius.cli.event_loop import run_async
from danubius.cli.options import count as count_of
from danubius.cli.output import human_count, meter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.client.options import SubscriptionTypeName

_TOPIC = "/demo/orders"
_SIZE = 100
_CHUNK = 20_000
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
        seen, newest, lanes = self._seen, self._newest, len(self._newest)
        for sequence in memoryview(b"".join([payload[:8] for payload in payloads])).cast("Q"):
            if seen[sequence]:
                self.again += 1
                continue
            seen[sequence] = 1
            self.distinct += 1
            lane = sequence % lanes
            self.disorder += sequence < newest[lane]
            newest[lane] = sequence
        self.consumers.add(consumer)
        if self.distinct == self.count:
            self.complete.set()


class Check:
    """One promise, and whether it held."""

    def __init__(self, text: str, held: bool) -> None:
        self.text = text
        self.held = held


class Demo:
    """One run against one broker process."""

    def __init__(self, broker: BrokerProcess, count: int) -> None:
        self._broker = broker
        self._count = count
        self._tallies = [Tally(kind, count) for kind in _CONSUMERS]
        self._acknowledged = 0
        self._killed_at = 0
        self._down_s = 0.0
        self._publish_s = 0.0

    async def run(self) -> list[Check]:
        async with asyncio.timeout(_DEADLINE_S), danubius.connect(self._broker.url) as client:
            await client.create_topic(_TOPIC, durability="synced")
            _say(f"topic       {_TOPIC}: reliable, fdatasync before every acknowledgement")
            started = time.monotonic()
            async with asyncio.TaskGroup() as group:
                readers = [
                    group.create_task(self._consume(client, tally, index))
                    for tally in self._tallies
                    for index in range(_CONSUMERS[tally.kind])
                ]
                async with client.producer(_TOPIC, name="demo") as producer:
                    await self._publish(producer)
                for tally in self._tallies:
                    await tally.complete.wait()
                seconds = time.monotonic() - started
                for reader in readers:
                    reader.cancel()
            self._tell(seconds)
            return [*await self._check_log(client), *map(self._check_tally, self._tallies)]

    async def _publish(self, producer: danubius.Producer) -> None:
        started = time.monotonic()
        half = self._count // 2
        keys = [b"customer-%d" % (index % _KEYS) for index in range(_CHUNK)]
        async with asyncio.TaskGroup() as group:
            with meter("publishing", self._count) as progress:
                for first in range(0, self._count, _CHUNK):
                    count = min(_CHUNK, self._count - first)
                    if not self._killed_at and first >= half:
                        self._killed_at = self._acknowledged
                        group.create_task(self._kill_and_restart())
                        await asyncio.sleep(0)
                    await producer.send_many(make(first, count, _SIZE), keys=keys[:count])
                    self._acknowledged += count
                    progress.advance(count)
        self._publish_s = time.monotonic() - started

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

    def _tell(self, seconds: float) -> None:
        rate = human_count(self._count / self._publish_s)
        _say(
            f"publish     {human_count(self._count)} messages of {_SIZE} B in"
            f" {self._publish_s:.1f} s, the crash included: {rate} a second"
        )
        _say(
            f"kill -9     with {human_count(self._killed_at)} acknowledged;"
            f" killed, restarted and recovered in {self._down_s:.2f} s"
        )
        deliveries = sum(tally.distinct + tally.again for tally in self._tallies)
        _say(
            f"consume     {human_count(deliveries)} deliveries to {len(self._tallies)}"
            f" subscriptions in {seconds:.1f} s: {human_count(deliveries / seconds)} a second"
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
            f"stored      {human_count(offset)} of {human_count(self._acknowledged)} acknowledged"
            " messages, each once, in order, offsets without a gap"
        )
        return [Check(text, held)]

    def _check_tally(self, tally: Tally) -> Check:
        order = {"exclusive": "in order", "failover": "in order", "key-shared": "in order per key"}
        is_ordered = tally.kind == "shared" or tally.disorder == 0
        is_spread = tally.kind not in {"shared", "key-shared"} or len(tally.consumers) > 1
        text = (
            f"{tally.kind:<11} {human_count(tally.distinct)} of {human_count(self._count)} received"
            f"{', ' + order[tally.kind] if tally.kind in order else ''},"
            f" by {len(tally.consumers)} of {_CONSUMERS[tally.kind]} consumers"
            f" ({human_count(tally.again)} again after the crash)"
        )
        return Check(text, tally.distinct == self._count and is_ordered and is_spread)


@click.command()
@click.option(
    "--count", type=count_of, default="1M", show_default=True, metavar="N", help="Messages to send."
)
def demo(count: int) -> int:
    """Show it working: a broker of its own, a million messages, a kill -9, nothing lost.

    Uses free ports and a temporary directory, and leaves nothing behind.
    """
    if count < 2 * _CHUNK:
        raise click.BadParameter(f"at least {2 * _CHUNK}", param_hint="--count")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="danubius-demo-") as folder:
        broker = BrokerProcess(Path(folder) / "data")
        with broker:
            _say(f"broker      {broker.url}, ready in {broker.ready_after_s:.2f} s")
            try:
                checks = run_async(Demo(broker, count).run())
            except TimeoutError:
                raise click.ClickException(
                    f"the demo did not finish in {_DEADLINE_S:.0f} s"
                ) from None
    _say("")
    for check in checks:
        _say(f"{'ok  ' if check.held else 'LOST'}  {check.text}")
    all_held = all(check.held for check in checks)
    verdict = "nothing acknowledged was lost" if all_held else "a promise was broken"
    _say(f"\n{verdict}; {time.monotonic() - started:.1f} s in all")
    return 0 if all_held else 1


def _say(line: str) -> None:
    click.echo(line)
