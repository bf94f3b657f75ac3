"""Delayed messages whose time comes while the disk takes nothing: each comes once, when it can."""

from __future__ import annotations

import asyncio
import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING

import danubius
from danubius.model.policy import Policies
from danubius.model.topic import TopicSpec
from e2e.traffic import eventually, nothing_comes
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

DELAY_S = 3.0


@contextmanager
def failing_writes(broker: BrokerProcess) -> Generator[None]:
    """Let the kernel refuse every write of the broker beyond the first bytes of any file."""
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (4_096, hard))
    try:
        yield
    finally:
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard, hard))


async def test_a_release_waits_for_the_disk(start_broker: StartBroker) -> None:
    broker = start_broker()
    topic = "/default/later"
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        sent = {b"%d" % number for number in range(20)}
        await producer.send_many([bytes(1000)] * 20)
        loop = asyncio.get_running_loop()
        await producer.send_many(sorted(sent), deliver_after=DELAY_S)
        late_s = loop.time() + 3 * DELAY_S
        with failing_writes(broker):
            # On a very slow machine the messages may be released before: then this shows nothing, and fails nothing.
            await eventually(
                lambda: "delayed messages wait on" in broker.log() or loop.time() > late_s,
                "a release that failed",
            )
        came: list[bytes] = []
        while len(came) < 40:
            message = await consumer.receive(timeout=HANG_S)
            came.append(message.payload)
            await consumer.ack(message)
        assert sorted(payload for payload in came if payload != bytes(1000)) == sorted(sent)
        await nothing_comes(consumer)


async def test_a_rate_slows_down_what_is_scheduled_and_loses_nothing(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        spec = TopicSpec(policies=Policies(publish_messages_per_s=200))
        await client.admin.create_topic(topic, spec)
        async with (
            client.producer(topic, batch_records=10) as producer,
            client.consumer(topic, subscription="s", start="earliest") as consumer,
        ):
            sent = [b"%d" % number for number in range(500)]
            await producer.send_many(sent, deliver_after=0.5)
            came: list[bytes] = []
            while len(came) < 500:
                batch = await consumer.receive_batch(timeout=HANG_S)
                came += batch.payloads
                await consumer.ack(batch)
            assert sorted(came) == sorted(sent)
